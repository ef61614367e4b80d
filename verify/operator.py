"""Operators: what ties a kernel's host function to its golden, its inputs, its shapes and its contract.

Built-in operators and a user's own are declared alike:

    @operator(shape={"m": 256, "n": 256, "k": 256}, golden=my_golden, inputs=my_inputs, workspace=my_workspace)
    def my_op(rt, case, workspace, a, b):
        ...
        return c
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tdist.errors import UsageError
from tdist.text import did_you_mean
from tdist.verify.declaration import check_types, is_tile

if TYPE_CHECKING:
    import torch

DTYPES = ("fp16", "bf16", "fp32")
_TORCH_NAMES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
OUTPUT_TYPES = ("float16", "bfloat16", "float32", "int8", "int16", "int32", "int64", "uint8", "bool")
"""Element types of outputs as torch names them; integers and bool are compared exactly under every policy."""
SYNC_FORMS = ("fine", "barrier")
DEFAULT_TILE = (64, 64)
MAX_RANKS = 128
"""Measured: 128 rank processes of a small operator take a minute on 2 cores; 250 did not get through their imports."""


@dataclass(frozen=True)
class Case:
    """One point of an operator's space: everything that decides inputs and expected outputs on every rank.

    Attributes:
        shape: value of each shape symbol.
        sync: protocol form the host function is to use.
        fill: "exact" (integers whose sums are representable) or "float" (standard normal).
    """

    operator: str
    shape: Mapping[str, int]
    dtype: str
    nranks: int
    seed: int = 0
    sync: str = "fine"
    fill: str = "exact"

    def __getitem__(self, symbol: str) -> int:
        return self.shape[symbol]

    @property
    def torch_dtype(self) -> torch.dtype:
        """The case's element type as torch names it."""
        import torch

        return getattr(torch, _TORCH_NAMES[self.dtype])


