"""What `tdist compile` says of the kernels of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdist.errors import UsageError
from tdist.tools.compile import load_kernel

KERNELS = """
import triton
import triton.language as tl

@triton.jit
def plain(x):
    tl.store(x, 1)

@triton.autotune(configs=[triton.Config({"B": 64})], key=[])
@triton.heuristics({"C": lambda args: 1})
@triton.jit
def tuned(x, B: tl.constexpr, C: tl.constexpr):
    tl.store(x, B + C)

class Other:
    pass

other = Other()
other.fn = other
"""


def test_a_kernel_under_several_decorators_is_listed(tmp_path: Path) -> None:
    path = tmp_path / "kernels.py"
    path.write_text(KERNELS)
    with pytest.raises(UsageError, match=r"its kernels: plain, tuned$"):
        load_kernel(f"{path}::missing")


@pytest.mark.parametrize("name", ["kernels", "with_coding"])
def test_a_file_in_another_encoding(tmp_path: Path, name: str) -> None:
    coding = b"# -*- coding: latin-1 -*-" if name == "with_coding" else b""
    path = tmp_path / f"{name}.py"
    path.write_bytes(coding + KERNELS.encode() + b"# caf\xe9\n")
    if coding:
        assert load_kernel(f"{path}::plain")[0].__name__ == "plain"
        return
    line = path.read_bytes().count(b"\n")
    with pytest.raises(UsageError, match=rf"kernels\.py:{line}: the file is not text in utf-8 \(byte 0xe9\)"):
        load_kernel(f"{path}::plain")
