"""What becomes of a compiler or code generator that misbehaves: programs of ours stand in for the vendor's."""

from __future__ import annotations

import hashlib
import signal
from pathlib import Path

import pytest
from linalg_texts import FILE, vector
from vendor_oracle import needs_compiler

from tdist.errors import EnvironmentUnfit, KernelError
from tdist.platforms.ascend.lowering.bishengir import Compiled, Hivmc, compile_linalg
from tdist.platforms.ascend.lowering.steps import Steps
from tdist.platforms.ascend.options import CompileOptions
from tdist.platforms.ascend.vendor import cache, find
from tdist.platforms.ascend.vendor.run import Limits

NO_HIVMC = (
    'echo \'loc("k.py":10:0): error: External hivmc run fails, '
    "returning module before running external compiler' >&2; exit 1"
)
MODULE = 'mkdir -p "$saved"; echo \'"builtin.module"() ({}) : () -> ()\' > "$saved/module.hivm.opt.mlir"'
ARGUMENTS = """#!/bin/sh
for word; do case "$word" in --save-temps=*) saved="${word#--save-temps=}";; *crash-reproducer=*) again=1;; esac; done
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TDIST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(find, "hivmc", lambda: None)


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Puts a shell script in the place of bishengir-compile."""

    def put(script: str) -> find.Tool:
        tool = _program(tmp_path / "bishengir-compile", ARGUMENTS + script)
        monkeypatch.setattr(find, "bishengir_compile", lambda: tool)
        return tool

    return put


@pytest.fixture
def hivmc(tmp_path, monkeypatch):
    """Puts a shell script on PATH as hivmc; `$object` is where its result goes."""

    def put(script: str) -> find.Tool:
        head = '#!/bin/sh\n[ "$1" = --version ] && { echo "hivmc 1.2.0"; exit 0; }\n'
        head += 'while [ $# -gt 0 ]; do [ "$1" = -o ] && object="$2"; shift; done\n'
        (tmp_path / "bin").mkdir(exist_ok=True)
        tool = _program(tmp_path / "bin" / "hivmc", head + script)
        monkeypatch.setenv("PATH", f"{tool.path.parent}:/usr/bin:/bin")
        monkeypatch.setattr(find, "hivmc", lambda: tool)
        return tool

    return put


def _program(path: Path, text: str) -> find.Tool:
    path.write_text(text)
    path.chmod(0o755)
    return find.Tool(path.name, path, "1.2.0")


def _compile(**limits) -> Compiled:
    with Steps(limits=Limits(**{"seconds": 60, **limits})) as steps:
        return compile_linalg(vector(256), "Ascend910B3", CompileOptions(), steps)


def _refused(**limits) -> str:
    with pytest.raises(KernelError) as raised:
        _compile(**limits)
    return str(raised.value)


def _kept(tmp_path: Path) -> int:
    """How many results are in the cache, beside digests of programs."""
    folder = tmp_path / "cache" / "ascend"
    kept = [path.read_bytes().split(b"\n", 1)[1] for path in folder.iterdir()] if folder.exists() else []
    return sum(entry.startswith(b"{") for entry in kept)


def test_a_final_module_without_hivmc_is_the_result(compiler, tmp_path):
    compiler(f"{MODULE}; {NO_HIVMC}")
    assert _compile().form == "final module" and _kept(tmp_path) == 1


def test_a_compiler_that_crashes_by_chance_runs_again(compiler, tmp_path):
    compiler(f'[ -n "$again" ] || kill -SEGV $$; {MODULE}; {NO_HIVMC}')
    made = _compile()
    assert made.notes == ("bishengir-compile 1.2.0 ended with SIGSEGV (exit 139), and went through when it ran again",)
    assert _kept(tmp_path) == 0, "what went through by chance is not kept"


def test_a_compiler_that_always_crashes(compiler, tmp_path):
    compiler("kill -ILL $$")
    text = _refused()
    assert text.startswith(f"{FILE}:10: bishengir-compile 1.2.0 crashes on kernel `vector`: SIGILL (exit 132)")
    assert _kept(tmp_path) == 0


