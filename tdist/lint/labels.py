"""What the values in kernels are made of: labels, joined over all assignments and carried through calls of helpers.

A label says where a value comes from: `remote` (a pointer translated to a peer), `rank` (this rank's number took part),
`own` (this rank's number itself), `world` (the number of ranks), `program`, `programs`, `vector` (`sub_vec_id()`),
`lanes` (a tensor), `loop` (a loop's variable), `token`. Joining over all assignments says what a value *may* be made
of: checks that ask for the absence of a label therefore stay silent where it is doubtful.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tdist.lint.source import Function, Source

Labels = frozenset[str]
NONE: Final[Labels] = frozenset()

_CALLS: Final[Mapping[str, str]] = {
    "dl.rank": "own",
    "shmem.my_pe": "own",
    "dl.num_ranks": "world",
    "shmem.n_pes": "world",
    "tl.program_id": "program",
    "tl.num_programs": "programs",
    "cann.sub_vec_id": "vector",
    "tl.arange": "lanes",
    "dl.wait": "token",
    "tl.load": "data",
}
_TRANSLATES: Final = ("dl.symm_at", "shmem.remote_ptr", "shmem.ptr")
_RANKS: Final = frozenset({"rank", "my_rank", "rank_id", "local_rank", "my_pe", "pe"})
_WORLDS: Final = frozenset({"world", "world_size", "num_ranks", "nranks", "rank_size", "n_pes", "n_ranks"})
_ROUNDS: Final = 8
"""Rounds over a file until labels stand still; each round carries them through one more call."""


class LabelTable:
    """Labels of all variables of all kernels of a file."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._of: dict[tuple[str, str], Labels] = {}
        self._returns: dict[str, Labels] = {}
        for kernel in source.kernels.values():
            for parameter in _parameters(kernel):
                self._of[kernel.name, parameter] = _by_name(parameter)
        self._settle()

    def of(self, kernel: Function, node: ast.AST) -> Labels:
        """What an expression of a kernel may be made of."""
        if isinstance(node, ast.Name):
            return self._of.get((kernel.name, node.id), NONE)
        if isinstance(node, ast.Call):
            return self._of_call(kernel, node)
        if isinstance(node, ast.Starred):
            return self.of(kernel, node.value)
        parts = [self.of(kernel, child) for child in ast.iter_child_nodes(node)]
        joined = NONE.union(*parts)
        return joined if isinstance(node, ast.Tuple | ast.List) else _mixed(joined)

    def _of_call(self, kernel: Function, call: ast.Call) -> Labels:
        operation = self._source.operation(call)
        given = [self.of(kernel, arg) for arg in (*call.args, *(keyword.value for keyword in call.keywords))]
        if operation in _TRANSLATES:
            return given[0] | self._translated(given) if given else NONE
        if operation in _CALLS:
            return frozenset({_CALLS[operation]})
        if operation == "dl.consume_token":
            return given[0] if given else NONE
        callee = self._callee(call)
        if callee is not None:
            return self._returns.get(callee.name, NONE)
        if isinstance(call.func, ast.Attribute) and not operation:  # x.to(…), x.reshape(…)
            given.append(self.of(kernel, call.func.value))
        return _mixed(NONE.union(*given)) if given else NONE

    @staticmethod
    def _translated(given: Sequence[Labels]) -> Labels:
        """Translated to this rank itself, a pointer stays what it was."""
        own = len(given) > 1 and given[1] == {"own"}
        return NONE if own else frozenset({"remote"})

    def _callee(self, call: ast.Call) -> Function | None:
        return self._source.kernels.get(call.func.id) if isinstance(call.func, ast.Name) else None

    def _settle(self) -> None:
        for _ in range(_ROUNDS):
            before = (dict(self._of), dict(self._returns))
            for kernel in self._source.kernels.values():
                self._visit(kernel)
            if before == (self._of, self._returns):
                return

    def _visit(self, kernel: Function) -> None:
        for node in ast.walk(kernel):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._assign(kernel, target, node.value)
            elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
                mixed = isinstance(node, ast.AugAssign)
                self._add(kernel, node.target, self.of(kernel, node.value), mixed)
            elif isinstance(node, ast.For):
                self._add(kernel, node.target, _mixed(self.of(kernel, node.iter)) | {"loop"})
            elif isinstance(node, ast.Return) and node.value is not None:
                self._returns[kernel.name] = self._returns.get(kernel.name, NONE) | self.of(kernel, node.value)
            elif isinstance(node, ast.Call):
                self._pass(kernel, node)

    def _assign(self, kernel: Function, target: ast.AST, value: ast.AST) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for one, other in zip(target.elts, value.elts, strict=True):
                self._assign(kernel, one, other)
            return
        self._add(kernel, target, self.of(kernel, value))

    def _add(self, kernel: Function, target: ast.AST, labels: Labels, mixed: bool = False) -> None:
        for name in _names_in(target):
            known = self._of.get((kernel.name, name), NONE)
            self._of[kernel.name, name] = _mixed(known | labels) if mixed else known | labels

    def _pass(self, kernel: Function, call: ast.Call) -> None:
        """Labels of arguments go to the parameters of a helper of this file."""
        callee = self._callee(call)
        if callee is None:
            return
        bound = [*zip(_parameters(callee), call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
        for parameter, value in bound:
            if parameter is not None:
                key = (callee.name, parameter)
                self._of[key] = self._of.get(key, NONE) | self.of(kernel, value)


def _mixed(labels: Labels) -> Labels:
    """What arithmetic makes of operands' labels: no longer a rank's number itself, nor the count itself."""
    return frozenset({"rank" if label == "own" else label for label in labels})


def _parameters(function: Function) -> list[str]:
    arguments = function.args
    return [arg.arg for arg in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _by_name(parameter: str) -> Labels:
    """What a parameter is by convention; hosts pass ranks and counts under these names."""
    lowered = parameter.lower()
    if lowered in _RANKS:
        return frozenset({"own"})
    return frozenset({"world"}) if lowered in _WORLDS else NONE


def _names_in(target: ast.AST) -> Iterator[str]:
    for node in ast.walk(target):
        if isinstance(node, ast.Name):
            yield node.id
