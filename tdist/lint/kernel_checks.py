"""The rules about kernels, one function each: (node, what is wrong with it) for every place that breaks the rule."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tdist.lint.labels import LabelTable
from tdist.lint.source import Function, Source

Place = tuple[ast.AST, str]

BARRIERS: Final = frozenset({"barrier_all", "barrier_all_vec", "barrier", "sync_all"})
_SLOT_ELEMS: Final = 8
"""Elements of the widest signal word in 64 bytes; a narrower word needs more."""
_NARROW: Final = ("float16", "bfloat16")


def scalar_base(source: Source, labels: LabelTable, kernel: Function) -> Iterator[Place]:
    """A block of pointers under `symm_at`."""
    for call in _calls(kernel):
        if source.operation(call) in ("dl.symm_at", "shmem.remote_ptr") and call.args:
            pointer = call.args[0]
            if "lanes" in labels.of(kernel, pointer):
                yield call, f"`{ast.unparse(pointer)}` is a block of pointers"


def missing_consume_token(source: Source, labels: LabelTable, kernel: Function) -> Iterator[Place]:
    """A wait whose token nobody uses. A token that is given on, returned or stored counts as used."""
    read = {node.id for node in ast.walk(kernel) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    for node in ast.walk(kernel):
        if isinstance(node, ast.Expr) and source.operation(node.value) == "dl.wait":
            yield node, "the token of this wait is dropped"
        elif isinstance(node, ast.Assign) and source.operation(node.value) == "dl.wait":
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            if names and not read.intersection(names):
                yield node, f"nobody uses the token `{names[0]}`"


def narrow_accumulator(source: Source, labels: LabelTable, kernel: Function) -> Iterator[Place]:
    """A sum of products in a narrow type."""
    sums = _summed_into(source, kernel)
    for node in ast.walk(kernel):
        if not isinstance(node, ast.Assign) or source.operation(node.value) not in ("tl.zeros", "tl.full"):
            continue
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        spelt = [source.dotted(value).rpartition(".")[2] for value in _values(node.value)]
        narrow = [name for name in spelt if name in _NARROW]
        if narrow and sums.intersection(names):
            yield node, f"`{names[0]}` sums products in {narrow[0]}"


def remote_atomic(source: Source, labels: LabelTable, kernel: Function) -> Iterator[Place]:
    """An atomic whose target is a peer's memory."""
    for call in _calls(kernel):
        operation = source.operation(call)
        if operation.startswith("tl.atomic_") and call.args and "remote" in labels.of(kernel, call.args[0]):
            yield call, f"`{ast.unparse(call.args[0])}` is memory of another rank"


def gated_barrier(source: Source, labels: LabelTable, kernel: Function) -> Iterator[Place]:
    """A barrier that some agents do not come to: under a condition, or behind an early return."""
    yield from _gated(source, labels, kernel, kernel.body, "")


def _gated(
    source: Source, labels: LabelTable, kernel: Function, body: Sequence[ast.stmt], gate: str
) -> Iterator[Place]:
    for statement in body:
        if gate:
            yield from ((call, gate) for call in _own_calls(statement) if _is_barrier(source, call))
        mine = _divides(labels, kernel, statement)
        for inner in _bodies(statement):
            yield from _gated(source, labels, kernel, inner, f"only where `{mine}`" if mine else gate)
        if mine and isinstance(statement, ast.If) and any(isinstance(last, ast.Return) for last in statement.body):
            gate = f"after the early return at line {statement.lineno} under `{mine}`"


def _divides(labels: LabelTable, kernel: Function, statement: ast.stmt) -> str:
    """The condition of a statement that lets agents of one launch go different ways; empty if it does not."""
    test = getattr(statement, "test", None) if isinstance(statement, ast.If | ast.While) else None
    if test is None:
        return ""
    found = labels.of(kernel, test)
    return ast.unparse(test) if found & {"vector", "program", "rank", "own"} else ""


def _is_barrier(source: Source, call: ast.Call) -> bool:
    library, _, name = source.operation(call).partition(".")
    return library == "shmem" and name in BARRIERS


def no_grid_stride(source: Source, labels: LabelTable, kernel: Function) -> Iterator[Place]:
    """A distributed kernel that takes its tile from its program's number alone."""
    calls = [source.operation(call) for call in _calls(kernel)]
    distributed = any(name.partition(".")[0] in ("dl", "shmem") for name in calls)
    if not distributed or "tl.num_programs" in calls:
        return
    for call in _calls(kernel):
        if source.operation(call) == "tl.program_id" and _selects_tile(labels, kernel):
            yield call, f"{kernel.name} does one tile a program"
            return


def _selects_tile(labels: LabelTable, kernel: Function) -> bool:
    """Whether a program's number takes part in an address, outside every loop that is dealt out by it."""
    ranges = [node for node in ast.walk(kernel) if isinstance(node, ast.For)]
    if any("program" in labels.of(kernel, loop.iter) for loop in ranges):
        return False
    products = [node for node in ast.walk(kernel) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)]
    return any("program" in labels.of(kernel, node) for node in products)


def unrotated_target(source: Source, labels: LabelTable, kernel: Function) -> Iterator[Place]:
    """A peer that depends on a loop but not on the own rank."""
    for call in _calls(kernel):
        target = _target_of(source, call)
        if target is None:
            continue
        found = labels.of(kernel, target)
        if found & {"loop", "program"} and not found & {"rank", "own", "data"}:
            yield call, f"the peer `{ast.unparse(target)}` is the same on all ranks at the same time"


