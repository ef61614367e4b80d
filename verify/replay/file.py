"""A failing run as a small JSON file: written once, read with distrust.

The file holds data only: which operator (by name, with a digest of its text), its case, the fields of its world, the
choice list, what was found. It holds no code and is no pickle. Reading it takes nothing on trust: size, encoding,
nesting, keys, types and ranges are checked, and the file itself has to be a regular one.

docs/replay.md describes the format, and what a hostile file could try.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import platform
import re
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from tdist.errors import UsageError
from tdist.findings import KINDS, Finding
from tdist.findings.kinds import PREFIX
from tdist.platforms.sim.world_config import WorldConfig, check_fields
from tdist.text import did_you_mean
from tdist.verify.operator import DTYPES, MAX_RANKS, SYNC_FORMS, Case, Operator
from tdist.verify.options import MAX_LAUNCHES, MAX_SEED, PROFILES
from tdist.verify.rank_job import Job
from tdist.verify.replay.choice_text import MAX_CHOICES, pack, unpack
from tdist.verify.replay.sightings import Sighting, sightings
from tdist.verify.worlds import RunSpec

FORMAT = "tdist-replay"
VERSION = 1
MAX_FILE_BYTES = 16 << 20
MAX_DEPTH = 8
MAX_BRACKETS = 1 << 19
MAX_TEXT_CHARS = 4096
MAX_FINDINGS = 200
MAX_SITES = 400
MAX_SYMBOLS = 64
LARGEST_EXTENT = (1 << 31) - 1
NOT_IN_WORLD = ("nranks", "choices")
"""Fields of a world that stand elsewhere in the file."""


class Failure(Protocol):
    """What a failing run leaves; `tdist.verify.run.Failure` is one."""

    @property
    def spec(self) -> RunSpec: ...
    @property
    def findings(self) -> Sequence[Finding]: ...
    @property
    def wrong(self) -> bool: ...
    @property
    def error(self) -> str: ...


@dataclass(frozen=True)
class OperatorText:
    """Which operator a run was of.

    Attributes:
        file: where its file lies, relative to the replay file or the working directory; empty for a built-in one.
        sha256: digest of that file's bytes when the run was made.
    """

    name: str
    file: str
    sha256: str

    @property
    def shown(self) -> str:
        """As the command line names it."""
        return f"{self.file}::{self.name}" if self.file else self.name


@dataclass(frozen=True)
class Found:
    """What spoke against a run.

    Attributes:
        wrong: whether outputs differed from the golden, or from those of other schedules.
        error: why the run could not finish; empty if it did.
        outputs: by rank, a digest of each output over all launches; empty where the rank did not finish.
    """

    sightings: tuple[Sighting, ...] = ()
    wrong: bool = False
    error: str = ""
    outputs: tuple[Mapping[str, str], ...] = ()

    @property
    def anything(self) -> bool:
        """Whether the run failed."""
        return bool(self.sightings or self.wrong or self.error)

    @property
    def label(self) -> str:
        """The first of it in a word: a kind of finding, `wrong-outputs` or `did-not-finish`."""
        if self.sightings:
            return self.sightings[0].id.removeprefix(PREFIX)
        return "wrong-outputs" if self.wrong else "did-not-finish"


@dataclass(frozen=True)
class Replay:
    """One run, and what was found in it.

    Attributes:
        spec: the run; its job names the operator as the file does, until `located` says where it is.
        profile: the ordering profile that judged it.
        versions: of tdist, Python, torch, Triton, and what decides the bits of float results (`machine`, `isa`).
    """

    spec: RunSpec
    operator: OperatorText
    found: Found
    profile: str = "seed"
    versions: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """JSON values, in the order of the file."""
        job = self.spec.job.to_json()
        case = {name: value for name, value in job.pop("case").items() if name != "operator"}
        choices = self.spec.world.get("choices")
        world = {name: value for name, value in self.spec.world.items() if name not in NOT_IN_WORLD}
        return {
            "format": FORMAT,
            "version": VERSION,
            "versions": dict(self.versions),
            "operator": {"name": self.operator.name, "file": self.operator.file, "sha256": self.operator.sha256},
            "case": case,
            "job": {name: value for name, value in job.items() if name != "spec"},
            "world": world,
            "choices": None if choices is None else {"count": len(choices), "packed": pack(choices)},
            "profile": self.profile,
            "found": {
                "findings": [sighting.to_json() for sighting in self.found.sightings],
                "wrong": self.found.wrong,
                "error": self.found.error,
                "outputs": [dict(outputs) for outputs in self.found.outputs],
            },
        }


# ---------------------------------------------------------------- writing


def replay_of(
    failure: Failure, operator: Operator, folder: Path, profile: str = "seed", outputs: Sequence[Mapping[str, str]] = ()
) -> Replay:
    """A failing run as a replay file in `folder` will hold it.

    Args:
        outputs: digests by rank, as `output_digests` makes them; by default those of the failure, if it has some.
    """
    folders = f"{operator.source.absolute().parent}{os.sep}"
    seen = sightings(failure.findings, profile)[:MAX_FINDINGS]
    digests = tuple(outputs or getattr(failure, "outputs", ()))
    error = _one_line(failure.error.replace(folders, ""))
    found = Found(tuple(_printable(sighting, folders) for sighting in seen), failure.wrong, error, digests)
    return Replay(
        _bounded(failure.spec), operator_text(failure.spec.job.spec, operator, folder), found, profile, versions()
    )


def write_replay(replay: Replay, folder: Path) -> Path:
    """Write the file into `folder`, which is made; its name says what was found. The same run gives the same name.

    Raises: UsageError if that cannot be written.
    """
    text = _text_of(replay)
    if len(text) > MAX_FILE_BYTES:
        text = _text_of(replace(replay, spec=replay.spec.with_world(choices=None)))
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    path = folder / f"{replay.operator.name}-{replay.found.label}-{digest}.json"
    part = folder / f".{path.name}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), "w") as file:
            file.write(text)
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise UsageError(f"cannot write a replay file into {folder}: {error.strerror}") from None
    return path


def _text_of(replay: Replay) -> str:
    return json.dumps(replay.to_json(), indent=1, ensure_ascii=True, allow_nan=False) + "\n"


def operator_text(spec: str, operator: Operator, folder: Path) -> OperatorText:
    """How a file in `folder` names the operator: by a path below `folder` or the working directory, else by name."""
    digest = file_digest(operator)
    path, separator, name = spec.rpartition("::")
    if not separator:
        return OperatorText(spec, "", digest)
    absolute = Path(path).absolute()
    for base in (Path.cwd(), folder.absolute()):
        if absolute.is_relative_to(base):
            return OperatorText(name, absolute.relative_to(base).as_posix(), digest)
    return OperatorText(name, absolute.name, digest)


def file_digest(operator: Operator) -> str:
    """Digest of the file that declares an operator."""
    return digest_of(operator.source)


def digest_of(path: Path) -> str:
    """SHA-256 of a file's bytes; of none where it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return hashlib.sha256(b"").hexdigest()


