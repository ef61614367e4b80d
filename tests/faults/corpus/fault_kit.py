"""What makes a planted fault short: a kernel, what it should compute, and what has to be found at which lines.

A pair reads like this::

    corpus = Corpus(globals())

    @triton.jit
    def fence_left_out(x, data, sig, out, FIX: tl.constexpr):
        offs = tl.arange(0, TILE)
        if dl.rank() == 0:
            tl.store(dl.symm_at(data, 1) + offs, tl.load(x + offs))  # <store>
            if FIX:
                libshmem_device.fence()
            dl.notify(sig, 1, signal=1, sig_op="set")
        else:
            token = dl.wait(sig, 1, "npu", "acquire")
            tl.store(out + offs, tl.load(dl.consume_token(data, token) + offs))  # <load>

    corpus.pair(
        fence_left_out,
        finds("hazard.undrained-release", "store", "load"),
        golden="push",
        profile="ascend",
        why="a SET does not drain the store before it",
        source="failure causes: no fence/quiet between data store and notify",
    )

The kernel's arguments are filled in by name: `x` (this rank's input of `tiles` tiles), `out` (private, zeros, as long
as the golden), the buffers of `BUFFERS`, `launch` (1, 2, …, the epoch), `n` (elements of `x`), `FIX` (False in the
faulty variant), and the pair's `scalars`. Where one kernel and one launch will not do, `host(rt, ws, x, out)` launches
by itself, with `ws.<buffer>`, `ws.launch`, `ws.fix` and `ws.start(kernel, x, out)`.

`# <name>` at the end of a line names that line, of a kernel or of a host function; names are unique in a file. Each
pair becomes two operators of its module, `<name>_faulty` and `<name>_twin`, so that
`tdist-verify tests/faults/corpus/corpus_releases.py::fence_left_out_faulty --nranks 2 --profile ascend` runs one.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import shmem as ash
import torch
import triton.language as tl

from tdist.findings import Finding, Party, Severity
from tdist.verify import Operator, Options, Reference, ensure_shmem, operator
from tdist.verify.inputs import factor, payload

MARKER = re.compile(r"#.*?<([\w-]+)>")
TILE = tl.constexpr(16)
SLOT = tl.constexpr(16)
"""int32 elements of a signal tensor in 64 bytes."""
SLOT64 = tl.constexpr(8)
"""int64 elements in 64 bytes."""
TILE_ELEMS, SLOT_ELEMS = 16, 16


@dataclass(frozen=True)
class Buf:
    """A buffer of every rank, filled with one value before the first launch.

    Attributes:
        dtype: None for the case's element type.
        symmetric: on the symmetric heap, else private.
        fill: None leaves new memory as the world made it.
    """

    elems: int
    dtype: torch.dtype | None = None
    symmetric: bool = True
    fill: int | None = 0

    def allocate(self, case: Any) -> torch.Tensor:
        """This rank's tensor."""
        make = ash.aclshmem_create_tensor if self.symmetric else torch.empty
        tensor = make((self.elems,), dtype=self.dtype or case.torch_dtype)
        return tensor if self.fill is None else tensor.fill_(self.fill)


BUFFERS: Mapping[str, Buf] = {
    "sig": Buf(8 * SLOT_ELEMS, torch.int32),
    "credit": Buf(8 * SLOT_ELEMS, torch.int32),
    "wide": Buf(64, torch.int64),
    "data": Buf(8 * TILE_ELEMS),
    "back": Buf(8 * TILE_ELEMS),
    "count": Buf(16, torch.int32, symmetric=False),
    "scratch": Buf(8 * TILE_ELEMS, symmetric=False),
}
"""Buffers that a kernel gets by naming them, in the order of their allocation: signals first, on whole 64-byte lines.

`sig` and `credit` have 8 int32 slots, `wide` 8 int64 slots, `data` and `back` (symmetric) and `scratch` 8 tiles.
"""

