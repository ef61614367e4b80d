"""What one rank does in one run of an operator: inputs, launches, outputs, golden, comparison. JSON in and out."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

from tdist.errors import EnvironmentUnfit, Place, TdistError, UsageError, WorldStopped
from tdist.golden import Reference
from tdist.platforms.base import RankRuntime, on_behalf_of
from tdist.verify.heap import release_shmem
from tdist.verify.loader import load_operator
from tdist.verify.operator import Case, Operator
from tdist.verify.policies import Comparison, Setting, compare
from tdist.verify.search.jobs import FROZEN, OPPOSITE


@dataclass(frozen=True)
class Job:
    """One run, the same for all ranks.

    Attributes:
        spec: what names the operator; a rank process loads it for itself.
        launches: calls of the host function on one workspace, with different inputs.
        judge: whether to compare with the golden; checksums are taken anyway.
        situation: what it is for (`tdist.verify.search.situations`); "frozen" launches once and replays that.
    """

    spec: str
    case: Case
    launches: int = 1
    judge: bool = True
    policy: str = "auto"
    rtol: float | None = None
    atol: float | None = None
    situation: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "case": {**asdict(self.case), "shape": dict(self.case.shape)}}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Job:
        return cls(**{**value, "case": Case(**value["case"])})


@dataclass(frozen=True)
class LaunchResult:
    """One launch on one rank: comparisons by output name, and a checksum of each tile of each output.

    `tilings`: the shape of each output and the extents of a tile, to say which elements a checksum is of.
    """

    comparisons: dict[str, Comparison] = field(default_factory=dict)
    checksums: dict[str, list[int]] = field(default_factory=dict)
    tilings: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LaunchResult:
        named = {name: _comparison(fields) for name, fields in value["comparisons"].items()}
        tilings = {name: (tuple(shape), tuple(tile)) for name, (shape, tile) in value.get("tilings", {}).items()}
        return cls(named, dict(value["checksums"]), tilings)


def _comparison(fields: Mapping[str, Any]) -> Comparison:
    """A comparison from JSON: lists become tuples again."""
    wrong = tuple(tuple(place) for place in fields["wrong_tiles"])
    index = fields["worst_index"]
    whole = {**fields, "wrong_tiles": wrong, "notes": tuple(fields["notes"])}
    return Comparison(**{**whole, "worst_index": None if index is None else tuple(index)})


def run_job(rt: RankRuntime, job: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Run a job on this rank, in a process that loads the operator by its name.

    Returns:
        A `LaunchResult` as JSON for each launch.
    """
    parsed = Job.from_json(job)
    return [asdict(result) for result in run_operator(rt, load_operator(parsed.spec), parsed)]


_Host = Callable[..., Any]
_Queue = Callable[[RankRuntime, _Host, list[dict[str, torch.Tensor]]], list[Any]]
OnOutput = Callable[[int, str, torch.Tensor], None]


def run_operator(
    rt: RankRuntime, operator: Operator, job: Job, on_output: OnOutput | None = None
) -> list[LaunchResult]:
    """Run a job of an operator that is at hand.

    Launches are queued one behind the other; nothing but the operator's own protocol orders them across ranks.

    Args:
        on_output: is given launch, name and tensor of each output as the host function returned it, when it is read.
    """
    if job.situation == OPPOSITE:
        operator = replace(operator, host=functools.partial(operator.host, opposite=True))
    with _users_code(operator, "the inputs function", operator.inputs):
        inputs = [operator.inputs(job.case, rt.rank, launch) for launch in range(job.launches)]
    if job.situation == FROZEN:
        return _run_frozen(rt, operator, job, inputs)
    kept = [{name: tensor.clone() for name, tensor in given.items()} for given in inputs]
    outputs = _launch_all(rt, operator, job.case, inputs, on_output)
    return [_result(rt, operator, job, launch, kept[launch], outputs[launch]) for launch in range(job.launches)]