@pytest.mark.parametrize(
    "script",
    [
        f"{MODULE}; kill -SEGV $$",  # wrote the module, then crashed
        f'mkdir -p "$saved"; : > "$saved/module.hivm.opt.mlir"; {NO_HIVMC}',  # wrote nothing into it
        f"{MODULE}; exit 1",  # failed after it, for another reason
        "exit 0",  # says it went well
    ],
)
def test_half_a_result_is_none(compiler, script):
    compiler(script)
    assert "crashes on" in (text := _refused()) or "without a reason" in text


def test_what_an_earlier_kernel_left_is_not_taken_for_a_result(compiler):
    with Steps() as steps:
        compiler(f"{MODULE}; {NO_HIVMC}")
        compile_linalg(vector(256), "Ascend910B3", CompileOptions(), steps)
        compiler(NO_HIVMC)
        with pytest.raises(KernelError, match="kernel `vector`"):
            compile_linalg(vector(512), "Ascend910B3", CompileOptions(), steps)


def test_a_compiler_that_hangs(compiler, tmp_path):
    compiler(f"echo >> {tmp_path}/runs; sleep 600")
    assert "did not finish on kernel `vector` within 1 s" in _refused(seconds=1)
    assert _kept(tmp_path) == 0 and (tmp_path / "runs").read_text() == "\n", "nobody waits for it twice"


def test_a_compiler_that_is_killed_from_outside_is_no_fault_of_the_kernel(compiler, tmp_path):
    compiler(f"echo >> {tmp_path}/runs; kill -{signal.SIGKILL.value} $$")
    with pytest.raises(EnvironmentUnfit, match=r"was killed from outside on kernel `vector` .*SIGKILL \(exit 137\)"):
        _compile()
    assert _kept(tmp_path) == 0 and (tmp_path / "runs").read_text() == "\n"


def test_a_compiler_that_says_it_has_no_memory(compiler, tmp_path):
    compiler("echo 'LLVM ERROR: out of memory' >&2; kill -ABRT $$")
    assert "ran out of memory on kernel `vector`" in (text := _refused()) and "TDIST_VENDOR_MEMORY_MIB" in text
    assert _kept(tmp_path) == 0


def test_a_compiler_that_cannot_start(compiler):
    compiler("").path.write_bytes(b"\x7fELF" + bytes(60))
    with pytest.raises(EnvironmentUnfit, match="Exec format error"):
        _compile()


def test_another_compiler_is_another_key(compiler, tmp_path):
    compiler(f"{MODULE}; {NO_HIVMC}")
    _compile()
    compiler(f"{MODULE}; {NO_HIVMC} # another")
    assert not _compile().cached and _kept(tmp_path) == 2 and _compile().cached


@pytest.mark.parametrize(
    "change",
    [
        lambda made: [made],
        lambda made: "text",
        lambda made: {"refused": 3},
        lambda made: {**made, "final_text": None},
        lambda made: {**made, "notes": "one"},
        lambda made: {**made, "seconds": True},
        lambda made: {**made, "memory": {"functions": [{"name": "vector"}], "planned": True}},
        lambda made: {name: made[name] for name in made if name != "stderr"},
    ],
)
def test_a_kept_result_of_another_shape_is_a_miss(compiler, monkeypatch, change):
    compiler(f"{MODULE}; {NO_HIVMC}")
    _compile()
    assert _compile().cached
    load = cache.load
    monkeypatch.setattr(cache, "load", lambda key: change(made) if isinstance(made := load(key), dict) else made)
    assert not (made := _compile()).cached and made.final_text


@pytest.mark.parametrize("life", [[], [1], [1, 2, 3], [1, "2"]])
def test_a_life_has_two_ends(compiler, monkeypatch, life):
    compiler(f"{MODULE}; {NO_HIVMC}")
    _compile()
    buffer = {"offsets_bytes": [0], "extent_bytes": 8, "life": [1, 2], "loc": None, "shape": "8xi8"}
    memory = {"memory": "ub", "needed_bytes": 8, "capacity_bytes": 8}
    load = cache.load

    def kept(key, life):
        found = load(key)
        if not isinstance(found, dict):
            return found
        memories = [{**memory, "buffers": [{**buffer, "life": life}]}]
        return {**found, "memory": {"functions": [{"name": "f", "core": "aiv", "memories": memories}], "planned": True}}

    monkeypatch.setattr(cache, "load", lambda key: kept(key, [1, 2]))
    assert _compile().cached
    monkeypatch.setattr(cache, "load", lambda key: kept(key, life))
    assert not _compile().cached


