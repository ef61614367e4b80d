"""Calls of the device library beside signals: transfers, barriers, atomics; and calls that it does not have."""

import triton
import triton.language as tl
from gate_kit import MIX, Cases, Passes, Refused, library, library_i32, own_library

import tdist.language as dl
from tdist.language.extra import libshmem_device
from tdist.language.extra.cann.extension import sub_vec_id

CASES = Cases()

# ---- transfers ------------------------------------------------------------------------------------------------------


@CASES.case("x: *fp16, buf: *fp16, sig: *i32, out: *fp16", B=128, memory="load token(buf), store out")
@triton.jit
def put_with_signal_then_wait_until(x, buf, sig, out, B: tl.constexpr):
    """Seven operands; the token of `signal_wait_until` is consumed as that of `dl.wait`."""
    me = dl.rank()
    world = dl.num_ranks()
    peer = (me + 1) % world
    library("aclshmem_half_putmem_signal", buf + me * B, x, B * 2, sig + me * 16, 1, 0, peer)
    source = (me + world - 1) % world
    token = library_i32("aclshmem_signal_wait_until", sig + source * 16, 0, 1)
    tl.store(out + tl.arange(0, B), tl.load(dl.consume_token(buf, token) + source * B + tl.arange(0, B)))


@CASES.case("x: *fp32, buf: *fp32, sig: *i32, out: *fp32", B=128, memory="load out, store x")
@triton.jit
def put_quiet_signal_get(x, buf, sig, out, B: tl.constexpr):
    offsets = tl.arange(0, B)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(x + offsets, offsets.to(tl.float32))
    library("aclshmem_float_putmem_nbi", buf, x, B * 4, peer)
    libshmem_device.quiet()
    library("aclshmemx_signal_op", sig, 1, 0, peer)
    library_i32("aclshmem_signal_wait_until", sig, 0, 1)
    library("aclshmem_float_getmem", out, buf, B * 4, peer)
    tl.store(x + offsets, tl.load(out + offsets))


@CASES.case("x: *i8, buf: *i8, n: i32", memory="")
@triton.jit
def transfers_in_the_documents_spelling(x, buf, n):
    library("aclshmem_putmem_int8", buf, x, n, 1)
    library("aclshmem_getmem_nbi_int8", x, buf, n, 1)
    libshmem_device.quiet()


@CASES.case("x: *bf16, buf: *bf16, sig: *i32, n: i32", memory="")
@triton.jit
def put_with_added_signal_in_a_loop(x, buf, sig, n):
    for peer in range(0, dl.num_ranks()):
        if peer != dl.rank():
            library("aclshmem_bfloat16_putmem_signal_nbi", buf + dl.rank() * n, x, n * 2, sig, 1, 1, peer)
    libshmem_device.quiet()


@CASES.case("words: *T, n: i32", types="i32 i64", memory="")
@triton.jit
def wait_until_a_word_is_greater(words, n):
    """A wait without a token is an impure call, which nobody deletes."""
    if words.dtype.element_ty == tl.int32:
        library("aclshmem_wait_until_int32", words, 2, n)
    else:
        library("aclshmem_wait_until_int64", words, 2, n.to(tl.int64))


@CASES.case("out: *i32, n: i32", memory="store out")
@triton.jit
def teams(out, n):
    library("aclshmem_barrier", n)
    mine = library_i32("aclshmem_team_my_pe", n) + library_i32("aclshmem_team_n_pes", n)
    tl.store(out, mine + library_i32("aclshmem_team_translate_pe", n, mine, 0))


# ---- barriers -------------------------------------------------------------------------------------------------------


@CASES.case("x: *fp16, buf: *fp16, out: *fp16", Passes(MIX), B=64, memory="load buf, load x, store out, store ptr(buf)")
@triton.jit
def barrier_of_all_cores_without_a_dot(x, buf, out, B: tl.constexpr):
    """AscendNPU-IR 1.2.0 crashes on this kernel with core types by the plain rule."""
    offsets = tl.arange(0, B)
    tl.store(dl.symm_at(buf, (dl.rank() + 1) % dl.num_ranks()) + offsets, tl.load(x + offsets))
    libshmem_device.barrier_all()
    tl.store(out + offsets, tl.load(buf + offsets))


@CASES.case("x: *fp16, buf: *fp16, out: *fp16", Passes(MIX), B=64, memory="load buf, load x, store out, store ptr(buf)")
@triton.jit
def barrier_of_all_cores_with_vector_cores_told_apart(x, buf, out, B: tl.constexpr):
    me = dl.rank()
    world = dl.num_ranks()
    offsets = tl.arange(0, B)
    if sub_vec_id() == 0:
        tl.store(dl.symm_at(buf, (me + 1) % world) + me * B + offsets, tl.load(x + offsets))
    libshmem_device.barrier_all()
    total = tl.zeros((B,), dtype=tl.float32)
    for source in range(0, world):
        total += tl.load(buf + source * B + offsets).to(tl.float32)
    if sub_vec_id() == 0:
        tl.store(out + offsets, total.to(tl.float16))