def _run_frozen(
    rt: RankRuntime, operator: Operator, job: Job, inputs: list[dict[str, torch.Tensor]]
) -> list[LaunchResult]:
    """Call the host function once, then queue what it queued again and again, as a graph replay does.

    Inputs that are device memory get new values in between, on the stream. Only the outputs of the last launch are
    left; where inputs could not be changed they have to be those of the first.
    """
    kept = [{name: tensor.clone() for name, tensor in given.items()} for given in inputs]
    outputs = _launch_all(rt, operator, job.case, inputs, queue=_queue_frozen)
    shown = job.launches - 1 if _on_device(rt, inputs[0]) else 0
    last = _result(rt, operator, job, shown, kept[shown], outputs[0])
    return [last if launch == shown else LaunchResult() for launch in range(job.launches)]


def _queue_frozen(rt: RankRuntime, call: _Host, inputs: list[dict[str, torch.Tensor]]) -> list[Any]:
    with rt.capturing() as graph:  # pyright: ignore[reportAttributeAccessIssue]  of simulated ranks only
        returned = call(**inputs[0])
    for given in inputs[1:]:
        if _on_device(rt, inputs[0]):
            for name, tensor in inputs[0].items():
                tensor.copy_(given[name])
        graph.replay()
    return [returned]


def _on_device(rt: RankRuntime, inputs: Mapping[str, torch.Tensor]) -> bool:
    """Whether a launch got each of the inputs itself, so that new values in them reach it."""
    return all(rt.address_of(tensor) is not None for tensor in inputs.values())  # pyright: ignore[reportAttributeAccessIssue]


def _queue_each(rt: RankRuntime, call: _Host, inputs: list[dict[str, torch.Tensor]]) -> list[Any]:
    return [call(**given) for given in inputs]


def _launch_all(
    rt: RankRuntime,
    operator: Operator,
    case: Case,
    inputs: list[dict[str, torch.Tensor]],
    on_output: OnOutput | None = None,
    queue: _Queue = _queue_each,
) -> list[dict[str, torch.Tensor]]:
    """Make the workspace, launch, read the outputs back, give the workspace back."""
    with _users_code(operator, "the workspace function", operator.workspace):
        workspace = operator.workspace(rt, case) if operator.workspace else None
    leading = () if operator.workspace is None else (workspace,)
    with _users_code(operator, "the host function", operator.host):
        call = functools.partial(operator.host, rt, case, *leading)
        returned = [operator.named_outputs(made) for made in queue(rt, call, inputs)]
    _describe(rt, inputs, returned)
    outputs = _read_back(rt, operator, returned)
    if on_output is not None:
        for launch, named in enumerate(returned):
            for name, value in named.items():
                on_output(launch, name, value)
    if workspace is not None and hasattr(workspace, "close"):
        with _users_code(operator, "close() of the workspace", operator.workspace):
            workspace.close()
    with _for_the_host_function(operator):
        release_shmem()
    return outputs


def _read_back(
    rt: RankRuntime, operator: Operator, returned: list[dict[str, torch.Tensor]]
) -> list[dict[str, torch.Tensor]]:
    """The outputs as they are when this rank's stream is empty."""
    with _for_the_host_function(operator):
        rt.synchronize()
        return [{name: value.detach().cpu().clone() for name, value in named.items()} for named in returned]


def _for_the_host_function(operator: Operator) -> contextlib.AbstractContextManager[None]:
    """Findings about what is done here for an operator name the line at which its host function begins."""
    host = operator.host.func if isinstance(operator.host, functools.partial) else operator.host
    code = getattr(host, "__code__", None)
    return contextlib.nullcontext() if code is None else on_behalf_of(code.co_filename, code.co_firstlineno)


def _describe(rt: RankRuntime, inputs: list[dict[str, torch.Tensor]], outputs: list[dict[str, torch.Tensor]]) -> None:
    """Tell a traced run what inputs and outputs are called."""
    describe = getattr(rt, "describe", None)
    if describe is None:
        return
    for role, named in (("input", inputs), ("output", outputs)):
        for launch, tensors in enumerate(named):
            for name, tensor in tensors.items():
                describe(tensor, name, role, launch)


