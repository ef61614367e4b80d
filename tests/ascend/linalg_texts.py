"""Small Linalg modules, as triton-adapter-opt prints them, with the lines of an imagined `kernels.py`."""

from __future__ import annotations

FILE = "/src/kernels.py"
_ATTRIBUTES = (
    'SyncBlockLockArgIdx = 0 : i64, WorkspaceArgIdx = 1 : i64, global_kernel = "local", parallel_mode = "simd"'
)
_GRID = ", ".join(f"%grid{i}: i32" for i in range(6))


def _module(name: str, line: int, arguments: str, mode: str, body: str) -> str:
    head = f"func.func @{name}(%lock: memref<?xi8>, %workspace: memref<?xi8>, {arguments}, {_GRID})"
    return (
        f'module {{\n  {head} attributes {{{_ATTRIBUTES}, mix_mode = "{mode}"}} {{\n{body}    return loc(#loc)\n'
        f'  }} loc(#loc)\n}} loc(#loc)\n#loc = loc("{FILE}":{line}:0)\n'
    )


def _at(line: int, column: int = 4) -> str:
    return f'loc("{FILE}":{line}:{column})'


def _load(to: str, argument: str, shape: str, offset: str, line: int) -> str:
    sizes = shape.split("x")[:-1]
    strides = [str(_product(sizes[i + 1 :])) for i in range(len(sizes))]
    element = shape.split("x")[-1]
    layout = f"strided<[{', '.join(strides)}], offset: ?>"
    return f"""
    %{to}_view = memref.reinterpret_cast %{argument} to offset: [{offset}], sizes: [{", ".join(sizes)}], \
strides: [{", ".join(strides)}] : memref<?x{element}> to memref<{shape}, {layout}> {_at(line)}
    %{to}_tile = memref.alloc() : memref<{shape}> {_at(line)}
    memref.copy %{to}_view, %{to}_tile : memref<{shape}, {layout}> to memref<{shape}> {_at(line)}
    %{to} = bufferization.to_tensor %{to}_tile restrict writable : memref<{shape}> {_at(line)}
"""


def _store(value: str, argument: str, shape: str, offset: str, line: int) -> str:
    sizes = shape.split("x")[:-1]
    strides = [str(_product(sizes[i + 1 :])) for i in range(len(sizes))]
    element = shape.split("x")[-1]
    layout = f"strided<[{', '.join(strides)}], offset: ?>"
    return f"""
    %{value}_to = memref.reinterpret_cast %{argument} to offset: [{offset}], sizes: [{", ".join(sizes)}], \
strides: [{", ".join(strides)}] : memref<?x{element}> to memref<{shape}, {layout}> {_at(line)}
    bufferization.materialize_in_destination %{value} in writable %{value}_to : \
(tensor<{shape}>, memref<{shape}, {layout}>) -> () {_at(line)}
"""


def _product(sizes: list[str]) -> int:
    product = 1
    for size in sizes:
        product *= int(size)
    return product


def vector(elements: int, element: str = "f16") -> str:
    """out = exp(x) * y + x, once: lines 11 (x, y), 12 (arithmetic), 13 (store)."""
    shape = f"{elements}x{element}"
    body = f"    %zero = arith.constant 0 : index {_at(10)}\n" + _vector_body(shape, "%zero")
    return _module("vector", 10, _vector_arguments(element), "aiv", body)


def loop(elements: int, element: str = "f16") -> str:
    """The same for each of `n` blocks: buffers of the loop are held twice where there is room."""
    shape = f"{elements}x{element}"
    body = f"""    %zero = arith.constant 0 : i32 {_at(10)}
    %one = arith.constant 1 : i32 {_at(10)}
    %step = arith.constant {elements} : i32 {_at(10)}
    scf.for %i = %zero to %n step %one : i32 {{
    %start = arith.muli %i, %step : i32 {_at(10)}
    %offset = arith.index_cast %start : i32 to index {_at(10)}
{_vector_body(shape, "%offset")}    }} {_at(10)}
"""
    return _module("loop", 10, _vector_arguments(element) + ", %n: i32", "aiv", body)


def _vector_arguments(element: str) -> str:
    return f"%x: memref<?x{element}>, %y: memref<?x{element}>, %out: memref<?x{element}>"


def _vector_body(shape: str, offset: str) -> str:
    return f"""{_load("a", "x", shape, offset, 11)}{_load("b", "y", shape, offset, 11)}
    %power = math.exp %a : tensor<{shape}> {_at(12)}
    %product = arith.mulf %power, %b : tensor<{shape}> {_at(12)}
    %sum = arith.addf %product, %a : tensor<{shape}> {_at(12)}
{_store("sum", "out", shape, offset, 13)}"""


def matmul(m: int, n: int, k: int) -> str:
    """One tl.dot: lines 21 (a), 22 (b), 23 (dot), 24 (store)."""
    c = f"{m}x{n}xf32"
    body = f"""    %zero = arith.constant 0 : index {_at(20)}
    %nothing = arith.constant 0.0 : f32 {_at(23)}
    %empty = tensor.empty() : tensor<{c}> {_at(23)}
    %init = linalg.fill ins(%nothing : f32) outs(%empty : tensor<{c}>) -> tensor<{c}> {_at(23)}
{_load("a", "x", f"{m}x{k}xf16", "%zero", 21)}{_load("b", "y", f"{k}x{n}xf16", "%zero", 22)}
    %dot = linalg.matmul {{input_precison = "ieee"}} ins(%a, %b : tensor<{m}x{k}xf16>, tensor<{k}x{n}xf16>) \
outs(%init : tensor<{c}>) -> tensor<{c}> {_at(23)}
{_store("dot", "out", c, "%zero", 24)}"""
    return _module("matmul", 20, "%x: memref<?xf16>, %y: memref<?xf16>, %out: memref<?xf32>", "mix", body)


def barrier(core_of_rank: str) -> str:
    """my_pe, then barrier_all, without tl.dot: with the first for vector cores only, version 1.2.0 crashes."""

    def call(symbol: str, core: str) -> str:
        return (
            "hivm.hir.custom {hivm.is_distributed, hivm.pipe = #hivm.pipe<PIPE_S>, "
            f"hivm.tcore_type = #hivm.tcore_type<{core}>, hivm.vf_mode = #hivm.vf_mode<SIMD>, "
            f'symbol = "{symbol}"}} "dist.{symbol}"'
        )

    body = f"""    %rank = {call("aclshmem_my_pe", core_of_rank)} -> i32 {_at(31)}
    %offset = arith.index_cast %rank : i32 to index {_at(31)}
{_load("a", "x", "256xf16", "%offset", 32)}
    {call("aclshmem_barrier_all", "CUBE_AND_VECTOR")} {_at(33)}
{_store("a", "out", "256xf16", "%offset", 34)}"""
    return _module("barrier", 30, "%x: memref<?xf16>, %out: memref<?xf16>", "aiv", body)
