"""The device library's source: in step with the symbol table, and sound as far as clang and stub headers can say."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from template_oracle import SOURCES, STUBS, parse_template
from vendor_oracle import vendor_tool

from tdist.errors import EnvironmentUnfit
from tdist.platforms.ascend.symbols import link_name, signatures
from tdist.platforms.ascend.template import build, generate

needs_clang = pytest.mark.skipif(
    importlib.util.find_spec("clang") is None, reason="waits for libclang (PyPI), which parses the template"
)

needs_library = pytest.mark.skipif(
    vendor_tool("ascendnpuir", "lib") is None, reason="waits for ascendnpu-ir, whose own library it looks at"
)

# ---- in step with the table -----------------------------------------------------------------------------------------


def test_the_generated_list_is_what_the_table_gives() -> None:
    assert generate.INSTANCES.read_text() == generate.instances()


def test_check_says_that_the_list_is_old(tmp_path: Path, monkeypatch, capsys) -> None:
    old = tmp_path / "instances.inc"
    old.write_text(generate.instances().replace("TDIST_P(", "TDIST_PTR(", 1))
    monkeypatch.setattr(generate, "INSTANCES", old)
    assert generate.main(["--check"]) == 1
    assert "is not what the symbol table gives" in capsys.readouterr().err
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0


@needs_clang
@pytest.mark.parametrize("variant", build.VARIANTS, ids=lambda variant: variant.name)
def test_the_template_defines_every_function_of_the_table_with_that_signature_and_no_other(variant) -> None:
    """Syntax-checked against stub headers, never built on a device."""
    parsed = parse_template(suffix=variant.suffix)
    assert parsed.diagnostics == ()
    assert dict(parsed.functions) == dict(signatures())
    assert len(signatures()) == 239


@needs_library
@pytest.mark.parametrize("variant", build.VARIANTS, ids=lambda variant: variant.name)
def test_link_names_end_as_in_the_vendors_own_library(variant: build.Variant) -> None:
    name = f"meta_op.{variant.name.replace('_', '.')}.c220.bc"
    bitcode = Path(str(vendor_tool("ascendnpuir", "lib", name))).read_bytes()
    for function in (b"init_debug", b"finish_debug"):
        assert b"_mlir_ciface_" + function + variant.suffix.encode() in bitcode
    others = {".cube", ".vector"} - {variant.suffix}
    assert not any(other.encode() in bitcode for other in others)


@needs_clang
@pytest.mark.parametrize(
    "file,old,new,symbol",
    [
        ("instances.inc", "TDIST_P(aclshmem_half_p, half, half)\n", "", "aclshmem_half_p"),
        ("instances.inc", "TDIST_P(aclshmem_int32_p, int32, int32_t)", "TDIST_P(aclshmem_int32_p, int64, int64_t)", ""),
        ("signals.h", "int32_t signal, int32_t sig_op, int32_t pe)) {\n  aclshmemx", None, "aclshmemx_signal_op"),
        ("signals.h", "(tdist::Signal sig, int32_t cmp", "(tdist::Memref<int16_t, 1> sig, int32_t cmp", ""),
        ("tokens.h", "tdist::Memref<T, Rank> *value", "tdist::Memref<T, 1> *value", ""),
        ("order.h", "TDIST_ENTRY(void, aclshmem_quiet,", "TDIST_ENTRY(void, aclshmem_quiets,", "aclshmem_quiets"),
    ],
)
def test_a_template_out_of_step_is_noticed(file: str, old: str, new: str | None, symbol: str) -> None:
    text = (SOURCES / file).read_text()
    assert old in text
    swapped = old.replace("signal, int32_t sig_op", "sig_op, int64_t signal") if new is None else new
    defined = dict(parse_template({file: text.replace(old, swapped)}).functions)
    assert defined != dict(signatures())
    if symbol:
        assert defined.get(symbol) != signatures().get(symbol)


@needs_clang
@pytest.mark.parametrize(
    "file,old,new",
    [
        ("memref.h", "  __gm__ T *aligned;", "  T *aligned;"),
        ("signals.h", "aclshmemx_signal_op(tdist::address(&sig), signal,", "aclshmemx_signal_op(tdist::address(&sig),"),
        ("signals.h", "return 0;", ""),
        ("identity.h", "(__gm__ T *)aclshmem_ptr(local->aligned", "aclshmem_ptr(local->aligned"),
    ],
)
def test_clang_against_the_stubs_sees_mistakes(file: str, old: str, new: str) -> None:
    text = (SOURCES / file).read_text()
    assert old in text
    assert parse_template({file: text.replace(old, new, 1)}).diagnostics


# ---- what the wrappers promise --------------------------------------------------------------------------------------


TYPE = r"(?:half|float|bfloat16|char|u?int(?:8|16|32|64))"


def library_call(symbol: str) -> tuple[str, ...] | None:
    """The function that a wrapper must call, and its arguments in order; None: none at all."""
    parameters = [name for name, _ in signatures()[symbol].parameters]
    if "_consume_token_" in symbol:
        return ("operator=", "result", "value") if signatures()[symbol].parameters[0][1].rank else None
    if re.fullmatch(f"aclshmem_ptr_{TYPE}", symbol):
        return ("remote", "result", *parameters)
    if wait := re.fullmatch(f"aclshmem_wait_({TYPE})", symbol):
        return (f"aclshmem_{wait[1]}_wait_until", "ptr slot stride_elems", "ACLSHMEM_CMP_EQ", "value")
    if wait := re.fullmatch(f"aclshmem_wait_until_({TYPE})", symbol):
        return (f"aclshmem_{wait[1]}_wait_until", *parameters)
    if transfer := re.fullmatch(f"aclshmem_(?:{TYPE}_)?([pg][eu]tmem.*?)(?:_{TYPE})?", symbol):
        return (f"aclshmem_{transfer[1]}", *parameters)
    return (symbol, *parameters)


@needs_clang
def test_every_wrapper_hands_its_parameters_in_order_to_the_library_function_of_its_name() -> None:
    """Swapping `signal` and `sig_op`, both int32, would make of each ADD of 1 a SET to 1."""
    calls = parse_template().calls
    for symbol in signatures():
        wanted = library_call(symbol)
        assert calls[symbol] == (() if wanted is None else (wanted,)), symbol


@needs_clang
def test_swapped_arguments_are_noticed() -> None:
    text = (SOURCES / "transfers.h").read_text()
    calls = parse_template({"transfers.h": text.replace("signal, sig_op, pe);", "sig_op, signal, pe);")}).calls
    assert calls["aclshmem_half_putmem_signal"] != (library_call("aclshmem_half_putmem_signal"),)


def test_waits_step_over_whole_lines() -> None:
    code = re.sub(r"//[^\n]*", "", (SOURCES / "signals.h").read_text())
    assert "kSlotBytes = 64;" in code
    assert "kSlotBytes / (int64_t)sizeof(T);" in code


def test_the_stubs_say_what_they_are() -> None:
    stubs = sorted(STUBS.iterdir())
    assert [stub.name for stub in stubs] == ["kernel_operator.h", "shmem.h"]
    assert all(stub.read_text().startswith("// STUB for checking syntax only") for stub in stubs)


# ---- building -------------------------------------------------------------------------------------------------------


@pytest.fixture
def kit(tmp_path: Path) -> build.Kit:
    """A compiler that writes its arguments and the link names for vector cores of mix kernels into its output."""
    names = tmp_path / "names"
    names.write_text("".join(f"{link_name(symbol)}.vector" for symbol in signatures()))
    compiler = tmp_path / "bisheng"
    compiler.write_text(f'#!/bin/sh\nfor last; do :; done\necho "$@" > "$last"\ncat {names} >> "$last"\n')
    compiler.chmod(0o755)
    for folder in ("cann", "shmem"):
        (tmp_path / folder).mkdir()
    return build.Kit(compiler, tmp_path / "cann", tmp_path / "shmem")


def run_build(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tdist.platforms.ascend.template.build", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "PYTHONWARNINGS": "error", **environment},
    )


def test_without_cann_the_build_says_what_is_missing_and_ends_with_3(tmp_path: Path) -> None:
    done = run_build("--out", str(tmp_path / "out"))
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    for part in ("not found: CANN's compiler `bisheng`", "ASCEND_HOME_PATH", "SHMEM_HOME_PATH", "--dry-run"):
        assert part in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_dry_run_prints_a_command_for_each_kind_of_core_and_architecture(tmp_path: Path) -> None:
    done = run_build("--dry-run", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.rpartition("/")[2] for line in lines] == [
        f"tdist_shmem.{variant}.{arch}.bc"
        for arch in ("c220", "c310")
        for variant in ("aic", "aiv", "mix_aic", "mix_aiv")
    ]
    for line in lines:
        assert ("-cce-enable-mix" in line) == ("mix_" in line)
        assert ("-cube" in line) == ("aic." in line)


def test_the_build_runs_the_compiler_that_it_finds(kit: build.Kit, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run_build(
        *("--out", str(out), "--arch", "c220", "--variant", "mix_aiv", "--bisheng", str(kit.compiler)),
        ASCEND_HOME_PATH=str(kit.cann),
        SHMEM_HOME_PATH=str(kit.shmem),
    )
    assert done.returncode == 0, done.stderr
    (made,) = out.iterdir()
    assert made.name == "tdist_shmem.mix_aiv.c220.bc"
    assert "--cce-aicore-arch=dav-c220-vec" in made.read_text()


def test_bitcode_without_the_names_that_kernels_call_is_not_kept(kit: build.Kit, tmp_path: Path) -> None:
    (tmp_path / "names").write_text("".join(link_name(symbol) for symbol in signatures()))
    parts = [f"--{name}={path}" for name, path in (("bisheng", kit.compiler), ("cann", kit.cann), ("shmem", kit.shmem))]
    done = run_build("--out", str(tmp_path / "out"), "--arch", "c220", "--variant", "mix_aic", *parts)
    assert done.returncode == 3
    assert "has not 239 of the 239 link names, `_mlir_ciface_aclshmem_my_pe.cube` for one" in done.stderr
    assert list((tmp_path / "out").iterdir()) == []


def test_a_compiler_that_refuses_leaves_nothing_behind(kit: build.Kit, tmp_path: Path) -> None:
    kit.compiler.write_text("#!/bin/sh\nfor last; do :; done\necho half > $last; echo 'no such function' >&2; exit 1\n")
    parts = [f"--{name}={path}" for name, path in (("bisheng", kit.compiler), ("cann", kit.cann), ("shmem", kit.shmem))]
    out = tmp_path / "out"
    done = run_build("--out", str(out), *parts)
    assert done.returncode == 3
    assert "no such function" in done.stderr
    assert "library.h" in done.stderr
    assert list(out.iterdir()) == []


def test_a_part_that_is_not_where_the_user_says_is_named(kit: build.Kit, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnfit, match=r"not at .*nowhere: ACLSHMEM's headers"):
        build.find_kit(kit.compiler, kit.cann, tmp_path / "nowhere")
