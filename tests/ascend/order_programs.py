"""Small programs of pipes and flags: as final modules, and by brute force.

A program is a list of statements; `final_module_of` prints it as the vendor would and reads it back. `unordered` runs
it by brute force, with every number of turns up to a bound, and asks of each pair what surely came before what: nothing
of the check under test is used, so the two can be held against each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tdist.platforms.ascend.compiled.final_module import FinalModule, read_final_module

UB_SLOTS, SLOT_BYTES = 3, 512


@dataclass(frozen=True)
class Load:
    """MTE2: argument → slot."""

    slot: int
    argument: int = 0


@dataclass(frozen=True)
class Vector:
    """V: slot → slot."""

    source: int
    target: int


@dataclass(frozen=True)
class Store:
    """MTE3: slot → argument."""

    slot: int
    argument: int = 1


@dataclass(frozen=True)
class ScalarLoad:
    """S reads a slot."""

    slot: int


@dataclass(frozen=True)
class ScalarStore:
    """S writes a slot."""

    slot: int


@dataclass(frozen=True)
class Set:
    source: str
    target: str
    event: int = 0


@dataclass(frozen=True)
class Wait:
    source: str
    target: str
    event: int = 0


@dataclass(frozen=True)
class Barrier:
    pipe: str


@dataclass(frozen=True)
class Signal:
    """A signal SET."""


@dataclass(frozen=True)
class Fence:
    """The library's fence."""


@dataclass(frozen=True)
class Loop:
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class If:
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] = ()


Simple = Load | Vector | Store | ScalarLoad | ScalarStore | Set | Wait | Barrier | Signal | Fence
Statement = Simple | Loop | If
Program = Sequence[Statement]

PIPES = {Load: "MTE2", Vector: "V", Store: "MTE3", ScalarLoad: "S", ScalarStore: "S"}

# ---- as a final module ----------------------------------------------------------------------------------------------

_GM = "memref<?xf32, #hivm.address_space<gm>>"
_UB = f"memref<{SLOT_BYTES // 4}xf32, #hivm.address_space<ub>>"
_SIG = "memref<?xi32, #hivm.address_space<gm>>"
_TYPES = ", ".join(("i64", _SIG, _SIG, _GM, _GM, _SIG, "i32"))
_HEAD = f"""\
"builtin.module"() ({{
  "func.func"() <{{function_type = ({_TYPES}) -> (), sym_name = "program"}}> ({{
  ^bb0(%f: i64, %l: {_SIG}, %w: {_SIG}, %g0: {_GM}, %g1: {_GM}, %sig: {_SIG}, %n: i32):
    %zero = "arith.constant"() <{{value = 0 : i32}}> : () -> i32
    %one = "arith.constant"() <{{value = 1 : i32}}> : () -> i32
    %i0 = "arith.constant"() <{{value = 0 : index}}> : () -> index
    %cst = "arith.constant"() <{{value = 0.0 : f32}}> : () -> f32
"""
_TAIL = """\
    "func.return"() : () -> ()
  }) {hivm.func_core_type = #hivm.func_core_type<AIV>} : () -> ()
}) : () -> ()
"""


