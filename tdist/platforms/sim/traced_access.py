"""Memory accesses of generated code where a run is traced: each does what `access.py` does and tells the tracer.

One wrapper for each factory of `access.py`, with the factory's name behind `traced_`: generated code defines
`traced_load_box(load_box(Spec(…), …), Spec(…), number)`. `number` is what the kernel's value graph calls the operation.
Without tracing none of this is in the generated code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .access import Spec

Access = Callable[..., Any]


def traced_load_box(load: Access, spec: Spec, number: int) -> Access:
    """See `access.load_box`."""
    return _traced_box(load, spec, number, "load")


def traced_store_box(store: Access, spec: Spec, number: int) -> Access:
    """See `access.store_box`."""

    def traced(ag, al, address, strides, box, value, source=None, vecs=()):
        store(ag, al, address, strides, box, value, source, vecs)
        ag.tracer.box(ag, "store", spec, number, (al, address, strides, box, vecs))

    return traced


def traced_load_lanes(load: Access, spec: Spec, number: int) -> Access:
    """See `access.load_lanes`."""
    return _traced_lanes(load, spec, number, "load")


def traced_store_lanes(store: Access, spec: Spec, number: int) -> Access:
    """See `access.store_lanes`."""
    return _traced_lanes(store, spec, number, "store")


def traced_atomic_lanes(update: Access, spec: Spec, number: int) -> Access:
    """See `access.atomic_lanes`."""
    return _traced_lanes(update, spec, number, "atomic")


def traced_load_scalar(load: Access, spec: Spec, number: int) -> Access:
    """See `access.load_scalar`."""
    return _traced_scalar(load, spec, number, "load")


def traced_store_scalar(store: Access, spec: Spec, number: int) -> Access:
    """See `access.store_scalar`."""
    return _traced_scalar(store, spec, number, "store")


def _traced_box(access: Access, spec: Spec, number: int, kind: str) -> Access:
    def traced(ag, al, address, strides, box, fill, clk=None, vecs=(), shape=spec.shape):
        result = access(ag, al, address, strides, box, fill, clk, vecs, shape)
        ag.tracer.box(ag, kind, panel_of(spec, shape), number, (al, address, strides, box, vecs))
        return result

    return traced


def panel_of(spec: Spec, shape: tuple[int, ...]) -> Spec:
    """The access of a fused loop: all its tiles side by side."""
    return spec if shape == spec.shape else replace(spec, shape=shape)


def _traced_lanes(access: Access, spec: Spec, number: int, kind: str) -> Access:
    def traced(ag, al, addresses, mask, *rest):
        result = access(ag, al, addresses, mask, *rest)
        ag.tracer.lanes(ag, kind, spec, number, al, addresses, mask)
        return result

    return traced


def _traced_scalar(access: Access, spec: Spec, number: int, kind: str) -> Access:
    def traced(ag, al, address, *rest):
        result = access(ag, al, address, *rest)
        ag.tracer.box(ag, kind, spec, number, (al, address, (), None, ()))
        return result

    return traced
