"""`dl.*`: the seven distributed operations, usable in `@triton.jit` kernels beside any `tl.*`.

Signatures and defaults are those of `triton_dist.language`. Each call is checked when the kernel is compiled; a
misuse is a `KernelError` that names the rule, the operand and the kernel's own line.

Shape:
    Every operand is a scalar, but for the value that `consume_token` takes: scalar, tensor, tensor of pointers or
    block pointer.

Source:
    Distributed Architecture Design §2 and §7.4, Single Operator Development §1 and §3,
    Triton-distributed Semantics "Core Semantic Concepts".
"""

from __future__ import annotations

from typing import Any

from tdist.errors import KernelError
from tdist.language.backends import active_is_ascend
from tdist.language.carriers import (
    Emitter,
    _core,
    builtin,
    escape,
    is_block_pointer,
    is_integer_scalar,
    unwrap,
)
from tdist.language.checks import COMM_SCOPES, SCOPES, SEMANTICS, SIGNAL_OPS, describe, keyword, misuse

_SIGNAL_WORDS = ("int32", "uint32", "int64", "uint64")


@builtin
def rank(emit: Emitter, axis: Any = -1) -> Any:
    """This rank's number (its PE), int32. `axis` is accepted for portability and changes nothing on Ascend.

    Ordering:
        None: a pure function.
    """
    return emit.carrier("rank", [emit.integer(axis, "axis", 32)], _core().int32, pure=True)


@builtin
def num_ranks(emit: Emitter, axis: Any = -1) -> Any:
    """How many ranks there are, int32. `axis` as in `rank`.

    Ordering:
        None: a pure function.
    """
    return emit.carrier("num_ranks", [emit.integer(axis, "axis", 32)], _core().int32, pure=True)


@builtin
def symm_at(emit: Emitter, ptr: Any, rank: Any) -> Any:
    """The address on rank `rank` that corresponds to the symmetric address `ptr`; a pointer of the same type.

    Args:
        ptr: scalar pointer into a symmetric buffer, of this rank. Its offset inside the buffer is kept.
        rank: target rank, integer scalar, 0 … num_ranks() - 1.

    Ordering:
        A read: orders nothing.

    Raises:
        KernelError: `ptr` is not a scalar pointer (a tensor of pointers and a block pointer are refused alike).
    """
    base = emit.pointer(
        ptr,
        "ptr",
        "must be a scalar pointer",
        "Translate the base of the buffer first and add offsets afterwards: `dl.symm_at(base, rank) + offsets`, "
        "or `tl.make_block_ptr(dl.symm_at(base, rank), …)`.",
    )
    return emit.carrier("symm_at", [base, emit.integer(rank, "rank", 32)], base.type, pure=False)


@builtin
def wait(emit: Emitter, barrierPtrs: Any, numBarriers: Any, scope: Any, semantic: Any, waitValue: Any = 1) -> Any:
    """Wait until `numBarriers` signal words are all equal to `waitValue`; returns a token (int32).

    Word i lies 64 bytes after word i - 1 (`SIGNAL_SLOT_STRIDE`). The words are not changed.

    Args:
        barrierPtrs: scalar pointer to the first word, of int32, uint32, int64 or uint64.
        numBarriers: how many words, integer scalar.
        scope: "gpu", "npu" (the same), "cta" or "sys".
        semantic: "relaxed", "acquire", "release" or "acq_rel".
        waitValue: the value, of the words' type.

    Ordering:
        With "acquire" and "acq_rel", joins what the words' writers had released. Loads are ordered after it only
        through `consume_token`; a wait whose token nobody consumes is deleted by the compiler.

    Raises:
        KernelError: not a scalar pointer, words of another type, an unknown scope or semantic, a value that does
            not fit.
    """
    words = emit.pointer(
        barrierPtrs,
        "barrierPtrs",
        "must be a scalar pointer to signal words",
        "Pass the address of the first word and the number of words: `dl.wait(signals + i * stride, n, …)`.",
    )
    element = _signal_word("wait", "barrierPtrs", words, _SIGNAL_WORDS)
    count = unwrap(numBarriers)
    if isinstance(count, int) and count < 1:
        raise misuse("wait", "numBarriers", "must be at least 1", count)
    symbol = (
        f"wait;scope={keyword('wait', 'scope', SCOPES, unwrap(scope))}"
        f";semantic={keyword('wait', 'semantic', SEMANTICS, unwrap(semantic))};el={element}"
    )
    value = emit.integer(waitValue, "waitValue", _bits(element), signed=not element.startswith("u"))
    return emit.carrier(symbol, [words, emit.integer(count, "numBarriers", 32), value], _core().int32, pure=False)


