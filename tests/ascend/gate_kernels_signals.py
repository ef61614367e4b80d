"""Signals, waits and tokens: how they are written in kernels on vector cores, and what is refused."""

import triton
import triton.language as tl
from gate_kit import Cases, Passes, Refused

import tdist.language as dl
from tdist.language.extra import libshmem_device

CASES = Cases()
NUMBERS = "fp16 bf16 fp32 i8 i16 i32"

# ---- a signal behind a store ----------------------------------------------------------------------------------------


@CASES.case(
    "x: *T, buf: *T, sig: *i32, out: *T, n: i32",
    types=NUMBERS,
    B=256,
    memory="load token(buf), load x, store out, store ptr(buf)",
)
@triton.jit
def push_to_all_and_wait_for_all(x, buf, sig, out, n, B: tl.constexpr):
    """Each rank pushes its block to all others, with a signal each, and copies what arrives."""
    me = dl.rank()
    world = dl.num_ranks()
    offsets = tl.arange(0, B)
    values = tl.load(x + offsets, mask=offsets < n, other=0)
    for step in range(1, world):
        peer = (me + step) % world
        tl.store(dl.symm_at(buf, peer) + me * B + offsets, values, mask=offsets < n)
        dl.notify(sig + me * 16, peer, signal=1, sig_op="set", comm_scope="intra_node")
    for step in range(1, world):
        source = (me + world - step) % world
        token = dl.wait(sig + source * 16, 1, "gpu", "acquire", waitValue=1)
        block = tl.load(dl.consume_token(buf, token) + source * B + offsets, mask=offsets < n, other=0)
        tl.store(out + source * B + offsets, block, mask=offsets < n)


@CASES.case(
    "x: *fp16, buf: *fp16, sig: *i32, out: *fp16", B=512, memory="load token(buf), load x, store out, store ptr(buf)"
)
@triton.jit
def fence_between_store_and_signal(x, buf, sig, out, B: tl.constexpr):
    offsets = tl.arange(0, B)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(buf, peer) + offsets, tl.load(x + offsets))
    libshmem_device.fence()
    dl.notify(sig, peer, signal=1)
    token = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
    tl.store(out + offsets, tl.load(dl.consume_token(buf, token) + offsets))


@CASES.case(
    "x: *bf16, buf: *bf16, sig: *i32, out: *bf16", B=512, memory="load token(buf), load x, store out, store ptr(buf)"
)
@triton.jit
def quiet_between_store_and_signal(x, buf, sig, out, B: tl.constexpr):
    offsets = tl.arange(0, B)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(buf, peer) + offsets, tl.load(x + offsets))
    libshmem_device.quiet()
    dl.notify(sig, peer, signal=1)
    token = dl.wait(sig, 1, "sys", "acq_rel", waitValue=1)
    tl.store(out + offsets, tl.load(dl.consume_token(buf, token) + offsets))


