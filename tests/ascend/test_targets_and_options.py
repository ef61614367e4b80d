"""Targets and launch options: what the tables say is what the vendor's programs know."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from linalg_texts import matmul
from vendor_oracle import adapter, bishengir, needs_adapter, needs_compiler

from tdist.errors import UsageError
from tdist.platforms.ascend.lowering.steps import Steps
from tdist.platforms.ascend.options import CompileOptions, adapter_flags, bishengir_flags
from tdist.platforms.ascend.targets import TARGETS, Target, find_target

B3 = TARGETS["Ascend910B3"]


@needs_compiler
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_the_compiler_plans_with_the_same_chip(name):
    """The final module carries the vendor's own description of the target, sizes in bits."""
    with Steps() as steps:
        source = steps.write("in.mlir", matmul(64, 64, 64))
        flags = bishengir_flags(CompileOptions(), find_target(name))
        run = steps.run(
            "compile", [str(bishengir("bishengir-compile")), source, *flags, "--save-temps=out", "-o", "k.o"]
        )
        path = steps.folder("compile") / "out" / "module.hivm.opt.mlir"
        assert path.is_file(), run.stderr
        spec = dict(re.findall(r'dl_entry<"(\w+)", (\d+) : i32>', path.read_text()))
    ours = find_target(name)
    assert [int(spec[key]) for key in ("CUBE_CORE_COUNT", "VECTOR_CORE_COUNT")] == [ours.cube_cores, ours.vector_cores]
    sizes_bytes = [ours.ub_bytes, ours.l1_bytes, ours.l0a_bytes, ours.l0b_bytes, ours.l0c_bytes]
    assert [int(spec[f"{key}_SIZE"]) // 8 for key in ("UB", "L1", "L0A", "L0B", "L0C")] == sizes_bytes


@needs_compiler
def test_every_target_of_these_families_is_known():
    with Steps() as steps:
        offered = steps.run("help", [str(bishengir("bishengir-compile")), "--help"]).stdout
    named = set(re.findall(r"^ +=(Ascend910(?:B|_93)\S*)", offered, re.MULTILINE))
    assert named == set(TARGETS)


def test_an_unknown_target_names_the_known_and_the_nearest():
    with pytest.raises(UsageError, match=r"^unknown target 'ascend910b3'; did you mean Ascend910B3\? .*Ascend910_9391"):
        find_target("ascend910b3")
    with pytest.raises(UsageError, match=r"^unknown target 'A100'; tdist knows Ascend910B1, .*Ascend910_9392$"):
        find_target("A100")
    with pytest.raises(UsageError, match=r"^target Ascend910_9579 is of a family with other cores"):
        find_target("Ascend910_9579")
    assert isinstance(find_target("Ascend910B4-1"), Target)


@needs_adapter
def test_options_and_defaults_are_the_back_ends():
    import dataclasses

    from triton.backends.ascend.compiler import NPUOptions

    theirs = {each.name: each.default for each in dataclasses.fields(NPUOptions)}
    ours = {each.name: each.default for each in dataclasses.fields(CompileOptions)}
    assert ours == {name: theirs[name] for name in ours}
    of_other_chips = {"compile_on_910_95", "force_simt_only"}
    for name, default in theirs.items():
        if name not in ours and name not in of_other_chips:
            assert CompileOptions.of_launch({name: default}) == CompileOptions()
    assert not theirs["compile_on_910_95"] and CompileOptions.of_launch(dict.fromkeys(of_other_chips, False))


@needs_adapter
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"multibuffer": False, "inject_barrier_all": True, "sync_solver": False},
        {"enable_auto_bind_sub_block": False, "unit_flag": True, "inject_block_all": True},
        {"multibuffer": None, "limit_auto_multi_buffer_of_local_buffer": "no-l0c", "tile_mix_cube_loop": 2},
        {"set_workspace_multibuffer": 2, "tile_mix_vector_loop": 4, "disable_auto_inject_block_sync": True},
        {"enable_hivm_auto_cv_balance": True, "limit_auto_multi_buffer_only_for_local_buffer": True},
        {"enable_linearize": True, "enable_nd2nz_on_vector": True, "compile_mode": "unstructured_in_simt"},
    ],
)
def test_flags_are_those_of_the_back_ends_stages(options, monkeypatch, tmp_path):
    """The installed back end's stages run, and where they start a program its command is noted."""
    from triton.backends.ascend import compiler

    started: list[list[str]] = []

    class Started(Exception):
        pass

    def run(command, **_):
        started.append([str(word) for word in command])
        raise Started

    monkeypatch.setattr(compiler.subprocess, "run", run)
    monkeypatch.setattr(compiler, "_get_npucompiler_path", lambda: "/bin/bishengir-compile")
    monkeypatch.setattr(compiler, "_check_bishengir_api_change", lambda: True)
    monkeypatch.setattr(compiler, "_check_bishengir_is_regbased", lambda: False)
    monkeypatch.setattr(compiler, "NPUUtils", lambda: type("Utils", (), {"get_arch": lambda self: "Ascend910B3"})())
    chosen = compiler.NPUOptions(**options)
    metadata = {**vars(chosen), "hash": "0"}
    linalg = 'func.func @k() attributes {mix_mode = "aiv", parallel_mode = "simd"}'
    for stage in (
        lambda: compiler.ttir_to_linalg("module {}", dict(metadata), chosen, named_ops=True),
        lambda: compiler.linalg_to_bin_enable_npu_compile_A2_A3(linalg, dict(metadata), chosen),
    ):
        with pytest.raises(Started):
            stage()
    (_, _, *adapter_theirs, _, _), (_, _, *compiler_theirs, _, _) = started
    ours = CompileOptions(**options)
    extra = "--mlir-disable-threading"
    assert [flag for flag in adapter_flags(ours) if flag != extra] == adapter_theirs
    compiler_ours = [flag for flag in bishengir_flags(ours, B3) if flag != extra]
    assert compiler_ours == [re.sub("=(True|False)$", lambda found: found[0].lower(), flag) for flag in compiler_theirs]


