"""`kernel[grid](…)` on a thread with an active rank: what reaches the rank's `launch`."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.jit import reinterpret

import tdist.language as dl
from tdist.errors import KernelError, UsageError
from tdist.frontend import shared
from tdist.platforms.base import activate
from tdist.platforms.sim.driver import sim_driver


class FakeRank:
    """Records launches; a world's rank otherwise."""

    platform, target, cube_cores, vector_cores = "sim", "Ascend910B4", 20, 40

    def __init__(self, rank=0, nranks=1):
        self.rank, self.nranks, self.launches, self.synchronized = rank, nranks, [], 0

    def launch(self, kernel, grid, args):
        self.launches.append((kernel, grid, list(args)))

    def synchronize(self):
        self.synchronized += 1


@pytest.fixture
def rank():
    with sim_driver(), activate(FakeRank()) as active:  # pyright: ignore[reportArgumentType]
        yield active


@pytest.fixture
def compilations(monkeypatch):
    """The (name, constexprs) of every kernel that is really compiled."""
    made = []
    original = shared.compile_source

    def count(fn, signature, constexprs):
        made.append((fn.__name__, dict(constexprs)))
        return original(fn, signature, constexprs)

    monkeypatch.setenv("TDIST_NO_CACHE", "1")
    monkeypatch.setattr(shared, "compile_source", count)
    return made


@triton.jit
def _load(pointer):
    return tl.load(pointer)


@triton.jit
def copy_or_fill(x, y, n, B: tl.constexpr):
    offs = tl.arange(0, B)
    if x is None:
        tl.store(y + offs, 0.0, mask=offs < n)
    else:
        tl.store(y + offs, _load(x + offs), mask=offs < n)


@pytest.mark.parametrize(("name", "args"), [("y", (None, None, 3)), ("n", (None, torch.zeros(16), None))])
def test_none_where_the_kernel_needs_a_value_names_argument_and_kernel(rank, name, args):
    with pytest.raises(KernelError) as caught:
        copy_or_fill[(1,)](*args, B=16)
    text = str(caught.value)
    assert f"argument `{name}` of kernel `copy_or_fill` is None" in text
    assert f"`if {name} is not None`" in text
    assert "NoneType" not in text and "test_driver_launch.py:" in text


def test_none_that_the_kernel_asks_for_is_a_constant(rank):
    copy_or_fill[(1,)](None, torch.zeros(16), 3, B=16)
    assert len(rank.launches) == 1


def make_kernel():
    """A kernel that no other test has compiled."""

    @triton.jit
    def kernel(x_ptr, y_ptr, n, scale, B: tl.constexpr = 16):
        offs = tl.arange(0, B)
        tl.store(x_ptr + offs, tl.full((B,), n * scale, tl.float32), mask=offs < n)

    return kernel


X = torch.zeros(64, dtype=torch.float16)


def test_arguments_arrive_in_the_order_of_the_compiled_kernel(rank):
    make_kernel()[(2, 3)](X, None, B=32, scale=0.5, n=1)
    ((ir, grid, args),) = rank.launches
    assert grid == (2, 3, 1)
    assert [(a.name, a.type) for a in ir.args] == [("x_ptr", "*fp16"), ("n", "i32"), ("scale", "fp32")]
    assert args[0] is X and args[1:] == [1, 0.5]
    assert "%arg1: i32" in ir.ttir, "an argument of value 1 stays an argument"


def test_one_compilation_for_each_signature_and_set_of_constants(rank, compilations):
    kernel = make_kernel()
    for n in (1, 2, 16, 17):
        kernel[(1,)](X, X, n, 1.0)
    kernel[(1,)](X, X, 1, 1.0, B=32)
    kernel[(1,)](X, None, 1, 1.0)
    kernel[(1,)](X.float(), X, 1, 1.0)
    kernel[(1,)](X, X, 1 << 40, 1.0)
    kernel[(1,)](X, X, True, 1.0)
    assert len(compilations) == 6
    types = [[a.type for a in ir.args] for ir, _, _ in rank.launches]
    assert [t[2] for t in types[-2:]] == ["i64", "i1"]
    assert len({id(ir) for ir, _, _ in rank.launches[:4]}) == 1


