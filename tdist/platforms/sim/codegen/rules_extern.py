"""Calls into device libraries, element by element, and what has no model here: inline assembly, descriptors."""

from __future__ import annotations

from xdsl.ir import Operation

from .device_library import DEVICE_LIBRARY
from .elements import type_info
from .generator import Generator, rule
from .ir_access import prop
from .rules_int import tile_shape


@rule("tt.extern_elementwise")
def extern_elementwise(g: Generator, op: Operation) -> None:
    """A function of the vendor's device library."""
    symbol = prop(op, "symbol")
    if symbol not in DEVICE_LIBRARY:
        raise g.error(
            op,
            f"tt.extern_elementwise: the simulator has no model of the device function {symbol!r} "
            f"(library {prop(op, 'libname')!r}); write it with tl operations, or use one of: "
            f"{', '.join(sorted(DEVICE_LIBRARY))}",
        )
    values = g.operands(op)
    info = g.result_type(op)
    dtypes = "".join(f"{type_info(v.type).element.text}, " for v in op.operands)
    texts = ", ".join(g.operand(v) for v in values)
    text = f"device_function({symbol!r}, ({dtypes}), {info.element.text}, {texts})"
    shape = tile_shape(g, op, values)
    clk = g.clk_of(*values)
    if not shape:
        g.set(op, g.scalar_of(text, info.element, clk))
        return
    if all(g.is_uniform(v) for v in values):
        text = f"torch.full({shape}, {text}, dtype={info.element.text})"
    g.set(op, g.result(text, shape, info.element, clk))
