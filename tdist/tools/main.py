"""`tdist`: the group of commands that are not `tdist-verify` and `tdist-opt`."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator

import click

from tdist import env
from tdist.errors import TdistError
from tdist.tools.compile import compile_command
from tdist.tools.ending import unwinds_when_told_to_end
from tdist.tools.explain import explain_command
from tdist.tools.files import print_anything
from tdist.tools.lint import lint_command
from tdist.tools.toolchain import toolchain_command

EXIT_ENVIRONMENT = 3
_HINTS = {2: "usage error", 3: "environment"}


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="tdist", prog_name="tdist")
def command() -> None:
    """Check and compile kernels for an Ascend NPU on any machine, explain findings, set up what that needs."""


command.add_command(compile_command)
command.add_command(explain_command)
command.add_command(lint_command)
command.add_command(toolchain_command)


@contextlib.contextmanager
def told_without_traceback(name: str) -> Iterator[None]:
    """A user's mistake ends with one message and the exit status of whose fault it is."""
    print_anything()
    try:
        yield
    except TdistError as error:
        click.echo(f"{name}: {_HINTS.get(error.exit_code, 'failed')}: {error}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo(f"{name}: interrupted", err=True)
        sys.exit(130)
    except Exception:  # a defect of ours says nothing about the kernel: not status 1
        click.echo(f"{name}: internal error; please report it with this text\n{traceback.format_exc()}", err=True)
        sys.exit(EXIT_ENVIRONMENT)


def main() -> None:
    """Entry point of the console script."""
    with unwinds_when_told_to_end(), told_without_traceback("tdist"):
        env.check_environment()
        sys.exit(command.main(prog_name="tdist", standalone_mode=False) or 0)


if __name__ == "__main__":
    main()