class _Text:
    def __init__(self, program: Program) -> None:
        self.lines: list[str] = []
        self.statements: dict[int, Simple] = {}  # kernel line → statement
        self.conditions = 0
        for slot in range(UB_SLOTS):
            self.line(f'%a{slot} = "arith.constant"() <{{value = {slot * SLOT_BYTES} : i64}}> : () -> i64')
            segments = "operandSegmentSizes = array<i32: 1, 0>"
            self.line(f'%s{slot} = "hivm.hir.pointer_cast"(%a{slot}) <{{{segments}}}> : (i64) -> {_UB}')
        self.block(program)
        self.text = _HEAD + "\n".join(self.lines) + "\n" + _TAIL

    def line(self, text: str) -> None:
        self.lines.append(f"    {text}")

    def block(self, program: Program) -> None:
        for statement in program:
            match statement:
                case Loop():
                    self.loop(statement)
                case If():
                    self.branch(statement)
                case _:
                    number = len(self.statements) + 1
                    self.statements[number] = statement
                    self.line(f'{self.simple(statement)} loc("program.py":{number}:0)')

    def loop(self, statement: Loop) -> None:
        self.conditions += 1
        self.line('"scf.for"(%zero, %n, %one) ({')
        self.line(f"^bb0(%iv{self.conditions}: i32):")
        self.block(statement.body)
        self.line('"scf.yield"() : () -> ()')
        self.line("}) : (i32, i32, i32) -> ()")

    def branch(self, statement: If) -> None:
        self.conditions += 1
        name = f"%c{self.conditions}"
        self.line(f'{name} = "memref.load"(%sig, %i0) : ({_SIG}, index) -> i32')
        self.line(f'{name}b = "arith.trunci"({name}) : (i32) -> i1')
        self.line(f'"scf.if"({name}b) ({{')
        self.block(statement.then)
        self.line('"scf.yield"() : () -> ()')
        self.line("}, {")
        self.block(statement.otherwise)
        self.line('"scf.yield"() : () -> ()')
        self.line("}) : (i1) -> ()")

    def simple(self, statement: Simple) -> str:
        match statement:
            case Load(slot, argument):
                operands, types = f"%g{argument}, %s{slot}, %zero, %cst, %i0", f"{_GM}, {_UB}, i32, f32, index"
                return f'"func.call"({operands}) <{{callee = @load_gm_to_ubuf_1d_float}}> : ({types}) -> ()'
            case Vector(source, target):
                return f'"func.call"(%s{source}, %s{target}) <{{callee = @vexp_1d_float}}> : ({_UB}, {_UB}) -> ()'
            case Store(slot, argument):
                types = f"{_UB}, {_GM}, i32"
                call = "<{callee = @store_ubuf_to_gm_1d_float}>"
                return f'"func.call"(%s{slot}, %g{argument}, %zero) {call} : ({types}) -> ()'
            case ScalarLoad(slot):
                self.conditions += 1
                return f'%v{self.conditions} = "memref.load"(%s{slot}, %i0) : ({_UB}, index) -> f32'
            case ScalarStore(slot):
                return f'"memref.store"(%cst, %s{slot}, %i0) : (f32, {_UB}, index) -> ()'
            case Set() | Wait():
                return self.flag(statement)
            case Barrier(pipe):
                return f'"hivm.hir.pipe_barrier"() <{{pipe = #hivm.pipe<PIPE_{pipe}>}}> : () -> ()'
            case Signal():
                types = f"({_SIG}, i32, i32, i32) -> ()"
                return f'"func.call"(%sig, %one, %zero, %one) <{{callee = @aclshmemx_signal_op}}> : {types}'
            case Fence():
                return '"func.call"() <{callee = @_mlir_ciface_aclshmem_fence}> : () -> ()'

    @staticmethod
    def flag(statement: Set | Wait) -> str:
        name = "set_flag" if isinstance(statement, Set) else "wait_flag"
        pipes = f"set_pipe = #hivm.pipe<PIPE_{statement.source}>, wait_pipe = #hivm.pipe<PIPE_{statement.target}>"
        event = f"static_event_id = #hivm.event<EVENT_ID{statement.event}>"
        return f'"hivm.hir.{name}"() <{{{pipes}, {event}}}> : () -> ()'


def final_module_of(program: Program) -> FinalModule:
    """The program as a final module; statement k (from 1, in order of text) is at line k of `program.py`."""
    return read_final_module(_Text(program).text)


# ---- by brute force -------------------------------------------------------------------------------------------------


def _numbered(program: Program, counter: Iterator[int]) -> list:
    out: list = []
    for statement in program:
        match statement:
            case Loop(body):
                out.append(("loop", _numbered(body, counter)))
            case If(then, otherwise):
                out.append(("if", _numbered(then, counter), _numbered(otherwise, counter)))
            case _:
                out.append((next(counter), statement))
    return out


def _traces(block: list, most_turns: int) -> Iterator[tuple]:
    """Every sequence of statements with up to `most_turns` turns of each loop."""
    if not block:
        yield ()
        return
    head, rest = block[0], block[1:]
    if head[0] == "loop":
        ways = [
            tuple(itertools.chain(*turns))
            for count in range(most_turns + 1)
            for turns in itertools.product(list(_traces(head[1], most_turns)), repeat=count)
        ]
    elif head[0] == "if":
        ways = [*_traces(head[1], most_turns), *_traces(head[2], most_turns)]
    else:
        ways = [(head,)]
    for way in ways:
        for tail in _traces(rest, most_turns):
            yield (*way, *tail)


