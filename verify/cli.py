"""`tdist-verify`: exit 0 verified, 1 verification failed, 2 usage, 3 environment."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tdist import env
from tdist.errors import EnvironmentUnfit, TdistError, UsageError
from tdist.platforms.sim import collection
from tdist.platforms.sim.process.boot import Boot
from tdist.tools.ending import unwinds_when_told_to_end
from tdist.tools.files import check_writable, drop_stdout, print_anything, write_json
from tdist.verify.options import Options, dashed
from tdist.verify.replay.aftermath import Aftermath
from tdist.verify.tracing import Tracing

EXIT_USAGE, EXIT_ENVIRONMENT = 2, 3

_EPILOG = """\b
Exit status: 0 verified, 1 verification failed, 2 usage, 3 environment.
Words of the report (more in docs/operators.md):
  exact, poison, float  steps of a mode: integers that have to be equal; other bytes in memory that nobody
                        wrote; normal inputs under the policy
  search                integers of a small shape under many schedules and situations (--plan lists them)
  weak, drained pipes   loads and stores may be in flight until a fence; or every operation is finished before the
                        next, as with inject-barrier-all-sync
  worst error/allowed   largest error in units of what is allowed there; rounding to the output's type alone
                        may bring it close to 1, and up to 1 passes
  MERE, MARE            mean and maximum relative error as CANN defines them; they do not decide
  bound                 |y-g| within what float32 sums in any order may differ by, from |A||B| and the terms
  bias                  RMSE at most twice that of torch in the same precision, mean error no larger than chance
  gamma                 the deterministic bound γ: an element beyond it is wrong on every machine
  allclose              |y-g| <= atol + rtol |g|
Examples:
  tdist-verify ag_gemm --dtype fp16
  tdist-verify my_kernels.py::my_op --nranks 8 --shape m=1000,n=300,k=200 --profile ascend
  tdist-verify --replay tdist-replays/my_op-race-1f2e3d4c.json --shrink --repro ticket
  tdist-verify ag_gemm --compile-for Ascend910B3,Ascend910B2 --barrier-all-sync true
"""


def _click_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add one click option for each field of `Options`, in their order."""
    for option in reversed(fields(Options)[1:]):
        command = _click_option(option)(command)
    return command


