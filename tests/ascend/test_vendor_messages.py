"""The vendor's words become messages at the kernel's lines.

The words are those of AscendNPU-IR 1.2.0 and triton-ascend 3.2.0.
"""

from __future__ import annotations

import signal

import pytest

from tdist.errors import EnvironmentUnfit, KernelError
from tdist.platforms.ascend.vendor import messages
from tdist.platforms.ascend.vendor.messages import About, Diagnostic, diagnostics, explain, notes, retried_without
from tdist.platforms.ascend.vendor.run import ToolRun

NO_HIVMC = """[ERROR] Cannot find hivmc under $PATH
[ERROR] Failed to run `hivmc --version`.
[WARNING] Failed to detect hivmc version for backward compatibility
"""
RETRIED = """[NOTE] Ub overflow detected; automatically set enable-code-motion to false and retrying compilation.
[NOTE] Ub overflow detected; automatically set enable-auto-multi-buffer to false and retrying compilation.
[NOTE] Due to Ub overflow, automatically set enable-code-motion to false, set enable-auto-multi-buffer to false; """
PIPELINE = 'loc("/src/k.py":10:0): error: Failed to run BiShengHIR pipeline\n\n'
END = "[ERROR] Failed to run BiShengIR pipeline\n"
DUMP = """PLEASE submit a bug report to https://github.com/llvm/llvm-project/issues/ and include the crash backtrace.
Stack dump:
0.\tProgram arguments: bishengir-compile
"""
ABOUT = About(
    tool="bishengir-compile 1.2.0", kernel="k", at="/src/k.py:10", target="Ascend910B3", source_name="linalg.mlir"
)


# in a function of Triton's own library, called by the kernel
STANDARD = "/venv/lib/python3.11/site-packages/triton/triton_patch/language/standard.py"
CALLED = f'callsite("{STANDARD}":175:19 at "/src/k.py":12:15)'


def _run(stderr: str, code: int = 1, *, number: int | None = None, timed_out=False, out_of_memory=False) -> ToolRun:
    return ToolRun(("tool",), code, number, timed_out, out_of_memory, "", stderr, 1.5)


def _refused(words: str, about: About = ABOUT) -> str:
    error = explain(_run(f"{NO_HIVMC}{PIPELINE}{words}\n{END}"), about)
    assert isinstance(error, KernelError)
    return str(error)


@pytest.mark.parametrize(
    ("space", "memory", "bits", "cure"),
    [
        ("ub", "UB", (3145728, 1572864), "smaller tiles"),
        ("cbuf", "L1", (8388608, 4194304), "a smaller block of K"),
        ("cc", "L0C", (2097152, 1048576), "a smaller block of M or N"),
    ],
)
def test_an_overflow_is_told_in_bytes(space, memory, bits, cure):
    words = f"{space} overflow, requires {bits[0]} bits while {bits[1]} bits available! (possible reason: …)"
    text = _refused(f'loc("/src/k.py":10:0): error: {words}')
    first, *_, last = text.splitlines()
    assert first == (
        f"/src/k.py:10: kernel `k` (Ascend910B3) does not fit into {memory}: "
        f"it needs {bits[0] // 8} bytes, {bits[1] // 8} are there"
    )
    assert f"  bishengir-compile 1.2.0: {words}" in text and last.startswith(f"  try: {cure}")


def test_an_overflow_names_the_largest_buffers():
    about = About(**{**vars(ABOUT), "buffers": ("largest buffers in UB:", "  /src/k.py:12: 65536 bytes")})
    text = _refused('loc("/src/k.py":10:0): error: ub overflow, requires 16 bits while 8 bits available', about=about)
    assert "\n  largest buffers in UB:\n    /src/k.py:12: 65536 bytes\n" in text