@builtin
def consume_token(emit: Emitter, value: Any, token: Any) -> Any:
    """`value` itself, made to depend on the `wait` that gave `token`.

    Args:
        value: scalar, tensor, pointer, tensor of pointers or block pointer. Loads through a consumed pointer come
            after the wait.
        token: what `dl.wait` returned, or an integer made from such tokens (a sum, a value carried by a loop).

    Ordering:
        Adds the token's clock to `value`. No effect of its own.

    Raises:
        KernelError: `token` is not a scalar integer.
    """
    token = emit.tensor(token, "token")
    if not is_integer_scalar(token.type):
        raise misuse("consume_token", "token", "must be a scalar integer, as `dl.wait` returns it", token)
    value = emit.tensor(value, "value")
    if is_block_pointer(value.type):
        zero = emit.carrier("consume_block", [token], _core().int32, pure=True)
        return emit.advance_by_zero(value, zero)
    return emit.carrier("consume_token", [value, token], value.type, pure=True)


@builtin
def notify(
    emit: Emitter,
    ptr: Any,
    rank: Any,
    signal: Any = 1,
    sig_op: Any = "set",
    comm_scope: Any = "inter_node",
) -> None:
    """Write a signal word on rank `rank`: set it to `signal`, or add `signal` to it.

    Args:
        ptr: *local* scalar pointer to the word; the call translates it to `rank` by itself.
        rank: target rank, integer scalar.
        signal: the value, integer scalar.
        sig_op: "set" or "add".
        comm_scope: "gpu", "npu" (the same), "intra_node" or "inter_node".

    Dtype:
        On Ascend int32 (set and add), int64 and uint64 (set only); elsewhere int64 and uint64.

    Ordering:
        Releases what this agent did before. On Ascend a "set" covers only what was drained: put a
        `libshmem_device.fence()` between the data's store and the notify.

    Raises:
        KernelError: not a scalar pointer, words of another type, `add` on a 64-bit word on Ascend, unknown words, a
            value that does not fit.
    """
    words = emit.pointer(
        ptr,
        "ptr",
        "must be a scalar pointer to a signal word",
        "Pass the word's local address, `signals + slot * stride`: notify translates it to `rank` by itself.",
    )
    operation = keyword("notify", "sig_op", SIGNAL_OPS, unwrap(sig_op))
    element = _notify_word(words, operation)
    symbol = (
        f"notify;sigOp={operation}"
        f";commScope={keyword('notify', 'comm_scope', COMM_SCOPES, unwrap(comm_scope))};el={element}"
    )
    value = _signal_value(emit, signal, element)
    emit.carrier(symbol, [words, value, emit.integer(rank, "rank", 32)], _core().int32, pure=False)


def _signal_value(emit: Emitter, signal: Any, element: str) -> Any:
    """The i64 operand; a constant is checked against the word's own type first."""
    constant = unwrap(signal)
    bits, signed = _bits(element), not element.startswith("u")
    if isinstance(constant, int) and bits == 32:
        emit.integer(constant, "signal", 32, signed)
    return emit.integer(constant, "signal", 64, signed)


def _bits(element: str) -> int:
    return 64 if element.endswith("64") else 32


