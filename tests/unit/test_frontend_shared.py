"""TTIR that processes share: known by all that it depends on, made once, and never waited for in vain."""

from __future__ import annotations

import hashlib
import importlib.util
import linecache
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest

from tdist.errors import KernelError
from tdist.frontend import compile_source, shared
from tdist.frontend.content import content_of

SOURCE = """
import triton, triton.language as tl, tdist.language as dl
from tdist.language.backends import is_cuda
import {helpers} as helpers

SCALE: tl.constexpr = tl.constexpr(2)
UNUSED = n = object()

@triton.jit
def inner(x, by: tl.constexpr = SCALE):
    return x * by

def make():
    step = tl.constexpr(3)

    @triton.jit
    def kernel(out, n, B: tl.constexpr):
        offs = tl.arange(0, B) * dl.SIGNAL_SLOT_STRIDE(out)
        tl.store(out + offs, inner(offs) + step + helpers.ADDED, mask=offs < tl.cdiv(n, 2) + dl.rank())
    return kernel
"""
SIGNATURE, CONSTEXPRS, PLATFORM = {"out": "*i32", "n": "i32"}, {"B": 16}, ("Ascend910B3", 2, 4)
_numbers = count(1)
_fork = multiprocessing.get_context("fork")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TDIST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TDIST_NO_CACHE", raising=False)
    return tmp_path / "cache" / "ttir"


@pytest.fixture
def made(monkeypatch, tmp_path):
    """Asks how many kernels this process and its forks have compiled; each takes a while."""
    log = tmp_path / "made"
    log.write_text("")

    def note(fn, signature, constexprs):
        with log.open("a") as file:
            file.write(f"{fn.__name__}\n")
        time.sleep(0.2)
        return compile_source(fn, signature, constexprs)

    monkeypatch.setattr(shared, "compile_source", note)
    return lambda: len(log.read_text().splitlines())


def load(path: Path, name: str):
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def kernel_of(folder: Path, source: str = SOURCE, added: str = "tl.constexpr(5)", again: bool = False):
    """The kernel of a file of this source; a new file each time, or the same file as the last time."""
    number = 0 if again else next(_numbers)
    helpers, path = f"shared_helpers_{number}", folder / "shared_kernel.py"
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        (folder / f"{helpers}.py").write_text(f"import triton.language as tl\nADDED: tl.constexpr = {added}\n")
        load(folder / f"{helpers}.py", helpers)
        path.write_text(source.format(helpers=helpers))
        linecache.checkcache()
        return load(path, "shared_kernel").make()
    finally:
        sys.dont_write_bytecode = before


def content(kernel, constexprs=None, platform=PLATFORM):
    return content_of(kernel, SIGNATURE, constexprs or CONSTEXPRS, platform)


def digest(kernel) -> str:
    """The key under which it is kept."""
    text = content(kernel)
    assert text is not None
    return hashlib.sha256(text.encode()).hexdigest()


def compiled(kernel):
    return shared.compile_shared(kernel, SIGNATURE, CONSTEXPRS, PLATFORM)


def test_what_is_kept_is_what_the_front_end_makes(folder, made, tmp_path):
    direct = compile_source(kernel_of(tmp_path, again=True), SIGNATURE, CONSTEXPRS)
    first, second = (compiled(kernel_of(tmp_path, again=True)) for _ in range(2))
    assert first == second == direct
    assert made() == 1
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(kept.stat().st_mode & 0o077 == 0 for kept in folder.iterdir())


EDITS = {
    "the kernel": ("+ step", "- step"),
    "a called function": ("x * by", "x + by"),
    "a global": ("tl.constexpr(2)", "tl.constexpr(4)"),
    "its type": ("tl.constexpr(2)", "tl.constexpr(2.0)"),
    "whether it may be read": ("SCALE: tl.constexpr =", "SCALE ="),
    "a variable of the function around": ("tl.constexpr(3)", "tl.constexpr(7)"),
    "a default": ("= SCALE)", "= 9)"),
    "a function of the language": ("dl.rank()", "dl.num_ranks()"),
    "the line": ("def make():", "\ndef make():"),
    "another function inlined": ("@triton.jit\ndef inner", "@triton.jit(noinline=True)\ndef inner"),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_another_kernel_has_another_content(tmp_path, edit):
    before, after = (content(kernel_of(tmp_path, source, again=True)) for source in (SOURCE, SOURCE.replace(*edit)))
    assert before is not None and after is not None
    assert SOURCE.replace(*edit) != SOURCE and before != after


def test_what_is_asked_for_and_around_it_makes_another_content(tmp_path, monkeypatch):
    kernel = kernel_of(tmp_path)
    contents = [
        content(kernel),
        content(kernel, {"B": 32}),
        content(kernel, {"B": 16.0}),
        content(kernel, {"B": True}),
        content(kernel, platform=("Ascend910B3", 2, 8)),
        content_of(kernel, {**SIGNATURE, "n": "i64"}, CONSTEXPRS, PLATFORM),
        content(kernel_of(tmp_path, added="tl.constexpr(6)", again=True)),
    ]
    monkeypatch.setenv("TRITON_F32_DEFAULT", "ieee")
    contents.append(content(kernel))
    assert None not in contents and len(set(contents)) == len(contents)


def test_the_content_is_the_same_in_another_process(tmp_path):
    code = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parent)!r}]