@CASES.case(
    "x: *fp32, buf: *fp32, sig: *T, n: i32",
    types="i64 u64",
    B=128,
    memory="load token(buf), load x, store ptr(buf), store x",
)
@triton.jit
def signal_words_of_64_bits(x, buf, sig, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    peer = (dl.rank() + 1) % dl.num_ranks()
    tl.store(dl.symm_at(buf, peer) + offsets, tl.load(x + offsets))
    libshmem_device.fence()
    dl.notify(sig, peer, signal=n.to(tl.int64) + (1 << 40))
    token = dl.wait(sig, 1, "gpu", "acquire", waitValue=n.to(tl.int64) + (1 << 40))
    tl.store(x + offsets, tl.load(dl.consume_token(buf, token) + offsets))


@CASES.case(
    "x: *fp16, buf: *fp16, count: *i32, out: *fp16", B=128, memory="load token(buf), load x, store out, store ptr(buf)"
)
@triton.jit
def counter_that_all_ranks_add_to(x, buf, count, out, B: tl.constexpr):
    offsets = tl.arange(0, B)
    me = dl.rank()
    world = dl.num_ranks()
    values = tl.load(x + offsets)
    for peer in range(0, world):
        tl.store(dl.symm_at(buf, peer) + me * B + offsets, values)
        dl.notify(count, peer, signal=1, sig_op="add")
    token = dl.wait(count, 1, "gpu", "acquire", waitValue=world)
    buf = dl.consume_token(buf, token)
    for source in range(0, world):
        tl.store(out + source * B + offsets, tl.load(buf + source * B + offsets))


@CASES.case("flag: *i32", memory="")
@triton.jit
def one_word_put_and_a_barrier(flag):
    me = libshmem_device.my_pe()
    libshmem_device.int_p(flag + me, me * 2 + 1, (me + 1) % libshmem_device.n_pes())
    libshmem_device.fence()
    libshmem_device.barrier_all_vec()


@CASES.case(
    "x: *T, buf: *T, sig: *i32, out: *T, n: i32, epoch: i32",
    types="fp16 fp32",
    B=256,
    memory="load token(ptr(buf)), load x, store buf, store out",
)
@triton.jit
def all_reduce_with_epochs(x, buf, sig, out, n, epoch, B: tl.constexpr):
    """Loads from all peers; the signals carry the number of the launch, so nothing is reset."""
    me = dl.rank()
    offsets = tl.program_id(0) * B + tl.arange(0, B)
    mask = offsets < n
    tl.store(buf + offsets, tl.load(x + offsets, mask=mask, other=0.0), mask=mask)
    libshmem_device.fence()
    for peer in range(0, dl.num_ranks()):
        dl.notify(sig + me * 16, peer, signal=epoch)
    total = tl.zeros((B,), dtype=tl.float32)
    for peer in range(0, dl.num_ranks()):
        token = dl.wait(sig + peer * 16, 1, "gpu", "acquire", waitValue=epoch)
        theirs = dl.consume_token(dl.symm_at(buf, peer), token)
        total += tl.load(theirs + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + offsets, total.to(out.dtype.element_ty), mask=mask)


@CASES.case("buf: *fp16, full: *i32, empty: *i32, out: *fp16, n: i32", B=256, memory="load token(buf), store out")
@triton.jit
def slot_handed_back_after_its_loads(buf, full, empty, out, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    for turn in range(0, n):
        token = dl.wait(full, 1, "gpu", "acquire", waitValue=turn + 1)
        tl.store(out + turn * B + offsets, tl.load(dl.consume_token(buf, token) + offsets))
        dl.notify(empty, 1, signal=turn + 1)


@CASES.case("out: *i32", memory="store out")
@triton.jit
def who_and_how_many(out):
    tl.store(out, dl.rank())
    tl.store(out + 1, dl.num_ranks() + libshmem_device.my_pe() * libshmem_device.n_pes())


@CASES.case("buf: *T", types=NUMBERS, memory="store ptr(buf)")
@triton.jit
def one_number_to_each_peer(buf):
    for peer in range(0, dl.num_ranks()):
        tl.store(libshmem_device.remote_ptr(buf, peer) + dl.rank(), (dl.rank() + 1).to(buf.dtype.element_ty))


# ---- waits ----------------------------------------------------------------------------------------------------------


@CASES.case("buf: *fp16, sig: *i32, out: *fp16", Passes(lost=("distributed.wait",)), B=64, memory="load buf, store out")
@triton.jit
def wait_whose_token_nobody_takes(buf, sig, out, B: tl.constexpr):
    offsets = tl.arange(0, B)
    dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
    tl.store(out + offsets, tl.load(buf + offsets))


@CASES.case("buf: *fp16, sig: *i32, out: *fp16, n: i32", B=64, memory="load token(buf), store out")
@triton.jit
def tokens_of_a_loop_summed(buf, sig, out, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    token = 0
    for slot in range(0, n):
        token += dl.wait(sig + slot * 16, 1, "gpu", "acquire", waitValue=1)
    block = dl.consume_token(buf, token)
    for slot in range(0, n):
        tl.store(out + slot * B + offsets, tl.load(block + slot * B + offsets))


@CASES.case("buf: *bf16, sig: *T, out: *bf16, n: i32", types="i32 i64", B=64, memory="load token(buf), store out")
@triton.jit
def wait_under_a_condition_for_many_slots(buf, sig, out, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    token = 0
    if n > 0:
        token = dl.wait(sig, n, "sys", "acquire", waitValue=1)
    tl.store(out + offsets, tl.load(dl.consume_token(buf, token) + offsets))


@CASES.case("buf: *fp16, sig: *i32, out: *fp16, n: i32", B=64, memory="load token(buf), store out")
@triton.jit
def the_same_wait_in_each_turn(buf, sig, out, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    for turn in range(0, n):
        token = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
        tl.store(out + turn * B + offsets, tl.load(dl.consume_token(buf, token) + offsets))


@CASES.case("buf: *fp16, sig: *i32, out: *fp16", B=64, memory="load buf, load token(buf), store out")
@triton.jit
def two_loads_around_a_wait(buf, sig, out, B: tl.constexpr):
    offsets = tl.arange(0, B)
    before = tl.load(buf + offsets)
    token = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
    after = tl.load(dl.consume_token(buf, token) + offsets)
    tl.store(out + offsets, before + after)


@CASES.case("sig: *i32, buf: *fp16, out: *fp16", B=64, memory="load buf, store out")
@triton.jit
def loop_that_polls_and_only_reads(sig, buf, out, B: tl.constexpr):
    """Goes through, without the loop: triton-adapter-opt deletes what only reads, volatile or not."""
    offsets = tl.arange(0, B)
    while tl.load(sig, volatile=True) != 1:
        pass
    tl.store(out + offsets, tl.load(buf + offsets))


@CASES.case("sig: *i32, buf: *fp16, out: *fp16", B=64, memory="load sig, load buf, store out")
@triton.jit
def loop_that_polls_for_a_value(sig, buf, out, B: tl.constexpr):
    """What the loop has read is used, so it stays."""
    offsets = tl.arange(0, B)
    seen = tl.load(sig, volatile=True)
    while seen < 1:
        seen = tl.load(sig, volatile=True)
    tl.store(out + offsets, tl.load(buf + seen * B + offsets))


@CASES.case("buf: *fp16, sig: *i32, out: *fp16, n: i32", B=64, memory="load token(buf), store out")
@triton.jit
def wait_in_a_while_loop(buf, sig, out, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    left = n
    while left > 0:
        token = dl.wait(sig + left * 16, 1, "gpu", "acquire", waitValue=left)
        tl.store(out + left * B + offsets, tl.load(dl.consume_token(buf, token) + left * B + offsets))
        left = left // 2


@CASES.case("buf: *fp16, sig: *i32, out: *fp16, n: i32", B=64, memory="load token(buf), store out")
@triton.jit
def wait_in_both_branches(buf, sig, out, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    if n > 4:
        token = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
    else:
        token = dl.wait(sig + 16, 1, "gpu", "acquire", waitValue=2)
    tl.store(out + offsets, tl.load(dl.consume_token(buf, token) + offsets))


@triton.jit
def _arrived(sig, slot, epoch):
    return dl.wait(sig + slot * 16, 1, "gpu", "acquire", waitValue=epoch)


@CASES.case("buf: *fp16, sig: *i32, out: *fp16, n: i32", B=64, memory="load token(buf), store out")
@triton.jit
def wait_in_a_function_of_its_own(buf, sig, out, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    tl.store(out + offsets, tl.load(dl.consume_token(buf, _arrived(sig, n, 3)) + offsets))


@CASES.case("buf: *fp16, sig: *i32, out: *fp16, n: i32", B=64, memory="load token(buf), store out")
@triton.jit
def early_return_before_the_wait(buf, sig, out, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    if n == 0:
        return
    token = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
    tl.store(out + offsets, tl.load(dl.consume_token(buf, token) + offsets))


# ---- tokens on values -----------------------------------------------------------------------------------------------


@CASES.case("buf: *fp16, sig: *i32, out: *fp16, n: i32", B=64, memory="load buf, store out")
@triton.jit
def token_on_a_scalar(buf, sig, out, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    token = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
    limit = dl.consume_token(n, token)
    tl.store(out + offsets, tl.load(buf + offsets, mask=offsets < limit, other=0.0))


@CASES.case(
    "buf: *fp16, sig: *i32, out: *fp16", Passes(lost=("distributed.consume_token",)), B=64, memory="load buf, store out"
)
@triton.jit
def token_on_loaded_values(buf, sig, out, B: tl.constexpr):
    """The library has no place for it. The wait stays."""
    offsets = tl.arange(0, B)
    values = tl.load(buf + offsets)
    token = dl.wait(sig, 1, "gpu", "acquire", waitValue=1)
    tl.store(out + offsets, dl.consume_token(values, token))


# ---- refused --------------------------------------------------------------------------------------------------------


@CASES.case("sig: *i32, out: *fp32", Refused("front end", "must be a scalar pointer", at="words"), B=16)
@triton.jit
def wait_for_a_tensor_of_words(sig, out, B: tl.constexpr):
    token = dl.wait(sig + tl.arange(0, B) * 16, B, "gpu", "acquire", waitValue=1)  # <words>
    tl.store(dl.consume_token(out, token), 1.0)


@CASES.case("sig: *i64", Refused("front end", '"add" needs an int32 signal word', at="add"))
@triton.jit
def add_to_a_word_of_64_bits(sig):
    dl.notify(sig, 1, signal=1, sig_op="add")  # <add>


@CASES.case("sig: *fp32", Refused("front end", "must point to int32, int64 or uint64", at="notify"))
@triton.jit
def signal_word_of_a_float(sig):
    dl.notify(sig, 1, signal=1)  # <notify>


@CASES.case("buf: *i1, sig: *i32, out: *i1", Refused("lowering", "no symm_at for elements of type i1", at="peer"), B=64)
@triton.jit
def remote_pointer_to_bits(buf, sig, out, B: tl.constexpr):
    offsets = tl.arange(0, B)
    theirs = dl.symm_at(buf, 1)  # <peer>
    tl.store(out + offsets, tl.load(theirs + offsets))


@CASES.case("buf: *fp64, out: *fp64", Refused("lowering", "no symm_at for elements of type f64", at="peer"), B=64)
@triton.jit
def remote_pointer_to_doubles(buf, out, B: tl.constexpr):
    offsets = tl.arange(0, B)
    tl.store(out + offsets, tl.load(dl.symm_at(buf, 1) + offsets))  # <peer>
