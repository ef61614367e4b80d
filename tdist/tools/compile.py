"""`tdist compile`: a kernel of a user's file through the vendor's compiler, without a card and without a launch."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tdist.errors import KernelError, UsageError
from tdist.frontend.kernel_ir import KernelIR
from tdist.platforms.ascend import toolchain
from tdist.platforms.ascend.gate import DEFAULT_TARGET, SETTINGS, check_keep_ir, check_targets
from tdist.tools.files import check_writable, write_json
from tdist.tools.output import Report
from tdist.user_file import execute

if TYPE_CHECKING:
    from types import ModuleType

    from tdist.platforms.ascend.gate import GateKernel, GateReport, GateResult

_EPILOG = """\b
Exit status: 0 clean, 1 a kernel is refused or has findings, 2 usage, 3 environment.
Examples:
  tdist compile kernels.py::push --sig "x_ptr=*fp16,sig_ptr=*i64,n=i32" --constexpr BLOCK=128
  tdist compile kernels.py::push kernels.py::pull --sig x_ptr=*fp32 --sig pull.n=i64 --target Ascend910B3,Ascend910B2
"""


@click.command("compile", epilog=_EPILOG)
@click.argument("kernels", nargs=-1, required=True, metavar="FILE::KERNEL...")
@click.option(
    "--sig",
    "signatures",
    multiple=True,
    metavar="NAME=TYPE,…",
    help="Types of parameters: *fp16, *bf16, *fp32, *i32, *i64, …, i32, i64, fp32. KERNEL.NAME=TYPE is for one "
    "kernel. A parameter annotated with a type (n: tl.int64) needs none.",
)
@click.option(
    "--constexpr",
    "constexprs",
    multiple=True,
    metavar="NAME=VALUE",
    help="A value to compile in: a Python literal or a type such as tl.float16. KERNEL.NAME=VALUE is for one kernel.",
)
@click.option(
    "--option", "options", multiple=True, metavar="NAME=VALUE", help="A launch option, such as multibuffer=False."
)
@click.option("--target", "targets", multiple=True, metavar="CHIP,…", help=f"Chips; {DEFAULT_TARGET} by default.")
@click.option(
    "--barrier-all-sync",
    type=click.Choice(tuple(SETTINGS)),
    default="both",
    show_default=True,
    help="The vendor's inject-barrier-all-sync.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), metavar="FILE", help="Write the report as JSON.")
@click.option(
    "--keep-ir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Keep the text of every stage, in a folder for each kernel, target and setting.",
)
def compile_command(
    kernels: Sequence[str],
    signatures: Sequence[str],
    constexprs: Sequence[str],
    options: Sequence[str],
    targets: Sequence[str],
    barrier_all_sync: str,
    json_path: Path | None,
    keep_ir: Path | None,
) -> int:
    """Compile kernels with the vendor's compiler and check what comes out.

    FILE::KERNEL is a function under @triton.jit. Nothing is launched, and no card is needed.
    """
    chips = parse_targets(targets)
    check_targets(chips)
    if json_path is not None:
        check_writable("--json", json_path)
    if toolchain.where_to_run() is not None:
        return toolchain.run_there("tdist.tools.main", sys.argv[1:])
    check_keep_ir(keep_ir)
    request = Request.of(signatures, constexprs, options)
    loaded = [request.kernel(spec) for spec in kernels]
    request.check_all_used()
    out = Report(sys.stdout)
    report = run_gate(loaded, chips, SETTINGS[barrier_all_sync], keep_ir, out)
    if json_path is not None:
        from tdist.platforms.ascend.gate_report import gate_json

        write_json(json_path, gate_json(report))
    out.close()
    return report.exit_code


def parse_targets(given: Sequence[str]) -> tuple[str, ...]:
    """`("A,B", "C")` → the three names, each once; the default where none is given."""
    names = [name.strip() for text in given for name in text.split(",") if name.strip()]
    return tuple(dict.fromkeys(names)) or (DEFAULT_TARGET,)


def run_gate(
    kernels: Sequence[GateKernel],
    targets: Sequence[str],
    settings: Sequence[bool],
    keep_ir: Path | None,
    out: Report,
) -> GateReport:
    """The gate, each kernel printed as soon as it is through, the conclusion at the end."""
    from tdist.platforms.ascend.gate import gate
    from tdist.platforms.ascend.gate_report import render_conclusion, render_kernel

    heard: list[GateResult] = []

    def hear(result: GateResult) -> None:
        heard.append(result)
        if len(heard) == len(targets) * len(settings):
            out.print(lambda console: render_kernel(result.kernel, list(heard), console))
            heard.clear()

    report = gate(kernels, targets, settings, keep_ir=keep_ir, observer=hear)
    out.print(lambda console: render_conclusion(report, console))
    return report


class Request:
    """What the command line says of kernels' parameters. Names are `NAME`, or `KERNEL.NAME` for one kernel alone."""

    def __init__(self, types: Mapping[str, str], constexprs: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        self._types = dict(types)
        self._constexprs = dict(constexprs)
        self._options = dict(options)
        self._used: set[str] = set()
        self._parameters: dict[str, list[str]] = {}

    @classmethod
    def of(cls, signatures: Sequence[str], constexprs: Sequence[str], options: Sequence[str]) -> Request:
        """Parse the texts of `--sig`, `--constexpr` and `--option`.

        Raises: UsageError that names the option and what it takes.
        """
        pairs = [item for text in signatures for item in text.split(",") if item.strip()]
        return cls(
            _named("--sig", pairs, str),
            _named("--constexpr", constexprs, lambda text: _value("--constexpr", text)),
            _named("--option", options, lambda text: _value("--option", text)),
        )

    def kernel(self, spec: str) -> GateKernel:
        """The kernel that `FILE::KERNEL` names, compiled to TTIR with these types and values, or why it is refused.

        Raises:
            UsageError: no such kernel, or a parameter with neither a type nor a value.
        """
        from tdist.frontend.triton_ascend import compile_source
        from tdist.platforms.ascend.gate import GateKernel

        function, config = load_kernel(spec)
        name = function.__name__
        self._parameters[name] = list(function.arg_names)
        constexprs = {**config, **self._of_kernel(name, self._constexprs)}
        types = self._of_kernel(name, self._types)
        signature = signature_of(function, types, constexprs)
        options = {**self._options, **(getattr(function, "bishengir_option", None) or {})}
        try:
            return GateKernel(compile_source(function, signature, constexprs), options)
        except KernelError as error:
            return GateKernel(KernelIR(name, "", ()), options, refused=str(error))

    def _of_kernel(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """What is meant for the kernel `name`: plain names that it has as parameters, and qualified ones."""
        chosen = {}
        for key, value in given.items():
            kernel, dot, parameter = key.rpartition(".")
            if (dot and kernel == name) or (not dot and key in self._parameters[name]):
                self._used.add(key)
                if dot or f"{name}.{key}" not in given:
                    chosen[parameter] = value
        return chosen

    def check_all_used(self) -> None:
        """Refuse names that no kernel has: a misspelt one would do nothing.

        Raises: UsageError.
        """
        for key in (*self._types, *self._constexprs):
            if key not in self._used:
                have = "; ".join(f"{name}({', '.join(params)})" for name, params in self._parameters.items())
                raise UsageError(f"no kernel has a parameter `{key}`: {have}")


def load_kernel(spec: str) -> tuple[Any, dict[str, Any]]:
    """The jit function that `FILE::KERNEL` names, and what its first autotuning configuration sets.

    Raises: UsageError.
    """
    path, separator, name = spec.rpartition("::")
    if not separator:
        example = f"{spec}::NAME" if spec.endswith(".py") else "FILE.py::NAME"
        raise UsageError(f"which kernel? {spec!r} names none: write it as {example}{_hint(spec)}")
    module = execute(Path(path))
    found: Any = getattr(module, name, None)
    config: dict[str, Any] = {}
    while hasattr(found, "fn") and not _is_kernel(found):
        configs = getattr(found, "configs", None)
        config = {**(configs[0].all_kwargs() if configs else {}), **config}
        found = found.fn
    if _is_kernel(found):
        return found, {key: value for key, value in config.items() if key in found.arg_names}
    names = ", ".join(_kernels_of(module)) or "none"
    what = "has no" if found is None else "has, but not as a kernel under @triton.jit,"
    raise UsageError(f"{path} {what} {name!r}; its kernels: {names}")


def _hint(spec: str) -> str:
    path = Path(spec)
    names = ", ".join(_kernels_of(execute(path))) if spec.endswith(".py") and path.is_file() else ""
    return f" (its kernels: {names})" if names else ""


def _is_kernel(value: object) -> bool:
    from triton.runtime import JITFunction

    return isinstance(value, JITFunction)


def _kernels_of(module: ModuleType) -> list[str]:
    """Kernels that the file itself defines."""
    return sorted(name for name, value in vars(module).items() if _is_kernel(_innermost(value)))


def _innermost(value: object) -> object:
    """What is under any number of decorators like `@autotune` and `@heuristics`."""
    seen: set[int] = set()
    while not _is_kernel(value) and id(value) not in seen:
        seen.add(id(value))
        value = vars(value).get("fn", value) if hasattr(value, "__dict__") else value
    return value


def signature_of(function: Any, types: Mapping[str, str], constexprs: Mapping[str, Any]) -> dict[str, str]:
    """Parameter → Triton type, for those that stay parameters: as given, else as annotated.

    Raises: UsageError that lists everything that is missing.
    """
    signature: dict[str, str] = {}
    without_type, without_value = [], []
    for param in function.params:
        if param.name in constexprs:
            _refuse_both(function, param.name, types)
        elif param.is_constexpr:
            if not param.has_default:
                without_value.append(param.name)
        elif param.name in types:
            signature[param.name] = types[param.name]
        elif str(param.annotation_type):
            signature[param.name] = str(param.annotation_type)
        elif not param.has_default:
            without_type.append(param.name)
    _refuse_missing(function, without_type, without_value)
    return signature


def _refuse_both(function: Any, name: str, types: Mapping[str, str]) -> None:
    if name in types:
        raise UsageError(
            f"kernel `{function.__name__}`: parameter `{name}` has both a type (--sig) and a value (--constexpr)"
        )


def _likely_type(name: str) -> str:
    """An example for a parameter that its name calls a pointer, or does not."""
    return "*fp16" if "ptr" in name.lower() else "i32"


def _refuse_missing(function: Any, without_type: Sequence[str], without_value: Sequence[str]) -> None:
    needs = []
    if without_type:
        types = ",".join(f"{name}={_likely_type(name)}" for name in without_type)
        needs.append(f'a type for {", ".join(without_type)}: --sig "{types}"')
    if without_value:
        values = " ".join(f"--constexpr {name}=128" for name in without_value)
        needs.append(f"a value for {', '.join(without_value)}: {values}")
    if needs:
        raise UsageError(f"kernel `{function.__name__}` needs {'; and '.join(needs)} (with your own types and values)")


def _named(option: str, items: Sequence[str], parse: Any) -> dict[str, Any]:
    """`NAME=TEXT` items as a dict."""
    named: dict[str, Any] = {}
    for item in items:
        name, separator, text = (part.strip() for part in item.partition("="))
        if not separator or not text or not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(f"{option} takes NAME=VALUE, {item!r} is none")
        if name in named:
            raise UsageError(f"{option} names {name} twice")
        named[name] = parse(text)
    return named


def _value(option: str, text: str) -> Any:
    """A Python literal, or a type of Triton's language."""
    if text.startswith("tl.") and text.count(".") == 1:
        import triton.language as tl

        value = getattr(tl, text.removeprefix("tl."), None)
        if isinstance(value, tl.dtype):
            return value
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise UsageError(
            f"{option} {text!r} is no Python literal (128, 0.5, True, None, '\"text\"') and no type such as tl.float16"
        ) from None
