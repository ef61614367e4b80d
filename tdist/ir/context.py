"""The xDSL context in which our IR is parsed and verified."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects import builtin, cf, math, scf, ub
from xdsl.ir import Dialect

from tdist.ir.annotation import Annotation
from tdist.ir.arith import Arith
from tdist.ir.distributed import Distributed
from tdist.ir.foreign import Gpu, Llvm
from tdist.ir.hivm import Hivm
from tdist.ir.tt import Tt

DIALECTS: tuple[Dialect, ...] = (
    builtin.Builtin,
    Arith,
    math.Math,
    scf.Scf,
    cf.Cf,
    ub.UB,
    Tt,
    Distributed,
    Hivm,
    Annotation,
    Gpu,
    Llvm,
)


def _tensor() -> Dialect:
    """Tensor dialect, for destinations of lowered calls; most contexts never load it."""
    from xdsl.dialects.tensor import Tensor

    return Tensor


def make_context(*, allow_unregistered: bool = False) -> Context:
    """A fresh context with every dialect that a kernel can contain on its way to a platform."""
    context = Context(allow_unregistered=allow_unregistered)
    for dialect in DIALECTS:
        context.load_dialect(dialect)
    context.register_dialect("tensor", _tensor)
    return context
