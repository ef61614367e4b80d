"""`SIGNAL_SLOT_STRIDE`: how far apart two signal words must lie."""

from __future__ import annotations

from typing import Any

from tdist.errors import KernelError
from tdist.language.carriers import unwrap

SIGNAL_LINE_BYTES = 64
_BITS = {"8": 1, "16": 2, "32": 4, "64": 8}


class SignalSlotStride:
    """Elements from one signal slot to the next: 64 bytes over the word's size.

    The device keeps no coherence inside a 64-byte line, and `dl.wait` looks for word i 64 bytes after word i - 1.
    Ask by type, inside a kernel or on the host:

        dl.wait(signals + slot * dl.SIGNAL_SLOT_STRIDE(signals), …)      # in a kernel: by pointer, a constexpr
        dl.SIGNAL_SLOT_STRIDE[tl.int32]                                  # in a kernel: by type, a constexpr
        torch.zeros(slots * SIGNAL_SLOT_STRIDE[torch.int64], …)          # on the host: an int

    Dtype:
        16 for int32 and uint32, 8 for int64 and uint64; narrower integers by the same rule.

    Source:
        Triton-distributed-ascend documentation, Distributed Architecture Design §4.2.
    """

    __triton_builtin__ = True
    __name__ = "SIGNAL_SLOT_STRIDE"

    def __call__(self, of: Any, _builder: Any = None, _semantic: Any = None) -> Any:
        """The stride for the words of a pointer, a tensor or a type."""
        return self[of]

    def __getitem__(self, of: Any) -> Any:
        of = unwrap(of)
        stride = SIGNAL_LINE_BYTES // _word_bytes(of)
        return _constexpr(stride) if type(of).__module__.startswith("triton.") else stride

    def __repr__(self) -> str:
        return "SIGNAL_SLOT_STRIDE"


def _word_bytes(of: Any) -> int:
    ty = of.type.scalar if hasattr(of, "handle") else of
    ty = getattr(ty, "element_ty", ty)
    name = str(getattr(of, "dtype", ty) if not type(of).__module__.startswith("triton.") else ty)
    name = name.removeprefix("torch.").removeprefix("*")
    kind, bits = name.rstrip("0123456789"), name[len(name.rstrip("0123456789")) :]
    if kind not in ("int", "uint", "i", "u") or bits not in _BITS:
        raise KernelError(f"SIGNAL_SLOT_STRIDE: signal words are integers of 8 to 64 bits, got {of!r}.")
    return _BITS[bits]


def _constexpr(value: int) -> Any:
    from triton.language import constexpr

    return constexpr(value)


SIGNAL_SLOT_STRIDE = SignalSlotStride()
