"""`--repro DIR`: a failing run as a torchrun script for cards that needs no tdist, for a vendor's ticket.

The folder gets the launcher, what the operator's file needs of itself and its neighbours (`extract.py`), stand-ins for
what it imports of tdist, and a README with what was found. Nothing of it has been run on a card.
"""

from __future__ import annotations

import os
import pprint
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from tdist.errors import UsageError
from tdist.findings import Finding, to_text
from tdist.platforms.sim.world_config import WorldConfig
from tdist.verify.operator import Operator, format_shape
from tdist.verify.operators import BUILTIN
from tdist.verify.replay.file import Replay
from tdist.verify.replay.reproduce import SHOWN_DIFFERENCES
from tdist.verify.repro.extract import SUPPORT, Extraction

LAUNCHER = "repro"
_Seen = tuple[Sequence[Finding], Sequence[str]]
_HERE = Path(__file__).parent
NEEDED = {"torch", "torch_npu", "shmem", "triton_dist"}
_EMPTY = "SETTINGS: dict[str, Any] = {}\n"
HEAP_BYTES = 1 << 30


def write_repro(
    replay: Replay, operator: Operator, folder: Path, findings: Sequence[Finding] = (), differences: Sequence[str] = ()
) -> Path:
    """Write the script and what it needs.

    Args:
        replay: its job names the operator so that its file is found.
        findings: of the run, whole; where they are not at hand the file's titles are told.
        differences: outputs that were wrong, with values.

    Returns: the launcher.

    Raises: UsageError if something cannot be extracted, naming its line, or the folder cannot be written.
    """
    extraction = _extract(replay, operator)
    files = {f"{LAUNCHER}.py": _launcher(replay, operator, extraction), f"{SUPPORT}.py": _source("repro_support.py")}
    files |= extraction.files()
    readme = _readme(replay, extraction, (findings, differences), sorted(files))
    files["README.md"] = readme.replace(f"{operator.source.absolute().parent}{os.sep}", "")
    _check_free(folder, files)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write --repro {folder}: {error.strerror}") from None
    return folder / f"{LAUNCHER}.py"


def _check_free(folder: Path, files: Mapping[str, str]) -> None:
    """Refuse to write over what is not ours: extracted files have the names of the user's."""
    readme = folder / "README.md"
    if readme.is_file() and readme.read_text(encoding="utf-8", errors="replace").startswith(_MARK):
        return
    for name in files:
        if (folder / name).exists():
            raise UsageError(f"cannot write --repro {folder}: {name} is there already; give an empty or a new folder")


def _extract(replay: Replay, operator: Operator) -> Extraction:
    """What the operator needs.

    Raises: UsageError where a function was made inside another one, so that no top-level name leads to it.
    """
    path, separator, name = replay.spec.job.spec.rpartition("::")
    if not separator:
        module = BUILTIN[name]
        return Extraction(_HERE.parent / "operators" / f"{module.rpartition('.')[2]}.py", name, module)
    return Extraction(Path(path), name)


