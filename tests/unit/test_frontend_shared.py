"""TTIR that processes share: known by all that it depends on, made once, and never waited for in vain."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import linecache
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest

import tdist
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


# In place of the file's `UNUSED` line, what is set from outside; the kernel's text stays as it is in both.
BESIDE = {
    "an attribute of a jit function": ("inner.SCALE = {}", "inner.SCALE", ("2", "3")),
    "the same under another name": ("inner.SCALE = {}", "(inner).SCALE if n else 1", ("2", "3")),
    "an attribute of a constexpr": ("SCALE.extra = {}", "SCALE.extra", ("2", "3")),
    "an attribute of a type": ("PT = tl.pointer_type(tl.int32)\nPT.extra = {}", "PT.extra", ("2", "3")),
    "an attribute of what a type is made of": ("PT = tl.pointer_type(tl.int32)\nPT.const = {}", "PT.const", ("1", "2")),
    "an address space": ("PT: tl.constexpr = tl.pointer_type(tl.int32, {})", "PT", ("1", "2")),
    "the order of a function's parameters": ("inner.arg_names = {}", "1", ("['x', 'by']", "['by', 'x']")),
    "a function's constexpr parameters": ("inner.constexprs = {}", "1", ("[1]", "[]")),
    "the defaults of what lies under a jit function": ("inner.fn.__defaults__ = {}", "1", ("(2,)", "(3,)")),
}


@pytest.mark.parametrize("beside, read, values", BESIDE.values(), ids=BESIDE)
def test_what_lies_beside_what_the_kernel_names_makes_another_content(tmp_path, beside, read, values):
    source = SOURCE.replace("+ step", f"+ step + {read}").replace("def make():", "BESIDE\n\ndef make():")
    contents = [
        content(kernel_of(tmp_path, source.replace("BESIDE", beside.format(value)), again=True)) for value in values
    ]
    assert None not in contents and len(set(contents)) == 2


UNKNOWN = {
    "a Python function": ("inner(offs)", "helpers.asked()"),
    "a function that asks the machine": ("inner(offs)", "is_cuda()"),
    "an object of somebody's class": ("inner(offs)", "UNUSED.something"),
    "something that prints": ("offs = ", "tl.static_print(n)\n        offs = "),
    "a module under another name": ("offs = ", "h = helpers\n        offs = "),
    "an attribute that is not there": ("helpers.ADDED", "helpers.ABSENT"),
    "an attribute that a value has not": ("helpers.ADDED", "helpers.ADDED.value.absent"),
    "an object beside a function": ("def make():", "inner.extra = object()\n\ndef make():"),
    "a function under a name of Triton's": ("inner(offs)", "helpers.wrapped(offs)"),
    "a class under a name of Triton's": ("inner(offs)", "helpers.Named(offs)"),
    "an object under a name of Triton's": ("inner(offs)", "helpers.named(offs)"),
    "a function that names the kernel": ("    return kernel", "    kernel.repr = lambda _: 'other'\n    return kernel"),
    "an annotation that is an object": ("SCALE: tl.constexpr", "SCALE: object()"),
}
HELPERS = """tl.constexpr(5)
import functools
def asked(): return 1

@functools.wraps(tl.abs)
def wrapped(x, _builder=None): return x

