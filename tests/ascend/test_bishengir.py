"""Linalg to the final module, with the vendor's own compiler where it is installed."""

from __future__ import annotations

import re

import pytest
from linalg_texts import FILE, barrier, loop, matmul, vector
from vendor_oracle import bishengir, canonical, needs_compiler

from tdist.errors import KernelError, UsageError
from tdist.ir.location import SourceLoc
from tdist.platforms.ascend.lowering import bishengir as module
from tdist.platforms.ascend.lowering.bishengir import Compiled, compile_linalg
from tdist.platforms.ascend.lowering.memory import MemoryUse, read_memory_display, sum_addresses
from tdist.platforms.ascend.lowering.steps import Steps
from tdist.platforms.ascend.options import CompileOptions
from tdist.platforms.ascend.targets import TARGETS
from tdist.platforms.ascend.vendor import find
from tdist.platforms.ascend.vendor.run import Limits

pytestmark = needs_compiler
B3 = "Ascend910B3"


@pytest.fixture(autouse=True)
def _no_back_end(tmp_path, monkeypatch):
    """No hivmc, and a cache of the test's own."""
    monkeypatch.setattr(find, "hivmc", lambda: None)
    monkeypatch.setenv("TDIST_CACHE_DIR", str(tmp_path / "cache"))


def _compile(text: str, target: str = B3, **options) -> Compiled:
    with Steps() as steps:
        return compile_linalg(text, target, CompileOptions(**options), steps)


def _refused(text: str, target: str = B3, **options) -> str:
    with pytest.raises(KernelError) as raised:
        _compile(text, target, **options)
    return str(raised.value)


def test_a_kernel_goes_to_the_last_stage_without_hivmc():
    made = _compile(loop(1024))
    assert (made.form, made.hivmc, made.notes, made.retried_without, made.cached) == (
        "final module",
        None,
        (),
        (),
        False,
    )
    assert 0 < made.seconds < 60 and "Cannot find hivmc" in made.stderr
    assert made.final_text.startswith("#") or made.final_text.startswith('"builtin.module"')
    assert '"hivm.hir.set_flag"' in made.final_text and f'"{FILE}":13:4' in made.final_text


@pytest.mark.parametrize("text", [loop(1024), matmul(64, 128, 256), barrier("CUBE_AND_VECTOR")])
def test_the_final_module_is_what_the_vendors_printer_makes_of_it(text):
    """Printing in generic form while compiling spares a program; it must be the same module."""
    bare = _without_locations(_compile(text).final_text)
    with Steps() as steps:
        flags = [f"--target={B3}", "--enable-auto-multi-buffer=true", "--enable-auto-bind-sub-block=true"]
        flags += ["--enable-hfusion-compile=true", "--enable-hivm-compile=true", "--enable-triton-kernel-compile=true"]
        source = steps.write("in.mlir", text)
        steps.run("plain", [str(bishengir("bishengir-compile")), source, *flags, "--save-temps=out", "-o", "kernel.o"])
        custom = (steps.folder("plain") / "out" / "module.hivm.opt.mlir").read_text()
    assert " = memref.reinterpret_cast %" in custom
    assert bare == _without_locations(canonical(custom, "--mlir-print-op-generic"))


def _without_locations(text: str) -> str:
    bare = re.sub(r" ?loc\((?:#loc\d*|unknown|(?:[^()]|\([^()]*\))*)\)", "", re.sub(r"(?m)^#loc.*\n", "", text))
    return re.sub(r" +", " ", bare).strip()


def test_no_name_of_a_temporary_file_gets_into_the_result():
    with Steps() as steps:
        made = compile_linalg(vector(256), B3, CompileOptions(), steps)
        text = made.final_text + made.stderr
        assert str(steps.directory) not in text and '"linalg.mlir":' in text
    assert made.final_text == _compile(vector(256) + "// another key\n").final_text


@pytest.mark.parametrize("target", ["Ascend910B2", B3])
@pytest.mark.parametrize("barrier_all", [False, True])
def test_targets_and_modes(target, barrier_all):
    made = _compile(loop(1024), target, inject_barrier_all=barrier_all)
    assert ("hivm.hir.set_flag" in made.final_text) == (not barrier_all)
    assert f'"AI_CORE_COUNT", {TARGETS[target].cube_cores} :' in made.final_text


def test_memory_by_function_and_buffer():
    made = _compile(loop(1024))
    (function,) = made.memory.functions
    assert (function.name, function.core, made.memory.planned) == ("loop", "aiv", True)
    (ub,) = function.memories
    assert (ub.memory, ub.needed_bytes, ub.capacity_bytes, ub.fits) == ("UB", 12288, 192 << 10, True)
    assert {(b.extent_bytes, b.shape) for b in ub.buffers} == {(2048, "1024xf16")}
    assert {b.loc and b.loc.line for b in ub.buffers} == {11, 12} and all(
        len(b.offsets_bytes) == 2 for b in ub.buffers if b.loc and b.loc.line == 11
    )
    assert all(b.life is not None and b.life[0] <= b.life[1] for b in ub.buffers)
    assert max(b.end_bytes for b in ub.buffers) == ub.needed_bytes


