"""Ordinary kernels, without any distributed operation: what the checks of the compiled code must be silent on."""

import triton
import triton.language as tl


@triton.jit
def vector_add(x, y, out, n, B: tl.constexpr):
    offsets = tl.program_id(0) * B + tl.arange(0, B)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)


@triton.jit
def vector_add_strided(x, y, out, n, B: tl.constexpr):
    """A grid stride loop: loads of one turn overlap stores of the one before."""
    for start in range(tl.program_id(0) * B, n, tl.num_programs(0) * B):
        offsets = start + tl.arange(0, B)
        mask = offsets < n
        total = tl.load(x + offsets, mask=mask, other=0.0) + tl.load(y + offsets, mask=mask, other=0.0)
        tl.store(out + offsets, total, mask=mask)


@triton.jit
def softmax(x, out, columns, stride, B: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, B)
    values = tl.load(x + row * stride + offsets, mask=offsets < columns, other=-float("inf")).to(tl.float32)
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * stride + offsets, powers / tl.sum(powers, axis=0), mask=offsets < columns)


@triton.jit
def softmax_rows(x, out, rows, columns, stride, B: tl.constexpr):
    """Each program walks over rows: double buffered."""
    offsets = tl.arange(0, B)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        values = tl.load(x + row * stride + offsets, mask=offsets < columns, other=-float("inf"))
        powers = tl.exp(values - tl.max(values, axis=0))
        tl.store(out + row * stride + offsets, powers / tl.sum(powers, axis=0), mask=offsets < columns)


@triton.jit
def layer_norm(x, weight, bias, out, mean_out, rstd_out, columns, eps, B: tl.constexpr):
    """Three passes over a row, in blocks, with running sums carried by the loops."""
    row = tl.program_id(0)
    x += row * columns
    out += row * columns
    total = tl.zeros((B,), dtype=tl.float32)
    for start in range(0, columns, B):
        offsets = start + tl.arange(0, B)
        total += tl.load(x + offsets, mask=offsets < columns, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / columns
    squares = tl.zeros((B,), dtype=tl.float32)
    for start in range(0, columns, B):
        offsets = start + tl.arange(0, B)
        centred = tl.load(x + offsets, mask=offsets < columns, other=0.0).to(tl.float32) - mean
        centred = tl.where(offsets < columns, centred, 0.0)
        squares += centred * centred
    rstd = 1.0 / tl.sqrt(tl.sum(squares, axis=0) / columns + eps)
    tl.store(mean_out + row, mean)
    tl.store(rstd_out + row, rstd)
    for start in range(0, columns, B):
        offsets = start + tl.arange(0, B)
        mask = offsets < columns
        normal = (tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32) - mean) * rstd
        scaled = normal * tl.load(weight + offsets, mask=mask) + tl.load(bias + offsets, mask=mask)
        tl.store(out + offsets, scaled, mask=mask)


@triton.jit
def rms_norm(x, weight, out, columns, eps, B: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, B)
    mask = offsets < columns
    values = tl.load(x + row * columns + offsets, mask=mask, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(values * values, axis=0) / columns + eps)
    weights = tl.load(weight + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * columns + offsets, values * scale * weights, mask=mask)


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    tiles_n = tl.cdiv(N, BN)
    rows = (tl.program_id(0) // tiles_n) * BM + tl.arange(0, BM)
    columns = (tl.program_id(0) % tiles_n) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        left = tl.load(a + rows[:, None] * K + (k + inner)[None, :])
        right = tl.load(b + (k + inner)[:, None] * N + columns[None, :])
        total += tl.dot(left, right)
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(c.dtype.element_ty))


