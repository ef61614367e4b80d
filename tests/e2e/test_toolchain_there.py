"""Where the running environment has stock Triton, commands that need the vendor's tools run in the other environment.

The environment with stock Triton is this one seen through links, with another package `triton` in place of
triton-ascend; the vendor's environment is made of links to the packages of this one. No network is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tdist.platforms.ascend import toolchain

VENDOR = ("triton", "triton_ascend", "ascendnpuir", "ascendnpu_ir")
MAIN = """
import site, sys
site.addsitedir(sys.argv[1])
sys.argv[:] = [sys.argv[2].rpartition(".")[2], *sys.argv[3:]]
import importlib
importlib.import_module("MODULE").main()
"""
KERNEL = """
import triton
import triton.language as tl


@triton.jit
def double(x_ptr, y_ptr, n: tl.int32, BLOCK: tl.constexpr = 128):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n, other=0.0) * 2, mask=offs < n)
"""


class StockEnvironment(NamedTuple):
    """An environment with stock Triton, in a folder with `kernels.py`."""

    site: Path
    folder: Path
    cache: Path

    def run(self, module: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the command whose `main` is in `module`."""
        code = MAIN.replace("MODULE", module)
        return subprocess.run(
            [sys.executable, "-S", "-P", "-c", code, str(self.site), module, *words],
            cwd=self.folder,
            env={**os.environ, "TDIST_CACHE_DIR": str(self.cache)},
            capture_output=True,
            text=True,
            timeout=300,
        )


def belongs(name: str, packages: tuple[str, ...]) -> bool:
    """Whether an entry of site-packages is one of these packages or what describes it."""
    return any(name == package or name.startswith(f"{package}-") for package in packages)