GoldenFunction = Callable[[list[torch.Tensor], int], torch.Tensor]
GOLDENS: Mapping[str, GoldenFunction] = {
    "own": lambda xs, rank: xs[rank],
    "gather": lambda xs, rank: torch.cat(xs),
    "broadcast": lambda xs, rank: xs[0],
    "sum": lambda xs, rank: torch.stack(xs).sum(0),
    "ring": lambda xs, rank: xs[rank - 1],
    "exchange": lambda xs, rank: xs[(rank + 1) % len(xs)],
    "push": lambda xs, rank: xs[0] if rank else torch.zeros_like(xs[0]),
    "collect": lambda xs, rank: torch.cat(xs) if rank == len(xs) - 1 else torch.zeros_like(torch.cat(xs)),
}
"""What `out` should hold on a rank, from the inputs of all ranks.

`own`: one's own input; `gather`: all inputs; `broadcast`: rank 0's; `sum`; `ring`: the left neighbour's;
`exchange`: the right neighbour's; `push`: rank 0's, on all other ranks; `collect`: all inputs, on the last rank only.
"""


@dataclass(frozen=True)
class Expected:
    """One thing that has to come out: a finding by kind and lines, wrong outputs by place, or a refusal by its text."""

    kind: str
    lines: frozenset[str] = frozenset()
    tiles: frozenset[tuple[int, int]] = frozenset()
    text: str = ""

    def is_in(self, outcome: Outcome) -> bool:
        """Whether the outcome has it."""
        if self.kind == "wrong":
            return bool(outcome.wrong) and (not self.tiles or self.tiles == outcome.wrong)
        if self.kind == "refused":
            return any(self.text in error for error in outcome.errors)
        return any((found.kind, lines_of(found)) == (f"tdist.{self.kind}", self.lines) for found in outcome.findings)

    def __str__(self) -> str:
        said = sorted(self.lines) or sorted(self.tiles) or self.text
        return f"{self.kind} at {said}"


def finds(kind: str, *lines: str) -> Expected:
    """A finding of this kind (id without `tdist.`) whose parties stand at exactly the lines of these names."""
    return Expected(kind, frozenset(lines))


def wrong(*tiles: tuple[int, int]) -> Expected:
    """Outputs that differ from the golden in exactly these (rank, tile), over all exact runs; none for anywhere."""
    return Expected("wrong", tiles=frozenset(tiles))


def refused(text: str) -> Expected:
    """The run stops with an error that contains `text`."""
    return Expected("refused", text=text)


@dataclass(frozen=True)
class Outcome:
    """What the default run gave.

    Attributes:
        wrong: (rank, tile) of wrong outputs of the exact steps.
        errors: why runs stopped.
        bug: what kind of bug the report takes it for.
        suppressed: whether somebody accepts findings.
    """

    verdict: str
    findings: tuple[Finding, ...]
    wrong: frozenset[tuple[int, int]] = frozenset()
    errors: tuple[str, ...] = ()
    bug: str = ""
    suppressed: bool = False

    def __str__(self) -> str:
        lines = [f"{f.kind} [{f.severity.value}] {sorted(lines_of(f))}: {f.title}" for f in self.findings]
        return "\n".join(
            [
                f"{self.verdict}, {self.bug or 'no bug'}",
                *lines,
                f"wrong (rank, tile): {sorted(self.wrong)}",
                f"errors: {self.errors}",
            ]
        )


@dataclass(frozen=True)
class Pair:
    """A planted fault beside its corrected twin.

    Attributes:
        expected: what the default run of the faulty variant has to give; at least one fails the run under `profile`.
        why: the mistake, in a sentence.
        source: where it is known from: a documented failure cause, a rule of a seed, a situation of the default run.
        notes: ids of notes that the twin may give.
        missed: why the tool does not find it, empty if it does.
        false_alarm: why the twin is not silent, empty if it is.
        bug: the kind of bug that the report has to name (`tdist.verify.verdict`); empty where that is not stated.
        misjudged: why the report names another one, empty if it does not.
    """

    name: str
    faulty: Operator
    twin: Operator
    expected: tuple[Expected, ...]
    nranks: int
    profile: str
    why: str
    source: str
    notes: tuple[str, ...] = ()
    missed: str = ""
    false_alarm: str = ""
    bug: str = ""
    misjudged: str = ""

    def options(self, variant: Operator) -> Options:
        """The default run of a variant, at the pair's ranks and profile."""
        return Options(f"{variant.source}::{variant.name}", nranks=self.nranks, profile=self.profile)