def versions() -> dict[str, str]:
    """What a run was made with, as far as it is installed."""
    import torch

    found = {"tdist": _version("tdist"), "python": platform.python_version(), "torch": torch.__version__}
    found["triton"] = _version("triton-ascend") or _version("triton")
    found |= {"machine": platform.machine(), "isa": torch.backends.cpu.get_cpu_capability()}
    return {name: value or "unknown" for name, value in found.items()}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _bounded(spec: RunSpec) -> RunSpec:
    """Without a choice list that is too long to keep: scheduler and seed then make the run."""
    choices = spec.world.get("choices")
    return spec.with_world(choices=None) if choices is not None and len(choices) > MAX_CHOICES else spec


def _printable(sighting: Sighting, folders: str) -> Sighting:
    sites = tuple(
        replace(site, file=_one_line(site.file), op=_one_line(site.op), tensor=_one_line(site.tensor))
        for site in sighting.sites[:MAX_SITES]
    )
    return replace(sighting, title=_one_line(sighting.title.replace(folders, "")), sites=sites)


def _one_line(text: str) -> str:
    kept = "".join(char if char.isprintable() else " " for char in text)
    return kept[:MAX_TEXT_CHARS]


# ---------------------------------------------------------------- reading


def read_replay(path: Path) -> Replay:
    """Read and check a replay file. Nothing that it names is opened.

    Raises: UsageError that says in one line what is wrong with it.
    """
    try:
        return _replay(_parsed(_content(path)))
    except _Unfit as unfit:
        raise UsageError(f"cannot replay {path}: {_one_line(str(unfit))}") from None