def environment(root: Path, without: tuple[str, ...]) -> StockEnvironment:
    """This environment without some packages, and with kernels."""
    site = root / "site-packages"
    site.mkdir()
    for entry in installed().iterdir():
        if not belongs(entry.name, without) and entry.name != "__pycache__":
            (site / entry.name).symlink_to(entry)
    (root / "kernels.py").write_text(KERNEL)
    return StockEnvironment(site, root, root / "cache")


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> StockEnvironment:
    made = environment(tmp_path_factory.mktemp("stock"), VENDOR)
    (made.site / "triton").mkdir()
    (made.site / "triton" / "__init__.py").write_text("__version__ = '3.9.0'\n")
    (made.site / "triton-3.9.0.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: triton\nVersion: 3.9.0\n"
    (made.site / "triton-3.9.0.dist-info" / "METADATA").write_text(metadata)
    return made


def installed() -> Path:
    """The folder of packages that has the vendor's."""
    import triton

    return Path(str(triton.__file__)).parents[1]


@pytest.fixture(scope="module")
def toolchain_made(stock: StockEnvironment) -> Path:
    """The vendor's environment, at the place where the commands look for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TDIST_CACHE_DIR", str(stock.cache))
        folder = toolchain.place()
        folder.mkdir(parents=True, mode=0o700)
        for entry in installed().iterdir():
            if belongs(entry.name, (*VENDOR, "pybind11")):
                (folder / entry.name).symlink_to(entry)
        toolchain._write_record(folder)
    return folder


def test_without_the_other_environment_it_says_how_to_make_one(stock):
    ended = stock.run("tdist.tools.main", "compile", "kernels.py::double", "--sig", "x_ptr=*fp16,y_ptr=*fp16")
    assert ended.returncode == 3, ended.stdout + ended.stderr
    assert "stock triton 3.9.0 is installed where tdist needs triton-ascend 3.2.0" in ended.stderr
    assert "`tdist toolchain ascend`" in ended.stderr and "Traceback" not in ended.stderr


def test_an_operator_is_not_run_without_it_either(stock):
    ended = stock.run("tdist.verify.cli", "all_gather", "--compile-for", "Ascend910B3")
    assert ended.returncode == 3 and not ended.stdout
    assert "`tdist toolchain ascend`" in ended.stderr and "Traceback" not in ended.stderr


def test_a_kernel_is_compiled_there(stock, toolchain_made):
    sig = "x_ptr=*fp16,y_ptr=*fp16"
    ended = stock.run("tdist.tools.main", "compile", "kernels.py::double", "--sig", sig, "--json", "report.json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    value = json.loads((stock.folder / "report.json").read_text())
    assert [result["verdict"] for result in value["results"]] == ["clean", "clean"]
    assert "bishengir-compile 1.2.0" in value["run"]["tools"]


def test_exit_status_and_messages_come_through(stock, toolchain_made):
    ended = stock.run("tdist.tools.main", "compile", "kernels.py::dubble")
    assert ended.returncode == 2 and "its kernels: double" in ended.stderr


def test_an_operator_is_verified_and_compiled_there(stock, toolchain_made):
    words = ["--nranks", "2", "--shape", "m=16,n=16", "--dtype", "fp16", "--sync", "barrier", "--launches", "1"]
    words += ["--compile-for", "Ascend910B3", "--barrier-all-sync", "true", "--json", "operator.json"]
    ended = stock.run("tdist.verify.cli", "all_gather", *words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (result,) = json.loads((stock.folder / "operator.json").read_text())["compiled"]["gate"]["results"]
    assert (result["label"], result["verdict"]) == ("fp16 barrier", "clean")


def test_a_test_session_runs_there(stock, toolchain_made):
    """A CI with stock Triton gates on the compiled code from its own tests."""
    (stock.folder / "test_mine.py").write_text(
        "import triton\n"
        "from kernels import double\n"
        "from tdist.platforms.ascend.gate import gate, kernel_of\n"
        "def test_double():\n"
        "    assert triton.__version__.startswith('3.2')\n"
        "    signature = {'x_ptr': '*fp16', 'y_ptr': '*fp16', 'n': 'i32'}\n"
        "    gate(kernel_of(double, signature), barrier_all=[True]).raise_for_failures()\n"
        "def test_bad():\n"
        "    assert False\n"
    )
    words = ["toolchain", "run", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"]
    ended = stock.run("tdist.tools.main", *words)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "1 failed, 1 passed" in ended.stdout and "test_mine.py::test_bad" in ended.stdout


def test_check_says_what_is_there(stock, toolchain_made):
    ended = stock.run("tdist.tools.main", "toolchain", "ascend", "--check")
    assert ended.returncode == 0, ended.stderr
    here, _, separate = ended.stdout.partition("separate environment")
    assert "not usable: stock triton 3.9.0 is installed" in here
    assert str(toolchain_made) in separate and separate.count("  ok") == len(toolchain.PROGRAMS)


@pytest.fixture
def half(tmp_path: Path) -> StockEnvironment:
    """triton-ascend, and AscendNPU-IR with a folder of programs of its own, which a test may spoil."""
    made = environment(tmp_path, ("ascendnpuir",))
    programs = made.site / "ascendnpuir" / "bin"
    programs.mkdir(parents=True)
    source = installed() / "ascendnpuir"
    (programs.parent / "__init__.py").write_text("")
    (programs.parent / "lib").symlink_to(source / "lib")
    for entry in (source / "bin").iterdir():
        (programs / entry.name).symlink_to(entry)
    return made


def compiled(made: StockEnvironment) -> subprocess.CompletedProcess[str]:
    sig = "x_ptr=*fp16,y_ptr=*fp16"
    return made.run("tdist.tools.main", "compile", "kernels.py::double", "--sig", sig, "--barrier-all-sync", "false")


def test_the_environment_of_these_tests_works_unspoilt(half):
    ended = compiled(half)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("name", ["bishengir-compile", "bishengir-opt"])
def test_a_missing_program_exits_3_and_names_it(half, name):
    (half.site / "ascendnpuir" / "bin" / name).unlink()
    ended = compiled(half)
    assert ended.returncode == 3 and not ended.stdout
    assert f"without {half.site / 'ascendnpuir' / 'bin' / name}" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_program_that_is_cut_off_exits_3(half):
    path = half.site / "ascendnpuir" / "bin" / "bishengir-compile"
    path.unlink()
    path.write_bytes(b"")
    ended = compiled(half)
    assert ended.returncode == 3 and "is empty: ascendnpu-ir is half installed" in ended.stderr


def test_a_package_that_is_not_installed_exits_3(tmp_path):
    ended = compiled(environment(tmp_path, ("ascendnpuir", "ascendnpu_ir")))
    assert ended.returncode == 3
    assert "bishengir-compile is not installed: it comes with ascendnpu-ir" in ended.stderr


def forget_digest(made: StockEnvironment, name: str) -> None:
    """A package's RECORD without the digest of one file, as a build from source leaves it."""
    (info,) = made.site.glob("ascendnpu_ir-*.dist-info")
    original = info.resolve()
    info.unlink()
    info.mkdir()
    for entry in original.iterdir():
        if entry.name != "RECORD":
            (info / entry.name).symlink_to(entry)
    lines = (original / "RECORD").read_text().splitlines(keepends=True)
    (info / "RECORD").write_text("".join(line for line in lines if f"/{name}," not in line))


def test_a_program_that_was_exchanged_exits_3(half):
    path = half.site / "ascendnpuir" / "bin" / "bishengir-compile"
    path.unlink()
    path.write_text("#!/bin/sh\nkill -SEGV $$\n")
    path.chmod(0o755)
    ended = compiled(half)
    assert ended.returncode == 3 and f"{path} is damaged" in ended.stderr


def test_a_crash_with_a_stack_dump_is_the_kernels_refusal(half):
    """One message at the kernel's line, exit 1, and not the dump."""
    path = half.site / "ascendnpuir" / "bin" / "bishengir-compile"
    path.unlink()
    path.write_text("#!/bin/sh\necho 'PLEASE submit a bug report' >&2\necho 'Stack dump: 0x7f' >&2\nkill -SEGV $$\n")
    path.chmod(0o755)
    forget_digest(half, path.name)
    ended = compiled(half)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "refused by bishengir-compile" in ended.stdout and f"{half.folder / 'kernels.py'}:" in ended.stdout
    assert "crashes on kernel `double`" in ended.stdout
    assert "Stack dump" not in ended.stdout + ended.stderr and "Traceback" not in ended.stderr
