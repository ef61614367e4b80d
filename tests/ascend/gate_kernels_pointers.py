"""Where remote and consumed pointers travel: loops, branches, tensors, block pointers, casts."""

import triton
import triton.language as tl
from gate_kit import Cases, Passes, Refused

import tdist.language as dl

CASES = Cases()
TYPES = "fp16 bf16 fp32 i8 i32"
OTHER_FORM = "fails on the calls of this kernel as `call` .* in another form"

# ---- scalar pointers ------------------------------------------------------------------------------------------------


@CASES.case("x: *T, buf: *T, n: i32", types=TYPES, B=64, memory="load x, store ptr(buf)")
@triton.jit
def remote_pointer_walks_with_a_loop(x, buf, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    there = dl.symm_at(buf, dl.rank() + 1)
    here = x
    for _ in range(0, n):
        tl.store(there + offsets, tl.load(here + offsets))
        there += B
        here += B


@CASES.case("buf: *fp16, sig: *i32, out: *fp16, n: i32", B=64, memory="load token(buf), store out")
@triton.jit
def pointer_consumed_anew_in_each_turn(buf, sig, out, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    here = buf
    there = out
    for turn in range(0, n):
        token = dl.wait(sig + turn * 16, 1, "gpu", "acquire", waitValue=1)
        here = dl.consume_token(here, token)
        tl.store(there + offsets, tl.load(here + offsets))
        here += B
        there += B


@CASES.case("x: *fp16, buf: *fp16, n: i32", B=64, memory="load x, store ptr(buf)")
@triton.jit
def remote_pointer_walks_with_a_while(x, buf, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    there = dl.symm_at(buf, 1)
    turn = 0
    while turn < n:
        tl.store(there + offsets, tl.load(x + offsets))
        there += B
        turn += 1


@CASES.case("x: *fp16, buf: *fp16, n: i32", B=64, memory="load x, store ptr(buf)")
@triton.jit
def peer_chosen_by_branches(x, buf, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    if n > 4:  # noqa: SIM108
        there = dl.symm_at(buf, dl.rank() + 1)
    else:
        there = dl.symm_at(buf, dl.rank() + 2)
    tl.store(there + offsets, tl.load(x + offsets))


@CASES.case("x: *fp16, buf: *fp16, n: i32", B=64, memory="load x, store buf | ptr(buf)")
@triton.jit
def local_or_remote(x, buf, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    target = buf
    if n % 4 != dl.rank():
        target = dl.symm_at(buf, n % 4)
    tl.store(target + offsets, tl.load(x + offsets))


@CASES.case("x: *fp16, buf: *fp16, n: i32", B=64, memory="load x, store buf, store ptr(buf)")
@triton.jit
def each_branch_stores(x, buf, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    values = tl.load(x + offsets)
    if n % 4 != dl.rank():
        tl.store(dl.symm_at(buf, n % 4) + offsets, values)
    else:
        tl.store(buf + offsets, values)


@CASES.case("x: *fp16, buf: *fp16, n: i32", Refused("adapter", "two arguments|different arguments", at="if"), B=64)
@triton.jit
def one_of_two_arguments(x, buf, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    if n % 4 != dl.rank():  # <if>  # noqa: SIM108
        target = dl.symm_at(buf, n % 4)
    else:
        target = x
    tl.store(target + offsets, offsets.to(tl.float16))


@CASES.case(
    "x: *fp16, buf: *fp16, n: i32", Refused("adapter", "memory behind a pointer changes from one turn", at="hop"), B=64
)
@triton.jit
def pointer_that_hops_from_peer_to_peer(x, buf, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    target = buf
    for peer in range(0, n):
        target = dl.symm_at(target, peer)  # <hop>
        tl.store(target + offsets, tl.load(x + offsets))


@CASES.case("buf: *fp16, sig: *i32, out: *fp16", B=64, memory="load token(buf), load token(token(buf)), store out")
@triton.jit
def one_base_consumed_twice(buf, sig, out, B: tl.constexpr):
    offsets = tl.arange(0, B)
    first = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
    second = dl.wait(sig + 16, 1, "gpu", "acquire", waitValue=1)
    left = dl.consume_token(dl.consume_token(buf, first), second)
    right = dl.consume_token(buf, first + second)
    tl.store(out + offsets, tl.load(left + offsets) + tl.load(right + B + offsets))


@CASES.case(
    "x: *fp16, buf: *fp16, sig: *i32, slot: i32", B=64, memory="load token(ptr(buf)), load x, store ptr(buf), store x"
)
@triton.jit
def slots_of_buffers_and_signals(x, buf, sig, slot, B: tl.constexpr):
    """symm_at and consume_token of pointers with an offset, and of each other's results."""
    offsets = tl.arange(0, B)
    there = dl.symm_at(buf + slot * B, 1)
    tl.store(there + offsets, tl.load(x + offsets))
    dl.notify(sig + slot * 16, 1, signal=1, sig_op="add")
    token = dl.wait(sig + slot * 16 + 8, 1, "gpu", "acquire", waitValue=2)
    again = dl.consume_token(there + 4, token)
    tl.store(x + offsets, tl.load(again + offsets))


@CASES.case("buf: *fp16, sig: *i32", B=64, memory="store ptr(buf)")
@triton.jit
def signal_to_a_translated_address(buf, sig, B: tl.constexpr):
    """Goes through; that the library translates the address twice is for the check of effects to say."""
    tl.store(dl.symm_at(buf, 1) + tl.arange(0, B), 1.0)
    dl.notify(dl.symm_at(sig, 1), 1, signal=1)


@CASES.case("buf: *T, sig: *i32, out: *T, n: i32", types=TYPES, memory="load token(buf), store ptr(out)")
@triton.jit
def scalar_load_and_store(buf, sig, out, n):
    token = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
    value = tl.load(dl.consume_token(buf, token) + n)
    tl.store(dl.symm_at(out, 1) + n, value)
    dl.notify(sig, 1, signal=1)


@CASES.case("buf: *fp16, x: *fp16, n: i32", B=64, memory="load buf, load x, store ptr(buf), store x")
@triton.jit
def store_seen_through_the_own_remote_pointer(buf, x, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    mine = dl.symm_at(buf, dl.rank())
    tl.store(mine + offsets, tl.load(x + offsets))
    tl.store(x + offsets, tl.load(buf + offsets))


@CASES.case("buf: *fp16, n: i32", B=64, memory="store ptr(buf)")
@triton.jit
def words_of_another_type(buf, n, B: tl.constexpr):
    """A cast of the pointer before it is translated."""
    offsets = tl.arange(0, B)
    words = (buf + n).to(tl.pointer_type(tl.int16), bitcast=True)
    tl.store(dl.symm_at(words, 1) + offsets, offsets.to(tl.int16))


# ---- tensors of pointers --------------------------------------------------------------------------------------------


@CASES.case("x: *T, buf: *T, n: i32", types=TYPES, B=64, memory="load x, store ptr(buf)")
@triton.jit
def tensor_of_remote_pointers_walks(x, buf, n, B: tl.constexpr):
    there = dl.symm_at(buf, dl.rank() + 1) + tl.arange(0, B)
    here = x + tl.arange(0, B)
    for _ in range(0, n):
        tl.store(there, tl.load(here))
        there += B
        here += B


@CASES.case("buf: *fp16, sig: *i32, out: *fp16, n: i32", B=64, memory="load token(buf), store out")
@triton.jit
def tensor_of_pointers_consumed_in_each_turn(buf, sig, out, n, B: tl.constexpr):
    here = buf + tl.arange(0, B)
    there = out + tl.arange(0, B)
    for turn in range(0, n):
        token = dl.wait(sig + turn * 16, 1, "gpu", "acquire", waitValue=1)
        here = dl.consume_token(here, token)
        tl.store(there, tl.load(here))
        here += B
        there += B


@CASES.case("buf: *T, sig: *i32, out: *T, n: i32", types=TYPES, R=16, C=32, memory="load token(buf), store out")
@triton.jit
def tensor_of_pointers_in_two_dimensions(buf, sig, out, n, R: tl.constexpr, C: tl.constexpr):
    rows = tl.arange(0, R)[:, None]
    columns = tl.arange(0, C)[None, :]
    token = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
    here = dl.consume_token(buf + rows * n + columns, token)
    tl.store(out + rows * C + columns, tl.load(here, mask=columns < n, other=0))


@CASES.case("buf: *fp32, sig: *i32, out: *fp32", A=4, R=8, C=16, memory="load token(buf), store out")
@triton.jit
def tensor_of_pointers_in_three_dimensions(buf, sig, out, A: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    planes = tl.arange(0, A)[:, None, None]
    rows = tl.arange(0, R)[None, :, None]
    columns = tl.arange(0, C)[None, None, :]
    offsets = (planes * R + rows) * C + columns
    token = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
    tl.store(out + offsets, tl.load(dl.consume_token(buf + offsets, token)))


@CASES.case("index: *i32, buf: *T, out: *T", types="fp16 fp32", B=64, memory="load index, load ptr(buf), store out")
@triton.jit
def gather_from_a_peer(index, buf, out, B: tl.constexpr):
    offsets = tl.arange(0, B)
    there = dl.symm_at(buf, dl.rank() + 1)
    tl.store(out + offsets, tl.load(there + tl.load(index + offsets)))


@CASES.case("index: *i32, x: *fp32, buf: *fp32", B=64, memory="load index, load x, store ptr(buf)")
@triton.jit
def scatter_to_a_peer(index, x, buf, B: tl.constexpr):
    offsets = tl.arange(0, B)
    there = dl.symm_at(buf, dl.rank() + 1)
    tl.store(there + tl.load(index + offsets), tl.load(x + offsets))


@CASES.case("x: *fp16, buf: *fp16, n: i32, stride: i32", R=16, C=32, memory="load x, store ptr(buf)")
@triton.jit
def strided_rows_to_a_peer(x, buf, n, stride, R: tl.constexpr, C: tl.constexpr):
    rows = tl.arange(0, R)[:, None]
    columns = tl.arange(0, C)[None, :]
    mask = (rows < n) & (columns < n)
    tile = tl.load(x + rows * stride + columns, mask=mask, other=0.0)
    tl.store(dl.symm_at(buf, 1) + rows * stride + columns, tile, mask=mask)


@CASES.case("x: *fp16, buf: *fp16", R=12, C=40, memory="load x, store ptr(buf)")
@triton.jit
def shape_without_powers_of_two(x, buf, R: tl.constexpr, C: tl.constexpr):
    rows = tl.arange(0, R)[:, None]
    columns = tl.arange(0, C)[None, :]
    tl.store(dl.symm_at(buf, 1) + rows * C + columns, tl.load(x + rows * C + columns))


# ---- block pointers -------------------------------------------------------------------------------------------------


@CASES.case("x: *T, buf: *T, M: i32, N: i32", types="fp16 bf16 fp32", BM=16, BN=32, memory="load x, store ptr(buf)")
@triton.jit
def block_pointer_on_a_peer(x, buf, M, N, BM: tl.constexpr, BN: tl.constexpr):
    here = tl.make_block_ptr(x, (M, N), (N, 1), (0, 0), (BM, BN), (1, 0))
    there = tl.make_block_ptr(dl.symm_at(buf, 1), (M, N), (N, 1), (0, 0), (BM, BN), (1, 0))
    for _ in range(0, tl.cdiv(N, BN)):
        tl.store(there, tl.load(here, boundary_check=(0, 1)), boundary_check=(0, 1))
        here = tl.advance(here, (0, BN))
        there = tl.advance(there, (0, BN))


@CASES.case("buf: *fp16, sig: *i32, out: *fp16, M: i32, N: i32", BM=16, BN=32, memory="load token(buf), store out")
@triton.jit
def block_pointer_on_a_consumed_base(buf, sig, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    token = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
    here = tl.make_block_ptr(dl.consume_token(buf, token), (M, N), (N, 1), (0, 0), (BM, BN), (1, 0))
    there = tl.make_block_ptr(out, (M, N), (N, 1), (0, 0), (BM, BN), (1, 0))
    tl.store(there, tl.load(here, boundary_check=(0, 1)), boundary_check=(0, 1))


@CASES.case("buf: *fp16, sig: *i32, out: *fp16, M: i32, N: i32", BM=16, BN=32, memory="load token(buf), store out")
@triton.jit
def block_pointer_consumed(buf, sig, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    here = tl.make_block_ptr(buf, (M, N), (N, 1), (0, 0), (BM, BN), (1, 0))
    there = tl.make_block_ptr(out, (M, N), (N, 1), (0, 0), (BM, BN), (1, 0))
    token = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
    tl.store(there, tl.load(dl.consume_token(here, token), boundary_check=(0, 1)), boundary_check=(0, 1))


@CASES.case(
    "buf: *fp16, sig: *i32, out: *fp16, M: i32, N: i32",
    Passes(notes=(OTHER_FORM,)),
    BM=16,
    BN=32,
    memory="load token(buf), store out",
)
@triton.jit
def block_pointer_consumed_in_each_turn(buf, sig, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    here = tl.make_block_ptr(buf, (M, N), (N, 1), (0, 0), (BM, BN), (1, 0))
    there = tl.make_block_ptr(out, (M, N), (N, 1), (0, 0), (BM, BN), (1, 0))
    for turn in range(0, tl.cdiv(N, BN)):
        token = dl.wait(sig + turn * 16, 1, "gpu", "acquire", waitValue=1)
        here = dl.consume_token(here, token)
        tl.store(there, tl.load(here, boundary_check=(0, 1)), boundary_check=(0, 1))
        here = tl.advance(here, (0, BN))
        there = tl.advance(there, (0, BN))


# ---- the adapter's own limits, without anything distributed ---------------------------------------------------------


@CASES.case("x: *fp16, n: i32", B=64, memory="store x")
@triton.jit
def local_pointer_moved_by_a_branch(x, n, B: tl.constexpr):
    """triton-adapter-opt 3.2.0 crashes on a scalar pointer that an `if` gives; the offsets go through instead."""
    target = x
    if n > 0:
        target = x + 128
        tl.store(target, 1.0)
    tl.store(target + tl.arange(0, B), 2.0)


@CASES.case("x: *fp16, y: *fp16, n: i32", Refused("adapter", "two arguments|different arguments", at="if"), B=64)
@triton.jit
def local_pointer_of_two_arguments(x, y, n, B: tl.constexpr):
    if n > 0:  # <if>  # noqa: SIM108
        target = x
    else:
        target = y
    tl.store(target + tl.arange(0, B), 2.0)


@CASES.case("x: *fp16, n: i32", B=64, memory="store x")
@triton.jit
def local_words_of_another_type(x, n, B: tl.constexpr):
    words = (x + n).to(tl.pointer_type(tl.int16), bitcast=True)
    tl.store(words + tl.arange(0, B), tl.arange(0, B).to(tl.int16))


@CASES.case("table: *i64, out: *fp16, n: i32", Passes(), B=64, memory="load address, load table, store out")
@triton.jit
def pointer_out_of_a_table(table, out, n, B: tl.constexpr):
    source = tl.load(table + n).to(tl.pointer_type(tl.float16))
    tl.store(out + tl.arange(0, B), tl.load(source + tl.arange(0, B)))