import test_frontend_shared as tests, pathlib
print(tests.digest(tests.kernel_of(pathlib.Path({str(tmp_path)!r}), again=True)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == digest(kernel_of(tmp_path, again=True)), done.stderr


UNKNOWN = {
    "a Python function": ("inner(offs)", "helpers.asked()"),
    "a function that asks the machine": ("inner(offs)", "is_cuda()"),
    "an object of somebody's class": ("inner(offs)", "UNUSED.something"),
    "something that prints": ("offs = ", "tl.static_print(n)\n        offs = "),
    "a module under another name": ("offs = ", "h = helpers\n        offs = "),
    "an attribute that is not there": ("helpers.ADDED", "helpers.ABSENT"),
}


@pytest.mark.parametrize("edit", UNKNOWN.values(), ids=UNKNOWN)
def test_a_kernel_that_reads_what_nobody_knows_has_no_content(tmp_path, edit):
    source = SOURCE.replace(*edit)
    assert source != SOURCE
    kernel = kernel_of(tmp_path, source, added="tl.constexpr(5)\ndef asked(): return 1")
    assert content(kernel) is None


def test_it_is_compiled_each_time_and_not_kept(folder, made, tmp_path):
    kernel = kernel_of(tmp_path, SOURCE.replace("offs = ", "tl.static_print(n)\n        offs = "))
    compiled(kernel)
    compiled(kernel)
    assert made() == 2 and not list(folder.iterdir())


def test_the_kernels_of_the_built_in_operators_have_a_content():
    from tdist.kernels import ag_gemm, all_gather

    kernels = [value for module in (ag_gemm, all_gather) for value in vars(module).values() if hasattr(value, "src")]
    assert len(kernels) >= 4
    assert all(content_of(kernel, {}, {}, PLATFORM) is not None for kernel in kernels)


def test_errors_are_not_kept(folder, made, tmp_path):
    kernel = kernel_of(tmp_path, SOURCE.replace("inner(offs)", "inner(offs, 1, 2)"))
    for _ in range(2):
        with pytest.raises(KernelError):
            compiled(kernel)
    assert made() == 2 and [path.name for path in folder.iterdir()] == ["turns"]


def test_a_changed_file_is_a_miss(folder, made, tmp_path, caplog):
    kernel = kernel_of(tmp_path)
    first = compiled(kernel)
    (kept,) = folder.glob("*.json")
    kept.write_bytes(kept.read_bytes().replace(b"arith.muli", b"arith.addi"))
    assert compiled(kernel) == first and made() == 2
    assert "digest" in caplog.text


def test_without_a_cache_each_compiles_for_itself(folder, made, tmp_path, monkeypatch):
    monkeypatch.setenv("TDIST_NO_CACHE", "1")
    kernel = kernel_of(tmp_path)
    assert compiled(kernel) == compiled(kernel)
    assert made() == 2 and not folder.exists()


def _spawn(target, *args):
    process = _fork.Process(target=target, args=args)
    process.start()
    return process


def test_of_processes_that_need_a_kernel_at_once_one_makes_it(folder, made, tmp_path):
    kernel = kernel_of(tmp_path)
    others = [_spawn(compiled, kernel) for _ in range(4)]
    compiled(kernel)
    for process in others:
        process.join(30)
    assert [process.exitcode for process in others] == [0] * 4
    assert made() == 1


def _hold(key: str, holds) -> None:
    with shared.CACHE.turn(key, 1.0):
        holds.set()
        time.sleep(60)


@pytest.fixture
def holder(folder, tmp_path):
    """A kernel, and a process that has its turn and does not come to an end."""
    kernel = kernel_of(tmp_path)
    holds = _fork.Event()
    process = _spawn(_hold, digest(kernel), holds)
    assert holds.wait(30)
    yield kernel, process
    process.kill()
    process.join(30)


def test_a_holder_that_is_killed_is_not_waited_for(holder, made, monkeypatch):
    kernel, process = holder
    monkeypatch.setattr(shared, "PATIENCE_SECONDS", 1e6)
    waiting = _spawn(compiled, kernel)
    time.sleep(0.1)
    assert waiting.is_alive() and made() == 0
    os.kill(process.pid, signal.SIGKILL)
    waiting.join(30)
    assert waiting.exitcode == 0 and made() == 1


def test_a_holder_that_hangs_is_not_waited_for_long(holder, made, monkeypatch, folder):
    kernel, process = holder
    monkeypatch.setattr(shared, "PATIENCE_SECONDS", 0.1)
    os.kill(process.pid, signal.SIGSTOP)
    compiled(kernel)
    assert made() == 1 and process.is_alive()
    assert len(list(folder.glob("*.json"))) == 1


def test_another_kernel_waits_for_nobody(holder, made, tmp_path, monkeypatch):
    monkeypatch.setattr(shared, "PATIENCE_SECONDS", 1e6)
    compiled(kernel_of(tmp_path, added="tl.constexpr(8)"))
    assert made() == 1


def test_a_link_in_place_of_the_lock_is_not_followed(folder, made, tmp_path, monkeypatch):
    shared.CACHE.folder()
    (folder / "turns").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr(shared, "PATIENCE_SECONDS", 1e6)
    compiled(kernel_of(tmp_path))
    assert made() == 1 and not (tmp_path / "elsewhere").exists()
