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
