"""Distributed kernels through triton-ascend's own compilation: an optional part at the head of its `ttadapter` stage.

    with distributed_stage():
        compiled = triton.compile(source, target=GPUTarget("npu", "Ascend910B3", 0))

or around launches on a card. In the scope, the back end's `add_stages` gives a `ttadapter` stage that lowers a kernel
with distributed calls as the gate does (`prepare`, `to_linalg`); any other kernel goes to the back end's own stage.
Launch options reach the vendor's compiler by the back end's own way. Outside of the scope the back end is untouched.

The stage behind this one reads the kernel's name and the kinds of its tensors out of Linalg's text, by regular
expressions that fit MLIR's custom form. Ours is the generic form, so a comment in front says these things again.

Source: triton-ascend 3.2.0, `backends/ascend/compiler.py`: `AscendBackend.add_stages`, `_parse_linalg_metadata`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, ModuleOp
from xdsl.ir import Operation

from tdist.errors import EnvironmentUnfit, KernelError
from tdist.frontend.kernel_ir import KernelArg, KernelIR
from tdist.frontend.text import closing, split_commas
from tdist.platforms.ascend.compiled.generic_text import read_generic
from tdist.platforms.ascend.lowering.adapter import to_linalg
from tdist.platforms.ascend.lowering.prepare import prepare
from tdist.platforms.ascend.lowering.steps import Steps
from tdist.platforms.ascend.options import CompileOptions
from tdist.scoped import CountedScope

STAGE = "ttadapter"
_CARRIER = re.compile(r'symbol = "tdist\.')
_FUNCTION = re.compile(r'tt\.func public @"?([\w.$-]+)"?\(')
_KIND = "tt.tensor_kind"
_SOURCES = ("frontend", "ir", "passes", "platforms/ascend")


@contextlib.contextmanager
def distributed_stage() -> Iterator[None]:
    """Lower distributed kernels in triton-ascend's compilations, for the length of the block; scopes may nest.

    Raises:
        EnvironmentUnfit: there is no triton-ascend.
    """
    with _SCOPE.joined():
        yield


def _set_up(stack: contextlib.ExitStack) -> None:
    for backend in _backends():
        add_stages, own_hash = backend.__dict__["add_stages"], backend.__dict__["hash"]
        stack.callback(setattr, backend, "add_stages", add_stages)
        stack.callback(setattr, backend, "hash", own_hash)
        backend.add_stages = _with_our_stage(add_stages)
        backend.hash = _with_our_digest(own_hash)


_SCOPE = CountedScope(_set_up)


def _backends() -> list[type]:
    """The back end as Triton finds it, by folder, and as one imports it: two classes of one file."""
    try:
        from triton.backends import backends
        from triton.backends.ascend.compiler import AscendBackend
    except ImportError as error:
        raise EnvironmentUnfit(
            f"triton-ascend is not installed ({error}): its compilation cannot be extended. Install tdist[ascend]"
        ) from error
    found = backends.get("ascend")
    classes = [AscendBackend] if found is None else [AscendBackend, found.compiler]
    return list(dict.fromkeys(classes))


def _with_our_stage(add_stages: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(add_stages)
    def extended(self: Any, stages: dict[str, Callable[..., Any]], options: Any) -> None:
        add_stages(self, stages, options)
        own = stages.get(STAGE)
        if own is not None and self.target.backend == "npu":
            stages[STAGE] = lambda source, metadata: _lower(source, metadata, options, own)

    return extended


def _with_our_digest(own_hash: Callable[[Any], str]) -> Callable[[Any], str]:
    """The back end's part of Triton's cache key, which says who lowered the kernel."""

    @functools.wraps(own_hash)
    def extended(self: Any) -> str:
        return f"{own_hash(self)}-tdist-{_digest()}"

    return extended


@functools.cache
def _digest() -> str:
    root = Path(__file__).parents[2]
    files = sorted(path for name in _SOURCES for path in (root / name).rglob("*.py"))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


# ---- the stage ------------------------------------------------------------------------------------------------------


def _lower(source: Any, metadata: dict[str, Any], options: Any, own: Callable[..., Any]) -> Any:
    text = str(source)
    if _CARRIER.search(text) is None:
        return own(source, metadata)
    chosen = CompileOptions.of_launch({each.name: getattr(options, each.name) for each in dataclasses.fields(options)})
    with Steps() as steps:
        linalg = to_linalg(prepare(kernel_ir(text)), chosen, steps)
    return f"{_header(read_generic(linalg.text))}{linalg.text}"


def kernel_ir(ttir: str) -> KernelIR:
    """The kernel in a TTIR module with one public function. Its arguments have lost their names.

    Raises:
        KernelError: there is no such function.
    """
    found = _FUNCTION.search(ttir)
    if found is None:
        raise KernelError("there is no public function in this TTIR module")
    inside = ttir[found.end() : closing(ttir, found.end() - 1)]
    types = [part.partition(":")[2].split(" loc(")[0].split("{")[0].strip() for part in split_commas(inside)]
    return KernelIR(found[1], ttir, tuple(KernelArg(f"argument {k}", _spelt(type_)) for k, type_ in enumerate(types)))


def _spelt(type_: str) -> str:
    """`!tt.ptr<f16>` as Triton's signatures have it: `*fp16`."""
    pointer = re.fullmatch(r"!tt\.ptr<(\w+).*>", type_)
    name = pointer[1] if pointer else type_
    return ("*" if pointer else "") + re.sub(r"^f(?=\d)", "fp", name)


def _header(module: ModuleOp) -> str:
    """What the stage behind looks for, in the form in which it does."""
    kernel = next(op for op in module.body.block.ops if _is_kernel(op))
    name = kernel.properties["sym_name"].data  # pyright: ignore[reportAttributeAccessIssue]
    kinds = "".join(f"//   %arg{k}: memref {{{_KIND} = {kind} : i32}}\n" for k, kind in _tensor_kinds(kernel))
    return f"// func.func @{name}\n{kinds}"


def _is_kernel(op: Operation) -> bool:
    return op.name == "func.func" and "mix_mode" in op.attributes


def _tensor_kinds(kernel: Operation) -> list[tuple[int, int]]:
    """Argument and kind: 0 read, 1 written, 2 both."""
    attributes = kernel.properties.get("arg_attrs")
    if not isinstance(attributes, ArrayAttr):
        return []
    found = ((k, each.data.get(_KIND)) for k, each in enumerate(attributes) if isinstance(each, DictionaryAttr))
    return [(k, kind.value.data) for k, kind in found if isinstance(kind, IntegerAttr)]
