"""From what a user writes (`ag_gemm`, `path/to/file.py::my_op`) to the operator that it names."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

from tdist.errors import TdistError, UsageError
from tdist.text import did_you_mean
from tdist.user_file import execute
from tdist.verify.operator import Operator
from tdist.verify.operators import BUILTIN

PLUS = "+"
"""Between the two names of a pair."""


def load_operator(spec: str) -> Operator:
    """The operator that `spec` names; `OP1+OP2` is a pair of them (`tdist.verify.search.pairs`).

    A file is executed with `triton_dist`, `shmem` and `triton.language.extra.cann` importable, once a process and
    version of the file; rank processes load it for themselves.

    Raises: UsageError for an unknown name, a file that does not exist or fails, a name that is no operator;
        EnvironmentUnfit if the built-in's Triton front end is missing.
    """
    parts = _parts(spec)
    if len(parts) > 1:
        from tdist.verify.search.pairs import pair

        return pair(*map(load_operator, parts))
    path, separator, name = spec.rpartition("::")
    if separator:
        return _from_file(Path(path), name)
    if spec.endswith(".py"):
        raise UsageError(f"{spec} is a file: say which operator of it, as {spec}::NAME{_operators_hint(Path(spec))}")
    if spec not in BUILTIN:
        known = tuple(BUILTIN)
        raise UsageError(
            f"unknown operator {spec!r}{did_you_mean(spec, known)}; built in are {', '.join(known)}, "
            "your own are named as path/to/file.py::name"
        )
    return getattr(_import_builtin(BUILTIN[spec]), spec)


def absolute_spec(spec: str) -> str:
    """The same operator, named so that it is found from any working directory: ranks may change theirs."""
    parts = _parts(spec)
    if len(parts) > 1:
        return PLUS.join(map(absolute_spec, parts))
    path, separator, name = spec.rpartition("::")
    return f"{Path(path).absolute()}::{name}" if separator else spec


def _parts(spec: str) -> list[str]:
    """The two names of a pair, or the one; a path may have the sign in it."""
    for at, sign in enumerate(spec):
        if sign == PLUS and _is_name(spec[:at]) and _is_name(spec[at + 1 :]):
            return [spec[:at], spec[at + 1 :]]
    return [spec]


def _is_name(spec: str) -> bool:
    path, separator, name = spec.rpartition("::")
    return spec in BUILTIN or bool(separator and path and name.isidentifier())


def builtin_operators() -> list[Operator]:
    """All built-in operators, by name."""
    return [load_operator(name) for name in sorted(BUILTIN)]


def _import_builtin(module: str) -> ModuleType:
    from tdist.frontend.environment import check_front_end

    if module not in sys.modules:
        check_front_end()
    return importlib.import_module(module)


def _operators_hint(path: Path) -> str:
    try:
        names = _operators_of(execute(path)) if path.is_file() else []
    except TdistError:
        names = []
    return f" (it declares {', '.join(names)})" if names else ""


def _from_file(path: Path, name: str) -> Operator:
    if not path.is_file():
        raise UsageError(f"no such file: {path}")
    module = execute(path)
    names = _operators_of(module)
    found = getattr(module, name, None)
    if isinstance(found, Operator):
        return found
    listed = f"; it declares {', '.join(names)}" if names else "; it declares no operator: see tdist.verify.operator"
    if found is not None:
        raise UsageError(f"{name} in {path} is {_describe(found)}, no operator{listed}")
    raise UsageError(f"{path} has no {name!r}{did_you_mean(name, tuple(names))}{listed}")


def _describe(value: object) -> str:
    kind = type(value).__name__
    return "a plain function (it lacks @operator(…))" if kind == "function" else f"a {kind}"


def _operators_of(module: ModuleType) -> list[str]:
    return sorted(name for name, value in vars(module).items() if isinstance(value, Operator))