@CASES.case("x: *T, buf: *T, out: *T", types="fp16 i32", B=64, memory="load buf, load x, store out, store ptr(buf)")
@triton.jit
def barrier_of_vector_cores(x, buf, out, B: tl.constexpr):
    offsets = tl.arange(0, B)
    tl.store(dl.symm_at(buf, (dl.rank() + 1) % dl.num_ranks()) + offsets, tl.load(x + offsets))
    libshmem_device.fence()
    libshmem_device.barrier_all_vec()
    tl.store(out + offsets, tl.load(buf + offsets))


@CASES.case("buf: *fp16, out: *fp16", Passes(MIX), B=64, memory="load buf, store out")
@triton.jit
def two_loads_around_a_barrier(buf, out, B: tl.constexpr):
    offsets = tl.arange(0, B)
    before = tl.load(buf + offsets)
    libshmem_device.barrier_all()
    tl.store(out + offsets, before + tl.load(buf + offsets))


# ---- atomics --------------------------------------------------------------------------------------------------------


@CASES.case(
    "x: *T, buf: *T, sig: *i32, out: *T, n: i32",
    types="fp16 bf16 fp32 i32",
    B=64,
    memory="load x, store ptr(buf), store token(out)",
)
@triton.jit
def atomic_add_to_consumed_and_remote_memory(x, buf, sig, out, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    values = tl.load(x + offsets)
    token = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
    tl.atomic_add(dl.consume_token(out, token) + offsets, values, mask=offsets < n)
    tl.atomic_add(dl.symm_at(buf, 1) + offsets, values, mask=offsets < n)


@CASES.case("x: *i32, buf: *i32", B=64, memory="load ptr(buf), load x, store ptr(buf)")
@triton.jit
def bits_changed_on_a_peer(x, buf, B: tl.constexpr):
    values = tl.load(x + tl.arange(0, B))
    there = dl.symm_at(buf, 1) + tl.arange(0, B)
    tl.atomic_and(there, values)
    tl.atomic_or(there + B, values)
    tl.atomic_xor(there + 2 * B, values)


@CASES.case("x: *T, buf: *T", types="i32 fp32", B=64, memory="load ptr(buf), load x, store ptr(buf), store x")
@triton.jit
def tile_exchanged_with_a_peer(x, buf, B: tl.constexpr):
    offsets = tl.arange(0, B)
    tl.store(x + offsets, tl.atomic_xchg(dl.symm_at(buf, 1) + offsets, tl.load(x + offsets)))


@CASES.case("x: *i32, buf: *i32", B=64, memory="load x, store ptr(buf)")
@triton.jit
def atomic_max_on_a_peer(x, buf, B: tl.constexpr):
    offsets = tl.arange(0, B)
    tl.atomic_max(dl.symm_at(buf, 1) + offsets, tl.load(x + offsets))


@CASES.case("sig: *i32, out: *i32, n: i32", memory="load ptr(sig), store out, store ptr(sig)")
@triton.jit
def compare_and_swap_on_a_peer(sig, out, n):
    """Goes through with a lock of this launch; that it is not atomic between devices is for the checks to say."""
    theirs = dl.symm_at(sig, 1)
    tl.store(out + n, tl.atomic_cas(theirs, 0, 1, sem="acq_rel", scope="sys"))
    tl.store(out + n + 1, tl.atomic_add(theirs + 16, 1, sem="release", scope="sys"))


@CASES.case("flag: *i32, out: *fp16", B=64, memory="store out")
@triton.jit
def scalar_exchange_of_a_constant(flag, out, B: tl.constexpr):
    """Goes through, and the vendor's compiler deletes the exchange: for the checks to say."""
    tl.store(out + tl.arange(0, B), 1.0)
    tl.atomic_xchg(flag, 1)


# ---- calls that the library does not have ---------------------------------------------------------------------------


@CASES.case("x: *fp16, buf: *fp16, n: i32", Refused("lowering", "did you mean `aclshmem_half_putmem`", at="put"))
@triton.jit
def misspelt_function(x, buf, n):
    library("aclshmem_half_putmen", buf, x, n, 1)  # <put>


@CASES.case("x: *fp16, buf: *fp16, n: i32", Refused("lowering", "with 4 operands; got 3", at="put"))
@triton.jit
def operand_forgotten(x, buf, n):
    library("aclshmem_half_putmem", buf, x, n)  # <put>


@CASES.case("x: *fp32, buf: *fp16, n: i32", Refused("lowering", r"operand 1 \(`src`\) must be half\*, got", at="put"))
@triton.jit
def operand_of_another_type(x, buf, n):
    library("aclshmem_half_putmem", buf, x, n, 1)  # <put>


@CASES.case("sig: *i32, out: *i32", Refused("lowering", "void aclshmem_fence", at="fence"))
@triton.jit
def result_of_a_function_that_has_none(sig, out):
    tl.store(out, library_i32("aclshmem_fence"))  # <fence>


@CASES.case("x: *fp16, n: i32", memory="")
@triton.jit
def function_of_a_library_of_the_users_own(x, n):
    own_library("/opt/mine.bc", "mine_flush", x, n)


@CASES.case("buf: *fp16", Refused("front end", "`getmem`: transfers of ACLSHMEM are not simulated yet", at="get"))
@triton.jit
def transfer_that_the_language_does_not_offer(buf):
    libshmem_device.getmem(buf, buf, 64, 1)  # <get>