def test_constants_that_are_equal_but_of_other_types_are_two_kernels(rank, compilations):
    @triton.jit
    def kernel(x_ptr, V: tl.constexpr):
        tl.store(x_ptr, V)

    for value in (1, 1.0, True):
        kernel[(1,)](X, value)
    assert [repr(c["V"]) for _, c in compilations] == ["1", "1.0", "True"]


_FACTOR = tl.constexpr(2)


@triton.jit
def factor_of(x):
    return x * _FACTOR


@triton.jit
def global_kernel(x_ptr, n):
    tl.store(x_ptr, factor_of(n))


def test_a_changed_global_of_a_called_function_compiles_again(rank, compilations, monkeypatch):
    global_kernel[(1,)](X, 1)
    monkeypatch.setitem(globals(), "_FACTOR", tl.constexpr(3))
    global_kernel[(1,)](X, 1)
    assert len(compilations) == 2
    assert "arith.constant 3" in rank.launches[1][0].ttir


@pytest.mark.parametrize(
    ("grid", "expected"),
    [((4,), (4, 1, 1)), ([4, 2], (4, 2, 1)), (lambda meta: (meta["n"], meta["B"], 3), (7, 16, 3)), ((0,), (0, 1, 1))],
)
def test_grids(rank, grid, expected):
    make_kernel()[grid](X, X, 7, 1.0)
    assert rank.launches[0][1] == expected


@pytest.mark.parametrize("grid", [4, (), (1, 1, 1, 1), (-1,), (1.5,), ("4",), None])
def test_a_grid_that_is_none(rank, grid):
    with pytest.raises(UsageError, match="kernel `kernel`: the grid must be one to three integers of at least 0, got"):
        make_kernel()[grid](X, X, 7, 1.0)
    assert rank.launches == []


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((X, X), {}, "missing a required argument: 'n'"),
        ((X, X, 1, 1.0, 16, 4), {}, "too many positional arguments"),
        ((X, X, 1), {"scale": 1.0, "x_ptr": X}, "multiple values for argument 'x_ptr'"),
        ((X, [1], 1, 1.0), {}, r"argument `y_ptr` must be a tensor, an int, a float, a bool or None, got list \[1\]"),
        ((X, X, 1 << 64, 1.0), {}, "argument `n` = 18446744073709551616 does not fit into 64 bits"),
        ((X.to(torch.complex64), X, 1, 1.0), {}, "argument `x_ptr` has dtype complex64"),
        ((X, X, 1, 1.0), {"B": len}, "constexpr `B` cannot be a function"),
    ],
)
def test_arguments_that_no_kernel_takes(rank, args, kwargs, text):
    with pytest.raises(UsageError, match=f"kernel `kernel`.*{text}"):
        make_kernel()[(1,)](*args, **kwargs)
    assert rank.launches == []


@pytest.mark.parametrize(("value", "expected"), [((1 << 63) + 1, "u64"), (-(1 << 31) - 1, "i64"), (-(1 << 31), "i32")])
def test_integers_have_the_type_that_triton_gives_them(rank, value, expected):
    make_kernel()[(1,)](X, X, value, 1.0)
    assert rank.launches[0][0].args[2].type == expected


def test_reinterpreted_tensors_keep_the_new_type_and_the_old_memory(rank):
    raw = torch.zeros(64, dtype=torch.int8)
    make_kernel()[(1,)](reinterpret(raw, tl.uint8), X, 1, 1.0)
    ((ir, _, args),) = rank.launches
    assert ir.args[0].type == "*u8" and args[0] is raw


def test_launch_options_are_accepted_and_recorded(rank):
    compiled = make_kernel()[(1,)](X, X, 1, 1.0, num_warps=8, inject_barrier_all=True, multibuffer=False, of_2031=3)
    assert compiled.options == {"num_warps": 8, "inject_barrier_all": True, "multibuffer": False, "of_2031": 3}
    assert compiled.metadata.num_warps == 8


