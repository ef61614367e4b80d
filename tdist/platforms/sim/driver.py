"""Triton's side of the simulated platform: inside a world, `kernel[grid](…)` compiles and launches here.

While `sim_driver()` is open, Triton's active driver is ours, and `JITFunction.run`, `Autotuner.run` and the core counts
of `NPUUtils` ask the rank that is active on the calling thread. All of it is undone at the end. Kernels are cached in
memory, their TTIR also in a directory of our own: a file under Triton's cache directory could be taken for a real
binary by a later run on the card (`docs/decisions/`, "The launch seam").
"""

from __future__ import annotations

import contextlib
import operator
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tdist.errors import KernelError, UsageError
from tdist.frontend import check_front_end
from tdist.frontend.arguments import Bound, bind, cache_key, without_value
from tdist.frontend.definitions import without_deferral
from tdist.frontend.kernel_ir import KernelIR
from tdist.frontend.shared import compile_shared
from tdist.frontend.surroundings import Surroundings
from tdist.platforms.base import RankRuntime, current
from tdist.platforms.sim.launch_record import note_launch
from tdist.platforms.sim.npu_utils import NPUUtils
from tdist.platforms.sim.triton_driver import make_driver
from tdist.scoped import CountedScope


@dataclass(frozen=True)
class _Compiled:
    """Kernels made from one jit function while what it reads stayed as it was."""

    surroundings: Surroundings
    kernels: dict[Any, KernelIR]


_lock = threading.RLock()
_compiled: weakref.WeakKeyDictionary[Any, _Compiled] = weakref.WeakKeyDictionary()


def sim_driver() -> contextlib.AbstractContextManager[None]:
    """Make kernels launched in the block run on the active rank of the launching thread.

    Counted: worlds may nest and overlap in threads; the last one out restores Triton.

    Raises:
        UsageError: `TRITON_INTERPRET` is set (kernels would run in Triton's interpreter and never come here), or, at a
            launch, the thread has no active rank.
    """
    return _scope.joined()


def _install(undo: contextlib.ExitStack) -> None:
    if os.environ.get("TRITON_INTERPRET", "0") == "1":
        raise UsageError("TRITON_INTERPRET=1 is set: kernels would run in Triton's interpreter, not here. Unset it.")
    try:
        from triton.runtime import Autotuner, JITFunction
        from triton.runtime.driver import driver
    except ImportError:
        check_front_end()
        raise
    before = without_deferral(driver.active)
    undo.callback(driver.set_active, before)
    driver.set_active(make_driver(before))
    _patch(undo, JITFunction, "run", _run)
    _patch(undo, Autotuner, "run", _run_first_config)
    _answer_core_counts(undo)


_scope = CountedScope(_install)