def _target_of(source: Source, call: ast.Call) -> ast.AST | None:
    operation = source.operation(call)
    at = {"dl.symm_at": 1, "shmem.remote_ptr": 1, "dl.notify": 1}.get(operation)
    if at is None:
        return None
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    return call.args[at] if len(call.args) > at else named.get("rank") or named.get("pe")


def one_dimensional_split(source: Source, labels: LabelTable, kernel: Function) -> Iterator[Place]:
    """A grid-stride loop over ranks alone."""
    for loop in ast.walk(kernel):
        if not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.Call) or len(loop.iter.args) != 3:
            continue
        start, stop, step = loop.iter.args
        strided = "program" in labels.of(kernel, start) and "programs" in labels.of(kernel, step)
        if strided and isinstance(stop, ast.Name | ast.Call) and labels.of(kernel, stop) == {"world"}:
            yield loop, f"`{ast.unparse(loop.iter)}` deals out ranks, not tiles: cores beyond their number idle"


def narrow_slots(source: Source, labels: LabelTable, kernel: Function) -> Iterator[Place]:
    """A signal's address that is moved by less than 64 bytes from slot to slot."""
    for call in _calls(kernel):
        if source.operation(call) not in ("dl.wait", "dl.notify", "shmem.signal_op") or not call.args:
            continue
        for term in _terms(call.args[0], _definitions(kernel))[1:]:
            if _is_narrow(source, labels, kernel, term):
                yield call, f"slots of `{ast.unparse(call.args[0])}` lie {_step(term)} apart"
                break


def _terms(node: ast.AST, definitions: Mapping[str, ast.expr]) -> list[ast.AST]:
    """The summands of a pointer expression, its base first; names stand for what they were assigned."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_terms(node.left, definitions), *_terms(node.right, definitions)]
    if isinstance(node, ast.Name) and node.id in definitions:
        rest = {name: value for name, value in definitions.items() if name != node.id}
        return _terms(definitions[node.id], rest)
    return [node]


def _definitions(kernel: Function) -> dict[str, ast.expr]:
    """What names stand for that a kernel assigns exactly once."""
    assigned: dict[str, list[ast.expr | None]] = {}
    for node in ast.walk(kernel):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            assigned.setdefault(node.id, []).append(None)
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            assigned.setdefault(node.targets[0].id, []).append(node.value)
    once = {name: [value for value in values if value] for name, values in assigned.items() if len(values) == 2}
    return {name: values[0] for name, values in once.items() if values}


def _is_narrow(source: Source, labels: LabelTable, kernel: Function, term: ast.AST) -> bool:
    """Whether a summand that differs between slots is multiplied by nothing, or by a number of less than 64 bytes.

    A name that is assigned in several places may stand for either; nothing is said of it.
    """
    if not labels.of(kernel, term) & {"loop", "program", "rank", "own", "vector"}:
        return False
    if isinstance(term, ast.Name):
        return term.id in _loop_variables(kernel)
    if isinstance(term, ast.Call):
        return bool(source.operation(term))
    if isinstance(term, ast.BinOp) and isinstance(term.op, ast.Mult):
        numbers = [side.value for side in (term.left, term.right) if isinstance(side, ast.Constant)]
        return any(isinstance(number, int) and number < _SLOT_ELEMS for number in numbers)
    return isinstance(term, ast.BinOp) and isinstance(term.op, ast.Mod | ast.FloorDiv)


def _loop_variables(kernel: Function) -> set[str]:
    loops = [node.target for node in ast.walk(kernel) if isinstance(node, ast.For)]
    return {target.id for target in loops if isinstance(target, ast.Name)}


def _step(term: ast.AST) -> str:
    if isinstance(term, ast.BinOp) and isinstance(term.op, ast.Mult):
        number = next(side for side in (term.left, term.right) if isinstance(side, ast.Constant))
        return f"{number.value} elements"
    return "1 element"


def fixed_stride(source: Source, labels: LabelTable, kernel: Function) -> Iterator[Place]:
    """A loop over tiles that is dealt out in steps of a number."""
    for loop in ast.walk(kernel):
        if not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.Call) or len(loop.iter.args) != 3:
            continue
        start, _, step = loop.iter.args
        value = step if isinstance(step, ast.Constant) else source.constants.get(getattr(step, "id", ""))
        if value is not None and value.value not in (1, -1) and "program" in labels.of(kernel, start):
            yield loop, f"`{ast.unparse(loop.iter)}` steps by {value.value} whatever the number of programs"


def _summed_into(source: Source, kernel: Function) -> set[str]:
    """Names that a product is added to."""
    names = set()
    for node in ast.walk(kernel):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            if any(source.operation(call) == "tl.dot" for call in _calls(node.value)):
                names.add(node.target.id)
        elif isinstance(node, ast.Assign) and source.operation(node.value) == "tl.dot":
            given = {value.id for value in _values(node.value) if isinstance(value, ast.Name)}
            names |= {target.id for target in node.targets if isinstance(target, ast.Name) and target.id in given}
    return names


def _values(call: ast.AST) -> list[ast.AST]:
    return [*call.args, *(keyword.value for keyword in call.keywords)] if isinstance(call, ast.Call) else []


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    return (found for found in ast.walk(node) if isinstance(found, ast.Call))


def _own_calls(statement: ast.stmt) -> Iterator[ast.Call]:
    """Calls of a statement itself, not of the bodies that it holds."""
    if not _bodies(statement):
        yield from _calls(statement)


def _bodies(statement: ast.stmt) -> list[list[ast.stmt]]:
    return [body for name in ("body", "orelse", "finalbody") if (body := getattr(statement, name, None))]