def test_options_of_the_decorator_are_recorded(rank):
    @triton.jit(options={"multibuffer": False})
    def kernel(x_ptr):
        tl.store(x_ptr, 1.0)

    assert kernel[(1,)](X).options == {"multibuffer": False}


def test_heuristics_and_autotune_launch_once_with_the_first_configuration_left(rank, compilations):
    hooked = []
    configs = [triton.Config({"B": size}, pre_hook=lambda args: hooked.append(args["B"])) for size in (8, 16, 32)]

    @triton.autotune(
        configs, key=["n"], prune_configs_by={"early_config_prune": lambda configs, nargs, **kwargs: configs[1:]}
    )
    @triton.heuristics({"EVEN": lambda args: args["n"] % 2 == 0})
    @triton.jit
    def kernel(x_ptr, n, B: tl.constexpr, EVEN: tl.constexpr):
        tl.store(x_ptr + tl.arange(0, B), 1.0 if EVEN else 2.0)

    kernel[lambda meta: (triton.cdiv(meta["n"], meta["B"]),)](X, 40)
    assert [grid for _, grid, _ in rank.launches] == [(3, 1, 1)]
    assert compilations == [("kernel", {"B": 16, "EVEN": True})]
    assert hooked == [16]
    assert kernel.cache == {}, "nothing that a later real run would take for a measurement"


def test_warmup_compiles_and_does_not_launch(rank, compilations):
    compiled = make_kernel().warmup(torch.float16, torch.float16, 3, 1.0, grid=(1,))
    assert len(compilations) == 1 and rank.launches == []
    assert compiled.asm["ttir"] == compiled.ir.ttir
    compiled[(2, 1, 1)](X, X, 3, 1.0)
    assert rank.launches[0][1:] == ((2, 1, 1), [X, X, 3, 1.0])
    with pytest.raises(UsageError, match="was compiled for 4 arguments, got 1"):
        compiled[(2, 1, 1)](X)


def test_pre_run_hooks_of_a_kernel_run(rank):
    kernel, seen = make_kernel(), []
    kernel.add_pre_run_hook(lambda *args, **kwargs: seen.append((len(args), kwargs)))
    kernel[(1,)](X, X, 1, scale=1.0)
    assert seen == [(3, {"scale": 1.0})]


def test_a_mistake_in_the_kernel_is_a_kernel_error(rank):
    @triton.jit
    def kernel(x_ptr):
        dl.symm_at(x_ptr + tl.arange(0, 4), 0)

    with pytest.raises(KernelError, match="in kernel `kernel`: symm_at: `ptr` must be a scalar pointer"):
        kernel[(1,)](X)
    assert rank.launches == []


def test_threads_of_one_world_launch_on_their_own_rank(compilations):
    kernel = make_kernel()
    ranks = [FakeRank(i, 8) for i in range(8)]
    start = threading.Barrier(8)

    def host(rank):
        with sim_driver(), activate(rank):
            start.wait(timeout=30)
            for n in range(20):
                kernel[(rank.rank + 1,)](X, X, n, 1.0)

    with sim_driver(), ThreadPoolExecutor(8) as pool:
        list(pool.map(host, ranks))
    assert [len(rank.launches) for rank in ranks] == [20] * 8
    assert all(grid == (rank.rank + 1, 1, 1) for rank in ranks for _, grid, _ in rank.launches)
    assert len(compilations) == 1


def test_a_thread_without_a_rank_is_told():
    kernel = make_kernel()
    with sim_driver(), pytest.raises(UsageError, match="kernel `kernel` was launched on a thread that runs no rank"):
        kernel[(1,)](X, X, 1, 1.0)


def test_the_active_driver_answers_for_the_active_rank(rank):
    active = triton.runtime.driver.active
    target = active.get_current_target()
    assert (target.backend, target.arch) == ("npu", "Ascend910B4")
    properties = active.utils.get_device_properties(active.get_current_device())
    assert (properties["num_aicore"], properties["num_vectorcore"]) == (20, 40)
    active.get_device_interface().synchronize()
    assert rank.synchronized == 1