def unordered(program: Program, most_turns: int = 2) -> set[tuple[str, int, int]]:
    """What is not ordered in some run: ("pipes" or "release", line of the first, line of the second)."""
    found: set[tuple[str, int, int]] = set()
    for trace in _traces(_numbered(program, itertools.count(1)), most_turns):
        found |= _Run(trace).found
    return found


@dataclass
class _Run:
    """One run: for each thing issued, the set of earlier ones that have surely finished when it starts."""

    trace: tuple
    found: set[tuple[str, int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.items: list[tuple[int, Simple]] = list(self.trace)
        self.before: list[int] = []  # item → items that have finished when it starts
        self.flags: dict[tuple, list[int]] = {}
        for index in range(len(self.items)):
            self.before.append(self._finished_before(index))
            self._judge(index)

    def _pipe(self, index: int) -> str:
        statement = self.items[index][1]
        match statement:
            case Set(source):
                return source
            case Wait(_, target):
                return target
            case Barrier(pipe):
                return pipe
            case Signal() | Fence():
                return "S"
        return PIPES[type(statement)]

    def _finished_before(self, index: int) -> int:
        """Whatever the items before it in its pipe's queue, and the scalar unit that issued it, had to wait for."""
        statement, pipe = self.items[index][1], self._pipe(index)
        known = 0
        for earlier in range(index):
            other, queue = self.items[earlier][1], self._pipe(earlier)
            everything = isinstance(other, Fence) or (isinstance(other, Barrier) and other.pipe == "ALL")
            if queue in (pipe, "S") or everything or pipe == "ALL" or isinstance(statement, Fence):
                known |= self._known_after(earlier)
        if isinstance(statement, Wait):
            known |= self._taken(statement, index)
        return known

    def _known_after(self, earlier: int) -> int:
        """What is over once an item of one's own queue, or of the scalar unit, is behind: it has started, no more."""
        other = self.items[earlier][1]
        known = self.before[earlier]
        match other:
            case ScalarLoad():
                known |= 1 << earlier
            case Fence():
                known |= (1 << earlier) - 1
            case Barrier(pipe):
                known |= self._of_pipe(earlier, pipe)
        return known

    def _of_pipe(self, before: int, pipe: str) -> int:
        return sum(1 << k for k in range(before) if pipe in ("ALL", self._pipe(k)) and type(self.items[k][1]) in PIPES)

    def _taken(self, statement: Wait, index: int) -> int:
        """The matching set: everything before it on its pipe is over, and what that had seen."""
        wanted = (statement.source, statement.target, statement.event)
        open_sets: list[int] = []
        for earlier in range(index):
            other = self.items[earlier][1]
            if isinstance(other, Set) and (other.source, other.target, other.event) == wanted:
                open_sets.append(earlier)
            if isinstance(other, Wait) and (other.source, other.target, other.event) == wanted:
                open_sets.pop(0)
        setter = open_sets[0]
        return self.before[setter] | self._of_pipe(setter, statement.source)

    def _judge(self, index: int) -> None:
        line, statement = self.items[index]
        for earlier in range(index):
            if self.before[index] >> earlier & 1:
                continue
            first, other = self.items[earlier]
            if isinstance(statement, Signal) and isinstance(other, (Load, Store)):
                self.found.add(("release", first, line))
            elif _conflict(other, statement):
                self.found.add(("pipes", first, line))


def _touched(statement: Simple) -> tuple[set[str], set[str]]:
    """Memory read and written."""
    match statement:
        case Load(slot, argument):
            return {f"g{argument}"}, {f"s{slot}"}
        case Vector(source, target):
            return {f"s{source}"}, {f"s{target}"}
        case Store(slot, argument):
            return {f"s{slot}"}, {f"g{argument}"}
        case ScalarLoad(slot):
            return {f"s{slot}"}, set()
        case ScalarStore(slot):
            return set(), {f"s{slot}"}
    return set(), set()


def _conflict(first: Simple, second: Simple) -> bool:
    if PIPES.get(type(first)) == PIPES.get(type(second)) == "S":
        return False
    (a_reads, a_writes), (b_reads, b_writes) = _touched(first), _touched(second)
    return bool(a_writes & (b_reads | b_writes) or a_reads & b_writes)