SWITCHES = [
    "multibuffer",
    "enable_auto_bind_sub_block",
    "enable_hivm_auto_cv_balance",
    "sync_solver",
    "unit_flag",
    "inject_barrier_all",
    "inject_block_all",
    "limit_auto_multi_buffer_only_for_local_buffer",
    "disable_auto_inject_block_sync",
]
COUNTS = ["set_workspace_multibuffer", "tile_mix_vector_loop", "tile_mix_cube_loop"]


@needs_compiler
@pytest.mark.parametrize(
    "options",
    [
        *({name: value} for name in SWITCHES for value in (True, False)),
        *({name: 2} for name in COUNTS),
        {"limit_auto_multi_buffer_of_local_buffer": "no-limit"},
        {"limit_auto_multi_buffer_of_local_buffer": "no-l0c"},
    ],
    ids=str,
)
def test_the_compiler_knows_every_flag(options):
    with Steps() as steps:
        flags = bishengir_flags(CompileOptions(**options), B3)
        run = steps.run("version", [str(bishengir("bishengir-compile")), *flags, "--version"])
    assert run.ok, run.stderr


@needs_adapter
def test_the_adapter_knows_every_flag():
    options = CompileOptions(enable_linearize=True, enable_nd2nz_on_vector=True, force_simt_template=True)
    with Steps() as steps:
        run = steps.run("adapter", [str(adapter()), *adapter_flags(options)], stdin="module {}")
    assert run.ok, run.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"multibuffer": 1}, r"multibuffer must be True or False or None \(the compiler's choice\), got 1"),
        ({"enable_linearize": None}, "enable_linearize must be True or False, got None"),
        ({"tile_mix_cube_loop": 0}, "tile_mix_cube_loop must be a whole number > 0 or None .*, got 0"),
        ({"set_workspace_multibuffer": True}, "set_workspace_multibuffer must be a whole number"),
        ({"limit_auto_multi_buffer_of_local_buffer": "l0c"}, "must be 'no-limit' or 'no-l0c' or None"),
        ({"compile_mode": "simt_only"}, "compile_mode must be 'simd' or 'unstructured_in_simt', got 'simt_only'"),
        ({"inject_bariier_all": True}, "did you mean inject_barrier_all?"),
        ({"BLOCK": 64}, "'BLOCK' is not a launch option of triton-ascend's back end; it has multibuffer, "),
        ({"force_simt_only": True}, "force_simt_only=True is for chips of the 950 family only"),
    ],
)
def test_a_wrong_option_is_a_usage_error(options, says):
    with pytest.raises(UsageError, match=says):
        CompileOptions.of_launch(options)


def test_a_mode_of_the_gate_takes_the_place_of_the_launch_option():
    options = CompileOptions.of_launch({"inject_barrier_all": False, "num_warps": 8}, barrier_all=True)
    assert options.inject_barrier_all is True and options.changed() == {"inject_barrier_all": True}
    assert CompileOptions.of_launch({"inject_barrier_all": True}).inject_barrier_all is True
    assert CompileOptions().changed() == {}


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(SWITCHES), st.sampled_from([True, False, None])))
def test_each_set_option_gives_one_flag_and_no_other(options):
    flags = bishengir_flags(CompileOptions(**{**dict.fromkeys(SWITCHES), **options}), B3)
    fixed = bishengir_flags(CompileOptions(**dict.fromkeys(SWITCHES)), B3)
    values = [value for value in options.values() if value is not None]
    assert set(fixed) <= set(flags) and len(flags) - len(fixed) == len(values)
    assert sorted(flag.endswith("=true") for flag in set(flags) - set(fixed)) == sorted(values)
