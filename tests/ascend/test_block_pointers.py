"""Block pointers as the vendor's adapter compiles them copy what the simulated kernel copies, or are refused."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from linalg_machine import run
from vendor_oracle import needs_adapter

pytest.importorskip("triton.backends.ascend", reason="waits for triton-ascend, which compiles the kernels")

import tdist.language as dl
from tdist.errors import KernelError
from tdist.frontend.kernel_ir import KernelIR
from tdist.frontend.triton_ascend import compile_source
from tdist.platforms.ascend.compiled.generic_text import read_generic
from tdist.platforms.ascend.lowering.adapter import to_linalg
from tdist.platforms.ascend.lowering.prepare import prepare
from tdist.platforms.ascend.lowering.steps import Steps
from tdist.platforms.ascend.options import CompileOptions
from tdist.platforms.sim.world import World

SIGNATURE = {"x": "*fp32", "y": "*fp32", "sig": "*i32", "off": "i32", "at": "i32", "n": "i32", "m": "i32"}
ELEMENTS = 1 << 13
ARGUMENTS = [
    (0, 0, 5, 20),
    (5, 2, 5, 20),
    (40, 0, 3, 20),
    (33, 3, 9, 31),
    (-7, 2, 5, 20),
    (100, 8, 50, 10),
    (1, 1, 3, 4),
]
"""off, at, n, m: the base's distance, the block's offset, the parent's extents."""


@triton.jit
def checked(x, y, sig, off, at, n, m, S: tl.constexpr, ORDER: tl.constexpr, CHECK: tl.constexpr):
    p = tl.make_block_ptr(x + off, (n, m), (S, 33 - S), (at, at + 1), (4, 16), ORDER)
    q = tl.make_block_ptr(y, (4, 16), (16, 1), (0, 0), (4, 16), (1, 0))
    tl.store(q, tl.load(p, boundary_check=CHECK, padding_option="zero"))  # <checked>


@triton.jit
def three_axes(x, y, sig, off, at, n, m, CHECK: tl.constexpr):
    p = tl.make_block_ptr(x + off, (3, n, m), (512, 32, 1), (1, at, at + 1), (2, 4, 16), (2, 1, 0))
    q = tl.make_block_ptr(y, (2, 4, 16), (64, 16, 1), (0, 0, 0), (2, 4, 16), (2, 1, 0))
    tl.store(q, tl.load(p, boundary_check=CHECK, padding_option="zero"))


@triton.jit
def unit_stride_known(x, y, sig, off, at, n, m, ORDER: tl.constexpr):
    p = tl.make_block_ptr(x + off, (n, m), (m, 1), (at, 1), (4, 16), ORDER)
    q = tl.make_block_ptr(y, (4, 16), (16, 1), (0, 0), (4, 16), (1, 0))
    tl.store(q, tl.load(p, boundary_check=(0, 1), padding_option="zero"))


@triton.jit
def advanced_in_a_loop(x, y, sig, off, at, n, m, CHECK: tl.constexpr):
    p = tl.make_block_ptr(x + off, (n, m), (32, 1), (0, 0), (4, 16), (1, 0))
    for i in range(3):
        q = tl.make_block_ptr(y + 64 * i, (4, 16), (16, 1), (0, 0), (4, 16), (1, 0))
        tl.store(q, tl.load(p, boundary_check=CHECK, padding_option="zero"))
        p = tl.advance(p, (1, at))


@triton.jit
def base_advanced_in_a_loop(x, y, sig, off, at, n, m):
    base = x + off
    for i in range(3):
        p = tl.make_block_ptr(base, (n, m), (32, 1), (i, at), (4, 16), (1, 0))
        q = tl.make_block_ptr(y + 64 * i, (4, 16), (16, 1), (0, 0), (4, 16), (1, 0))
        tl.store(q, tl.load(p, boundary_check=(0, 1), padding_option="zero"))
        base += 32


@triton.jit
def base_of_a_call(x, y, sig, off, at, n, m, HOW: tl.constexpr):
    token = dl.wait(sig, 1, "gpu", "acquire", waitValue=0)
    if HOW == "advanced behind it":
        base = dl.consume_token(x, token) + off
    elif HOW == "advanced before it":
        base = dl.consume_token(x + off, token)
    else:
        base = x + off
    p = tl.make_block_ptr(base, (n, m), (32, 1), (at, at), (4, 16), (1, 0))
    if HOW == "the block":
        p = dl.consume_token(p, token)
    q = tl.make_block_ptr(y, (4, 16), (16, 1), (0, 0), (4, 16), (1, 0))
    tl.store(q, tl.load(p, boundary_check=(0, 1), padding_option="zero"))