def _result(
    rt: RankRuntime,
    operator: Operator,
    job: Job,
    launch: int,
    inputs: dict[str, torch.Tensor],
    outputs: dict[str, torch.Tensor],
) -> LaunchResult:
    with _users_code(operator, "tile=…", operator.host):
        tile = operator.tile_of(job.case)
    with _no_torch_modes():
        digests = digests_of(outputs, tile)
    if not job.judge:
        return digests
    setting = Setting(rt.nranks, job.rtol, job.atol, tile, operator.low_precision_partials)
    references = _references(rt, operator, job.case, launch, inputs, outputs)
    with _no_torch_modes():
        compared = {name: compare(job.policy, value, references[name], setting) for name, value in outputs.items()}
    return replace(digests, comparisons=compared)


@contextlib.contextmanager
def _no_torch_modes() -> Iterator[None]:
    """For our own arithmetic on host memory: a mode that looks at each operator makes it ten times as long."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


def _references(
    rt: RankRuntime,
    operator: Operator,
    case: Case,
    launch: int,
    inputs: dict[str, torch.Tensor],
    outputs: dict[str, torch.Tensor],
) -> dict[str, Reference]:
    """The golden's outputs by name: over the process group where there is one, else from all ranks' inputs."""
    _check_golden(operator)
    with _users_code(operator, "the golden", operator.golden):
        returned = _golden(rt, operator, case, launch, inputs)
        named = dict(returned) if isinstance(returned, Mapping) else {operator.outputs[0]: returned}
        if set(named) != set(operator.outputs):
            declared = ", ".join(operator.outputs)
            raise UsageError(f"it returned {', '.join(map(str, named))}; the declared outputs are {declared}")
        return {name: _reference(name, value, outputs[name]) for name, value in named.items()}


def _reference(output: str, value: Any, got: torch.Tensor) -> Reference:
    if not isinstance(value, Reference | torch.Tensor):
        kind = type(value).__name__
        raise UsageError(f"it gave a {kind} for output {output}; it has to be a torch tensor or a Reference")
    reference = value if isinstance(value, Reference) else Reference(value)
    if got.shape != reference.value.shape:
        shape = tuple(reference.value.shape)
        raise UsageError(f"it gives {output} the shape {shape}, the host function returned {tuple(got.shape)}")
    return reference


def _golden(rt: RankRuntime, operator: Operator, case: Case, launch: int, inputs: dict[str, torch.Tensor]) -> Any:
    if operator.golden_local is None or _in_group():
        return operator.golden(case, rt.rank, **inputs)
    everyone = [operator.inputs(case, rank, launch) for rank in range(case.nranks)]
    return operator.golden_local(case, rt.rank, everyone)


def _in_group() -> bool:
    return dist.is_available() and dist.is_initialized()


def _check_golden(operator: Operator) -> None:
    if operator.golden_local is None and not _in_group():
        raise UsageError(
            f"the golden of {operator.name} needs a torch.distributed group, which in-process worlds do not have: "
            "use tdist-verify, or declare golden_local=…"
        )


@contextlib.contextmanager
def _users_code(operator: Operator, what: str, function: Callable[..., Any] | None) -> Iterator[None]:
    """What the user's code raises, or is refused by ours, is told with the user's own line, without our frames.

    Args:
        what: role of the code, for the message.
        function: what is called; its first line is the place where no line of the user's file was left.
    """
    try:
        yield
    except (WorldStopped, EnvironmentUnfit):
        raise
    except TdistError as error:
        place = _place(operator, function, error)
        if str(operator.source) in str(error):
            error.at(error.place or place)
            raise
        told = f"{_at(operator, function, error)}: {what} of {operator.name}: {error}"
        raise TdistError(told).at(error.place or place) from error
    except (Exception, SystemExit) as error:
        told = f"{what} of {operator.name} raised {type(error).__name__}: {error}{_hint(error)}"
        place = _place(operator, function, error)
        raise TdistError(f"{_at(operator, function, error)}: {told}").at(place) from error


def _at(operator: Operator, function: Callable[..., Any] | None, error: BaseException) -> str:
    """The place of `error` in words, with the line where one of the user's was left."""
    frame = _users_frame(operator, error)
    if frame is None:
        return defined_at(function, operator.source)
    return f"{frame.filename}:{frame.lineno}: `{frame.line}`"


