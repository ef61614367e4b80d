"""Constructs of Triton around distributed calls and without them: what the chain must carry unchanged."""

import triton
import triton.language as tl
from gate_kit import Cases, Refused

import tdist.language as dl

CASES = Cases()


@CASES.case("buf: *T, out: *T, n: i32", types="fp16 fp32 i32", R=8, C=32, memory="load ptr(buf), store out")
@triton.jit
def reductions_of_remote_rows(buf, out, n, R: tl.constexpr, C: tl.constexpr):
    there = dl.symm_at(buf, 1)
    rows = tl.arange(0, R)[:, None]
    columns = tl.arange(0, C)[None, :]
    tile = tl.load(there + rows * C + columns)
    tl.store(out + tl.arange(0, R), tl.sum(tile, axis=1) + tl.max(tile, axis=1) - tl.min(tile, axis=1))


@CASES.case("buf: *fp32, out: *fp32, columns: i32", B=256, memory="load ptr(buf), store out")
@triton.jit
def softmax_of_a_remote_row(buf, out, columns, B: tl.constexpr):
    offsets = tl.arange(0, B)
    row = tl.load(dl.symm_at(buf, 1) + offsets, mask=offsets < columns, other=-float("inf"))
    powers = tl.exp(row - tl.max(row, axis=0))
    tl.store(out + offsets, powers / tl.sum(powers, axis=0), mask=offsets < columns)


@CASES.case("buf: *fp32, out: *fp32", B=64, memory="load ptr(buf), store out")
@triton.jit
def running_sum_of_a_remote_block(buf, out, B: tl.constexpr):
    tl.store(out + tl.arange(0, B), tl.cumsum(tl.load(dl.symm_at(buf, 1) + tl.arange(0, B)), axis=0))


@CASES.case("buf: *fp16, out: *fp16", R=16, C=32, memory="load ptr(buf), store out")
@triton.jit
def transposed_remote_tile(buf, out, R: tl.constexpr, C: tl.constexpr):
    rows = tl.arange(0, R)
    columns = tl.arange(0, C)
    tile = tl.load(dl.symm_at(buf, 1) + rows[:, None] * C + columns[None, :])
    tl.store(out + columns[:, None] * R + rows[None, :], tl.trans(tile))


