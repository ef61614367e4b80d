"""What masked-off lanes of a load without `other` hold: undefined, as stock Triton has it.

triton-ascend 3.2.0 adds a zero in Python: `tl.load` has a parameter `care_padding` of its own, True by default, under
which a mask without `other` becomes a mask with `other=0`; and a block pointer's load with `boundary_check` and without
`padding_option` becomes one padded with zeros. A kernel that leans on either computes something else under any other
Triton. In this scope both stay undefined, so the simulated platform fills them with poison. A kernel that writes
`care_padding=True`, `other=0` or `padding_option="zero"` gets its zeros.

Source: triton-ascend 3.2.0, `triton_patch/language/{core,semantic}.py`; docs/decisions/0012.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

_PARAMETER = "care_padding"


@contextlib.contextmanager
def undefined_padding() -> Iterator[None]:
    """Switch triton-ascend's own zeros off for the length of the block; a Triton without them stays as it is."""
    from triton import language

    load: Any = inspect.unwrap(language.load)
    if _PARAMETER not in inspect.signature(load).parameters:
        yield
        return
    from triton.language import semantic as stock
    from triton.triton_patch.language import semantic as patched  # pyright: ignore[reportMissingImports]

    defaults, block_load = load.__defaults__, patched._load_block_pointer
    load.__defaults__ = _without_zeros(load)
    patched._load_block_pointer = stock._load_block_pointer
    try:
        yield
    finally:
        load.__defaults__, patched._load_block_pointer = defaults, block_load


def _without_zeros(load: Any) -> tuple[Any, ...]:
    """The defaults of `tl.load` with `care_padding` off."""
    parameters = [p for p in inspect.signature(load).parameters.values() if p.default is not p.empty]
    return tuple(False if p.name == _PARAMETER else p.default for p in parameters)
