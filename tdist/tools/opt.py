"""`tdist-opt`: read IR at any stage, verify it, run passes by name, print it; as mlir-opt does."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import ParseError, VerifyException

from tdist.errors import KernelError, TdistError, UsageError
from tdist.ir.context import make_context
from tdist.passes import DEFAULT_PIPELINE, PASSES, CompileReport, run_pipeline

_ALIAS = re.compile(r"^(#loc\d*) = (loc\(.*\))\s*$", re.MULTILINE)
_BARE_WHILE = re.compile(r"\bscf\.while : \(")  # MLIR leaves out empty parentheses that xDSL wants
_USE = re.compile(r"#loc\d*\b")


def inline_locations(text: str) -> str:
    """Put the locations that `#loc` lines name where they are used; xDSL's parser wants no alias after its use."""
    aliases = dict(_ALIAS.findall(text))
    body = _ALIAS.sub("", text)
    resolved: dict[str, str] = {}

    def resolve(name: str) -> str:
        if name not in resolved:
            resolved[name] = "unknown"  # what an alias of itself amounts to
            inner = aliases.get(name, "loc(unknown)")[len("loc(") : -1]
            resolved[name] = _USE.sub(lambda match: resolve(match[0]), inner)
        return resolved[name]

    return re.sub(r"(?<=loc\()#loc\d*(?=\))|(?<=[(\[ ])#loc\d*(?=[)\], ])", lambda match: resolve(match[0]), body)


def parse(text: str, name: str) -> ModuleOp:
    """Parse and verify a module in custom or generic form, with or without `#loc` aliases.

    Raises:
        KernelError: It does not parse, or it does not verify; the message shows where.
    """
    try:
        readable = _BARE_WHILE.sub("scf.while () : (", inline_locations(text))
        module = Parser(make_context(), readable, name).parse_module()
        module.verify()
    except ParseError as error:
        raise KernelError(f"cannot parse {name}:\n{error}") from error
    except VerifyException as error:
        raise KernelError(f"{name} does not verify: {error}") from error
    return module


def _list_passes(context: click.Context, _: click.Parameter, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    for name, cls in PASSES.items():
        summary = (cls.__doc__ or "").strip().splitlines()[0]
        click.echo(f"{name:20} {summary}")
    context.exit()


def _names(pipeline: str | None, default: bool) -> list[str]:
    if default:
        return list(DEFAULT_PIPELINE)
    names = [name.strip() for name in (pipeline or "").split(",") if name.strip()]
    unknown = [name for name in names if name not in PASSES]
    if unknown:
        raise UsageError(f"no pass is called '{unknown[0]}'; --list-passes shows those there are")
    return names


def _show(report: CompileReport) -> None:
    for lost in report.lost:
        click.echo(f"lost: {lost.op_name} at {lost.loc or 'unknown'}: {lost.why}", err=True)
    for merged in report.merged:
        kept, dropped = merged.kept or "unknown", merged.dropped or "unknown"
        click.echo(f"merged: {merged.op_name} at {dropped} is the one at {kept}", err=True)


def _read(source: str) -> str:
    if source == "-":
        return sys.stdin.read()
    try:
        return Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {source}: {error}") from error


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", default="-")
@click.option("-p", "--passes", "pipeline", metavar="A,B,…", help="Passes to run, in this order.")
@click.option("--default-pipeline", is_flag=True, help="Run what a platform runs.")
@click.option("--generic", is_flag=True, help="Print in MLIR's generic form.")
@click.option("--locations", is_flag=True, help="Print source locations.")
@click.option("--report", is_flag=True, help="Say on standard error which waits and loads were lost or merged.")
@click.option("--list-passes", is_flag=True, is_eager=True, expose_value=False, callback=_list_passes)
def command(
    source: str, pipeline: str | None, default_pipeline: bool, generic: bool, locations: bool, report: bool
) -> None:
    """Read a module from SOURCE (a file, or - for standard input), verify it, run passes, verify again and print it.

    Exit code 1: the module is wrong. 2: wrong use.
    """
    if pipeline and default_pipeline:
        raise UsageError("-p and --default-pipeline exclude each other")
    names = _names(pipeline, default_pipeline)
    module = parse(_read(source), "standard input" if source == "-" else source)
    found = run_pipeline(module, names)
    try:
        module.verify()
    except VerifyException as error:
        raise KernelError(f"after {', '.join(names)} the module does not verify: {error}") from error
    Printer(stream=sys.stdout, print_generic_format=generic, print_debuginfo=locations).print_op(module)
    click.echo()
    if report:
        _show(found)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: our errors become a line on standard error and their exit code."""
    try:
        command.main(args=None if arguments is None else list(arguments), prog_name="tdist-opt", standalone_mode=False)
    except TdistError as error:
        click.echo(f"tdist-opt: {error}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)


if __name__ == "__main__":
    main()