@triton.jit
def stored_through_a_call(x, y, sig, off, at, n, m, CHECK: tl.constexpr):
    base = dl.consume_token(y, dl.wait(sig, 1, "gpu", "acquire", waitValue=0)) + off
    p = tl.make_block_ptr(x, (4, 16), (16, 1), (0, 0), (4, 16), (1, 0))
    q = tl.make_block_ptr(base, (n, m), (32, 1), (at, at), (4, 16), (1, 0))
    tl.store(q, tl.load(p), boundary_check=CHECK)


@triton.jit
def checked_differently(x, y, sig, off, at, n, m):
    p = tl.make_block_ptr(x + off, (n, m), (32, 1), (at, at), (4, 16), (1, 0))
    q = tl.make_block_ptr(y, (4, 16), (16, 1), (0, 0), (4, 16), (1, 0))
    both = tl.load(p, boundary_check=(0, 1), padding_option="zero")
    tl.store(q, both + tl.load(p, boundary_check=(1,), padding_option="zero"))  # <here>


@triton.jit
def before_the_first_element(x, y, sig, off, at, n, m):
    p = tl.advance(tl.make_block_ptr(x, (n, m), (32, 1), (at, 2), (4, 16), (1, 0)), (0, -3))
    q = tl.make_block_ptr(y, (4, 16), (16, 1), (0, 0), (4, 16), (1, 0))
    tl.store(q, tl.load(p, boundary_check=(0, 1), padding_option="zero"))  # <here>


BY_ROWS, BY_COLUMNS = (1, 0), (0, 1)
CASES: list[tuple[Any, dict[str, Any]]] = [
    *(
        (checked, {"S": stride, "ORDER": order, "CHECK": check})
        for stride in (32, 1)
        for order in (BY_ROWS, BY_COLUMNS)
        for check in ((), (0,), (1,), (0, 1))
    ),
    *((three_axes, {"CHECK": check}) for check in ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2))),
    *((unit_stride_known, {"ORDER": order}) for order in (BY_ROWS, BY_COLUMNS)),
    *((advanced_in_a_loop, {"CHECK": check}) for check in ((0,), (1,), (0, 1))),
    (base_advanced_in_a_loop, {}),
    *((base_of_a_call, {"HOW": how}) for how in ("advanced behind it", "advanced before it", "the block")),
    *((stored_through_a_call, {"CHECK": check}) for check in ((0,), (1,), (0, 1))),
]


def memory() -> list[torch.Tensor]:
    x = torch.arange(ELEMENTS, dtype=torch.float32)
    return [x, torch.zeros(ELEMENTS), torch.zeros(128, dtype=torch.int32)]


def simulated(ir: KernelIR, arguments: tuple[int, ...]) -> torch.Tensor:
    def host(rt) -> torch.Tensor:
        tensors = memory()
        rt.launch(ir, (1, 1, 1), [*(tensor[len(tensor) // 2 :] for tensor in tensors), *arguments])
        rt.synchronize()
        return tensors[1].clone()

    with World(nranks=1, detect=False) as world:
        (result,) = world.run(host)
        assert not world.findings
    return result


def case_id(case: tuple[Any, dict[str, Any]]) -> str:
    return "-".join([case[0].__name__, *(f"{name}={value}" for name, value in case[1].items())])


@needs_adapter
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_the_compiled_kernel_copies_what_the_simulated_one_copies(case: tuple[Any, dict[str, Any]]) -> None:
    fn, constants = case
    ir = compile_source(fn, SIGNATURE, constants)
    with Steps() as steps:
        module = read_generic(to_linalg(prepare(ir), CompileOptions(), steps).text)
    for arguments in ARGUMENTS:
        tensors = memory()
        run(module, [*tensors, *arguments])
        assert torch.equal(tensors[1], simulated(ir, arguments)), arguments


@pytest.mark.parametrize(
    ("fn", "says"),
    [(checked_differently, r"Write boundary_check=\(0, 1\)"), (before_the_first_element, "begins at -1")],
)
def test_what_the_adapter_would_get_wrong_is_refused_at_its_line(fn: Any, says: str) -> None:
    lines, first = inspect.getsourcelines(fn.fn)
    line = first + next(k for k, text in enumerate(lines) if "# <here>" in text)
    with pytest.raises(KernelError, match=rf"test_block_pointers\.py:{line}: .*{says}"):
        prepare(compile_source(fn, SIGNATURE, {}))