def _patch(stack: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    """Set `owner.name`, and undo it exactly when the stack closes."""
    before = vars(owner).get(name, _patch)
    setattr(owner, name, value)
    stack.callback(delattr, owner, name) if before is _patch else stack.callback(setattr, owner, name, before)


def _answer_core_counts(stack: contextlib.ExitStack) -> None:
    """Make triton-ascend's own `NPUUtils`, which needs CANN, answer for the active rank; users may have imported it."""
    try:
        from triton.backends.ascend.driver import NPUUtils as Real
    except ImportError:
        return
    _patch(stack, Real, "__new__", staticmethod(lambda cls: object.__new__(cls)))
    _patch(stack, Real, "__init__", lambda self: None)
    for name in ("get_arch", "get_aicore_num", "get_aivector_core_num", "get_device_properties"):
        _patch(stack, Real, name, getattr(NPUUtils, name))


def _active_rank(what: str) -> RankRuntime:
    runtime = current()
    if runtime is None:
        raise UsageError(
            f"{what} on a thread that runs no rank, while a world is open. Launch from the function that the world "
            "runs (`world.run(fn)`), or close the world first."
        )
    return runtime


def _run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> SimCompiledKernel:
    """Stands in for `JITFunction.run`."""
    __tracebackhide__ = True
    runtime = _active_rank(f"kernel `{self.__name__}` was launched")
    for hook in self.pre_run_hooks:
        hook(*args, **kwargs)
    bound = bind(self, args, {**kwargs, **(self.bishengir_option or {})})
    kernel = SimCompiledKernel(_compile(self, bound, runtime), bound)
    if not warmup:
        size = resolve_grid(self.__name__, grid, bound.named)
        if note_launch(kernel.ir, kernel.options):
            runtime.launch(kernel.ir, size, bound.values)
    return kernel


def _compile(fn: Any, bound: Bound, runtime: RankRuntime) -> KernelIR:
    __tracebackhide__ = True
    target = (runtime.target, runtime.cube_cores, runtime.vector_cores)
    key = (target, cache_key(bound))
    with _lock:
        known = _compiled.get(fn)
        if known is None or not known.surroundings.unchanged():
            known = _compiled[fn] = _Compiled(Surroundings(fn), {})
        if key not in known.kernels:
            try:
                known.kernels[key] = compile_shared(fn, bound.signature, bound.constexprs, target)
            except KernelError as error:
                raise without_value(fn, bound, error) from None
        return known.kernels[key]


def resolve_grid(name: str, grid: Any, named: dict[str, Any]) -> tuple[int, int, int]:
    """A launch grid as three numbers; a callable is given the arguments by name.

    Raises:
        UsageError: not one to three integers of at least 0.
    """
    given: Any = grid(named) if callable(grid) else grid
    try:
        sizes = tuple(operator.index(size) for size in given)
    except TypeError:
        sizes = ()
    if not 1 <= len(sizes) <= 3 or min(sizes) < 0:
        raise UsageError(f"kernel `{name}`: the grid must be one to three integers of at least 0, got {given!r}")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _run_first_config(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands in for `Autotuner.run`: the first configuration that pruning leaves, and no benchmark.

    Simulated time means nothing, and launches for timing would move signals that the kernel's protocol counts on.
    """
    __tracebackhide__ = True
    _active_rank(f"autotuned kernel `{self.base_fn.__name__}` was launched")
    self.nargs = dict(zip(self.arg_names, args, strict=False))
    try:
        config = next(iter(self.prune_configs(kwargs)))
        arguments = {**self.nargs, **kwargs, **config.all_kwargs()}
    finally:
        self.nargs = None
    if config.pre_hook is not None:
        config.pre_hook(arguments)
    return self.fn.run(*args, **kwargs, **config.all_kwargs())


class SimCompiledKernel:
    """What `kernel[grid](…)` and `kernel.warmup(…)` return: what of Triton's `CompiledKernel` has a meaning here.

    `options` holds every launch option that was given, known to the Ascend back end or not; none changes the result.
    """

    def __init__(self, ir: KernelIR, bound: Bound) -> None:
        self.ir = ir
        self.name = ir.name
        self.options = dict(bound.options)
        self.asm = {"ttir": ir.ttir}
        self.metadata = SimpleNamespace(name=ir.name, shared=0, **_without(bound.options, ("name", "shared")))
        self.n_regs = 0
        self.n_spills = 0

    def _init_handles(self) -> None:
        """Nothing is loaded: there is no binary."""

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., None]:
        """A launcher that takes the arguments which are not constexpr, as Triton's does."""

        def run(*args: Any, stream: Any = None) -> None:
            values = [value for value in args if value is not None]
            if len(values) != len(self.ir.args):
                expected = len(self.ir.args)
                raise UsageError(f"kernel `{self.name}` was compiled for {expected} arguments, got {len(values)}")
            runtime = _active_rank(f"kernel `{self.name}` was launched")
            size = resolve_grid(self.name, grid, {})
            if note_launch(self.ir, self.options):
                runtime.launch(self.ir, size, values)

        return run


def _without(options: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}