def _source(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _launcher(replay: Replay, operator: Operator, extraction: Extraction) -> str:
    text = _source("repro_main.py")
    assert text.count(_EMPTY) == 1
    return text.replace(
        _EMPTY, f"SETTINGS: dict[str, Any] = {pprint.pformat(_settings(replay, operator, extraction), width=110)}\n"
    )


def _settings(replay: Replay, operator: Operator, extraction: Extraction) -> dict[str, Any]:
    case, world = replay.spec.job.case, replay.spec.world
    fields = WorldConfig.__dataclass_fields__
    return {
        "module": extraction.main.name,
        "name": replay.operator.name,
        "case": {
            "operator": operator.name,
            "shape": dict(case.shape),
            "dtype": case.dtype,
            "nranks": case.nranks,
            "seed": case.seed,
            "sync": case.sync,
            "fill": case.fill,
        },
        "launches": replay.spec.job.launches,
        "heap_bytes": min(world.get("heap_bytes", HEAP_BYTES), HEAP_BYTES),
        "cores": tuple(world.get(name, fields[name].default) for name in ("cube_cores", "vector_cores")),
    }


# ---------------------------------------------------------------- the README


_MARK = "<!-- written by tdist-verify --repro -->"
_README = """{mark}
# {title}

{what}

    torchrun --nproc-per-node={nranks} repro.py

**This script was not run on a card.** It was written from a run on simulated ranks, where the ordering that the
language promises was checked and one schedule can be repeated exactly. On a card the schedule is what it is: each run
is repeated (`--repeat`), and right outputs prove nothing. A hang ends with a traceback after 300 s.

## What was found

{found}

## With

{versions}

## Files

Needs {needs}. Files: {files}.

Statements of the operator's files are copied byte for byte, imports excepted. Inputs come from the seed, in plain
torch; the golden is the operator's own, on torch.distributed. `REPRO_DEVICE`, `REPRO_BACKEND` and `REPRO_SHMEM` set the
device, the back ends and the address at which the symmetric heaps meet.
{left_out}"""


def _readme(replay: Replay, extraction: Extraction, seen: _Seen, files: Sequence[str]) -> str:
    case, job = replay.spec.job.case, replay.spec.job
    launches = "1 launch" if job.launches == 1 else f"{job.launches} launches on one workspace"
    ranks = "1 rank" if case.nranks == 1 else f"{case.nranks} ranks"
    ran = f"{format_shape(case.shape)}, {case.dtype}, {ranks}, {case.sync} protocol"
    versions = [f"{name} {version}" for name, version in replay.versions.items()]
    return _README.format(
        mark=_MARK,
        title=f"{replay.operator.name}: {replay.found.label}",
        what=f"{ran}, {case.fill} inputs, {launches}, seed {case.seed}.",
        nranks=case.nranks,
        found="\n".join(_found(replay, *seen)),
        versions="\n".join(f"- {text}" for text in [*versions, f"world: {_world(replay.spec.world)}"]),
        needs=", ".join(
            sorted({*extraction.external - sys.stdlib_module_names, "torch", "torch_npu", "shmem", "triton_dist"})
        ),
        files=", ".join(files),
        left_out="".join(f"\n{text}\n" for text in _left_out(replay)),
    )


def _found(replay: Replay, findings: Sequence[Finding], differences: Sequence[str]) -> list[str]:
    told = [to_text(_without_folders(finding)) for finding in findings if finding.fails(replay.profile)]
    lines = [line for text in told for line in ["```", *text.rstrip().splitlines(), "```", ""]]
    if not told:
        lines = [f"- [{seen.id}] {seen.title}; {seen.where}" for seen in replay.found.sightings]
    if replay.found.wrong:
        lines.append("- outputs differ from what they have to be; the script prints what it got and what was expected")
        lines += [f"  - {text}" for text in differences[:SHOWN_DIFFERENCES]]
    if replay.found.error and not replay.found.sightings:
        lines.append(f"- the run did not finish: {replay.found.error}")
    return lines


def _without_folders(finding: Finding) -> Finding:
    parties = (replace(p, file=PurePath(p.file).name if p.file else None) for p in finding.parties)
    return replace(finding, parties=tuple(parties))


def _world(world: Mapping[str, Any]) -> str:
    shown = {name: value for name, value in world.items() if name not in ("choices", "heap_bytes")}
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def _left_out(replay: Replay) -> list[str]:
    """What a card cannot be told."""
    world, lines = replay.spec.world, []
    if world.get("max_programs"):
        started = f"at most {world['max_programs']} programs of a launch"
        lines.append(f"The simulated run started {started}; the script starts all.")
    if world.get("mutation"):
        lines.append(f"The simulated run had a planted fault, {world['mutation']}: the script does not have it.")
    if replay.spec.job.situation == "frozen":
        lines.append("The simulated run replayed its first launch with frozen arguments; the script launches anew.")
    return lines