KNOWN = [
    (
        "'hivm.hir.vexp' op failed to verify that operand at idx 0 and 1 should have element type "
        "16-bit float or 32-bit float",
        "needs hivm.hir.vexp for an element type that this chip's library does not have",
        "convert the values to one of: 16-bit float or 32-bit float",
    ),
    (
        "'hivm.hir.vcast' op currently don't support cast uint32_t_to_float_rintmode",
        "converts uint32_t to float, which this chip's library does not do at once",
        "use or go through a signed integer type of the same width",
    ),
    (
        "'hivm.hir.vcast' op currently don't support cast float_to_uint64_t_truncmode",
        "converts float to uint64_t, which",
        "use or go through a signed integer type of the same width",
    ),
    (
        "'arith.andi' op operand #0 must be signless-integer-like, but got 'f16'",
        "uses an operation for an element type that it does not take: arith.andi of f16",
        "convert the values: it takes signless-integer-like",
    ),
    (
        "failed to legalize operation 'math.cosh' that was explicitly marked illegal",
        "has an operation that the vendor's compiler cannot lower: math.cosh",
        "write it with other operations of tl",
    ),
    ("'hivm.hir.custom' op Missing core type information", "has a library call without core type", "tdist's fault"),
    ("'hivm.hir.custom' op Missing pipe information", "has a library call without pipe", "tdist's fault"),
    ("'hivm.hir.custom' op Missing implementation function name", "without a symbol", "tdist's fault"),
    ("custom op 'arith.addx' is unknown", "with an operation it does not know", "tdist's fault"),
    ("Dialect `foo' not found for custom op 'foo.addx' ", "with an operation it does not know", "tdist's fault"),
]
UNFIT = [
    "bishengir-compile: Unknown command line argument '--no-such=1'.  Try: 'bishengir-compile --help'",
    "bishengir-compile: for the --target option: Cannot find option named 'Ascend910X9'!",
    "[ERROR] Cannot find bishengir-compile-a5 under $PATH ",
    "/a/bishengir-opt: error while loading shared libraries: libz.so.1: cannot open shared object file: No such file",
    "/a/bishengir-opt: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found (required by /a/bishengir-opt)",
]


@pytest.mark.parametrize(("words", "says", "cure"), KNOWN)
def test_what_is_known_is_explained_at_its_line(words, says, cure):
    first, *others = _refused(f'loc("/src/k.py":12:4): error: {words}').splitlines()
    assert first.startswith("/src/k.py:12: kernel `k` (Ascend910B3) ") and says in first
    assert words.strip() in others[0] and cure in others[-1]


def test_every_row_has_words_here():
    """A row that no test reaches would be a guess."""
    overflows = [f"{space} overflow, requires 2 bits while 1 bits available" for space in ("ub", "cbuf", "cc")]
    said = [*overflows, *(words for words, _, _ in KNOWN), *(diagnostics(words)[0].text for words in UNFIT)]
    for row in messages.REFUSALS:
        assert any(row.pattern.search(words) for words in said), row.pattern.pattern


def test_what_is_not_known_is_passed_on_at_its_line():
    text = _refused('loc(callsite("/src/k.py":30:2 at "/src/k.py":12:4)): error: \'hivm.hir.vadd\' op is odd')
    assert text == (
        "/src/k.py:30: kernel `k` (Ascend910B3) is refused\n  bishengir-compile 1.2.0: 'hivm.hir.vadd' op is odd"
    )


def test_a_place_in_tritons_own_library_is_the_kernels_line():
    text = _refused(f"loc({CALLED}): error: 'hivm.hir.vreduce' op is odd\nloc({CALLED}): error: another")
    assert text.splitlines()[0] == "/src/k.py:12: kernel `k` (Ascend910B3) is refused"
    assert text.splitlines()[-1] == "  and: /src/k.py:12: another"


def test_a_place_in_the_text_that_we_made_is_not_shown_as_the_kernels():
    text = _refused("loc(\"linalg.mlir\":29:13): error: custom op 'arith.addx' is unknown")
    assert text.startswith("/src/k.py:10: kernel `k`") and "linalg.mlir" not in text.splitlines()[0]


def test_several_errors_lead_with_the_one_that_is_known():
    lines = [f'loc("/src/k.py":{line}:4): error: odd {line}' for line in range(20, 26)]
    lines[4] = "loc(\"/src/k.py\":24:4): error: failed to legalize operation 'math.cosh'"
    text = _refused("\n".join(lines))
    assert text.startswith("/src/k.py:24: kernel `k`") and "\n  and: /src/k.py:20: odd 20\n" in text
    assert text.count("\n  and: ") == 3 and "\n  and 2 more\n" in text


def test_more_lines_of_one_message_are_cut():
    found = diagnostics(
        'loc("a.py":1:2): error: first\n  see current operation: x\nk.py:3:4: note: second\n[NOTE] third  '
    )
    assert [(each.kind, each.text, each.loc and each.loc.line) for each in found] == [
        ("error", "first\n  see current operation: x", 1),
        ("note", "second", 3),
        ("note", "third", None),
    ]
    assert "is refused\n  bishengir-compile 1.2.0: first …" in _refused('loc("a.py":1:2): error: first\n  see: x')