@dataclass(frozen=True)
class Operator:
    """A declared operator. Make it with `operator`; the attributes are that decorator's arguments.

    `parts`: the two operators of a pair (`tdist.verify.search.pairs`).
    """

    name: str
    host: Callable[..., Any]
    inputs: Callable[[Case, int, int], dict[str, torch.Tensor]]
    golden: Callable[..., Any]
    shape: Mapping[str, int]
    dtypes: tuple[str, ...] = DTYPES
    sync: tuple[str, ...] = ("fine",)
    workspace: Callable[..., Any] | None = None
    golden_local: Callable[..., Any] | None = None
    constraint: Callable[[Case], str | None] | None = None
    tile: tuple[int, ...] | Callable[[Case], tuple[int, ...]] = DEFAULT_TILE
    outputs: tuple[str, ...] = ("out",)
    policy: str = "auto"
    rtol: float | None = None
    atol: float | None = None
    relaunchable: bool = False
    low_precision_partials: bool = False
    small: Mapping[str, int] | None = None
    empty_rank_shape: Mapping[str, int] | None = None
    replayable: bool = False
    suppress: Mapping[str, str] = field(default_factory=dict)
    source: Path = field(default=Path())
    parts: tuple[Operator, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The host function itself: a declared operator can be called like the function that it decorates."""
        return self.host(*args, **kwargs)

    def case(self, *, dtype: str, nranks: int, shape: Mapping[str, int] | None = None, **fields: Any) -> Case:
        """A checked case: defaults filled in, constraints asked.

        Raises: UsageError that names the symbol, the dtype or the rank count and what would be accepted.
        """
        merged = self._merged_shape(shape or {})
        _check_choice(f"dtype of {self.name}", dtype, self.dtypes)
        check_nranks(nranks)
        case = Case(self.name, merged, dtype, nranks, **fields)
        refusal = self.constraint(case) if self.constraint else None
        if refusal:
            raise UsageError(f"{self.name} does not take {format_shape(merged)} on {nranks} ranks: {refusal}")
        return case

    def _merged_shape(self, given: Mapping[str, int]) -> dict[str, int]:
        for symbol, value in given.items():
            _check_choice(f"shape symbol of {self.name}", symbol, tuple(self.shape))
            if value < 1:
                raise UsageError(f"shape symbol {symbol} of {self.name} has to be 1 or more, got {value}")
        return {**self.shape, **given}

    def named_outputs(self, result: Any) -> dict[str, torch.Tensor]:
        """What the host function returned, by output name.

        Raises: UsageError if outputs are missing, unknown or not tensors.
        """
        import torch

        named = dict(result) if isinstance(result, Mapping) else {self.outputs[0]: result}
        if set(named) != set(self.outputs):
            raise UsageError(
                f"{self.name} declares outputs {', '.join(self.outputs)}, its host function returned {', '.join(named)}"
            )
        for name, value in named.items():
            if not isinstance(value, torch.Tensor):
                raise UsageError(f"output {name} of {self.name} has to be a torch tensor, got {type(value).__name__}")
            if str(value.dtype).removeprefix("torch.") not in OUTPUT_TYPES:
                raise UsageError(
                    f"output {name} of {self.name} is {value.dtype}, which cannot be compared; outputs are "
                    f"{', '.join(OUTPUT_TYPES)}"
                )
        return named

    def tile_of(self, case: Case) -> tuple[int, ...]:
        """Extents of an output tile of this case.

        Raises: UsageError if the declared function gives something else.
        """
        tile = self.tile(case) if callable(self.tile) else self.tile
        if not is_tile(tile):
            raise UsageError(f"tile=… of {self.name} returned {tile!r}; it has to give a tuple of positive integers")
        return tuple(tile)


def operator(
    *,
    shape: Mapping[str, int],
    inputs: Callable[[Case, int, int], dict[str, torch.Tensor]],
    golden: Callable[..., Any],
    name: str | None = None,
    **contract: Any,
) -> Callable[[Callable[..., Any]], Operator]:
    """Declare a host function as an operator.

    The host function is `host(rt, case, **inputs)`, or `host(rt, case, workspace, **inputs)` where a workspace is
    declared. It queues launches and returns output tensors; it neither synchronises nor resets, so that two calls on
    one workspace meet each other as they would on a card.

    Args:
        shape: shape symbols with their defaults, all of them positive integers.
        inputs: `inputs(case, rank, launch)` gives the tensors of that rank and launch; see `tdist.verify.inputs`.
        golden: `golden(case, rank, **inputs)` on a rank with a torch.distributed group; gives a tensor, a
            `tdist.golden.Reference`, or a dict of them by output name.
        name: by default the function's.
        dtypes: element types that it takes, of fp16, bf16, fp32.
        sync: protocol forms that it has, of fine, barrier.
        workspace: `workspace(rt, case)`, called once a run before the launches; `close()` is called on it afterwards.
        golden_local: `golden_local(case, rank, inputs_by_rank)` for worlds without a process group.
        constraint: gives a reason to refuse a case, or None.
        tile: extents of an output tile, for the report of wrong tiles: a tuple, or `tile(case)` that gives one.
        outputs: names of the outputs.
        policy, rtol, atol: how floats are compared unless the command line says otherwise.
        relaunchable: whether launches may follow each other on one workspace with no host reset; needs `workspace`.
        low_precision_partials: partial results are rounded to the output's precision before they are reduced.
        small: symbols of `shape` with values that make a run fast and still several tiles and a tail: the shape of the
            search step, which runs many schedules.
        empty_rank_shape: symbols of `shape` with values that leave the last rank without work, where it is not enough
            to set one symbol to the number of ranks less one.
        replayable: whether a launch may be captured and launched again with frozen arguments, as a graph replay does.
        suppress: finding ids that are accepted, each with the reason why.

    Raises: UsageError if the declaration contradicts itself.
    """

    def declare(host: Callable[..., Any]) -> Operator:
        given = {"name": host.__name__ if name is None else name, **required, **contract}
        declared = Operator(host=host, source=Path(inspect.getfile(host)), **check_types(host.__name__, given))
        _check_declaration(declared)
        return declared

    required = {"shape": shape, "inputs": inputs, "golden": golden}
    known = tuple(field for field in Operator.__dataclass_fields__ if field not in ("host", "source", "parts"))
    for unknown in (parameter for parameter in contract if parameter not in known):
        raise UsageError(
            f"@operator does not know {unknown}{did_you_mean(unknown, known)}; it takes {', '.join(known)}"
        )
    return declare


def _check_declaration(declared: Operator) -> None:
    for dtype in declared.dtypes:
        _check_choice(f"dtype declared by {declared.name}", dtype, DTYPES)
    for form in declared.sync:
        _check_choice(f"sync form declared by {declared.name}", form, SYNC_FORMS)
    if declared.policy != "auto":
        from tdist.verify.policies import POLICIES

        _check_choice(f"policy declared by {declared.name}", declared.policy, tuple(POLICIES))
    for parameter in ("small", "empty_rank_shape"):
        for symbol in getattr(declared, parameter) or ():
            _check_choice(f"shape symbol in {parameter}=… of {declared.name}", symbol, tuple(declared.shape))
    if declared.relaunchable and declared.workspace is None:
        raise UsageError(
            f"{declared.name} is declared relaunchable but has no workspace=…: what would the second launch run on?"
        )


def _check_choice(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"unknown {what}: {value!r}{did_you_mean(value, allowed)}; it takes {', '.join(allowed)}")


def check_nranks(nranks: int) -> None:
    """Refuse rank counts that no world can have."""
    if not 1 <= nranks <= MAX_RANKS:
        raise UsageError(f"the number of ranks has to be between 1 and {MAX_RANKS}, got {nranks}")


def format_shape(shape: Mapping[str, int]) -> str:
    """`m=256,n=256`, as `--shape` reads it."""
    return ",".join(f"{symbol}={value}" for symbol, value in shape.items())
