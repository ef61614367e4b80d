"""ACLSHMEM's device functions as data: symbols, arguments in order, results; and the check of a lowered call.

The vendor's compiler accepts a misspelt symbol, a wrong number of operands and wrong types without a word; only the
final link, on a machine with CANN, would tell. So every lowered call is checked here first.

Declarations read like C. `T` pointers are descriptors of memrefs passed by address, in the way of MLIR's C interface (a
descriptor that is the result comes as the first argument); `memref<T>` stands for the descriptor by value. `T*3` has
three dimensions. `{T}` stands for each of the types in front of the declaration, `{N}` for 1 … 5.

Source: AscendNPU-IR's public device template (`Shmem.cpp`), of which each name here is the one after `_mlir_ciface_`;
architecture document, sections 3.4 (the spelling `aclshmem_putmem…`) and 4.2 (the link names).
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from xdsl.dialects.builtin import MemRefType, ModuleOp, StringAttr, TensorType
from xdsl.ir import Attribute

from tdist.errors import KernelError
from tdist.ir.hivm import CustomOp, TCoreType
from tdist.ir.location import loc_of
from tdist.ir.pointer import PointerLike, element_type, is_block_pointer
from tdist.passes.base import all_ops
from tdist.passes.convert_triton_distributed_to_hivm import MAX_POINTER_RANK, TYPE_NAMES

LINK_PREFIX = "_mlir_ciface_"

_SIGNED = "int8 int16 int32 int64"
_UNSIGNED = "uint8 uint16 uint32 uint64"
_NUMBERS = f"half float {_SIGNED} {_UNSIGNED} bfloat16"
_ALL = f"{_NUMBERS} char"
_COMPARED = f"float {_SIGNED} {_UNSIGNED} char"
_CONSUMED = f"{_SIGNED} half float char bfloat16"

_PUT = "{T}* dst, {T}* src, uint32 bytes, int32 pe"
_PUT_SIGNAL = (
    "{T}* dst, {T}* src, uint32 bytes, memref<int32> sig, int32 signal, int32 sig_op, int32 pe"  # sig_op: SET 0, ADD 1
)

DECLARATIONS: tuple[tuple[str, str], ...] = (
    # who and where
    ("", "int32 aclshmem_my_pe()"),
    ("", "int32 aclshmem_n_pes()"),
    ("", "int32 aclshmem_team_my_pe(int32 team)"),
    ("", "int32 aclshmem_team_n_pes(int32 team)"),
    ("", "int32 aclshmem_team_translate_pe(int32 src_team, int32 src_pe, int32 dest_team)"),
    (_ALL, "{T}* aclshmem_ptr_{T}({T}* ptr, int32 pe)"),
    # barriers and order
    ("", "void aclshmem_barrier(int32 team)"),
    ("", "void aclshmem_barrier_all()"),
    ("", "void aclshmemx_barrier_vec(int32 team)"),
    ("", "void aclshmemx_barrier_all_vec()"),
    ("", "void aclshmem_quiet()"),
    ("", "void aclshmem_fence()"),
    # signals; a wait takes one word each 64 bytes and compares for equality
    ("", "void aclshmemx_signal_op(memref<int32> sig, int32 signal, int32 sig_op, int32 pe)"),
    ("", "int32 aclshmem_signal_wait_until(memref<int32> sig, int32 cmp, int32 value)"),
    (_ALL, "void aclshmem_{T}_p({T}* dst, {T} value, int32 pe)"),
    (_SIGNED, "int32 aclshmem_wait_{T}({T}* ptr, int64 num_barriers, {T} value)"),
    (_COMPARED, "void aclshmem_wait_until_{T}({T}* ivar, int32 cmp, {T} value)"),
    # tokens: the value itself
    (_CONSUMED, "{T} aclshmem_consume_token_{T}({T} value, int32 token)"),
    (_CONSUMED, "{T}*{N} aclshmem_consume_token_{T}_ptr_{N}d({T}*{N} value, int32 token)"),
    # transfers, in the template's spelling
    (_ALL, f"void aclshmem_{{T}}_putmem({_PUT})"),
    (_ALL, f"void aclshmem_{{T}}_putmem_nbi({_PUT})"),
    (_ALL, f"void aclshmem_{{T}}_getmem({_PUT})"),
    (_ALL, f"void aclshmem_{{T}}_getmem_nbi({_PUT})"),
    (_NUMBERS, f"void aclshmem_{{T}}_putmem_signal({_PUT_SIGNAL})"),
    (_NUMBERS, f"void aclshmem_{{T}}_putmem_signal_nbi({_PUT_SIGNAL})"),
    # and in the one that the architecture document's prefix table is about
    (_ALL, f"void aclshmem_putmem_{{T}}({_PUT})"),
    (_ALL, f"void aclshmem_putmem_nbi_{{T}}({_PUT})"),
    (_ALL, f"void aclshmem_getmem_{{T}}({_PUT})"),
    (_ALL, f"void aclshmem_getmem_nbi_{{T}}({_PUT})"),
    (_NUMBERS, f"void aclshmem_putmem_signal_{{T}}({_PUT_SIGNAL})"),
    (_NUMBERS, f"void aclshmem_putmem_signal_nbi_{{T}}({_PUT_SIGNAL})"),
)


# ---- signatures -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LibraryType:
    """A type of the device library: a scalar (`rank` 0) or memory of `rank` dimensions.

    `element` is the library's spelling (`"half"`, `"uint64"`); `by_value` says that a memref's descriptor is passed
    itself, not its address.
    """

    element: str
    rank: int = 0
    by_value: bool = False

    def __str__(self) -> str:
        if self.by_value:
            return f"memref<{self.element}>"
        return self.element + ("*" if self.rank else "") + (str(self.rank) if self.rank > 1 else "")


@dataclass(frozen=True, slots=True)
class Signature:
    """A device function: parameters in order as (name, type), and the type of its result, if any."""

    symbol: str
    parameters: tuple[tuple[str, LibraryType], ...]
    result: LibraryType | None

    def __str__(self) -> str:
        parameters = ", ".join(f"{type_} {name}" for name, type_ in self.parameters)
        return f"{self.result or 'void'} {self.symbol}({parameters})"


_DECLARATION = re.compile(r"(\S+) (\w+)\((.*)\)")
_TYPE = re.compile(r"memref<(?P<by_value>\w+)>|(?P<element>\w+)(?P<pointer>\*(?P<rank>\d*))?")


def _parse_type(text: str) -> LibraryType:
    match = _TYPE.fullmatch(text)
    assert match is not None, text
    if match["by_value"]:
        return LibraryType(match["by_value"], 1, by_value=True)
    return LibraryType(match["element"], int(match["rank"] or 1) if match["pointer"] else 0)


def _parse(declaration: str) -> Signature:
    match = _DECLARATION.fullmatch(declaration)
    assert match is not None, declaration
    result, symbol, inside = match.groups()
    pairs = [parameter.rsplit(" ", 1) for parameter in inside.split(", ") if parameter]
    parameters = tuple((name, _parse_type(type_)) for type_, name in pairs)
    return Signature(symbol, parameters, None if result == "void" else _parse_type(result))


def _expand(types: str, declaration: str) -> Iterator[str]:
    ranks = range(1, MAX_POINTER_RANK + 1) if "{N}" in declaration else range(1)
    for type_ in types.split() or [""]:
        for rank in ranks:
            yield declaration.replace("{T}", type_).replace("{N}", str(rank))


@functools.cache
def signatures() -> Mapping[str, Signature]:
    """Every device function by its bare symbol."""
    parsed = [_parse(line) for types, declaration in DECLARATIONS for line in _expand(types, declaration)]
    return MappingProxyType({signature.symbol: signature for signature in parsed})


# ---- link names -----------------------------------------------------------------------------------------------------


def link_name(symbol: str) -> str:
    """The name under which the template library defines the function of a bare symbol."""
    return LINK_PREFIX + symbol


def callee_name(op: CustomOp, core: TCoreType | None = None) -> str:
    """The function that the vendor's compiler calls for `op`.

    MLIR adds the prefix of its C interface by itself where a memref is passed or returned, so the compiler adds it
    only where there is none. In a mix kernel the half that calls (`core`: CUBE or VECTOR) is a suffix.
    """
    has_memory = any(_is_memory(type_) for type_ in (*op.operand_types, *op.result_types))
    suffix = "" if core is None else f".{core.value.lower()}"
    return (op.symbol if has_memory else link_name(op.symbol)) + suffix


def _is_memory(type_: Attribute) -> bool:
    return isinstance(type_, MemRefType) or isinstance(element_type(type_), PointerLike)


# ---- the check ------------------------------------------------------------------------------------------------------


def check_module(module: ModuleOp) -> None:
    """Check every distributed call in `module` against the library.

    Raises:
        KernelError: The first call that does not fit; names the kernel's file and line, the function as the library
            has it, and what was passed.
    """
    for op in all_ops(module):
        if isinstance(op, CustomOp) and op.is_distributed:
            check_call(op)


def check_call(op: CustomOp) -> None:
    """Check one distributed call; see `check_module`. A call that names a library of its own (`libpath`) is let be."""
    library = op.attributes.get("libpath")
    if isinstance(library, StringAttr) and library.data:
        return
    signature = signatures().get(op.symbol)
    if signature is None:
        raise _error(op, f"has no function `{op.symbol}`{_similar(op.symbol)}")
    _check_operands(op, signature)
    _check_result(op, signature)


def _similar(symbol: str) -> str:
    close = difflib.get_close_matches(symbol, signatures(), n=3)
    return f"; did you mean {' or '.join(f'`{name}`' for name in close)}?" if close else "."


def _check_operands(op: CustomOp, signature: Signature) -> None:
    got, expected = len(op.inputs), len(signature.parameters)
    if got != expected:
        raise _error(
            op, f"has `{signature}`, with {expected} operands; got {_listed(value.type for value in op.inputs)}"
        )
    for index, (value, (name, wanted)) in enumerate(zip(op.inputs, signature.parameters, strict=True)):
        if not fits(value.type, wanted):
            raise _error(op, f"has `{signature}`; operand {index} (`{name}`) must be {wanted}, got {value.type}")


def _check_result(op: CustomOp, signature: Signature) -> None:
    types = op.result_types
    wanted = signature.result
    if len(types) != (wanted is not None):
        raise _error(op, f"has `{signature}`; the call expects results {_listed(types)}")
    if wanted is not None and not fits(types[0], wanted):
        raise _error(op, f"has `{signature}`; the result is {wanted}, but the call expects {types[0]}")


def _listed(types: Iterable[Attribute]) -> str:
    found = [str(type_) for type_ in types]
    return f"{len(found)} ({', '.join(found)})" if found else "none"


def fits(type_: Attribute, wanted: LibraryType) -> bool:
    """Whether a value of `type_`, before or after pointers have become memrefs, may be passed as `wanted`.

    Signs do not count: neither TTIR's integers nor the registers have one.
    """
    if wanted.rank == 0:
        return _is_element(type_, wanted.element)
    element, rank = _memory(type_)
    return element is not None and rank == wanted.rank and _is_element(element, wanted.element)


def _memory(type_: Attribute) -> tuple[Attribute | None, int]:
    """Element type and rank of what a value points to; None if it is no address."""
    if isinstance(type_, MemRefType):
        return type_.element_type, len(type_.get_shape())
    inner = element_type(type_)
    if not isinstance(inner, PointerLike):
        return None, 0
    if is_block_pointer(inner):
        block = inner.pointee
        assert isinstance(block, TensorType)
        return block.element_type, len(block.get_shape())
    return inner.pointee, len(type_.get_shape()) if isinstance(type_, TensorType) else 1


def _is_element(type_: Attribute, name: str) -> bool:
    signless = "int8" if name == "char" else name.removeprefix("u")
    return TYPE_NAMES.get(type_) == signless


def _error(op: CustomOp, what: str) -> KernelError:
    return KernelError(f"{loc_of(op) or 'kernel'}: cannot call `{op.symbol}`: ACLSHMEM's device library {what}")


__all__ = [
    "DECLARATIONS",
    "LibraryType",
    "Signature",
    "callee_name",
    "check_call",
    "check_module",
    "fits",
    "link_name",
    "signatures",
]