@triton.jit
def matmul_bias_relu(a, b, bias, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """A matrix product with an epilogue on the vector cores: cube and vector meet over the workspace."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        left = tl.load(a + rows[:, None] * K + (k + inner)[None, :])
        right = tl.load(b + (k + inner)[:, None] * N + columns[None, :])
        total += tl.dot(left, right)
    total += tl.load(bias + columns)[None, :]
    tl.store(c + rows[:, None] * N + columns[None, :], tl.maximum(total, 0.0).to(c.dtype.element_ty))


@triton.jit
def matmul_persistent(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Programs walk over tiles; each tile's product is scaled on the vector cores."""
    tiles_n = tl.cdiv(N, BN)
    inner = tl.arange(0, BK)
    for tile in range(tl.program_id(0), tl.cdiv(M, BM) * tiles_n, tl.num_programs(0)):
        rows = (tile // tiles_n) * BM + tl.arange(0, BM)
        columns = (tile % tiles_n) * BN + tl.arange(0, BN)
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(0, K, BK):
            left = tl.load(a + rows[:, None] * K + (k + inner)[None, :])
            right = tl.load(b + (k + inner)[:, None] * N + columns[None, :])
            total += tl.dot(left, right)
        tl.store(c + rows[:, None] * N + columns[None, :], (total * 0.5).to(c.dtype.element_ty))


@triton.jit
def attention(q, k, v, out, length, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    """Flash attention of one head: two products and a running softmax in a loop."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    dims = tl.arange(0, D)
    query = tl.load(q + rows[:, None] * D + dims[None, :])
    best = tl.full((BM,), -1.0e30, dtype=tl.float32)
    norm = tl.zeros((BM,), dtype=tl.float32)
    total = tl.zeros((BM, D), dtype=tl.float32)
    for start in range(0, length, BN):
        columns = start + tl.arange(0, BN)
        keys = tl.load(k + columns[:, None] * D + dims[None, :])
        scores = tl.dot(query, tl.trans(keys)) * scale
        peak = tl.maximum(best, tl.max(scores, axis=1))
        powers = tl.exp(scores - peak[:, None])
        fade = tl.exp(best - peak)
        norm = norm * fade + tl.sum(powers, axis=1)
        values = tl.load(v + columns[:, None] * D + dims[None, :])
        total = total * fade[:, None] + tl.dot(powers.to(tl.float16), values)
        best = peak
    tl.store(out + rows[:, None] * D + dims[None, :], (total / norm[:, None]).to(tl.float16))


@triton.jit
def transpose(x, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    tile = tl.load(x + rows[:, None] * N + columns[None, :])
    tl.store(out + columns[:, None] * M + rows[None, :], tl.trans(tile))


@triton.jit
def gather_rows(indices, table, out, n, B: tl.constexpr, D: tl.constexpr):
    """An embedding: the row to copy comes from memory, through the scalar unit."""
    dims = tl.arange(0, D)
    for i in range(tl.program_id(0), n, tl.num_programs(0)):
        row = tl.load(indices + i)
        tl.store(out + i * D + dims, tl.load(table + row * D + dims))


@triton.jit
def gather_elements(indices, table, out, n, B: tl.constexpr):
    """A gather that the compiler makes a scalar loop of."""
    offsets = tl.program_id(0) * B + tl.arange(0, B)
    chosen = tl.load(indices + offsets, mask=offsets < n, other=0)
    tl.store(out + offsets, tl.load(table + chosen), mask=offsets < n)


@triton.jit
def running_sum(x, out, n, B: tl.constexpr):
    carry = tl.zeros((1,), dtype=tl.float32)
    for start in range(0, n, B):
        offsets = start + tl.arange(0, B)
        values = tl.load(x + offsets, mask=offsets < n, other=0.0)
        tl.store(out + offsets, tl.cumsum(values, axis=0) + carry, mask=offsets < n)
        carry += tl.sum(values, axis=0)


@triton.jit
def in_place(x, n, B: tl.constexpr):
    """Reads what the turn before has written."""
    offsets = tl.arange(0, B)
    for _ in range(0, n):
        tl.store(x + offsets, tl.load(x + offsets) * 1.5 + 1.0)


@triton.jit
def histogram(x, out, n, B: tl.constexpr):
    """Atomic additions whose result nobody uses."""
    offsets = tl.program_id(0) * B + tl.arange(0, B)
    values = tl.load(x + offsets, mask=offsets < n, other=0.0)
    tl.atomic_add(out + tl.arange(0, B), values)
    tl.atomic_max(out + B + tl.arange(0, B), values)


@triton.jit
def two_phases(x, tmp, out, n, flag, B: tl.constexpr):
    """Branches and a second use of the buffers of the first phase."""
    offsets = tl.arange(0, B)
    values = tl.load(x + offsets)
    if flag > 0:
        tl.store(tmp + offsets, values * 2.0)
    else:
        tl.store(tmp + offsets, values + 1.0)
    i = 0
    while i < n:
        again = tl.load(tmp + offsets)
        tl.store(out + i * B + offsets, again + values)
        i += 2


@triton.jit
def sum_of_two_strides(x, y, out, n, B: tl.constexpr):
    """Elements of both lie apart, so the compiler takes the pieces in the unified buffer for other shapes."""
    offsets = tl.arange(0, B)
    here = x + offsets
    for turn in range(0, n):
        tl.store(out + turn * B + offsets, tl.load(here) + tl.load(y + turn * B + offsets))
        here += 2 * offsets


_MM = {"M": "i32", "N": "i32", "K": "i32"}

# name → (kernel, types of arguments, values of the compile-time ones)
ORDINARY = {
    "vector_add": (vector_add, {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32"}, {"B": 1024}),
    "vector_add_strided": (vector_add_strided, {"x": "*fp16", "y": "*fp16", "out": "*fp16", "n": "i32"}, {"B": 1024}),
    "softmax": (softmax, {"x": "*fp16", "out": "*fp16", "columns": "i32", "stride": "i32"}, {"B": 1024}),
    "softmax_rows": (
        softmax_rows,
        {"x": "*fp32", "out": "*fp32", "rows": "i32", "columns": "i32", "stride": "i32"},
        {"B": 512},
    ),
    "layer_norm": (
        layer_norm,
        {
            "x": "*fp16",
            "weight": "*fp16",
            "bias": "*fp16",
            "out": "*fp16",
            "mean_out": "*fp32",
            "rstd_out": "*fp32",
            "columns": "i32",
            "eps": "fp32",
        },
        {"B": 512},
    ),
    "rms_norm": (
        rms_norm,
        {"x": "*bf16", "weight": "*bf16", "out": "*bf16", "columns": "i32", "eps": "fp32"},
        {"B": 256},
    ),
    "matmul": (matmul, {"a": "*fp16", "b": "*fp16", "c": "*fp16", **_MM}, {"BM": 64, "BN": 64, "BK": 64}),
    "matmul_fp32": (matmul, {"a": "*fp32", "b": "*fp32", "c": "*fp32", **_MM}, {"BM": 32, "BN": 32, "BK": 32}),
    "matmul_bias_relu": (
        matmul_bias_relu,
        {"a": "*fp16", "b": "*fp16", "bias": "*fp32", "c": "*fp16", **_MM},
        {"BM": 64, "BN": 64, "BK": 64},
    ),
    "matmul_persistent": (
        matmul_persistent,
        {"a": "*bf16", "b": "*bf16", "c": "*bf16", **_MM},
        {"BM": 64, "BN": 128, "BK": 64},
    ),
    "attention": (
        attention,
        {"q": "*fp16", "k": "*fp16", "v": "*fp16", "out": "*fp16", "length": "i32", "scale": "fp32"},
        {"BM": 32, "BN": 32, "D": 64},
    ),
    "transpose": (transpose, {"x": "*fp32", "out": "*fp32", "M": "i32", "N": "i32"}, {"BM": 32, "BN": 32}),
    "gather_rows": (gather_rows, {"indices": "*i32", "table": "*fp16", "out": "*fp16", "n": "i32"}, {"B": 1, "D": 128}),
    "gather_elements": (gather_elements, {"indices": "*i32", "table": "*fp32", "out": "*fp32", "n": "i32"}, {"B": 64}),
    "running_sum": (running_sum, {"x": "*fp32", "out": "*fp32", "n": "i32"}, {"B": 256}),
    "sum_of_two_strides": (
        sum_of_two_strides,
        {"x": "*fp16", "y": "*fp16", "out": "*fp16", "n": "i32"},
        {"B": 64},
    ),
    "in_place": (in_place, {"x": "*fp32", "n": "i32"}, {"B": 256}),
    "histogram": (histogram, {"x": "*fp32", "out": "*fp32", "n": "i32"}, {"B": 256}),
    "two_phases": (
        two_phases,
        {"x": "*fp32", "tmp": "*fp32", "out": "*fp32", "n": "i32", "flag": "i32"},
        {"B": 256},
    ),
}
