"""Triton's compile errors, told as the kernel's author needs them: the kernel's own file:line, rule and cure."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tdist.errors import KernelError

_SITE = "tdist_site"


@dataclass(frozen=True)
class _Site:
    file: str
    line: int
    column: int
    function: str
    source: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


def remember_site(error: BaseException, file: str, lines_before: int, function: Any) -> None:
    """Note on a Triton compile error which function of the user's it arose in; the first note stays."""
    node = getattr(error, "node", None)
    if hasattr(error, _SITE) or not hasattr(error, "error_message"):
        return
    line = getattr(node, "lineno", 1)
    source = function.src.split("\n")
    text = source[line - 1] if line <= len(source) else ""
    site = _Site(file, lines_before + line, getattr(node, "col_offset", 0), function.__name__, text)
    setattr(error, _SITE, site)


def kernel_error(fn: Any, error: Any) -> KernelError:
    """The KernelError for a failed compilation of `fn`."""
    chain = list(_nested(error))
    sites = [site for e in chain if (site := getattr(e, _SITE, None)) is not None]
    reason = _reason(chain[-1])
    if not sites:
        return KernelError(f"kernel `{fn.__name__}`: {reason}")
    *callers, site = sites
    lines = [f"{site}: in kernel `{fn.__name__}`: {reason}", f"    {site.source}", f"    {' ' * site.column}^"]
    lines += [f"  called from {caller} (`{caller.function}`)" for caller in reversed(callers)]
    return KernelError("\n".join(lines)).at(site)


def _nested(error: Any) -> Iterator[Any]:
    """`error` and, for calls of other jit functions, the errors inside them."""
    while error is not None and hasattr(error, "error_message"):
        yield error
        error = error.__cause__


def _reason(error: Any) -> str:
    from triton.compiler.errors import CompileTimeAssertionFailure

    if isinstance(error, CompileTimeAssertionFailure):
        return f"static_assert failed: {error.error_message}".rstrip(": ")
    origin = error.__cause__ or error.__context__
    if isinstance(origin, KernelError):
        return str(origin)
    if origin is None or hasattr(origin, "error_message"):
        return str(error.error_message)
    if not str(origin):
        return f"Triton's front end refuses this ({type(origin).__name__})"
    return str(origin) if isinstance(origin, NameError) else f"{type(origin).__name__}: {origin}"


def mlir_diagnostics(module: Any) -> str:
    """What MLIR's verifier says about `module`: it only prints, so its text is caught on its way to stderr."""
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            module.verify()
        finally:
            os.dup2(saved, 2)
            os.close(saved)
        sink.seek(0)
        return sink.read().decode(errors="replace").strip()