@needs_compiler
def test_hivmc_makes_object_code(hivmc):
    tool = hivmc('echo object > "$object"')
    made = _compile()
    digest = hashlib.sha256(tool.path.read_bytes()).hexdigest()
    assert made.form == "object" and made.hivmc == Hivmc(str(tool.path), digest)
    assert str(made.hivmc) == f"{tool.path} (SHA-256 {digest})"
    assert '"hivm.hir.set_flag"' in made.final_text and f'"{FILE}":13:4' in made.final_text
    assert _compile().cached


@needs_compiler
def test_hivmc_gets_the_module_as_the_compiler_prints_it(hivmc, tmp_path):
    hivmc(f'cat "$PWD"/saved/module.hivm.opt.mlir > {tmp_path}/seen; echo object > "$object"')
    _compile()
    assert "hivm.hir.set_flag[" in (tmp_path / "seen").read_text()


@needs_compiler
def test_hivmc_that_refuses_is_told_in_its_words(hivmc, tmp_path):
    tool = hivmc("echo 'ld.lld: undefined symbol: aclshmem_ptr_half' >&2; exit 3")
    text = _refused()
    assert f"kernel `vector` passes bishengir-compile 1.2.0, and hivmc ({tool.path}) refuses it" in text
    assert "its words: ld.lld: undefined symbol: aclshmem_ptr_half\n" in text


@needs_compiler
@pytest.mark.parametrize(
    ("script", "told"),
    [("kill -SEGV $$", "crashes on it: SIGSEGV (exit 139)"), ("exit 3", "fails on it: exit 3")],
)
def test_hivmc_that_fails_without_a_word(hivmc, script, told):
    tool = hivmc(script)
    text = _refused()
    assert f"hivmc ({tool.path}) {told}\n" in text and "the final module, which was made" in text


@needs_compiler
def test_hivmc_that_is_killed_from_outside(hivmc):
    hivmc("kill -KILL $$")
    with pytest.raises(EnvironmentUnfit, match=r"was killed from outside: SIGKILL \(exit 137\)"):
        _compile()


@needs_compiler
@pytest.mark.parametrize("content", [b"no program", b"\x7fELF" + bytes(60), b"#!/no/such/interpreter\n"])
def test_hivmc_that_is_no_program(hivmc, content):
    hivmc("").path.write_bytes(content)
    with Steps() as steps:
        with pytest.raises(EnvironmentUnfit, match="is no program that runs here"):
            compile_linalg(vector(256), "Ascend910B3", CompileOptions(), steps)
        assert "hivm.hir.set_flag" in steps.texts["final"]


@needs_compiler
def test_what_a_toolkit_refuses_is_asked_again(hivmc, tmp_path):
    """Its environment may be what was wrong, and no key holds that."""
    hivmc(
        f'[ -e {tmp_path}/ready ] || {{ echo "cannot open shared object file" >&2; exit 1; }}; echo object > "$object"'
    )
    assert "refuses it" in _refused()
    (tmp_path / "ready").touch()
    assert _compile().form == "object"


@needs_compiler
def test_hivmc_that_makes_nothing_does_not_fit(hivmc):
    hivmc("exit 0")
    with pytest.raises(EnvironmentUnfit, match="ended well but made no object code"):
        _compile()


@needs_compiler
def test_hivmc_that_comes_or_changes_is_another_key(hivmc, monkeypatch):
    assert _compile().form == "final module"
    hivmc('echo object > "$object"')
    assert _compile().form == "object"
    hivmc('echo other > "$object"')
    assert not _compile().cached
    monkeypatch.setattr(find, "hivmc", lambda: None)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert (again := _compile()).cached and again.form == "final module"


@needs_compiler
def test_hivmc_that_hangs_ends_with_the_step(hivmc, tmp_path):
    hivmc(f"echo $$ > {tmp_path}/pid; exec sleep 600")
    assert "did not finish on kernel `vector`" in _refused(seconds=3)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()