class _Unfit(Exception):
    """What is wrong with a file."""


def _content(path: Path) -> bytes:
    """The bytes of a regular file that is no link; a FIFO is not waited for, a device not read."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        why = "it is a symbolic link; name the file itself" if error.errno == errno.ELOOP else error.strerror
        raise _Unfit(str(why)) from None
    except ValueError:
        raise _Unfit("its name holds a null character") from None
    try:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode):
            raise _Unfit("it is no regular file")
        if status.st_size > MAX_FILE_BYTES:
            raise _Unfit(f"it has {status.st_size} bytes, replay files have at most {MAX_FILE_BYTES}")
        with os.fdopen(opened, "rb", closefd=False) as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _Unfit(error.strerror) from None
    finally:
        os.close(opened)
    if len(content) > MAX_FILE_BYTES:
        raise _Unfit(f"it grew beyond {MAX_FILE_BYTES} bytes while it was read")
    return content


_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.S)
"""Possessive: nothing is kept to come back to, whatever the length of a string."""


def _parsed(content: bytes) -> Any:
    _check_depth(content)
    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=_object, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise _Unfit(f"it is not UTF-8 text (byte {error.start})") from None
    except json.JSONDecodeError as error:
        cut = " (cut off?)" if error.pos >= len(error.doc.rstrip()) else ""
        raise _Unfit(f"it is not JSON{cut}: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except (ValueError, RecursionError):
        raise _Unfit("it holds a number of more digits than any field has") from None


def _check_depth(content: bytes) -> None:
    """Refuse nesting that no replay file has, before a parser recurses into it, and more parts than any has."""
    depth = 0
    bare = _STRINGS.sub(b"", content)
    if sum(map(bare.count, b"[{")) > MAX_BRACKETS:
        raise _Unfit(f"it has more than {MAX_BRACKETS} lists and objects, which no replay file has")
    for piece in re.finditer(rb"[\[\]{}]", bare):
        depth += 1 if piece[0] in b"[{" else -1
        if depth > MAX_DEPTH:
            raise _Unfit(f"it nests deeper than {MAX_DEPTH} levels, which no replay file does")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Unfit(f"it gives {_shown(twice)} twice")
    return made


def _no_constant(name: str) -> Any:
    raise _Unfit(f"it holds {name}, which is no JSON")


def _replay(value: Any) -> Replay:
    _check_format(value)
    whole = _checked("the file", value, _WHOLE)
    named = _checked("operator", whole["operator"], _OPERATOR)
    versions = _checked("versions", whole["versions"], dict.fromkeys(whole["versions"], _TEXT))
    case = _checked("case", whole["case"], _CASE)
    _checked("case.shape", case["shape"], dict.fromkeys(case["shape"], _EXTENT))
    operator = OperatorText(named["name"], named["file"], named["sha256"])
    job = Job(operator.shown, Case(operator=operator.name, **case), **_job_fields(whole["job"]))
    world = {**_world(whole["world"]), "choices": _choices(whole["choices"])}
    return Replay(RunSpec(job, world), operator, _found(whole["found"], case["nranks"]), whole["profile"], versions)


def _check_format(value: Any) -> None:
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise _Unfit(f'it is JSON but no replay file: those start with "format": "{FORMAT}"')
    version = value.get("version")
    if not isinstance(version, int) or not _is_whole(1, 1 << 31)(version):
        raise _Unfit(f"version has to be a positive integer, got {_shown(version)}")
    if version != VERSION:
        age = "a newer" if version > VERSION else "an older"
        raise _Unfit(f"it is in version {version} of the format, of {age} tdist; this one reads version {VERSION}")


def _job_fields(value: Any) -> dict[str, Any]:
    names = [option.name for option in fields(Job) if option.name not in ("spec", "case")]
    given = _checked("job", value, {name: _JOB[name] for name in names})
    from tdist.verify.policies import POLICIES

    if given["policy"] not in POLICIES:
        hint = did_you_mean(given["policy"], tuple(POLICIES))
        raise _Unfit(f"job.policy is {_shown(given['policy'])}, which is no policy{hint}")
    from tdist.verify.search.plan import BASE
    from tdist.verify.search.situations import SITUATIONS

    if given["situation"] not in ("", BASE, *SITUATIONS):
        hint = did_you_mean(given["situation"], tuple(SITUATIONS))
        raise _Unfit(f"job.situation is {_shown(given['situation'])}, which is no situation{hint}")
    return given


def _world(value: Any) -> dict[str, Any]:
    """Fields of the world; a file may leave out those that have their default."""
    known = tuple(option.name for option in fields(WorldConfig) if option.name not in NOT_IN_WORLD)
    _checked("world", value, {name: _ANY for name in value if name in known} if isinstance(value, dict) else {})
    whole = {name: item for name, item in value.items() if isinstance(item, int) and not isinstance(item, bool)}
    for name in (name for name, item in whole.items() if item > MAX_SEED):
        raise _Unfit(f"world.{name} is larger than {MAX_SEED}")
    for name in (name for name, item in value.items() if isinstance(item, str) and not _is_text(item)):
        raise _Unfit(f"world.{name} has to be {_TEXT[0]}, got {_shown(value[name])}")
    try:
        check_fields(value)
        if value.get("mutation"):
            from tdist.mutations import parse_mutation

            parse_mutation(value["mutation"])
    except (UsageError, TypeError) as error:
        raise _Unfit(_one_line(str(error))) from None
    return value


def _choices(value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    given = _checked("choices", value, _CHOICES)
    try:
        return unpack(given["packed"], given["count"])
    except ValueError as error:
        raise _Unfit(f"choices.packed: {error}") from None


def _found(value: Any, nranks: int) -> Found:
    given = _checked("found", value, _FOUND)
    if len(given["outputs"]) > nranks:
        raise _Unfit(f"found.outputs has {len(given['outputs'])} ranks, the case {nranks}")
    for rank, outputs in enumerate(given["outputs"]):
        for name in (name for name in outputs if not _is_text(name)):
            raise _Unfit(f"found.outputs[{rank}] has a key that is not {_TEXT[0]}: {_shown(name)}")
        _checked(f"found.outputs[{rank}]", outputs, dict.fromkeys(outputs, _CRC))
    seen = tuple(_sighting(f"found.findings[{i}]", item) for i, item in enumerate(given["findings"]))
    return Found(seen, given["wrong"], given["error"], tuple(given["outputs"]))


def _sighting(where: str, value: Any) -> Sighting:
    given = _checked(where, value, _FINDING)
    if given["id"] not in KINDS:
        hint = did_you_mean(given["id"], tuple(KINDS))
        raise _Unfit(f"{where}.id is {_shown(given['id'])}, which is no kind of finding here{hint}")
    for site in given["sites"]:
        fits = isinstance(site, list) and len(site) == 4 and _is_whole(0, LARGEST_EXTENT)(site[1])
        if not fits or not all(map(_is_text, (site[0], *site[2:]))):
            raise _Unfit(f"{where}.sites has to hold [file, line, operation, tensor], got {_shown(site)}")
    return Sighting.from_json(given)


# ---------------------------------------------------------------- what each field may be

_Rule = tuple[str, Callable[[Any], bool]]


def _checked(where: str, value: Any, rules: Mapping[str, _Rule]) -> dict[str, Any]:
    """An object with exactly these keys, each as its rule wants it."""
    if not isinstance(value, dict):
        raise _Unfit(f"{where} has to be an object, got {_shown(value)}")
    for name in (name for name in value if name not in rules):
        raise _Unfit(f"{where} has an unknown key {_shown(name)}{did_you_mean(name, tuple(rules))}")
    for name, (wanted, fits) in rules.items():
        if name not in value:
            raise _Unfit(f"{where} lacks {name!r}")
        if not fits(value[name]):
            raise _Unfit(f"{where}.{name} has to be {wanted}, got {_shown(value[name])}".removeprefix("the file."))
    return value


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_whole(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_text(value: Any) -> bool:
    """Text that a terminal shows as it is: no control characters, not endless."""
    return isinstance(value, str) and value.isprintable() and len(value) <= MAX_TEXT_CHARS


def _is_relative_python_file(value: Any) -> bool:
    """A plain path downwards to a .py file, or nothing."""
    if value == "":
        return True
    if not _is_text(value) or not value.endswith(".py") or "\\" in value or "::" in value:
        return False
    return all(part not in ("", ".", "..") for part in value.split("/"))


def _is_list(of: Callable[[Any], bool], most: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and len(value) <= most and all(map(of, value))


def _is_symbols(value: Any) -> bool:
    return isinstance(value, dict) and 0 < len(value) <= MAX_SYMBOLS and all(name.isidentifier() for name in value)


def _is_tolerance(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max


def _is_named(value: Any) -> bool:
    return isinstance(value, dict) and len(value) <= 32 and all(map(_is_text, value))


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_packed(line: Any) -> bool:
    return isinstance(line, str) and len(line) <= MAX_TEXT_CHARS


_ANY: _Rule = ("anything", lambda value: True)
_OBJECT: _Rule = ("an object", _is_object)
_TEXT: _Rule = (f"printable text of at most {MAX_TEXT_CHARS} characters", _is_text)
_FLAG: _Rule = ("true or false", lambda value: isinstance(value, bool))
_EXTENT: _Rule = (f"an integer from 1 to {LARGEST_EXTENT}", _is_whole(1, LARGEST_EXTENT))
_TOLERANCE: _Rule = ("null or a number from 0 up", _is_tolerance)
_CRC: _Rule = (
    "8 hexadecimal digits",
    lambda value: isinstance(value, str) and bool(re.fullmatch("[0-9a-f]{8}", value)),
)
_SHA: _Rule = (
    "64 hexadecimal digits",
    lambda value: isinstance(value, str) and bool(re.fullmatch("[0-9a-f]{64}", value)),
)


def _one_of(*words: str | None) -> _Rule:
    listed = ", ".join("null" if word is None else word for word in words)
    return f"one of {listed}", lambda value: (value is None or isinstance(value, str)) and value in words


_WHOLE: Mapping[str, _Rule] = {
    "format": _ANY,
    "version": _ANY,
    "versions": ("an object of at most 32 named texts", _is_named),
    "operator": _OBJECT,
    "case": _OBJECT,
    "job": _OBJECT,
    "world": _OBJECT,
    "choices": ("an object or null", lambda value: value is None or _is_object(value)),
    "profile": _one_of(*PROFILES),
    "found": _OBJECT,
}
_OPERATOR: Mapping[str, _Rule] = {
    "name": ("a name", lambda value: _is_text(value) and value.isidentifier()),
    "file": ("empty, or a path to a .py file that goes downwards only", _is_relative_python_file),
    "sha256": _SHA,
}
_CASE: Mapping[str, _Rule] = {
    "shape": (f"an object of 1 to {MAX_SYMBOLS} shape symbols", _is_symbols),
    "dtype": _one_of(*DTYPES),
    "nranks": (f"an integer from 1 to {MAX_RANKS}", _is_whole(1, MAX_RANKS)),
    "seed": (f"an integer from 0 to {MAX_SEED}", _is_whole(0, MAX_SEED)),
    "sync": _one_of(*SYNC_FORMS),
    "fill": _one_of("exact", "float"),
}
_JOB: Mapping[str, _Rule] = {
    "launches": (f"an integer from 1 to {MAX_LAUNCHES}", _is_whole(1, MAX_LAUNCHES)),
    "judge": _FLAG,
    "policy": _TEXT,
    "rtol": _TOLERANCE,
    "atol": _TOLERANCE,
    "situation": _TEXT,
}
_CHOICES: Mapping[str, _Rule] = {
    "count": (f"an integer from 0 to {MAX_CHOICES}", _is_whole(0, MAX_CHOICES)),
    "packed": ("a list of lines of choices", _is_list(_is_packed, MAX_CHOICES)),
}
_FOUND: Mapping[str, _Rule] = {
    "findings": (f"a list of at most {MAX_FINDINGS} findings", _is_list(_is_object, MAX_FINDINGS)),
    "wrong": _FLAG,
    "error": _TEXT,
    "outputs": ("a list of an object a rank", _is_list(_is_object, MAX_RANKS)),
}
_FINDING: Mapping[str, _Rule] = {
    "id": _TEXT,
    "profile": _one_of(None, *PROFILES),
    "title": _TEXT,
    "sites": (f"a list of at most {MAX_SITES} places", _is_list(lambda site: True, MAX_SITES)),
}
