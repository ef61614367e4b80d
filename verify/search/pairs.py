"""Two operators as one, `OP1+OP2`: one behind the other on a stream, in opposite order on every other rank if asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tdist.errors import UsageError
from tdist.verify.loader import PLUS
from tdist.verify.operator import Case, Operator

Tensors = dict[str, Any]


def pair(first: Operator, second: Operator) -> Operator:
    """An operator that calls the host functions of both.

    Shape symbols of one name are one symbol; inputs and outputs are named `<operator>.<name>`, operators of one name
    `first` and `second`. Its host function takes `opposite=True`: ranks of odd number then launch the second one first.

    Raises: UsageError if the two have no element type or no protocol form in common.
    """
    both, names = _Pair(first, second), f"{first.name} and {second.name}"
    local = first.golden_local is not None and second.golden_local is not None
    shape = {**second.shape, **first.shape}
    small = {**shape, **(second.small or {}), **(first.small or {})}
    return Operator(
        name=f"{first.name}{PLUS}{second.name}",
        host=both.host,
        inputs=both.inputs,
        golden=both.golden,
        golden_local=both.golden_local if local else None,
        shape=shape,
        small=small,
        dtypes=_common("element type", names, first.dtypes, second.dtypes),
        sync=_common("protocol form", names, first.sync, second.sync),
        workspace=both.workspace,
        constraint=both.constraint,
        tile=lambda case: first.tile_of(both.part(0, case)),
        outputs=tuple(f"{name}.{output}" for name, one in both.named() for output in one.outputs),
        relaunchable=first.relaunchable and second.relaunchable,
        low_precision_partials=first.low_precision_partials or second.low_precision_partials,
        suppress={**second.suppress, **first.suppress},
        source=first.source,
        parts=(first, second),
    )


def _common(what: str, names: str, one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    common = tuple(name for name in one if name in other)
    if not common:
        raise UsageError(f"{names} have no {what} in common: {', '.join(one)}; {', '.join(other)}")
    return common


class _Workspaces:
    """The workspace of each; none where an operator has none."""

    def __init__(self, made: list[Any]) -> None:
        self.made = made

    def close(self) -> None:
        """Give both back, in the same order on every rank."""
        for workspace in self.made:
            if hasattr(workspace, "close"):
                workspace.close()


class _Pair:
    """The functions of a pair."""

    def __init__(self, first: Operator, second: Operator) -> None:
        self.operators = (first, second)
        self.names = (first.name, second.name) if first.name != second.name else ("first", "second")

    def named(self) -> list[tuple[str, Operator]]:
        """Both, under names that tell them apart."""
        return list(zip(self.names, self.operators, strict=True))

    def part(self, index: int, case: Case) -> Case:
        """The case as one of the two knows it."""
        one = self.operators[index]
        return replace(case, operator=one.name, shape={symbol: case.shape[symbol] for symbol in one.shape})

    def constraint(self, case: Case) -> str | None:
        for index, one in enumerate(self.operators):
            reason = one.constraint(self.part(index, case)) if one.constraint else None
            if reason:
                return f"{self.names[index]}: {reason}"
        return None

    def inputs(self, case: Case, rank: int, launch: int) -> Tensors:
        return self._joined(lambda i, one: one.inputs(self.part(i, case), rank, launch))

    def workspace(self, rt: Any, case: Case) -> _Workspaces:
        makers = [(one.workspace, self.part(index, case)) for index, one in enumerate(self.operators)]
        return _Workspaces([make(rt, mine) if make else None for make, mine in makers])

    def host(self, rt: Any, case: Case, workspaces: _Workspaces, opposite: bool = False, **inputs: Any) -> Tensors:
        order = (1, 0) if opposite and rt.rank % 2 else (0, 1)
        made = {index: self._call(index, rt, case, workspaces, inputs) for index in order}
        return self._joined(lambda i, one: made[i])

    def _call(self, index: int, rt: Any, case: Case, workspaces: _Workspaces, inputs: Mapping[str, Any]) -> Any:
        one = self.operators[index]
        leading = (workspaces.made[index],) if one.workspace else ()
        return one.host(rt, self.part(index, case), *leading, **self._mine(index, inputs))

    def golden(self, case: Case, rank: int, **inputs: Any) -> Tensors:
        return self._joined(lambda i, one: one.golden(self.part(i, case), rank, **self._mine(i, inputs)))

    def golden_local(self, case: Case, rank: int, by_rank: list[Tensors]) -> Tensors:
        def of(index: int, one: Operator) -> Any:
            assert one.golden_local is not None
            return one.golden_local(self.part(index, case), rank, [self._mine(index, given) for given in by_rank])

        return self._joined(of)

    def _joined(self, of: Callable[[int, Operator], Any]) -> Tensors:
        """What `of` gives for each, a single output under the name of the operator's first, all names told apart."""
        joined: Tensors = {}
        for index, (name, one) in enumerate(self.named()):
            given = of(index, one)
            named = given if isinstance(given, Mapping) else {one.outputs[0]: given}
            joined |= {f"{name}.{key}": value for key, value in named.items()}
        return joined

    def _mine(self, index: int, named: Mapping[str, Any]) -> Tensors:
        prefix = f"{self.names[index]}."
        return {key.removeprefix(prefix): value for key, value in named.items() if key.startswith(prefix)}