def _place(operator: Operator, function: Callable[..., Any] | None, error: BaseException) -> Place:
    frame = _users_frame(operator, error)
    return _definition(function, operator.source) if frame is None else (frame.filename, frame.lineno)


def _users_frame(operator: Operator, error: BaseException) -> traceback.FrameSummary | None:
    """The innermost frame of `error` in the operator's file."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(operator.source)]
    return frames[-1] if frames else None


def defined_at(function: Callable[..., Any] | None, source: Path) -> str:
    """`file:line` of a function or class, as far as it is known."""
    file, line = _definition(function, source)
    return file if line is None else f"{file}:{line}"


def _definition(function: Callable[..., Any] | None, source: Path) -> Place:
    try:
        defined = inspect.unwrap(function) if callable(function) else None
        code = getattr(defined, "__code__", None)
        if code is not None:
            return code.co_filename, code.co_firstlineno
        return str(inspect.getsourcefile(defined)), inspect.getsourcelines(defined)[1]  # pyright: ignore[reportArgumentType]
    except (OSError, TypeError, ValueError):
        return str(source), None


def _hint(error: BaseException) -> str:
    if isinstance(error, RuntimeError) and "device type" in str(error) and "npu" in str(error):
        return " (tensors of simulated ranks are CPU tensors: use the inputs' device; docs/operators.md, Devices)"
    return ""


def digests_of(outputs: Mapping[str, torch.Tensor], tile: tuple[int, ...]) -> LaunchResult:
    """What is kept of outputs that nobody compares: checksums of tiles, and which elements these are of."""
    checksums = {name: tile_checksums(value, tile) for name, value in outputs.items()}
    return LaunchResult({}, checksums, {name: (tuple(value.shape), tile) for name, value in outputs.items()})


def tile_checksums(value: torch.Tensor, tile: tuple[int, ...]) -> list[int]:
    """A CRC of the bits of each tile, in row-major order of tiles: where two runs differ, without keeping both."""
    if value.dim() < 2 or len(tile) < 2:
        chunks = value.reshape(-1).split(tile[-1] if tile else 1) if value.numel() else ()
        return [_crc(chunk) for chunk in chunks]
    flat = value.reshape(-1, value.shape[-1])
    return [_crc(piece) for rows in flat.split(tile[-2]) for piece in rows.split(tile[-1], dim=1)]


def tile_elements(shape: tuple[int, ...], tile: tuple[int, ...], index: int) -> str:
    """The elements that checksum number `index` of an output of that shape is of, as a Python index.

    What has more than two dimensions, or fewer than the tile, is named by the two (one) that tiles are cut from.
    """
    if len(shape) < 2 or len(tile) < 2:
        elems, extent = math.prod(shape), tile[-1] if tile else 1
        flat = "" if len(shape) < 2 else " of it as one row"
        return f"[{_extent(index, extent, elems)}]{flat}"
    rows, columns = math.prod(shape[:-1]), shape[-1]
    down, across = divmod(index, -(-columns // tile[-1]))
    flat = "" if len(shape) == 2 else f" of it as {rows} rows of {columns}"
    return f"[{_extent(down, tile[-2], rows)}, {_extent(across, tile[-1], columns)}]{flat}"


def _extent(number: int, extent: int, end: int) -> str:
    return f"{number * extent}:{min((number + 1) * extent, end)}"


def _crc(piece: torch.Tensor) -> int:
    return zlib.crc32(piece.contiguous().view(torch.uint8).numpy().tobytes())
