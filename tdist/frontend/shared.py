"""TTIR that one process has made and others take: ranks are processes that launch the same kernels.

A kernel is known by its content (`content.py`). Whoever needs it first makes it, and the others wait for that, but
never for long and never for somebody who is gone: the lock is the kernel's and ends with its holder, and who has
waited long enough makes it for himself.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from typing import Any

from tdist.frontend.content import content_of
from tdist.frontend.kernel_ir import KernelArg, KernelIR
from tdist.frontend.triton_ascend import compile_source
from tdist.private_cache import PrivateCache

logger = logging.getLogger("tdist")
CACHE = PrivateCache("ttir", "kernels' TTIR")
PATIENCE_SECONDS = 5.0


def compile_shared(
    fn: Any, signature: Mapping[str, str], constexprs: Mapping[str, Any], platform: tuple[Any, ...]
) -> KernelIR:
    """`compile_source`, or what another process has got from it; errors are never shared.

    Args:
        platform: what a kernel may ask about the machine that it is compiled for.
    """
    __tracebackhide__ = True
    content = content_of(fn, signature, constexprs, platform) if CACHE.folder() is not None else None
    if content is None:
        return compile_source(fn, signature, constexprs)
    key = hashlib.sha256(content.encode()).hexdigest()
    kept = _load(key)
    if kept is not None:
        return kept
    with CACHE.turn(key, PATIENCE_SECONDS) as waited:
        kept = _load(key) if waited else None
        if kept is not None:
            return kept
        made = compile_source(fn, signature, constexprs)
        CACHE.save(key, _to_json(made))
    return made


def _to_json(kernel: KernelIR) -> dict[str, Any]:
    return {"name": kernel.name, "ttir": kernel.ttir, "args": [[arg.name, arg.type] for arg in kernel.args]}


def _load(key: str) -> KernelIR | None:
    """What is kept; None, with a note, if that is no kernel."""
    kept = CACHE.load(key)
    if kept is None:
        return None
    try:
        return _from_json(kept)
    except (KeyError, TypeError, ValueError) as error:
        logger.warning("ignoring what is kept of a kernel's TTIR under %s: not as it was written (%r)", key, error)
        return None


def _from_json(kept: dict[str, Any]) -> KernelIR:
    args = tuple(KernelArg(_text(name), _text(kind)) for name, kind in kept["args"])
    ttir = _text(kept["ttir"])
    if "tt.func" not in ttir:
        raise ValueError("no function")
    return KernelIR(_text(kept["name"]), ttir, args)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {type(value).__name__}")
    return value
