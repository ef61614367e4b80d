"""From a module to Python source: the kernel function, the functions it calls, the definitions in front of them."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from tdist.errors import KernelError
from tdist.frontend.kernel_ir import KernelIR

from . import rules_dot, rules_extern, rules_float, rules_int, rules_memory, rules_shape, rules_sync
from .elements import type_info
from .emitter import INDENT
from .facts import analyse
from .generator import Generator, Module, Options, Restart
from .ir_access import prop
from .poly import Poly
from .prepare import accumulate_in_dots
from .rules_control import function_body, function_name, unflat
from .symbolic import Symbolic
from .value_graph import number_operations, value_graph
from .values import Cond, Origin, Pointer, Scalar, Splat

PROLOGUE = ("if False: yield", "rank = ag.rank", "nranks = ag.nranks", "core = ag.core")
BUILT_IN = ("pid0", "pid1", "pid2", "np0", "np1", "np2", "rank", "nranks", "core")
RULE_MODULES = (rules_dot, rules_extern, rules_float, rules_int, rules_memory, rules_shape, rules_sync)
MAX_RESTARTS = 200


@dataclass
class Stats:
    """What the generator made of a kernel.

    `tiers` counts accesses by (file, line, op, tier); a tier is slice, rows, gather, scalar or panel.
    """

    tiers: dict[tuple[str, int, str, str], int] = field(default_factory=dict)
    fused_loops: int = 0
    views: int = 0
    cached: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass
class Generated:
    """Source of one core's function, and what is known about it."""

    source: str
    stats: Stats


def generate(module: ModuleOp, kernel: KernelIR, options: Options) -> Generated:
    """Python source that defines `kernel`; `module` is changed on the way.

    Raises:
        KernelError: an operation or a type that the simulator has no rule for; names op, file and line.
    """
    accumulate_in_dots(module)
    functions = [op for op in module.body.block.ops if op.name == "tt.func"]
    main = _find_main(functions, kernel)
    waits = any(op.name == "distributed.wait" for op in module.walk())
    numbers = number_operations(module) if options.trace else {}
    shared = Module(kernel.name, options, numbers, _symbolic(module, kernel, options))
    if options.trace:
        shared.definitions.append(f"GRAPH = {json.dumps(value_graph(module, shared.numbers))!r}")
    bodies = [_function(shared, op, kernel if op is main else None, waits) for op in functions]
    source = "\n".join([*shared.definitions, "", *bodies])
    stats = Stats(
        dict(shared.tiers), shared.fused_loops, shared.views, shared.cached, list(dict.fromkeys(shared.notes))
    )
    return Generated(source + "\n", stats)


def _symbolic(module: ModuleOp, kernel: KernelIR, options: Options) -> Symbolic | None:
    if options.symbolic is None:
        return None
    return Symbolic(module, f"{kernel.name}\n{kernel.ttir}", options.symbolic)


def _find_main(functions: Sequence[Operation], kernel: KernelIR) -> Operation:
    named = [op for op in functions if prop(op, "sym_name") == kernel.name]
    public = named or [op for op in functions if prop(op, "sym_visibility", "public") == "public"]
    if not public:
        raise KernelError(f"kernel {kernel.name}: its IR has no function")
    return public[0]


def _function(shared: Module, op: Operation, kernel: KernelIR | None, waits: bool) -> str:
    """The text of one function; generated again when a loop-carried value turns out not to stay symbolic."""
    forced: set[tuple[Operation, int]] = set()
    marks = (len(shared.definitions), shared.tiers.copy(), len(shared.notes), shared.fused_loops)
    for _ in range(MAX_RESTARTS):
        try:
            return _attempt(shared, op, kernel, waits, forced)
        except Restart as restart:
            forced.add(restart.key)
            del shared.definitions[marks[0] :]
            del shared.notes[marks[2] :]
            shared.tiers, shared.fused_loops = marks[1].copy(), marks[3]
    raise KernelError(f"kernel {shared.kernel}: {MAX_RESTARTS} loop-carried values that do not stay symbolic")


def _attempt(
    shared: Module, op: Operation, kernel: KernelIR | None, waits: bool, forced: set[tuple[Operation, int]]
) -> str:
    blocks = list(op.regions[0].blocks)
    entry = blocks[0]
    names = _pointer_names(entry, kernel)
    g = Generator(shared, analyse(entry, blocks, names, waits), forced)
    for name in BUILT_IN:
        g.emit.level[name] = 0
    parameters = _kernel_parameters(g, entry, kernel) if kernel else _callee_parameters(g, entry)
    function_body(g, entry)
    scope = g.emit.pop()
    name = "kernel" if kernel else function_name(prop(op, "sym_name"))
    header = f"def {name}(ag, pid0, pid1, pid2, np0, np1, np2, {', '.join(parameters)}):"
    return "\n".join([header, *(INDENT + line for line in (*PROLOGUE, *scope.lines)), ""])


def _pointer_names(entry: Block, kernel: KernelIR | None) -> list[str | None]:
    if kernel is None:
        return ["?" if type_info(arg.type).is_pointer else None for arg in entry.args]
    if len(entry.args) != len(kernel.args):
        raise KernelError(
            f"kernel {kernel.name}: its IR takes {len(entry.args)} arguments, its signature has {len(kernel.args)}"
        )
    return [arg.name if arg.is_pointer else None for arg in kernel.args]


def _kernel_parameters(g: Generator, entry: Block, kernel: KernelIR) -> list[str]:
    parameters = []
    for ssa, arg in zip(entry.args, kernel.args, strict=True):
        name = g.emit.argument("a_" + arg.name)
        parameters.append(name)
        if arg.is_pointer:
            al = g.emit.argument(f"a_{arg.name}_al")
            parameters.append(al)
            origin = Origin(al, type_info(ssa.type).element, arg.name, False)
            g.env[ssa] = Pointer(Poly.symbol(name), origin)
        else:
            _scalar_parameter(g, ssa, name)
    return parameters


def _scalar_parameter(g: Generator, ssa: SSAValue, name: str) -> None:
    """A scalar argument: brought to its width, whatever number type the launcher passed."""
    element = type_info(ssa.type).element
    if element.is_float:
        g.emit.line(f"{name} = round_{element.name}(float({name}))")
        g.env[ssa] = Splat((), name, element)
    elif element.is_bool:
        g.emit.line(f"{name} = bool({name})")
        g.env[ssa] = Cond(name)
    else:
        g.emit.line(f"{name} = wrap(int({name}), {element.bits})")
        g.env[ssa] = Scalar(Poly.symbol(name), element)


def _callee_parameters(g: Generator, entry: Block) -> list[str]:
    """Parameters of a function that is not inlined: one joined clock, then its values."""
    clk = g.emit.fresh("clk")
    g.returns_clock = True
    if g.module.options.detect:
        g.control = frozenset({clk})
    parameters = [clk]
    for arg in entry.args:
        names, value = unflat(g, arg, arg.name_hint or "p")
        parameters += names
        g.set_value(arg, value)
    return parameters


@functools.cache
def operation_names() -> tuple[str, ...]:
    """The operations that have a rule, sorted."""
    from .generator import RULES

    return tuple(sorted(RULES))