@CASES.case("buf: *fp16, out: *fp16, n: i32", B=64, memory="load ptr(buf), store out")
@triton.jit
def choices_between_values(buf, out, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    values = tl.load(dl.symm_at(buf, 1) + offsets)
    tl.store(out + offsets, tl.where((offsets % 3 == 0) & (values > 0), values * 2, -values))


@CASES.case("buf: *T, out: *fp32", types="i8 i16 i32 bf16", B=64, memory="load ptr(buf), store out")
@triton.jit
def conversions(buf, out, B: tl.constexpr):
    offsets = tl.arange(0, B)
    tl.store(out + offsets, tl.load(dl.symm_at(buf, 1) + offsets).to(tl.float32) * 0.5)


@CASES.case("x: *fp16, buf: *fp16, n: i64", B=64, memory="load x, store ptr(buf)")
@triton.jit
def offsets_of_64_bits(x, buf, n, B: tl.constexpr):
    offsets = tl.arange(0, B) + n * 4096
    tl.store(dl.symm_at(buf, 1) + offsets, tl.load(x + offsets))


@CASES.case("x: *fp16, buf: *fp16, n: i32", B=61, memory="load x, store ptr(buf)")
@triton.jit
def block_of_61_elements(x, buf, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    tl.store(dl.symm_at(buf, 1) + offsets, tl.load(x + offsets, mask=offsets < n, other=0.0), mask=offsets < n)


@CASES.case("x: *fp32, buf: *fp32, n: i32", B=64, memory="load x, store ptr(buf)")
@triton.jit
def every_third_element(x, buf, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    tl.store(dl.symm_at(buf, 1) + offsets * 3, tl.load(x + offsets * 3 + 1))


@CASES.case("x: *fp16, buf: *fp16, n: i32", B=64, memory="load x, store ptr(buf)")
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


@CASES.case("x: *fp32, out: *fp32, n: i32", B=64, memory="load x, store out")
@triton.jit
def carried_values_without_anything_distributed(x, out, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    total = tl.zeros((B,), dtype=tl.float32)
    count = 0
    for turn in range(0, n):
        total = tl.maximum(total, tl.load(x + turn * B + offsets))
        count += turn
    tl.store(out + offsets, total + count.to(tl.float32))


@CASES.case("x: *fp32, out: *fp32, n: i32", B=64, memory="load x, store out")
@triton.jit
def one_program_of_three_dimensions(x, out, n, B: tl.constexpr):
    block = (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(2) + tl.program_id(2)
    offsets = block * B + tl.arange(0, B)
    tl.store(out + offsets, tl.sqrt(tl.abs(tl.load(x + offsets, mask=offsets < n))), mask=offsets < n)


@CASES.case("x: *fp32, buf: *fp32, n: i32", B=64, memory="load x, store ptr(buf)")
@triton.jit
def assertion_in_a_kernel(x, buf, n, B: tl.constexpr):
    tl.device_assert(n > 0, "nothing to send")
    tl.store(dl.symm_at(buf, 1) + tl.arange(0, B), tl.load(x + tl.arange(0, B)))


@CASES.case("x: *fp32, buf: *fp32, n: i32", B=64, memory="load x, store ptr(buf)")
@triton.jit
def print_in_a_kernel(x, buf, n, B: tl.constexpr):
    tl.device_print("n", n)
    tl.store(dl.symm_at(buf, 1) + tl.arange(0, B), tl.load(x + tl.arange(0, B)))


# ---- the tl library -------------------------------------------------------------------------------------------------


@triton.jit
def _larger(left, right):
    return tl.maximum(left, right)


@CASES.case("buf: *fp32, out: *fp32", B=64, memory="load ptr(buf), store out")
@triton.jit
def scans_and_reductions_by_a_function(buf, out, B: tl.constexpr):
    values = tl.load(dl.symm_at(buf, 1) + tl.arange(0, B))
    running = tl.associative_scan(values, 0, _larger)
    tl.store(out + tl.arange(0, B), running - tl.reduce(values, 0, _larger))
    tl.store(out + B, tl.argmax(values, 0).to(tl.float32))


@CASES.case("buf: *T, out: *T", types="fp32 fp16", B=64, memory="load ptr(buf), store out")
@triton.jit
def sorted_and_reversed(buf, out, B: tl.constexpr):
    values = tl.load(dl.symm_at(buf, 1) + tl.arange(0, B))
    tl.store(out + tl.arange(0, B), tl.sort(values) + tl.flip(values))


@CASES.case("x: *fp32, buf: *fp32", B=64, memory="load x, store ptr(buf)")
@triton.jit
def joined_and_interleaved(x, buf, B: tl.constexpr):
    left = tl.load(x + tl.arange(0, B))
    right = tl.load(x + B + tl.arange(0, B))
    there = dl.symm_at(buf, 1)
    tl.store(there + tl.arange(0, 2 * B), tl.interleave(left, right))
    pairs = tl.arange(0, B)[:, None] * 2 + tl.arange(0, 2)[None, :]
    tl.store(there + 2 * B + pairs, tl.join(left, right))


@CASES.case(
    "index: *i32, x: *fp32, counts: *i32, out: *fp32", B=64, memory="load index, load x, store out, store ptr(counts)"
)
@triton.jit
def histogram_gather_and_random_numbers(index, x, counts, out, B: tl.constexpr):
    offsets = tl.arange(0, B)
    where = tl.load(index + offsets)
    tl.store(dl.symm_at(counts, 1) + offsets, tl.histogram(where, B))
    tl.store(out + offsets, tl.gather(tl.load(x + offsets), where, 0) + tl.rand(7, offsets))


@CASES.case("x: *T, buf: *T", types="fp16 fp32", B=64, memory="load x, store ptr(buf)")
@triton.jit
def functions_of_a_number(x, buf, B: tl.constexpr):
    value = tl.load(x + tl.arange(0, B)).to(tl.float32)
    result = tl.erf(value) + tl.sin(value) + tl.log2(tl.abs(value)) + tl.fma(value, value, value)
    result = tl.clamp(result, -1.0, 1.0) + tl.floor(value) + tl.rsqrt(value)
    tl.store(dl.symm_at(buf, 1) + tl.arange(0, B), result.to(buf.dtype.element_ty))


@CASES.case("x: *T, y: *T, buf: *T", types="i32 i64 u8", B=64, memory="load x, load y, store ptr(buf)")
@triton.jit
def arithmetic_of_integers(x, y, buf, B: tl.constexpr):
    left = tl.load(x + tl.arange(0, B))
    right = tl.load(y + tl.arange(0, B))
    tl.store(dl.symm_at(buf, 1) + tl.arange(0, B), (left // right + left % right) ^ (left >> 2) & ~right)


@CASES.case("x: *fp32, buf: *fp32, n: i32", B=64, memory="load x, store ptr(buf)")
@triton.jit
def addresses_with_remainders_and_negative_steps(x, buf, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    there = dl.symm_at(buf, 1)
    tl.store(there + (B - 1 - offsets), tl.load(x + (offsets + n) % B))
    tl.store(there + B + offsets, tl.load(x + offsets // 4))


@CASES.case("x: *fp32, buf: *fp32", B=64, memory="load x, store ptr(buf)")
@triton.jit
def loop_that_is_unrolled(x, buf, B: tl.constexpr):
    for peer in tl.static_range(4):
        tl.store(dl.symm_at(buf, peer) + tl.arange(0, B), tl.load(x + peer * B + tl.arange(0, B)))


# ---- refused --------------------------------------------------------------------------------------------------------


@CASES.case("x: *i32, out: *i32", Refused("bishengir-compile", r"vsort for an element type", at="sort"), B=64)
@triton.jit
def sorted_integers(x, out, B: tl.constexpr):
    tl.store(out + tl.arange(0, B), tl.sort(tl.load(x + tl.arange(0, B))))  # <sort>


@CASES.case("x: *fp64, out: *fp64", Refused("bishengir-compile", r"vmul for an element type", at="times"), B=64)
@triton.jit
def arithmetic_of_doubles(x, out, B: tl.constexpr):
    tl.store(out + tl.arange(0, B), tl.load(x + tl.arange(0, B)) * 2.0)  # <times>


DIVISION = "x: *T, y: *T, out: *T"
NO_CAST = r"converts uint32_t to float, which .*\n.*don't support cast uint32_t_to_float"
CRASH = r"crashes on kernel .* in pass convert-hfusion-to-hivm.*\n.*unsupported .* binary operation kind"


@CASES.case(DIVISION, Refused("bishengir-compile", NO_CAST, at="quotient"), types="u32", B=64)
@CASES.case(DIVISION, Refused("bishengir-compile", CRASH, at="quotient"), types="u64", B=64)
@triton.jit
def unsigned_division(x, y, out, B: tl.constexpr):
    quotient = tl.load(x + tl.arange(0, B)) // tl.load(y + tl.arange(0, B))  # <quotient>
    tl.store(out + tl.arange(0, B), quotient)


@CASES.case("x: *T, out: *T", Refused("front end", "unexpected type fp8", at="kernel"), types="fp8e4nv fp8e5", B=64)
@triton.jit
def numbers_of_8_bits(x, out, B: tl.constexpr):  # <kernel>
    tl.store(out + tl.arange(0, B), tl.load(x + tl.arange(0, B)))


@CASES.case(
    "x: *fp32, out: *fp32", Refused("lowering", "tdist does not support tt.elementwise_inline_asm", at="asm"), B=64
)
@triton.jit
def inline_assembly(x, out, B: tl.constexpr):
    values = tl.inline_asm_elementwise("nop", "=r,r", [tl.load(x + tl.arange(0, B))], tl.float32, True, 1)  # <asm>
    tl.store(out + tl.arange(0, B), values)


@CASES.case("x: *fp32, out: *fp32, n: i32", Refused("front end", "Cannot have `return` statements", at="if"), B=64)
@triton.jit
def return_out_of_a_loop(x, out, n, B: tl.constexpr):
    for turn in range(0, n):
        if turn == 5:  # <if>
            return
        tl.store(out + turn * B + tl.arange(0, B), tl.load(x + turn * B + tl.arange(0, B)))


@CASES.case("x: *fp32, out: *fp32", Refused("front end", "not_a_function", at="call"), B=64)
@triton.jit
def name_that_does_not_exist(x, out, B: tl.constexpr):
    tl.store(out + tl.arange(0, B), tl.not_a_function(x))  # <call>