class Named: __module__, __qualname__ = tl.tensor.__module__, tl.tensor.__qualname__
class _Object: pass
named = _Object()
named.__module__, named.__name__, named.__qualname__ = "triton.language.core", "abs", "abs"
"""


@pytest.mark.parametrize("edit", UNKNOWN.values(), ids=UNKNOWN)
def test_a_kernel_that_reads_what_nobody_knows_has_no_content(tmp_path, edit):
    source = SOURCE.replace(*edit)
    assert source != SOURCE
    assert content(kernel_of(tmp_path, SOURCE, added=HELPERS)) is not None
    assert content(kernel_of(tmp_path, source, added=HELPERS)) is None


def test_an_attribute_set_on_a_builtin_is_not_known(tmp_path, monkeypatch):
    from triton.language import core

    kernel = kernel_of(tmp_path)
    monkeypatch.setattr(core.arange, "extra", 2, raising=False)
    assert content(kernel) is None


def test_a_builtin_that_was_replaced_where_it_is_defined_is_not_known(tmp_path, monkeypatch):
    import triton.language as tl

    kernel, real = kernel_of(tmp_path), tl.arange
    for module in (tl, tl.core):
        monkeypatch.setattr(module, "arange", functools.wraps(real)(lambda *args, **kwargs: real(*args, **kwargs)))
    assert content(kernel) is None


UNREADABLE = {
    "a local of the name of an object that answers no question": (
        "class Lazy:\n    def __getattr__(self, name): 1 / 0",
        "Lazy()",
    ),
    "a value that prints no more": ("class Lazy(int):\n    def __repr__(self): 1 / 0", "Lazy()"),
    "a tuple too deep": ("import functools", "functools.reduce(lambda inside, _: (inside,), range(5000), ())"),
}


@pytest.mark.parametrize("before, value", UNREADABLE.values(), ids=UNREADABLE)
def test_what_cannot_be_looked_at_is_compiled_as_before(folder, made, tmp_path, before, value):
    source = SOURCE.replace("SCALE: tl.constexpr", f"{before}\noffs = {value}\nSCALE: tl.constexpr")
    kernel = kernel_of(tmp_path, source)
    assert content(kernel) is None
    assert compiled(kernel).ttir.startswith("#loc") and made() == 1


@pytest.mark.parametrize("before", ["kernel.repr = lambda _: 'nice'", "kernel.extra = object()"])
def test_users_objects_in_odd_places_are_no_errors(folder, made, tmp_path, before):
    source = SOURCE.replace("    return kernel", f"    {before}\n    return kernel")
    assert compiled(kernel_of(tmp_path, source)).ttir and made() == 1 and not list(folder.iterdir())


UPGRADE = """
import pathlib, sys, time
import tdist, tdist.language
from tdist.language import slots
assert tdist.__file__.startswith({root!r})
if sys.argv[1:]:
    time.sleep(0.05)
    path = pathlib.Path({root!r}) / "tdist" / sys.argv[1]
    path.write_text(path.read_text() + "# newer")
sys.path[:0] = [{tests!r}]
import test_frontend_shared as tests
kernel = tests.kernel_of(pathlib.Path({root!r}), again=True)
print(tests.content(kernel) is not None)
if sys.argv[1:]:
    raise SystemExit
tests.content.__globals__["content_of"].__globals__["_our_files"]()[0].touch()
print(tests.content(kernel) is not None)
"""


def test_files_that_changed_under_a_process_are_not_taken_for_what_it_has_imported(tmp_path):
    package = Path(str(tdist.__file__)).parent
    shutil.copytree(package, tmp_path / "tdist", ignore=shutil.ignore_patterns("__pycache__", "platforms"))
    shutil.copytree(package / "platforms", tmp_path / "tdist/platforms", ignore=shutil.ignore_patterns("__pycache__"))
    time.sleep(0.05)
    code = UPGRADE.format(root=str(tmp_path), tests=str(Path(__file__).parent))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*args: str) -> list[str]:
        command = [sys.executable, "-c", code, *args]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    assert run() == ["True", "False"]
    time.sleep(0.05)
    assert run("language/slots.py") == ["False"]


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


UNFIT = {
    "not JSON": b"{",
    "no text": b"\xff\xfe",
    "too deep": b"[" * 100_000,
    "nothing": b"null",
    "a list": b"[]",
    "a number": b"3",
    "text": b'"name"',
    "keys missing": b'{"name": "kernel"}',
    "other types": b'{"name": 1, "ttir": 2, "args": 3}',
    "no function": b'{"name": "kernel", "ttir": "garbage", "args": [["out", "*i32"], ["n", "i32"]]}',
    "a name that is none": b'{"name": null, "ttir": "tt.func", "args": []}',
    "arguments that are none": b'{"name": "kernel", "ttir": "tt.func", "args": [["out"]]}',
    "an argument's type that is none": b'{"name": "kernel", "ttir": "tt.func", "args": [["out", 1]]}',
}


@pytest.mark.parametrize("body", UNFIT.values(), ids=UNFIT)
def test_what_is_not_a_kernel_is_a_miss_and_is_replaced(folder, made, tmp_path, body):
    kernel = kernel_of(tmp_path)
    first = compiled(kernel)
    (kept,) = folder.glob("*.json")
    good = kept.read_bytes()
    kept.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    assert compiled(kernel) == first and made() == 2
    assert kept.read_bytes() == good
    assert compiled(kernel) == first and made() == 2


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