def _click_option(option: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    about = dict(option.metadata)
    text, default = about["help"], getattr(Options(), option.name)
    if about.get("flag"):
        name = dashed(option.name)
        return click.option(f"--{name}/--no-{name}", default=default, help=text, show_default=True)
    if "choices" in about:
        kind: Any = click.Choice(about["choices"])
    elif "parse" in about:
        kind, default = str, None
    else:
        kind = {"int": int, "str": str}.get(str(option.type), float)
    show = default not in (None, "")
    repeat = bool(about.get("repeat"))
    return click.option(
        f"--{dashed(option.name)}",
        type=kind,
        default=default,
        multiple=repeat,
        metavar=about.get("metavar"),
        help=text,
        show_default=show,
    )


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("operator", required=False, metavar="OP")
@_click_options
@click.option("--json", "json_path", type=click.Path(path_type=Path), metavar="FILE", help="Write the report as JSON.")
@click.option(
    "--keep-ir", type=click.Path(path_type=Path), metavar="DIR", help="With --compile-for: keep every stage's text."
)
@click.option(
    "--replay",
    "replay_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Run what a failing run left in FILE, event for event; OP only where its file lies elsewhere.",
)
@click.option("--shrink", is_flag=True, help="Make a failing run smaller while its defect remains.")
@click.option(
    "--repro", type=click.Path(path_type=Path), metavar="DIR", help="Write a failing run as a script without tdist."
)
@click.option(
    "--replays",
    type=click.Path(path_type=Path),
    metavar="DIR",
    default="tdist-replays",
    show_default=True,
    help="Where each failing run leaves its file; made when there is one.",
)
@click.option(
    "--trace",
    "trace_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write what the exact step of the first mode did, for Perfetto or chrome://tracing.",
)
@click.option(
    "--trace-element",
    "trace_elements",
    multiple=True,
    metavar="OUT[i,j]",
    help="Who wrote this element, through copies; OUT[i,j]@RANK@LAUNCH. May be given again.",
)
@click.option(
    "--protocol-map",
    "map_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw signals, writers, waiters and epochs of that step as SVG.",
)
@click.option("--mutate", is_flag=True, help="Plant faults into the kernels and tell which ones the runs catch.")
@click.option("--mutate-kinds", metavar="drop-wait,…", help="With --mutate: only these kinds; see --list.")
@click.option("--plan", "plan_only", is_flag=True, help="Print every run that these options make, and exit.")
@click.option(
    "--list", "list_only", is_flag=True, help="List built-in operators, schedulers, situations and policies, and exit."
)
@click.version_option(package_name="tdist", prog_name="tdist-verify")
def command(
    operator: str | None,
    json_path: Path | None,
    keep_ir: Path | None,
    list_only: bool,
    plan_only: bool,
    replay_path: Path | None,
    shrink: bool,
    repro: Path | None,
    replays: Path,
    trace_path: Path | None,
    trace_elements: tuple[str, ...],
    map_path: Path | None,
    mutate: bool,
    mutate_kinds: str | None,
    **given: Any,
) -> None:
    """Verify OP on simulated ranks against its torch.distributed golden.

    OP is a built-in operator (see --list) or path/to/file.py::name.
    """
    with _told_without_traceback():
        env.check_environment()
        if list_only:
            _print_list()
            return
        if operator is None and replay_path is None:
            raise UsageError("which operator? Give a name (see --list) or path/to/file.py::name")
        if plan_only:
            if operator is None:
                raise UsageError("--plan shows the runs of an operator, and --replay is one run: name the operator")
            _print_plan(_options(operator or "", given))
            return
        aftermath = Aftermath(replay_path, shrink, repro, replays)
        aftermath.check(_given_on_the_command_line([*given, "keep_ir"]))
        tracing = Tracing(trace_path, trace_elements, map_path)
        tracing.check(json_path)
        if mutate or mutate_kinds is not None:
            from tdist.verify.mutation.command import mutate_command

            others = {"--replay": replay_path, "--repro": repro, "--trace": trace_path, "--keep-ir": keep_ir}
            others |= {
                "--protocol-map": map_path,
                "--trace-element": trace_elements or None,
                "--shrink": shrink or None,
            }
            given_too = [name for name, value in others.items() if value is not None]
            sys.exit(mutate_command(_options(operator or "", given), mutate, mutate_kinds, json_path, given_too))
        if replay_path is not None:
            from tdist.verify.replay.command import replay_command

            sys.exit(replay_command(aftermath, operator, json_path, tracing))
        sys.exit(_verify(_options(operator or "", given), json_path, keep_ir, aftermath, tracing))


def _given_on_the_command_line(names: Iterable[str]) -> list[str]:
    """Those of the options that somebody typed."""
    source = click.get_current_context().get_parameter_source
    return [f"--{dashed(name)}" for name in names if source(name) is ParameterSource.COMMANDLINE]


def _options(operator: str, given: dict[str, Any]) -> Options:
    parsers = {option.name: option.metadata["parse"] for option in fields(Options) if "parse" in option.metadata}
    texts = {name: given[name] for name in parsers if given[name] is not None}
    parsed = {name: parsers[name](text) for name, text in texts.items()}
    plain = {name: value for name, value in given.items() if name not in parsers}
    options = Options(operator, **plain, **parsed)
    options.check()
    return options


def _verify(
    options: Options, json_path: Path | None, keep_ir: Path | None, aftermath: Aftermath, tracing: Tracing
) -> int:
    """Run and report. What cannot be written costs neither the other output nor the verdict."""
    if json_path is not None:
        check_writable("--json", json_path)
    if keep_ir is not None and not options.compile_for:
        raise UsageError("--keep-ir keeps what the vendor's compiler makes: it needs --compile-for CHIP")
    if options.compile_for:
        from tdist.platforms.ascend import gate, toolchain

        if toolchain.where_to_run() is not None:
            return toolchain.run_there("tdist.verify.cli", sys.argv[1:])
        gate.check_keep_ir(keep_ir)
    with Boot() as boot:  # imports while this process does
        from tdist.verify.loader import load_operator
        from tdist.verify.progress import LiveReport
        from tdist.verify.report import report_json
        from tdist.verify.run import verify

        operator = load_operator(options.operator)
        collection.loaded()
        tracing.check_elements(operator, options.nranks, options.launches)
        with LiveReport(sys.stdout, drop_stdout) as live:
            report = verify(operator, options, boot=boot, observer=live, keep_ir=keep_ir, tracing=tracing)
            try:
                live.conclude(report)
            finally:
                if json_path is not None:
                    write_json(json_path, report_json(report))
    if aftermath.concerns(report):
        from tdist.verify.replay.command import after_report

        after_report(report, operator, aftermath)
    tracing.conclude()
    return report.exit_code


def _print_plan(options: Options) -> None:
    from tdist.tools.output import report_console
    from tdist.verify.loader import load_operator
    from tdist.verify.search.plan_text import print_plan
    from tdist.verify.suppressions import suppressions_of

    operator = load_operator(options.operator)
    suppressions_of(operator, options)
    print_plan(operator, options, report_console(sys.stdout))


def _print_list() -> None:
    from tdist.mutations import KINDS as mutations
    from tdist.platforms.sim import schedulers
    from tdist.verify.loader import builtin_operators
    from tdist.verify.operator import format_shape
    from tdist.verify.policies import POLICIES
    from tdist.verify.search.situations import SITUATIONS

    for operator in builtin_operators():
        summary = (operator.host.__doc__ or "").strip().splitlines()[0]
        click.echo(f"{operator.name:12} {summary}")
        shape, sync = format_shape(operator.shape), ", ".join(operator.sync)
        click.echo(f"{'':12} shape {shape}; dtypes {', '.join(operator.dtypes)}; sync {sync}")
    click.echo("schedulers   (docs/schedules.md)")
    for about in schedulers.about():
        click.echo(f"  {about.name:12} {about.use}")
        for parameter in about.parameters:
            default = "" if parameter.default is None else f" [default: {parameter.default}]"
            click.echo(f"  {'':12} {parameter.name}={parameter.kind.__name__}: {parameter.about}{default}")
    for situation in SITUATIONS.values():
        asked = " (on request)" if situation.on_request else ""
        click.echo(f"{'situation':12} {situation.name:12} {situation.title}{asked}")
    click.echo(f"policies     {', '.join(POLICIES)}")
    click.echo(f"mutants      {', '.join(mutations)}")


@contextlib.contextmanager
def _told_without_traceback() -> Iterator[None]:
    """A user's mistake ends with one message and the exit status of whose fault it is."""
    print_anything()
    try:
        yield
    except TdistError as error:
        hint = {EXIT_USAGE: "usage error", EXIT_ENVIRONMENT: "environment"}.get(error.exit_code, "failed")
        click.echo(f"tdist-verify: {hint}: {error}", err=True)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        raise_environment(error)
    except KeyboardInterrupt:
        click.echo("tdist-verify: interrupted", err=True)
        sys.exit(130)
    except Exception:  # a defect of ours says nothing about the operator: not status 1
        click.echo(f"tdist-verify: internal error; please report it with this text\n{traceback.format_exc()}", err=True)
        sys.exit(EXIT_ENVIRONMENT)


def raise_environment(error: ModuleNotFoundError) -> None:
    """Exit as unfit environment where a package that tdist needs is missing."""
    unfit = EnvironmentUnfit(f"the package {error.name!r} is missing; install the extra: pip install 'tdist[ascend]'")
    click.echo(f"tdist-verify: environment: {unfit}", err=True)
    sys.exit(unfit.exit_code)


def main() -> None:
    """Entry point of the console script."""
    collection.start_loading()
    with unwinds_when_told_to_end():
        command(prog_name="tdist-verify")


if __name__ == "__main__":
    main()