def test_memory_of_cube_and_vector_functions():
    made = _compile(matmul(64, 128, 256))
    used = {use.memory: (use.needed_bytes, use.capacity_bytes) for use in made.memory.most()}
    assert used["L0C"] == (64 * 128 * 4, 128 << 10)
    assert used["L1"] == ((64 * 256 + 256 * 128) * 2, 512 << 10)
    assert [use.memory for use in made.memory.most()] == [name for name in ("UB", "L1", "L0C") if name in used]


@pytest.mark.parametrize("text", [vector(256), loop(1024), loop(16384), matmul(64, 128, 256), matmul(128, 256, 256)])
def test_addresses_of_the_final_module_add_up_to_what_the_planner_says(text):
    made = _compile(text)
    summed = sum_addresses(made.final_text, TARGETS[B3])
    assert not summed.planned
    assert [(use.memory, use.needed_bytes) for use in summed.most()] == [
        (use.memory, use.needed_bytes) for use in made.memory.most()
    ]


def test_without_the_planners_files_the_addresses_count(monkeypatch):
    monkeypatch.setattr(module, "read_memory_display", lambda folder, target: None)
    made = _compile(loop(1024))
    assert not made.memory.planned and [use.needed_bytes for use in made.memory] == [12288]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"Header": {}}', '{"Header": {"KernelName": "k"}, "Record": [1]}'])
def test_planner_files_that_say_nothing_count_as_missing(tmp_path, content):
    assert read_memory_display(tmp_path, TARGETS[B3]) is None
    (tmp_path / "memory_info_aiv.json").write_text(content)
    assert read_memory_display(tmp_path, TARGETS[B3]) is None


def test_a_kernel_that_fits_only_without_multi_buffering_says_so():
    made = _compile(loop(32768))
    assert made.retried_without == ("enable-code-motion", "enable-auto-multi-buffer")
    assert made.notes[-1].endswith("compilation then succeeded.") and made.memory.most()[0].needed_bytes == 192 << 10
    assert _compile(loop(32768), multibuffer=False).retried_without in ((), ("enable-code-motion",))
    assert _compile(loop(16384)).retried_without == ()


@pytest.mark.parametrize(
    ("text", "memory", "line", "needed", "there", "buffers"),
    [
        (vector(65536), "UB", 10, 3 * 131072, 192 << 10, ["11: 131072 bytes (65536xf16)"] * 2 + ["12: 131072 bytes"]),
        (matmul(256, 256, 64), "L0C", 20, 262144, 128 << 10, ["23: 262144 bytes"]),
        (matmul(128, 128, 2048), "L1", 20, 1 << 20, 512 << 10, ["21: 524288 bytes", "22: 524288 bytes"]),
    ],
)
def test_a_memory_that_overflows(text, memory, line, needed, there, buffers):
    first, head, *rest = _refused(text).splitlines()
    assert re.fullmatch(
        rf"{FILE}:{line}: kernel `\w+` \({B3}\) does not fit into {memory}: it needs {needed} bytes, {there} are there",
        first,
    )
    assert head.startswith(f"  largest buffers in {memory} of ")
    for said, expected in zip(rest, buffers, strict=False):
        assert said.startswith(f"    {FILE}:{expected}")
    assert "  also tried without enable-code-motion, enable-auto-multi-buffer" in rest


@pytest.mark.parametrize("text", [vector(65536), barrier("VECTOR"), vector(256, "f64")])
def test_files_are_named_as_they_are(text):
    """MLIR escapes what is not printable ASCII."""
    said = _refused(text.replace(FILE, "/src/n\\C3\\A4 \\22x\\22/k y.py"))
    assert said.startswith('/src/nä "x"/k y.py:') and "\\C3" not in said.split("its words")[0]


def test_an_element_type_that_the_library_lacks():
    text = _refused(vector(256, "f64"))
    assert text.startswith(f"{FILE}:12: kernel `vector` ({B3}) needs hivm.hir.vexp for an element type")


def test_an_operation_that_cannot_be_lowered():
    text = _refused(vector(256).replace("math.exp", "math.cosh"))
    assert text.startswith(
        f"{FILE}:12: kernel `vector` ({B3}) has an operation that the vendor's compiler cannot lower"
    )


def test_text_that_is_no_module_is_tdists_own_fault():
    text = _refused(vector(256).replace("arith.mulf", "arith.mulx"))
    assert text.startswith(f"{FILE}:10: kernel `vector`") and "tdist's fault" in text
    assert "is refused" in _refused("module {") or "fault" in _refused("module {")


