"""Replay files: what is written is read back; a file that is foreign, cut, older or hostile gives one clear line."""

from __future__ import annotations

import copy
import json
import os
import resource
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tdist.errors import UsageError
from tdist.findings import Finding, Party, make
from tdist.verify.operator import Case, Operator
from tdist.verify.rank_job import Job, LaunchResult
from tdist.verify.replay.aftermath import Aftermath
from tdist.verify.replay.command import after_report
from tdist.verify.replay.file import (
    _JOB,
    MAX_FILE_BYTES,
    operator_text,
    read_replay,
    replay_of,
    write_replay,
)
from tdist.verify.replay.sightings import output_digests
from tdist.verify.worlds import RunSpec


@dataclass(frozen=True)
class Failed:
    spec: RunSpec
    findings: tuple[Finding, ...] = ()
    wrong: bool = False
    error: str = ""


def race() -> Finding:
    parties = [
        Party(rank=1, launch=0, program=2, file="/home/someone/secret/mine.py", line=12, op="store", tensor="x"),
        Party(rank=0, launch=0, program=1, file="/home/someone/secret/mine.py", line=17, op="load", tensor="x"),
    ]
    return make("race", parties, first="store", second="load", tensor="x")


@pytest.fixture
def operator(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "mine.py"
    source.write_text("kernel\n")
    return Operator(
        name="mine", host=lambda: None, inputs=lambda *_: {}, golden=lambda: None, shape={"m": 4}, source=source
    )


@pytest.fixture
def replay(operator, tmp_path):
    case = Case("mine", {"m": 4}, "fp16", 3, seed=7)
    world = {"scheduler": "random", "seed": 7, "heap_bytes": 1 << 20, "choices": (0, 0, 0, 1, 2, 3, 5)}
    spec = RunSpec(Job(f"{operator.source}::mine", case, launches=2, policy="exact"), world)
    ranks = [[LaunchResult({}, {"out": [1, 2]})], None, [LaunchResult({}, {"out": [1, 3]})]]
    return replay_of(Failed(spec, (race(),), True), operator, tmp_path / "replays", outputs=output_digests(ranks))


@pytest.fixture
def path(replay, tmp_path):
    return write_replay(replay, tmp_path / "replays")


def test_what_is_written_is_read_back(replay, path):
    back = read_replay(path)
    assert (back.operator, back.found, back.versions, back.profile) == (
        replay.operator,
        replay.found,
        replay.versions,
        replay.profile,
    )
    assert back.spec.world == replay.spec.world
    assert back.spec.job.case == replay.spec.job.case and back.spec.job.launches == 2
    assert back.spec.job.spec == "mine.py::mine"


def test_the_file_is_small_and_holds_no_folder_of_the_machine(path, tmp_path):
    text = path.read_text()
    assert len(text) < 4000
    assert "/home/someone" not in text and str(tmp_path) not in text


def test_the_name_says_what_was_found_and_the_same_run_has_the_same_name(replay, path, tmp_path):
    assert path.name.startswith("mine-race-")
    assert write_replay(replay, tmp_path / "replays") == path
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_digests_differ_where_outputs_differ(replay):
    first, lost, last = replay.found.outputs
    assert lost == {} and first["out"] != last["out"]


def test_a_file_elsewhere_is_named_without_its_folder(operator, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    assert operator_text(f"{operator.source}::mine", operator, other / "replays").file == "mine.py"


def test_a_folder_that_cannot_be_made_is_told(replay, tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(UsageError, match="cannot write a replay file into "):
        write_replay(replay, tmp_path / "taken")


def test_each_field_of_a_job_has_a_rule():
    assert {option.name for option in fields(Job)} - {"spec", "case"} <= set(_JOB)


# ---------------------------------------------------------------- bad files


def _set(*keys_and_value):
    *keys, last, value = keys_and_value

    def change(data):
        for key in keys:
            data = data[key]
        data[last] = value

    return change


def _drop(*keys):
    def change(data):
        for key in keys[:-1]:
            data = data[key]
        del data[keys[-1]]

    return change


def _refusal(path: Path) -> str:
    with pytest.raises(UsageError) as refused:
        read_replay(path)
    text = str(refused.value)
    assert text.startswith(f"cannot replay {path}: ")
    assert "\n" not in text and text.isprintable() and len(text) < 400 + len(str(path))
    return text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_drop("format"), 'it is JSON but no replay file: those start with "format": "tdist-replay"'),
        (_set("format", "other"), "no replay file"),
        (_set("version", 2), "version 2 of the format, of a newer tdist; this one reads version 1"),
        (_set("version", 0), "version has to be a positive integer, got 0"),
        (_set("version", "1"), "version has to be a positive integer, got '1'"),
        (_set("version", True), "version has to be a positive integer, got True"),
        (_drop("case"), "the file lacks 'case'"),
        (_set("casee", {}), "the file has an unknown key 'casee' (did you mean 'case'?)"),
        (_set("case", []), "case has to be an object, got []"),
        (_set("case", "nranks", 0), "case.nranks has to be an integer from 1 to 128, got 0"),
        (_set("case", "nranks", True), "case.nranks has to be an integer from 1 to 128, got True"),
        (_set("case", "nranks", 10**9), "case.nranks has to be an integer from 1 to 128"),
        (_set("case", "dtype", "fp17"), "case.dtype has to be one of fp16, bf16, fp32, got 'fp17'"),
        (_set("case", "dtype", ["fp16"]), "case.dtype has to be one of"),
        (_set("case", "shape", {}), "case.shape has to be an object of 1 to 64 shape symbols"),
        (_set("case", "shape", {"__import__('os')": 1}), "case.shape has to be an object of 1 to 64 shape symbols"),
        (_set("case", "shape", {"m": 1 << 31}), "case.shape.m has to be an integer from 1 to 2147483647"),
        (_set("case", "shape", {"m": -1}), "case.shape.m has to be an integer from 1"),
        (_set("case", "seed", -1), "case.seed has to be an integer from 0"),
        (_set("job", "launches", 1001), "job.launches has to be an integer from 1 to 1000"),
        (_set("job", "policy", "exakt"), "job.policy is 'exakt', which is no policy (did you mean 'exact'?)"),
        (_set("job", "situation", "frozne"), "which is no situation (did you mean 'frozen'?)"),
        (_set("job", "rtol", 10**400), "job.rtol has to be null or a number from 0 up"),
        (_set("job", "rtol", "x"), "job.rtol has to be null or a number from 0 up"),
        (_set("job", "spec", "/etc/evil.py::x"), "job has an unknown key 'spec'"),
        (_set("world", "scheduler", "randon"), "did you mean 'random'?"),
        (_set("world", "scheduler", ["random"]), "scheduler of a world"),
        (_set("world", "nranks", 2), "world has an unknown key 'nranks'"),
        (_set("world", "heap_bytes", 1 << 60), "heap_bytes of a world must be an integer"),
        (_set("world", "cube_cores", 1 << 70), "world.cube_cores is larger than"),
        (_set("world", "poison", 256), "poison of a world must be a byte"),
        (_set("world", "mutation", "a\x1b[2Jb"), "world.mutation has to be printable text"),
        (_set("world", "mutation", "kernel/nonsense"), "a mutant is called kind@line:col"),
        (_set("choices", "count", 8), "choices.packed: 7 choices where it announces 8"),
        (_set("choices", "count", 10**12), "choices.count has to be an integer from 0 to"),
        (_set("choices", "packed", ["0*9000000"]), "choices.packed: more than the 7 choices"),
        (_set("choices", "packed", ["import os"]), "choices.packed: 'import' is no choice"),
        (_set("choices", "packed", "0*7"), "choices.packed has to be a list of lines"),
        (_set("profile", "hopper"), "profile has to be one of seed, ascend, got 'hopper'"),
        (
            _set("operator", "file", "/etc/passwd.py"),
            "operator.file has to be empty, or a path to a .py file that goes",
        ),
        (_set("operator", "file", "../evil.py"), "operator.file has to be empty"),
        (_set("operator", "file", "a/../../evil.py"), "operator.file has to be empty"),
        (_set("operator", "file", "a//evil.py"), "operator.file has to be empty"),
        (_set("operator", "file", "evil.py\x00.py"), "operator.file has to be empty"),
        (_set("operator", "file", "~/evil.sh"), "operator.file has to be empty"),
        (_set("operator", "name", "__import__('os')"), "operator.name has to be a name"),
        (_set("operator", "sha256", "0"), "operator.sha256 has to be 64 hexadecimal digits"),
        (_set("found", "wrong", 1), "found.wrong has to be true or false, got 1"),
        (_set("found", "error", "a\x1b]0;owned\x07"), "found.error has to be printable text"),
        (_set("found", "findings", 0, "id", "tdist.rase"), "no kind of finding here (did you mean 'tdist.race'?)"),
        (_set("found", "findings", 0, "sites", [["a", -1, "b", "c"]]), "findings[0].sites has to hold"),
        (_set("found", "findings", 0, "sites", ["abcd"]), "findings[0].sites has to hold"),
        (_set("found", "findings", [{}] * 201), "found.findings has to be a list of at most 200"),
        (_set("found", "outputs", [{}] * 4), "found.outputs has 4 ranks, the case 3"),
        (_set("found", "outputs", [{"out": "zz"}]), "found.outputs[0].out has to be 8 hexadecimal digits"),
        (_set("found", "outputs", [{"a\x1f": "00000000"}]), "found.outputs[0] has a key that is not printable text"),
        (_set("versions", "torch", 2), "versions.torch has to be printable text"),
        (_set("versions", "a\x1b[2J", "1"), "versions has to be an object of at most 32 named texts"),
    ],
)
def test_a_bad_field_is_named(path, change, text):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    assert text in _refusal(path)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "it is not JSON (cut off?)"),
        (b"\x80\x81", "it is not UTF-8 text (byte 0)"),
        (b"\xef\xbb\xbf{}", "it is not JSON"),
        (b'{"format": "tdist-replay", "version": 1', "it is not JSON (cut off?)"),
        (b"[" * 100_000, "it nests deeper than 8 levels"),
        (b'{"a":' * 100_000, "it nests deeper than 8 levels"),
        (b"[" + b"[]," * (1 << 19) + b"[]]", "more than 524288 lists and objects"),
        (b"9" * 5000, "it holds a number of more digits than any field has"),
        (b'{"format": NaN}', "it holds NaN, which is no JSON"),
        (b'{"format": "tdist-replay", "format": "x"}', "it gives 'format' twice"),
        (b"[1, 2]", "no replay file"),
        (b"null", "no replay file"),
        (b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94.", "it is not UTF-8 text"),
        (b" " * (MAX_FILE_BYTES + 1), f"replay files have at most {MAX_FILE_BYTES}"),
        (b'{"\xed\xa0\x80": 1}', "it is not UTF-8 text"),
        (b'{"format": "tdist-replay", "version": 1, "\\ud800": 1}', "the file has an unknown key '\\ud800'"),
    ],
)
def test_what_is_no_replay_file_is_told(tmp_path, content, text):
    bad = tmp_path / "bad.json"
    bad.write_bytes(content)
    assert text in _refusal(bad)


