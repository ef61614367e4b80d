"""Kernels that together use every syntax that Triton's front end prints and the reader reads."""

import triton
import triton.language as tl


@triton.jit
def helper(x, y):
    return tl.where(x > y, x - y, y // 3)


@triton.jit
def control(x, out, n, B: tl.constexpr):
    pid = tl.program_id(0) + tl.num_programs(1) + tl.program_id(2)
    offs = pid * B + tl.arange(0, B)
    acc = tl.zeros((B,), tl.float32)
    s = 0
    i = 0
    while i < n:
        v = tl.load(x + offs + i, mask=offs < n, other=0.0, cache_modifier=".cg", eviction_policy="evict_first")
        if i % 2 == 0:
            acc += v
            s += 1
        else:
            if s > 3:  # noqa: SIM108
                acc = acc * 2
            else:
                acc = acc - 1
        i += 2
    for j in range(0, n, 4):
        w = helper(j, s)
        for k in tl.range(0, w, num_stages=3):
            acc += k
            s = s + helper(k, j)
        if j == 5:
            tl.store(out + offs, acc, mask=offs < n, cache_modifier=".wb")
    if n > 100:
        return
    tl.store(out + offs, acc)
    tl.store(out, s.to(tl.float32))


@triton.jit
def early_returns(x, n):
    if n > 100:
        return
    if n > 50:
        tl.store(x, 1)
        if n > 60:
            return
        tl.store(x + 1, 2)
    tl.store(x + 2, 3)


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def larger(a, ai, b, bi):
    g = a > b
    return tl.where(g, a, b), tl.where(g, ai, bi)


@triton.jit
def combine(x, out, n, B: tl.constexpr):
    o = tl.arange(0, B)
    p = x + o[:, None] * n + o[None, :]
    v = tl.load(p)
    tl.store(out + o, tl.sum(v, 1) + tl.max(v, 0))
    a, b = tl.reduce((v, tl.broadcast_to(o[None, :], (B, B))), 1, larger)
    tl.store(out + o, a + b)
    tl.store(out + o, tl.argmax(v, 1))
    tl.store(p, tl.cumsum(v, 1))
    tl.store(p, tl.associative_scan(v, 0, add, reverse=True))
    tl.store(p, tl.trans(v))
    tl.store(x + tl.arange(0, B * B), tl.reshape(v, (B * B,)) + tl.ravel(v))
    q, r = tl.split(tl.join(o, o))
    tl.store(out + q, r)
    tl.store(out + tl.arange(0, 2 * B), tl.cat(o, o, can_reorder=True))
    tl.store(out + o, tl.histogram(o, B))
    tl.store(out, tl.sum(tl.sum(v, 1), 0))
    tl.store(out + o, tl.flip(tl.gather(tl.sum(v, 1), o, 0), 0))
    tl.compile_hint(v, "hint", 1)
    tl.store(p, tl.sort(v, 1, True))
    tl.store(out + o, tl.sort(o))


@triton.jit
def atomics(x, y, n, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.atomic_add(x + o, 1, mask=o < n)
    b = tl.atomic_max(x, 3, sem="release", scope="sys")
    c = tl.atomic_cas(x, 0, 1, sem="acquire", scope="cta")
    d = tl.atomic_xchg(x, b + c)
    tl.atomic_add(y + o, 1.0, sem="relaxed")
    tl.atomic_and(x, 1)
    tl.atomic_or(x, 1)
    tl.atomic_xor(x, 1)
    tl.atomic_min(x, 1)
    tl.atomic_max(y, 1.5)
    tl.atomic_min(y, 2.5)
    while tl.atomic_cas(x, 0, 1) == 1:
        pass
    tl.store(x, tl.load(x, volatile=True) + d)


@triton.jit
def blocks(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pa = tl.make_block_ptr(a, (M, K), (K, 1), (0, 0), (BM, BK), (1, 0))
    pb = tl.make_block_ptr(b, (K, N), (N, 1), (0, 0), (BK, BN), (1, 0))
    pc = tl.make_block_ptr(c, (M, N), (N, 1), (0, 0), (BM, BN), (1, 0))
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, tl.cdiv(K, BK)):
        x = tl.load(pa, boundary_check=(0, 1), padding_option="zero")
        y = tl.load(pb, boundary_check=(0,), padding_option="nan")
        acc = tl.dot(x, y, acc)
        acc += tl.dot(x, y, allow_tf32=False)
        pa = tl.advance(pa, (0, BK))
        pb = tl.advance(pb, (BK, 0))
    tl.store(pc, acc.to(tl.float16), boundary_check=(0, 1))


@triton.jit
def numbers(x, y, i, f, B: tl.constexpr):
    o = tl.arange(0, B)
    v = tl.load(x + o)
    tl.device_print("v {odd}: ", v, i, hex=True)
    tl.device_print("hello")
    tl.device_assert(v > 0, 'positive "q" : {x}')
    tl.device_assert(i > 0, "pos")
    w = v.to(tl.float16).to(tl.float32)
    q = v.to(tl.int8).to(tl.uint8).to(tl.int64) + v.to(tl.uint32)
    bits = v.to(tl.int32, bitcast=True)
    e = tl.exp(v) + tl.log(v) + tl.sqrt(v) + tl.sin(v) + tl.cos(v) + tl.abs(v) + tl.rsqrt(v) + tl.floor(v)
    e += tl.ceil(v) + tl.exp2(v) + tl.log2(v) + tl.erf(v) + tl.fma(v, v, v) + tl.sigmoid(v)
    e += tl.maximum(v, w) + tl.minimum(v, w, propagate_nan=tl.PropagateNan.ALL) + tl.clamp(v, 0.0, 1.0) + v / w + v % w
    e += tl.math.div_rn(v, w) + tl.math.sqrt_rn(v)
    u = bits.to(tl.uint32)
    z = (u // 3) % 5 >> 1 << 2 ^ u & 7 | 9
    tl.store(y + o, e + v.to(tl.bfloat16).to(tl.float16) + q + z + tl.umulhi(u, 7))
    t = ~bits
    tl.store(y + o, (t < -bits) & (t != 0) | (u >= 3))
    p = (x.to(tl.int64) + 4).to(tl.pointer_type(tl.float32))
    tl.store(p, 1.0)
    tl.store(y, tl.minimum(tl.load(y + i), f))
    tl.store(y, float("inf"))
    tl.store(y, float("nan"))
    tl.store(y, -0.0)
    tl.store(y + o, tl.rand(i, o))
    tl.debug_barrier()
    tl.assume(i > 3)
    tl.store(x + tl.multiple_of(tl.max_contiguous(o * i, 8), 16), 1.0)


@triton.jit(noinline=True)
def callee(x, n):
    tl.store(x, n)
    return n + 1


@triton.jit
def caller(x, n):
    tl.store(x, callee(x, n))


@triton.jit
def pointers(x, y, n):
    p = x
    if n > 3:
        p = y
    for _ in range(n):
        p += 1
    q = x if n > 2 else y
    tl.store(p, n)
    tl.store(q, n)


@triton.jit
def polling(x, y):
    while tl.load(x) != 1:
        pass
    tl.store(y, 2)


@triton.jit
def empty():
    pass


CASES = {
    "control": (control, {"x": "*fp32", "out": "*fp32", "n": "i32"}, {"B": 16}),
    "early_returns": (early_returns, {"x": "*i32", "n": "i32"}, {}),
    "combine": (combine, {"x": "*fp32", "out": "*fp32", "n": "i32"}, {"B": 16}),
    "atomics": (atomics, {"x": "*i32", "y": "*fp32", "n": "i32"}, {"B": 16}),
    "blocks": (
        blocks,
        {"a": "*fp16", "b": "*fp16", "c": "*fp16", "M": "i32", "N": "i32", "K": "i32"},
        {"BM": 16, "BN": 32, "BK": 16},
    ),
    "numbers": (numbers, {"x": "*fp32", "y": "*fp32", "i": "i32", "f": "fp32"}, {"B": 16}),
    "caller": (caller, {"x": "*i32", "n": "i32"}, {}),
    "pointers": (pointers, {"x": "*i32", "y": "*i32", "n": "i32"}, {}),
    "polling": (polling, {"x": "*i32", "y": "*i32"}, {}),
    "empty": (empty, {}, {}),
}
"""name → (kernel, signature, constexprs)"""