def test_a_crash_names_the_pass_and_the_known_cause(tmp_path):
    with Steps(tmp_path / "ir") as steps, pytest.raises(KernelError) as raised:
        compile_linalg(barrier("VECTOR"), B3, CompileOptions(), steps)
    text = str(raised.value)
    assert text.startswith(f"{FILE}:33: bishengir-compile ")
    assert "crashes on kernel `barrier` in pass hivm-mark-real-core-type: SIGSEGV (exit 139)" in text
    assert "known cause: barrier_all makes this a kernel for cube and vector cores" in text
    (kept,) = (tmp_path / "ir").iterdir()
    assert kept.name == "00-before-the-failing-pass.mlir" and "dist.aclshmem_barrier_all" in kept.read_text()
    assert "aclshmem_barrier_all" in _compile(barrier("CUBE_AND_VECTOR")).final_text


def test_a_crash_on_unsigned_arithmetic_names_its_line():
    integers = vector(256, "i64").replace("arith.mulf", "arith.muli").replace("arith.addf", "arith.addi")
    text = _refused(integers.replace("math.exp %a", "arith.divui %a, %b"))
    assert text.startswith(f"{FILE}:12: bishengir-compile ") and "in pass convert-hfusion-to-hivm: SIGABRT" in text
    assert "for signed integers only" in text
    assert _compile(integers.replace("math.exp %a", "arith.divsi %a, %b")).form == "final module"


def test_a_conversion_that_the_library_lacks():
    text = vector(256, "i32").replace("arith.mulf", "arith.muli").replace("arith.addf", "arith.addi")
    text = text.replace(
        "%power = math.exp %a : tensor<256xi32>", "%f = arith.uitofp %a : tensor<256xi32> to tensor<256xf32>"
    ).replace(
        "%product = arith.muli %power, %b : tensor<256xi32>",
        "%g = math.exp %f : tensor<256xf32> %product = arith.fptosi %g : tensor<256xf32> to tensor<256xi32>",
    )
    said = _refused(text)
    assert f"kernel `vector` ({B3}) converts uint32_t to float, which this chip's library does not do at once" in said


def test_memory_is_limited_and_the_limit_is_ample():
    with Steps(limits=Limits(memory_bytes=64 << 20)) as steps:
        assert compile_linalg(matmul(64, 128, 256), B3, CompileOptions(), steps).form == "final module"
    told = [_refused_with_little_memory() for _ in range(6)]
    assert any("ran out of memory on kernel `matmul`" in text for text in told), told
    for text in told:  # where an allocation fails that it does not check, it crashes
        assert "TDIST_VENDOR_MEMORY_MIB sets the limit" in text or "crashes on kernel `matmul`: SIGSEGV" in text, text


def _refused_with_little_memory() -> str:
    with Steps(limits=Limits(memory_bytes=4 << 20)) as steps, pytest.raises(KernelError) as raised:
        compile_linalg(matmul(64, 128, 128), B3, CompileOptions(), steps)
    return str(raised.value)


def test_an_unknown_target_is_a_usage_error():
    with pytest.raises(UsageError, match="unknown target"):
        _compile(vector(256), "Ascend910B9")


def test_results_come_back_from_the_cache(monkeypatch):
    text = loop(1024)
    first = _compile(text)
    monkeypatch.setattr(Steps, "run", _must_not_run)
    again = _compile(text)
    assert again.cached and not first.cached
    assert {**vars(again), "cached": False} == vars(first)
    assert isinstance(again.memory, MemoryUse) and isinstance(
        again.memory.functions[0].memories[0].buffers[0].loc, SourceLoc
    )
    for other in ({"text": loop(2048)}, {"target": "Ascend910B2"}, {"inject_barrier_all": True}):
        with pytest.raises(AssertionError, match="runs a program"):
            _compile(**{"text": text, **other})


def _must_not_run(self, stage, argv, **_):
    raise AssertionError("runs a program")


def test_a_refusal_comes_back_from_the_cache_and_a_crash_does_not(monkeypatch):
    refusal = _refused(vector(65536))
    _refused(barrier("VECTOR"))
    monkeypatch.setattr(Steps, "run", _must_not_run)
    assert _refused(vector(65536)) == refusal
    with pytest.raises(AssertionError, match="runs a program"):
        _compile(barrier("VECTOR"))


def test_a_cached_result_is_kept_as_ir_too(tmp_path):
    _compile(vector(256))
    with Steps(tmp_path / "ir") as steps:
        made = compile_linalg(vector(256), B3, CompileOptions(), steps)
    assert made.cached and (tmp_path / "ir" / "00-final.mlir").read_text() == made.final_text