@pytest.mark.parametrize("inside", [b"a", b"\\\\"])
def test_a_long_string_costs_no_memory_beyond_its_own(tmp_path, inside):
    """The largest file is looked through without a place to come back to for each of its characters."""
    bad = tmp_path / "bad.json"
    bad.write_bytes(b'{"x": "' + inside * (MAX_FILE_BYTES // len(inside) - 10) + b'"}')
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "no replay file" in _refusal(bad)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 512 << 10


def test_only_regular_files_are_read(path, tmp_path):
    link, fifo = tmp_path / "link.json", tmp_path / "fifo.json"
    link.symlink_to(path)
    os.mkfifo(fifo)
    assert "it is a symbolic link" in _refusal(link)
    assert "it is no regular file" in _refusal(fifo)
    assert "it is no regular file" in _refusal(Path("/dev/zero"))
    assert "it is no regular file" in _refusal(tmp_path)
    assert "No such file" in _refusal(tmp_path / "none.json")
    assert "it is no regular file" in _refusal(Path("/proc/self/fd"))


_HOSTILE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
    st.just({"a": [{"b": [[[]]]}]}),
)


def _places(value, at=()):
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _places(item, (*at, key))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_changed_value_is_read_or_refused_in_one_line(path, data):
    whole = json.loads(path.read_text())
    changed = copy.deepcopy(whole)
    *keys, last = data.draw(st.sampled_from([at for at in _places(whole) if at]))
    _set(*keys, last, data.draw(_HOSTILE))(changed)
    other = path.with_name("changed.json")
    other.write_text(json.dumps(changed))
    try:
        read_replay(other)
    except UsageError as error:
        assert "\n" not in str(error) and str(error).isprintable()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_bytes_are_read_or_refused_in_one_line(path, data):
    content = bytearray(path.read_bytes())
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, len(content)))
    content[start:end] = data.draw(st.binary(max_size=8))
    other = path.with_name("changed.json")
    other.write_bytes(content)
    try:
        read_replay(other)
    except UsageError as error:
        assert "\n" not in str(error)


def test_every_cut_is_told(path):
    content = path.read_bytes()
    cut = path.with_name("cut.json")
    for length in range(0, len(content.rstrip()), 7):
        cut.write_bytes(content[:length])
        assert "it is not JSON" in _refusal(cut)


def test_a_pair_of_operators_leaves_no_file_that_could_not_be_read(tmp_path, capsys):
    """A file names one operator; what would be written for two was refused when it was read."""
    one = SimpleNamespace(parts=(), name="one")
    both = SimpleNamespace(parts=(one, one), name="one+one", source=tmp_path / "k.py")
    case = Case("one+one", {"n": 1}, "fp32", 2)
    failed = SimpleNamespace(spec=RunSpec(Job("k.py::one+k.py::one", case), {}), findings=(), wrong=True, error="")
    report = SimpleNamespace(failures=[failed], options=SimpleNamespace(profile="seed"))
    after_report(report, both, Aftermath(replays=tmp_path / "replays", shrink=True, repro=tmp_path / "ticket"))
    assert "a pair of operators leaves no replay file" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