@dataclass
class Workspace:
    """What a variant works on from launch to launch."""

    buffers: dict[str, torch.Tensor]
    plan: Plan
    fix: bool
    launch: int = 0
    extra: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        for holder in ("buffers", "extra"):
            held = self.__dict__.get(holder, {})
            if name in held:
                return held[name]
        raise AttributeError(f"no buffer {name!r}; there are {', '.join(self.__dict__.get('buffers', {}))}")

    def start(self, kernel: Any, x: torch.Tensor, out: torch.Tensor, grid: int | None = None, **scalars: Any) -> None:
        """Launch a kernel with its arguments filled in by name."""
        known = {"x": x, "out": out, "n": x.numel(), "launch": self.launch, "FIX": self.fix}
        known |= {**self.buffers, **self.extra, **self.plan.scalars, **scalars}
        arguments = {name: known[name] for name in kernel.arg_names if name in known}
        kernel[(grid or self.plan.grid,)](**arguments)


@dataclass(frozen=True)
class Plan:
    """How the variants of a pair are run: everything but which variant it is."""

    kernels: tuple[Any, ...]
    host: Callable[..., Any] | None
    setup: Callable[..., Mapping[str, Any] | None] | None
    buffers: Mapping[str, Buf]
    tiles: int
    grid: int
    scalars: Mapping[str, Any]
    relaunchable: bool
    replayable: bool = False

    def workspace(self, rt: Any, case: Any, fix: bool) -> Workspace:
        """Buffers that the kernels name, filled; then what `setup` adds; then all ranks meet."""
        ensure_shmem(rt)
        made = Workspace({name: buf.allocate(case) for name, buf in self.buffers.items()}, self, fix)
        if self.setup:
            made.extra.update(self.setup(rt, made) or {})
        rt.synchronize()
        rt.host_barrier()
        return made

    def run(self, rt: Any, ws: Workspace, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """One call of the host function."""
        ws.launch += 1
        if self.host:
            returned = self.host(rt, ws, x, out)
            return out if returned is None else returned
        ws.start(self.kernels[ws.fix and len(self.kernels) > 1], x, out)
        return out


class Corpus:
    """The pairs of one module."""

    def __init__(self, module: dict[str, Any], bug: str = "") -> None:
        """`bug` is what the module's faults are, where a pair says nothing else."""
        self._module, self._bug = module, bug
        module["PAIRS"] = self.pairs = []

    def pair(
        self,
        kernel: Any,
        *expected: Expected,
        golden: str | GoldenFunction,
        why: str,
        source: str,
        name: str = "",
        fixed: Any = None,
        host: Callable[..., Any] | None = None,
        setup: Callable[..., Mapping[str, Any] | None] | None = None,
        buffers: Mapping[str, Buf] | None = None,
        summed: bool = False,
        nranks: int = 2,
        launches: int = 1,
        replayable: bool = False,
        grid: int = 1,
        tiles: int = 1,
        profile: str = "seed",
        notes: Iterable[str] = (),
        missed: str = "",
        false_alarm: str = "",
        bug: str = "",
        misjudged: str = "",
        **scalars: Any,
    ) -> None:
        """Declare a pair; see `Pair` for what is not told here.

        Args:
            kernel: has a `FIX: tl.constexpr`, or is the faulty one of two.
            golden: a name of `GOLDENS` or a function of the inputs of all ranks and the rank.
            name: by default the kernel's.
            fixed: the corrected kernel where two are written.
            host: `host(rt, ws, x, out)` instead of one launch of the kernel; returns another output, or None.
            setup: `setup(rt, ws)` after the buffers; gives more named values. Neither synchronises nor meets.
            buffers: other buffers than those of `BUFFERS`, by name.
            summed: the inputs are summed: then they are small integers in exact runs.
            launches: launches on one workspace that the fault needs; with more than one the operators are relaunchable,
                and the twin has to be right at any number of them.
            replayable: launches may be replayed with frozen arguments, as a graph does.
            tiles: tiles of `x`.
            scalars: more arguments of the kernel.
        """
        kernels = tuple(k for k in (kernel, fixed) if k is not None)
        named = {arg for k in kernels for arg in k.arg_names}
        given = dict(buffers or {})
        whole = {b: given.get(b, buf) for b, buf in BUFFERS.items() if b in named or b in given}
        whole |= {b: buf for b, buf in given.items() if b not in whole}
        plan = Plan(kernels, host, setup, whole, tiles, grid, scalars, launches > 1, replayable)
        compute = GOLDENS[golden] if isinstance(golden, str) else golden
        summed = summed or golden == "sum"
        name = name or kernel.fn.__name__
        where = Path(self._module["__file__"])
        variants = [
            replace(_declare(plan, compute, f"{name}_{suffix}", fix, summed), source=where)
            for suffix, fix in (("faulty", False), ("twin", True))
        ]
        self._module.update({variant.name: variant for variant in variants})
        texts = (profile, why, source, tuple(notes), missed, false_alarm, bug or self._bug, misjudged)
        self.pairs.append(Pair(name, *variants, tuple(expected), nranks, *texts))


def _declare(plan: Plan, compute: GoldenFunction, name: str, fix: bool, summed: bool) -> Operator:
    """One variant as an operator."""

    def inputs(case: Any, rank: int, launch: int) -> dict[str, torch.Tensor]:
        if summed:
            return {"x": factor(case, rank, launch, "x", (case["n"],), terms=case.nranks)}
        return {"x": payload(case, rank, launch, "x", (case["n"],))}

    def golden_local(case: Any, rank: int, inputs_by_rank: list[dict[str, torch.Tensor]]) -> Any:
        xs = [given["x"].double() for given in inputs_by_rank]
        value = compute(xs, rank)
        if not summed:
            return value.to(case.torch_dtype)
        return Reference(value, magnitude=compute([x.abs() for x in xs], rank), terms=case.nranks)

    def golden(case: Any, rank: int, x: torch.Tensor) -> Any:
        import torch.distributed as dist

        shards = [torch.empty_like(x) for _ in range(case.nranks)]
        dist.all_gather(shards, x)
        return golden_local(case, rank, [{"x": shard} for shard in shards])

    def host(rt: Any, case: Any, workspace: Workspace, x: torch.Tensor) -> torch.Tensor:
        elems = compute([torch.zeros(case["n"])] * case.nranks, rt.rank).numel()
        return plan.run(rt, workspace, x, torch.zeros(elems, dtype=x.dtype))

    return operator(
        name=name,
        shape={"n": plan.tiles * TILE_ELEMS},
        dtypes=("fp32",),
        inputs=inputs,
        golden=golden,
        golden_local=golden_local,
        workspace=lambda rt, case: plan.workspace(rt, case, fix),
        tile=(TILE_ELEMS,),
        relaunchable=plan.relaunchable,
        replayable=plan.replayable,
    )(host)


def lines_of(found: Finding) -> frozenset[str]:
    """The markers of the lines of a finding's parties; `corpus_x.py:12` for a line without one.

    Parties outside the corpus are left out: whoever misses a barrier is shown where it was launched, which is a line
    of `Workspace.start`, or where its rank ended; an output that depends on the poison, where its host function begins,
    which is a line of `_declare`; some have no line.
    """
    return frozenset(_mark(party) for party in found.parties if _is_corpus(party))


def _is_corpus(party: Party) -> bool:
    return party.file is not None and party.op != "output" and Path(party.file).name.startswith("corpus_")


def _mark(party: Party) -> str:
    file, line = str(party.file), party.line or 0
    marked = MARKER.search(linecache.getline(file, line))
    return marked.group(1) if marked else f"{Path(file).name}:{line}"


def markers_of(pair: Pair) -> set[str]:
    """All names of lines in the pair's file."""
    return set(MARKER.findall(pair.faulty.source.read_text(encoding="utf-8")))


def weighs(found: Finding) -> bool:
    """Whether it is more than a note."""
    return found.severity is not Severity.NOTE


def module_pairs(*modules: Any) -> list[Pair]:
    """All pairs of these modules, names checked to be unique."""
    pairs = [pair for module in modules for pair in module.PAIRS]
    names = [pair.name for pair in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"two pairs of one name: {', '.join(twice)}")
    return pairs
