"""Constructs of Triton around distributed calls and without them: what the chain must carry unchanged."""

import triton
import triton.language as tl
from gate_kit import Cases, Refused

import tdist.language as dl

CASES = Cases()


@CASES.case("buf: *T, out: *T, n: i32", types="fp16 fp32 i32", R=8, C=32)
@triton.jit
def reductions_of_remote_rows(buf, out, n, R: tl.constexpr, C: tl.constexpr):
    there = dl.symm_at(buf, 1)
    rows = tl.arange(0, R)[:, None]
    columns = tl.arange(0, C)[None, :]
    tile = tl.load(there + rows * C + columns)
    tl.store(out + tl.arange(0, R), tl.sum(tile, axis=1) + tl.max(tile, axis=1) - tl.min(tile, axis=1))


@CASES.case("buf: *fp32, out: *fp32, columns: i32", B=256)
@triton.jit
def softmax_of_a_remote_row(buf, out, columns, B: tl.constexpr):
    offsets = tl.arange(0, B)
    row = tl.load(dl.symm_at(buf, 1) + offsets, mask=offsets < columns, other=-float("inf"))
    powers = tl.exp(row - tl.max(row, axis=0))
    tl.store(out + offsets, powers / tl.sum(powers, axis=0), mask=offsets < columns)


@CASES.case("buf: *fp32, out: *fp32", B=64)
@triton.jit
def running_sum_of_a_remote_block(buf, out, B: tl.constexpr):
    tl.store(out + tl.arange(0, B), tl.cumsum(tl.load(dl.symm_at(buf, 1) + tl.arange(0, B)), axis=0))


@CASES.case("buf: *fp16, out: *fp16", R=16, C=32)
@triton.jit
def transposed_remote_tile(buf, out, R: tl.constexpr, C: tl.constexpr):
    rows = tl.arange(0, R)
    columns = tl.arange(0, C)
    tile = tl.load(dl.symm_at(buf, 1) + rows[:, None] * C + columns[None, :])
    tl.store(out + columns[:, None] * R + rows[None, :], tl.trans(tile))


@CASES.case("buf: *fp16, out: *fp16, n: i32", B=64)
@triton.jit
def choices_between_values(buf, out, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    values = tl.load(dl.symm_at(buf, 1) + offsets)
    tl.store(out + offsets, tl.where((offsets % 3 == 0) & (values > 0), values * 2, -values))


@CASES.case("buf: *T, out: *fp32", types="i8 i16 i32 bf16", B=64)
@triton.jit
def conversions(buf, out, B: tl.constexpr):
    offsets = tl.arange(0, B)
    tl.store(out + offsets, tl.load(dl.symm_at(buf, 1) + offsets).to(tl.float32) * 0.5)


@CASES.case("x: *fp16, buf: *fp16, n: i64", B=64)
@triton.jit
def offsets_of_64_bits(x, buf, n, B: tl.constexpr):
    offsets = tl.arange(0, B) + n * 4096
    tl.store(dl.symm_at(buf, 1) + offsets, tl.load(x + offsets))


@CASES.case("x: *fp16, buf: *fp16, n: i32", B=61)
@triton.jit
def block_of_61_elements(x, buf, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    tl.store(dl.symm_at(buf, 1) + offsets, tl.load(x + offsets, mask=offsets < n, other=0.0), mask=offsets < n)


@CASES.case("x: *fp32, buf: *fp32, n: i32", B=64)
@triton.jit
def every_third_element(x, buf, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    tl.store(dl.symm_at(buf, 1) + offsets * 3, tl.load(x + offsets * 3 + 1))


@CASES.case("x: *fp16, buf: *fp16, n: i32", B=64)
@triton.jit
def nested_loops_and_conditions(x, buf, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    for peer in range(tl.program_id(0), dl.num_ranks(), tl.num_programs(0)):
        there = dl.symm_at(buf, peer)
        for chunk in range(0, n):
            if chunk % 2 == peer % 2:
                tl.store(there + chunk * B + offsets, tl.load(x + chunk * B + offsets))
            elif chunk > 7:
                tl.store(there + chunk * B + offsets, offsets.to(tl.float16))


@CASES.case("x: *fp32, out: *fp32, n: i32", B=64)
@triton.jit
def carried_values_without_anything_distributed(x, out, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    total = tl.zeros((B,), dtype=tl.float32)
    count = 0
    for turn in range(0, n):
        total = tl.maximum(total, tl.load(x + turn * B + offsets))
        count += turn
    tl.store(out + offsets, total + count.to(tl.float32))


@CASES.case("x: *fp32, out: *fp32, n: i32", B=64)
@triton.jit
def one_program_of_three_dimensions(x, out, n, B: tl.constexpr):
    block = (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(2) + tl.program_id(2)
    offsets = block * B + tl.arange(0, B)
    tl.store(out + offsets, tl.sqrt(tl.abs(tl.load(x + offsets, mask=offsets < n))), mask=offsets < n)


@CASES.case("x: *fp32, buf: *fp32, n: i32", B=64)
@triton.jit
def assertion_in_a_kernel(x, buf, n, B: tl.constexpr):
    tl.device_assert(n > 0, "nothing to send")
    tl.store(dl.symm_at(buf, 1) + tl.arange(0, B), tl.load(x + tl.arange(0, B)))


@CASES.case("x: *fp32, buf: *fp32, n: i32", B=64)
@triton.jit
def print_in_a_kernel(x, buf, n, B: tl.constexpr):
    tl.device_print("n", n)
    tl.store(dl.symm_at(buf, 1) + tl.arange(0, B), tl.load(x + tl.arange(0, B)))


@CASES.case("x: *fp32, out: *fp32", Refused("front end", "not_a_function", at="call"), B=64)
@triton.jit
def name_that_does_not_exist(x, out, B: tl.constexpr):
    tl.store(out + tl.arange(0, B), tl.not_a_function(x))  # <call>
