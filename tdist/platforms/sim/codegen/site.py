"""Source operations, as access records and findings name them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Site:
    """One source operation of a kernel; made by the code generator, carried by every access record.

    `line` counts from 1, `col` from 0; both are 0 when the compiler kept no location.
    `arg` is the name of the kernel argument that the accessed pointer came from, if it came from exactly one;
    `hidden` names the `symm_at` or `consume_token` that the pointer passed, where the vendor's compiler loses the
    alias; `"?"` if that may be one of several, `""` if there was none.
    """

    kernel: str
    file: str
    line: int
    col: int
    op: str
    arg: str | None = None
    hidden: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"
