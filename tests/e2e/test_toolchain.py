"""`tdist toolchain ascend`: an environment is whole or not there, and what can go wrong is told in one message.

pip is the real one; the index is a folder of small wheels that are named like the vendor's.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tdist.errors import TdistError
from tdist.platforms.ascend import toolchain
from tdist.tools.main import command

CONTENT = {
    "triton-ascend": {
        "triton/__init__.py": b"",
        "triton/backends/ascend/triton-adapter-opt": b"#!/bin/sh\necho adapter\n",
    },
    "ascendnpu-ir": {
        "ascendnpuir/bin/bishengir-compile": b"#!/bin/sh\necho compile\n",
        "ascendnpuir/bin/bishengir-opt": b"#!/bin/sh\necho opt\n",
    },
}
VERSION = "1.0"


def wheel(folder: Path, name: str, files: dict[str, bytes]) -> Path:
    """A wheel with these files."""
    stem = f"{name.replace('-', '_')}-{VERSION}"
    info = f"{stem}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {VERSION}\n".encode()
    tags = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    content = {**files, f"{info}/METADATA": metadata, f"{info}/WHEEL": tags}
    rows = [f"{path},sha256={_record_digest(data)},{len(data)}" for path, data in content.items()]
    content[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inner, data in content.items():
            archive.writestr(inner, data)
    return path


def _record_digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, the only place where pip looks; pins that fit them; a cache of the test's own."""
    folder = tmp_path / "index"
    folder.mkdir()
    wheels = {name: wheel(folder, name, files) for name, files in CONTENT.items()}
    digests = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in wheels.items()}
    pins = tmp_path / "toolchain.txt"
    pins.write_text("".join(f"{name}=={VERSION} --hash=sha256:{digests[name]}\n" for name in wheels))
    monkeypatch.setattr(toolchain, "REQUIREMENTS", pins)
    monkeypatch.setenv("TDIST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def run(*words: str) -> Result:
    """`tdist toolchain ascend …`; errors of ours as the exception that `main` would print."""
    return CliRunner().invoke(command, ["toolchain", "ascend", *words])


def refusal(*words: str) -> str:
    """The one message of a run that exits 3, after which nothing half-made may be left."""
    result = run(*words)
    assert isinstance(result.exception, TdistError), result.output
    assert result.exception.exit_code == 3
    assert "Traceback" not in str(result.exception)
    home = toolchain.place().parent
    assert not list(home.glob(".new-*")) if home.exists() else True
    return str(result.exception)


def test_it_is_made_private_and_whole_and_checked(index):
    result = run()
    assert result.exit_code == 0, result.output
    folder = toolchain.place()
    assert f"ready: {folder}" in result.output
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    checked = run("--check")
    assert checked.exit_code == 0
    for name, data in {**CONTENT["triton-ascend"], **CONTENT["ascendnpu-ir"]}.items():
        if name in toolchain.PROGRAMS:
            assert f"{folder / name}\n            sha256 {hashlib.sha256(data).hexdigest()}  ok" in checked.output
            assert os.access(folder / name, os.X_OK), "wheels need not keep run bits"
    assert f"package   triton-ascend {VERSION}" in checked.output


def test_a_second_run_makes_nothing(index):
    run()
    before = toolchain.place().stat().st_ino
    for path in index.iterdir():
        path.unlink()  # nothing to install from
    assert run().exit_code == 0
    assert toolchain.place().stat().st_ino == before


@pytest.fixture
def no_tools_here(monkeypatch):
    monkeypatch.setattr(toolchain, "missing_here", lambda: "stock triton 3.9 is installed")


def test_check_says_what_this_environment_has(index):
    """Where the running environment has the tools, no other one is needed."""
    checked = run("--check")
    assert checked.exit_code == 0, checked.output
    here, _, separate = checked.output.partition("separate environment\n")
    assert here.count("sha256") >= 3 and "bishengir-compile  1.2.0" in here and "hivmc     " in here
    assert separate == "  folder    none\n"


def test_check_and_rebuild_exclude_each_other(index):
    result = run("--check", "--rebuild")
    assert isinstance(result.exception, TdistError) and result.exception.exit_code == 2


def test_check_makes_nothing(index, no_tools_here):
    assert f"there is none at {toolchain.place()}: make it with `tdist toolchain ascend`" in refusal("--check")
    assert not toolchain.place().exists()


def test_a_wheel_that_is_not_the_pinned_one_is_refused(index):
    (path,) = index.glob("ascendnpu*.whl")
    other = {**CONTENT["ascendnpu-ir"], "ascendnpuir/bin/bishengir-opt": b"#!/bin/sh\necho evil\n"}
    path.unlink()
    wheel(index, "ascendnpu-ir", other)
    assert "gave a file that is not the pinned one, and nothing was installed" in refusal()
    assert not toolchain.place().exists()


def test_no_package_index(index, monkeypatch):
    for path in index.iterdir():
        path.unlink()
    assert "out of reach or has none of these packages: check network, proxy" in refusal()


def test_no_network(index, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    assert "out of reach" in refusal()


def test_a_proxy_that_is_not_there(index, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.invalid/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert "out of reach" in refusal()


def failing_pip(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pip end with these last words."""
    stub = tmp_path / "python"
    stub.write_text(f"#!/bin/sh\necho '{words}' >&2\nexit 1\n")
    stub.chmod(0o755)
    monkeypatch.setattr(toolchain.sys, "executable", str(stub))


def test_no_pip(index, monkeypatch, tmp_path):
    failing_pip("/usr/bin/python: No module named pip", tmp_path, monkeypatch)
    assert "this Python has no pip: run `python -m ensurepip` first" in refusal()


def test_no_space_before(index, monkeypatch):
    monkeypatch.setattr(toolchain.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 5 << 20})())
    assert "has 5 MiB free, the environment needs 1200 MiB" in refusal()


def test_no_space_while_it_is_built(index, monkeypatch, tmp_path):
    failing_pip("ERROR: Could not install: [Errno 28] No space left on device", tmp_path, monkeypatch)
    assert "no space is left: free some, or let TDIST_CACHE_DIR name a place with more" in refusal()


def test_a_half_made_one_is_said_and_only_rebuild_replaces_it(index):
    run()
    (toolchain.place() / "tdist-toolchain.json").unlink()
    for words in ((), ("--check",)):
        assert "is half made: build it again with `tdist toolchain ascend --rebuild`" in refusal(*words)
    assert run("--rebuild").exit_code == 0
    assert run("--check").exit_code == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"versions": {}}'])
def test_a_record_that_is_cut_off_is_half_made(index, text):
    run()
    (toolchain.place() / "tdist-toolchain.json").write_text(text)
    assert "is half made" in refusal("--check")


def test_a_program_that_is_missing_or_cut_off_is_damage(index):
    run()
    path = toolchain.place() / toolchain.PROGRAMS[1]
    path.write_bytes(path.read_bytes()[:-3])
    assert "is damaged: ascendnpuir/bin/bishengir-compile is missing or cut off" in refusal()
    path.unlink()
    assert "is damaged" in refusal("--check")


def test_a_program_of_the_same_size_that_is_another_is_found_by_check(index):
    run()
    path = toolchain.place() / toolchain.PROGRAMS[0]
    path.write_bytes(path.read_bytes().swapcase())
    assert "triton-adapter-opt: not what was installed" in refusal("--check")


def test_a_program_without_its_run_bit_is_found_by_check(index):
    run()
    (toolchain.place() / toolchain.PROGRAMS[2]).chmod(0o600)
    assert "bishengir-opt: no permission to run" in refusal("--check")


def test_wheels_without_the_programs_are_refused(index, monkeypatch):
    monkeypatch.setattr(toolchain, "PROGRAMS", (*toolchain.PROGRAMS, "ascendnpuir/bin/other"))
    assert "the installed wheels lack ascendnpuir/bin/other" in refusal()
    assert not toolchain.place().exists()


def test_what_a_killed_build_left_goes_with_the_next(index):
    home = toolchain.place().parent
    home.mkdir(parents=True, mode=0o700)
    left = home / ".new-killed"
    (left / "whole").mkdir(parents=True)
    assert run().exit_code == 0
    assert not left.exists()


def test_two_builders_at_once_are_one(index):
    home = toolchain.place().parent
    home.mkdir(parents=True, mode=0o700)
    with toolchain._locked():
        assert "another process is building" in refusal()
    assert run().exit_code == 0


@pytest.mark.parametrize("where", [".", ".."])
def test_a_place_that_others_can_write_is_not_trusted(index, where):
    run()
    (toolchain.place() / where).resolve().chmod(0o777)
    for words in ((), ("--check",)):
        assert "others could have put programs there" in refusal(*words)


def test_a_cache_that_cannot_be_made(index, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TDIST_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert "TDIST_CACHE_DIR names another place" in refusal()


def test_other_pins_are_another_environment(index):
    first = toolchain.place()
    toolchain.REQUIREMENTS.write_text(toolchain.REQUIREMENTS.read_text() + "# another\n")
    assert toolchain.place() != first


def test_the_packaged_pins_have_a_hash_for_each_machine():
    """x86-64 and aarch64 for the vendor's wheels; exact versions, those that the package asks for."""
    text = Path(toolchain.REQUIREMENTS).read_text()
    assert toolchain.requirements() == {"triton-ascend": "3.2.0", "ascendnpu-ir": "1.2.0", "pybind11": "3.1.0"}
    entries = [entry for entry in text.split("\n\n")[0].replace("\\\n", " ").splitlines() if "==" in entry]
    assert [entry.count("--hash=sha256:") for entry in entries] == [2, 2, 1]


def test_programs_and_record_are_one_json(index):
    run()
    record = json.loads((toolchain.place() / "tdist-toolchain.json").read_text())
    assert set(record["programs"]) == set(toolchain.PROGRAMS)