@pytest.mark.parametrize("words", UNFIT)
def test_flags_and_programs_are_the_environments_fault(words):
    error = explain(_run(f"{words}\n"), ABOUT)
    assert isinstance(error, EnvironmentUnfit) and error.exit_code == 3
    assert diagnostics(words)[0].text.strip() in str(error) and "\n  try: install" in str(error)


def test_notes_say_what_was_retried_and_nothing_of_hivmc():
    stderr = f"{NO_HIVMC}{RETRIED}compilation then succeeded.\n[ERROR] Cannot find hivmc under $PATH\n{END}"
    assert retried_without(stderr) == ("enable-code-motion", "enable-auto-multi-buffer")
    assert len(notes(stderr)) == 3 and notes(stderr)[-1].endswith("compilation then succeeded.")
    assert retried_without(NO_HIVMC) == () == notes(NO_HIVMC)
    assert notes(f"loc({CALLED}): warning: odd\n") == ("/src/k.py:12: odd",)


def _crash(words: str, **about) -> str:
    run = _run(f"{NO_HIVMC}{words}{DUMP}", 139, number=signal.SIGSEGV)
    error = explain(run, About(**{**vars(ABOUT), **about}))
    assert isinstance(error, KernelError)
    return str(error)


def test_a_crash_names_stage_pass_signal_and_suspect():
    source = f"""first
    "hivm.hir.custom"() {{symbol = "aclshmem_barrier_all"}} : () -> () loc({CALLED})
    """
    text = _crash("", in_pass="hivm-mark-real-core-type", source=source)
    first, cause, cure = text.splitlines()
    assert first == (
        "/src/k.py:12: bishengir-compile 1.2.0 crashes on kernel `k` in pass hivm-mark-real-core-type: "
        "SIGSEGV (exit 139)"
    )
    assert cause.startswith("  known cause: barrier_all makes") and cure.startswith("  try: call barrier_all_vec()")


@pytest.mark.parametrize(
    ("says", "op"),
    [
        ("unsupported linalg binary operation kind", "%1 = arith.divui %a, %b : tensor<64xi64>"),
        ("unsupported hfusion binary operation kind", '%1 = "arith.remui"(%a, %b) : (…) -> (…)'),
        ("Not implemented", '%1 = "arith.maxui"(%a, %b) : (…) -> (…)'),
        (
            "mapCompareModeHFusionToHiVM: unsupported hfusion::CompareFn",
            '%1 = "arith.cmpi"(%a) <{predicate = 6 : i64}>',
        ),
        ("mapCompareModeHFusionToHiVM: unsupported hfusion::CompareFn", "%1 = arith.cmpi ult, %a, %b : tensor<64xi16>"),
    ],
)
def test_arithmetic_of_unsigned_integers(says, op):
    signed = '%0 = "arith.cmpi"(%a) <{predicate = 2 : i64}> loc("/src/k.py":7:1)\n'
    text = _crash(
        f"LLVM ERROR: {says}\n",
        in_pass="convert-hfusion-to-hivm",
        source=f"{signed}{op} loc(#loc3)\n#loc3 = loc({CALLED})",
    )
    assert text.startswith("/src/k.py:12: bishengir-compile") and "unsigned integers" in text
    assert f"its words: LLVM ERROR: {says}" in text
    assert "known cause" not in _crash(f"LLVM ERROR: {says}\n", in_pass="convert-hfusion-to-hivm", source=signed)


@pytest.mark.parametrize(
    ("words", "source", "cause"),
    [
        (
            "encountered AddPtrOp produced by unsupported operation\nUNREACHABLE executed\n",
            "",
            "a loop carries a tensor of pointers",
        ),
        (
            "getFullShapeOp() only support ReinterpretCastOp and scf.for's block argument\n",
            "",
            "a loop carries a block pointer",
        ),
        ("", "%r = scf.if %c -> (i32, !tt.ptr<f16>) {", "an `if` or a choice"),
        ("", "  }) : (i1) -> !tt.ptr<f16>", "an `if` or a choice"),
        ("", "%r = arith.select %c, %x, %q : !tt.ptr<f16>", "an `if` or a choice"),
    ],
)
def test_known_crashes_of_the_adapter(words, source, cause):
    text = _crash(words, tool="triton-adapter-opt 3.2.0", source=source)
    assert f"\n  known cause: {cause}" in text
    assert not words or f"its words: {words.splitlines()[0]}" in text