def _signal_word(op: str, operand: str, pointer: Any, allowed: tuple[str, ...]) -> str:
    element = str(pointer.type.element_ty)
    if element not in allowed:
        raise KernelError(f"{op}: `{operand}` must point to {_either(allowed)}, got {describe(pointer)}.")
    return element


def _either(words: tuple[str, ...]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def _notify_word(words: Any, operation: str) -> str:
    if not active_is_ascend():
        return _signal_word("notify", "ptr", words, ("int64", "uint64"))
    element = _signal_word("notify", "ptr", words, ("int32", "int64", "uint64"))
    if operation == "add" and element != "int32":
        raise KernelError(
            f'notify: `sig_op` "add" needs an int32 signal word on Ascend, got {describe(words)}. 64-bit words can '
            'only be set: use int32 words, or sig_op="set" with one slot for each producer.'
        )
    return element


@builtin
def extern_call(
    emit: Emitter,
    lib_name: Any,
    lib_path: Any,
    args: Any,
    arg_type_symbol_dict: Any,
    is_pure: Any,
) -> Any:
    """Call a device function of the communication library by its symbol.

    Args:
        lib_name, lib_path: the library; kept in the IR.
        args: list of scalars.
        arg_type_symbol_dict: argument type tuple → (symbol, result type); the result type `()` means none.
        is_pure: whether the call reads and writes nothing.

    Ordering:
        An impure call is a read and a write; what it releases or acquires is the symbol's own matter.

    Returns:
        A scalar of the result type, or None.

    Raises:
        KernelError: an argument that is no scalar, an empty dictionary, no entry for these types, an empty symbol.
    """
    operands = [emit.tensor(arg, f"args[{i}]") for i, arg in enumerate(args)]
    symbol, result = _select(operands, arg_type_symbol_dict)
    return emit_extern(emit, (unwrap(lib_name), unwrap(lib_path), symbol), operands, result, bool(unwrap(is_pure)))


def emit_extern(emit: Emitter, library: tuple[str, str, str], operands: list[Any], result: Any, pure: bool) -> Any:
    """Emit the carrier of an extern call; `library` is (name, path, symbol), `result` a Triton type or None.

    A carrier needs an operand and a result: `dummy=1` and `void=1` say which of them mean nothing.
    """
    name, path, symbol = (escape(part) for part in library)
    flags = f"pure={int(pure)};dummy={int(not operands)};void={int(result is None)}"
    carried = operands or [emit.integer(0, "dummy", 32)]
    text = f"extern_call;libname={name};libpath={path};symbol={symbol};{flags}"
    value = emit.carrier(text, carried, _core().int32 if result is None else result, pure)
    return None if result is None else value


def _select(operands: list[Any], table: Any) -> tuple[str, Any]:
    if not table:
        raise KernelError("extern_call: `arg_type_symbol_dict` is empty: it must have an entry for each type of call.")
    for index, operand in enumerate(operands):
        if operand.type.is_block() or is_block_pointer(operand.type):
            raise misuse("extern_call", f"args[{index}]", "must be a scalar", operand)
    types = tuple(str(operand.type) for operand in operands)
    key = next((key for key in table if tuple(map(str, key)) == types), None)  # 3.2's pointer types have no hash
    if key is None:
        known = "; ".join(_signature(key) for key in table)
        raise KernelError(
            f"extern_call: `arg_type_symbol_dict` has no entry for arguments {_signature(types)}. It has: {known}."
        )
    symbol, result = table[key]
    if not (isinstance(symbol, str) and symbol):
        raise KernelError(f"extern_call: the symbol for arguments {_signature(types)} must be a name, got {symbol!r}.")
    return symbol, _single_result(symbol, result)


def _single_result(symbol: str, result: Any) -> Any:
    if not isinstance(result, tuple | list):
        return result
    if len(result) > 1:
        raise KernelError(f"extern_call: `{symbol}` is declared with {len(result)} results; at most one is possible.")
    return result[0] if result else None


def _signature(types: Any) -> str:
    return f"({', '.join(str(ty) for ty in types)})"
