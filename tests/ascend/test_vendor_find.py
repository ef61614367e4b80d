"""Where the vendor's programs are, and what is said when one is missing or cannot run here."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import platform
import sys
from pathlib import Path

import pytest
from vendor_oracle import adapter, bishengir, needs_adapter, needs_compiler

from tdist.errors import EnvironmentUnfit
from tdist.platforms.ascend.vendor import find

ELF = b"\x7fELF" + bytes(14)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package `ascendnpuir` of ours in place of the installed one; the path of its compiler, not there yet."""
    (tmp_path / "ascendnpuir" / "bin").mkdir(parents=True)
    (tmp_path / "ascendnpuir" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ascendnpuir", raising=False)
    return tmp_path / "ascendnpuir" / "bin" / "bishengir-compile"


def _machine(number: int) -> bytes:
    return ELF + number.to_bytes(2, "little") + b"rest"


HERE = {"x86_64": 62, "aarch64": 183}[platform.machine()]
ELSEWHERE = {62: 183, 183: 62}[HERE]


@needs_compiler
def test_the_installed_compiler_and_printer():
    for tool in (find.bishengir_compile(), find.bishengir_opt()):
        assert str(tool.path) == bishengir(tool.name)
        assert tool.version == importlib.metadata.version("ascendnpu-ir") and str(tool) == f"{tool.name} {tool.version}"
    tool = find.bishengir_compile()
    assert tool.digest == hashlib.sha256(tool.path.read_bytes()).hexdigest()


@needs_adapter
def test_the_installed_adapter():
    assert str(find.triton_adapter_opt().path) == adapter()


def test_nothing_is_imported(package):
    package.write_bytes(_machine(HERE))
    (package.parents[1] / "__init__.py").write_text("raise RuntimeError")
    find.bishengir_compile()
    assert "ascendnpuir" not in sys.modules


def test_a_package_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", [sys.meta_path[0], *_path_finders()])
    monkeypatch.delitem(sys.modules, "ascendnpuir", raising=False)
    with pytest.raises(EnvironmentUnfit) as raised:
        find.bishengir_compile()
    text = str(raised.value)
    assert text.startswith("bishengir-compile is not installed: it comes with ascendnpu-ir; ")
    assert "pip install 'tdist[ascend]'" in text and "tdist toolchain ascend" in text and raised.value.exit_code == 3


def _path_finders() -> list:
    return [finder for finder in sys.meta_path if getattr(finder, "__name__", "") == "PathFinder"]


def test_a_package_without_the_program(package, monkeypatch):
    monkeypatch.setattr(find, "_version", lambda name: "1.2.0" if name == "ascendnpu-ir" else None)
    with pytest.raises(EnvironmentUnfit) as raised:
        find.bishengir_compile()
    assert str(raised.value) == (
        f"ascendnpu-ir 1.2.0 is installed without {package}; install it again: "
        "pip install --force-reinstall --no-deps ascendnpu-ir==1.2.0"
    )


def test_stock_triton_in_the_place_of_triton_ascend(tmp_path, monkeypatch):
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    monkeypatch.setattr(find, "_version", lambda name: "3.9.0" if name == "triton" else None)
    with pytest.raises(EnvironmentUnfit) as raised:
        find.triton_adapter_opt()
    text = str(raised.value)
    assert f"{tmp_path}/triton is triton 3.9.0, not triton-ascend" in text and "tdist toolchain ascend" in text


def test_a_missing_run_bit_is_set(package):
    package.write_bytes(_machine(HERE))
    package.chmod(0o644)
    assert find.bishengir_compile().path == package
    assert package.stat().st_mode & 0o777 == 0o755


def test_a_run_bit_that_is_not_ours_to_set(package, monkeypatch):
    package.write_bytes(_machine(HERE))
    package.chmod(0o644)

    def chmod(self: Path, mode: int) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "chmod", chmod)
    with pytest.raises(EnvironmentUnfit) as raised:
        find.bishengir_compile()
    assert str(raised.value).endswith(f"let its owner run: chmod a+x {package}")


def test_a_run_bit_that_does_not_help(package, monkeypatch):
    package.write_bytes(_machine(HERE))
    monkeypatch.setattr(find.os, "access", lambda path, mode: False)
    with pytest.raises(EnvironmentUnfit, match="mounted noexec"):
        find.bishengir_compile()


def test_a_program_for_another_machine(package):
    package.write_bytes(_machine(ELSEWHERE))
    with pytest.raises(EnvironmentUnfit, match=rf"is built for \S+, this machine is {platform.machine()}"):
        find.bishengir_compile()
    package.write_bytes(_machine(9999))  # unknown to us: the system will say
    assert find.bishengir_compile().path == package


def test_an_empty_file_is_half_an_installation(package):
    package.touch()
    with pytest.raises(EnvironmentUnfit, match="half installed"):
        find.bishengir_compile()


def test_a_digest_follows_the_file(package):
    package.write_bytes(_machine(HERE))
    tool = find.bishengir_compile()
    before = tool.digest
    package.write_bytes(_machine(HERE) + b"more")
    assert tool.digest == hashlib.sha256(package.read_bytes()).hexdigest() != before


def test_a_digest_is_computed_once_for_each_state_of_a_file(package, monkeypatch, tmp_path):
    monkeypatch.setenv("TDIST_CACHE_DIR", str(tmp_path / "cache"))
    package.write_bytes(_machine(HERE))
    first = find.bishengir_compile().digest
    find._digest.cache_clear()  # as in another process
    monkeypatch.setattr(find.hashlib, "file_digest", lambda file, name: pytest.fail("computed again"))
    assert find.bishengir_compile().digest == first
    package.touch()
    with pytest.raises(pytest.fail.Exception, match="computed again"):
        _ = find.bishengir_compile().digest


def test_hivmc_is_looked_for_on_path_only(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find.hivmc() is None
    program = tmp_path / "hivmc"
    program.write_text("#!/bin/sh\n")
    assert find.hivmc() is None
    program.chmod(0o755)
    found = find.hivmc()
    assert found is not None and found.path == program and found.digest == hashlib.sha256(b"#!/bin/sh\n").hexdigest()


def test_a_damaged_program_is_told_from_a_whole_one(package, monkeypatch):
    """By what pip noted of the file; one that nobody noted is taken as it is."""
    monkeypatch.setenv("TDIST_NO_CACHE", "1")
    package.write_bytes(_machine(HERE) * 9)
    find.check_whole(find.bishengir_compile())
    info = package.parents[2] / "ascendnpu_ir-1.2.0.dist-info"
    info.mkdir()
    noted = base64.urlsafe_b64encode(hashlib.sha256(package.read_bytes()).digest()).rstrip(b"=").decode()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ascendnpu-ir\nVersion: 1.2.0\n")
    (info / "RECORD").write_text(f"ascendnpuir/bin/bishengir-compile,sha256={noted},9\n")
    importlib.invalidate_caches()
    find.check_whole(find.bishengir_compile())
    package.write_bytes(_machine(HERE))
    with pytest.raises(EnvironmentUnfit, match=r"bishengir-compile is damaged: .* --no-deps ascendnpu-ir==1\.2\.0"):
        find.check_whole(find.bishengir_compile())