@pytest.mark.parametrize(
    "about",
    [
        {"in_pass": "hivm-mark-real-core-type", "source": "aclshmemx_barrier_all_vec"},
        {"in_pass": "another-pass", "source": "aclshmem_barrier_all"},
        {"tool": "triton-adapter-opt 3.2.0", "source": "scf.if %c -> (tensor<64x!tt.ptr<f16>>) {"},
        {"tool": "triton-adapter-opt 3.2.0", "source": "scf.for %i … iter_args(%p = %x) -> (!tt.ptr<f16>) {"},
    ],
)
def test_a_crash_without_known_cause_says_how_to_find_it(about):
    text = _crash("", **about)
    assert "known cause" not in text and "cut the kernel down" in text and "--keep-ir DIR" in text


def test_limits_are_named_by_the_variable_that_sets_them():
    late = explain(_run("", 137, number=9, timed_out=True), ABOUT)
    assert isinstance(late, KernelError) and "did not finish on kernel `k` within 2 s" in str(late)
    assert "TDIST_VENDOR_SECONDS sets the limit" in str(late)
    starved = explain(_run("LLVM ERROR: out of memory", 134, number=6, out_of_memory=True), ABOUT)
    assert "ran out of memory on kernel `k`" in str(starved) and "TDIST_VENDOR_MEMORY_MIB" in str(starved)


def test_a_failure_of_hivmc_is_told_in_its_words():
    stderr = (
        "ld.lld: undefined symbol: aclshmem_ptr_half\n[ERROR] Executing: /cann/hivmc module.hivm.opt.mlir -o kernel.o\n"
        'loc("/src/k.py":8:0): error: External hivmc run fails, returning module before running external compiler\n'
        + END
    )
    text = str(explain(_run(stderr), About(**{**vars(ABOUT), "hivmc": "/cann/hivmc"})))
    assert text.startswith(
        "/src/k.py:10: kernel `k` passes bishengir-compile 1.2.0, and hivmc (/cann/hivmc) refuses it\n"
    )
    assert "its words: ld.lld: undefined symbol: aclshmem_ptr_half\n" in text and "device library" in text


def test_a_failure_without_a_reason_says_so():
    assert "refuses kernel `k` in pass p without a reason: exit 1" in str(
        explain(_run(NO_HIVMC + PIPELINE + END), About(**{**vars(ABOUT), "in_pass": "p"}))
    )
    assert not messages.says_why(NO_HIVMC + PIPELINE + END) and messages.says_why("[ERROR] Failed to open: x")


@pytest.mark.parametrize(
    ("pipeline", "name"),
    [
        ("builtin.module(hivm-mark-real-core-type{remove-core-type-attrs=false})", "hivm-mark-real-core-type"),
        ("builtin.module(func.func(canonicalize-ext{top-down=true}))", "canonicalize-ext"),
        ("builtin.module(a,func.func(b{x=1 y=2},c))", "a, b, c"),
    ],
)
def test_the_pass_of_a_reproducer(pipeline, name):
    assert messages.of_the_pass(f'module {{}}\n{{-#\n mlir_reproducer: {{\n pipeline: "{pipeline}",\n') == name
    assert messages.of_the_pass("") == ""


def test_diagnostics_without_a_place():
    assert diagnostics("[ERROR] Failed to open: x\n") == [Diagnostic("error", "Failed to open: x")]
    assert diagnostics("loc(unknown): error: odd\n") == [Diagnostic("error", "odd")]


@pytest.mark.parametrize("how", [{"code": 1}, {"code": 134, "number": signal.SIGABRT}])
def test_a_full_disk_is_the_machines_fault(how):
    """Whichever way the program ends; a note before it says nothing about the kernel."""
    words = 'loc("/src/k.py":10:0): error: half\nLLVM ERROR: IO failure on output stream: No space left on device\n'
    error = explain(_run(words, **how), ABOUT)
    assert isinstance(error, EnvironmentUnfit)
    assert "No space left on device; free some space, or set TMPDIR" in str(error)
