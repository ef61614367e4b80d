"""compile_kernel: the disk cache trusts nothing that others could have written; errors name op and line; flags."""

from __future__ import annotations

import pytest
import torch

from tdist.errors import KernelError
from tdist.frontend.kernel_ir import KernelArg, KernelIR
from tdist.platforms.sim import compiler, source_cache
from tdist.platforms.sim.codegen.poly import Poly

TTIR = """
module {
  tt.func public @fill(%x: !tt.ptr<f32> loc("k.py":1:0), %n: i32 loc("k.py":1:0)) attributes {noinline = false} {
    %c = arith.constant 2.5 : f32
    %p = tt.addptr %x, %n : !tt.ptr<f32>, i32 loc(#loc1)
    tt.store %p, %c : !tt.ptr<f32> loc(#loc1)
    tt.return
  }
}
#loc1 = loc("k.py":7:4)
"""
KERNEL = KernelIR("fill", TTIR, (KernelArg("x", "*fp32"), KernelArg("n", "i32")))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TDIST_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TDIST_NO_CACHE", raising=False)
    compiler.clear_caches()
    yield tmp_path / "sim"
    compiler.clear_caches()


def test_source_is_kept_privately_and_read_back(folder):
    first = compiler.compile_kernel(KERNEL)
    (kept,) = folder.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700 and kept.stat().st_mode & 0o077 == 0
    compiler.clear_caches()
    again = compiler.compile_kernel(KERNEL)
    assert again is not first and again.source == first.source and again.stats == first.stats
    assert [(s.op, s.line, s.arg) for s in again.sites if s.op == "store"] == [("store", 7, "x")]


def test_a_changed_file_is_ignored_with_a_note(folder, caplog):
    source = compiler.compile_kernel(KERNEL).source
    (kept,) = folder.iterdir()
    kept.write_bytes(kept.read_bytes().replace(b"2.5", b"3.5"))
    compiler.clear_caches()
    assert compiler.compile_kernel(KERNEL).source == source
    assert "digest" in caplog.text


def test_a_directory_open_to_others_is_not_used(folder, caplog):
    folder.mkdir()
    folder.chmod(0o755)
    compiler.compile_kernel(KERNEL)
    assert not list(folder.iterdir()) and "0700" in caplog.text


def test_a_link_is_not_followed(folder):
    compiler.compile_kernel(KERNEL)
    (kept,) = folder.iterdir()
    kept.rename(folder / "elsewhere")
    kept.symlink_to(folder / "elsewhere")
    assert source_cache.load(kept.stem) is None


def test_options_and_content_make_different_kernels(folder):
    detect, plain = (compiler.compile_kernel(KERNEL, compiler.SimOptions(detect=d)) for d in (True, False))
    assert detect is not plain and detect is compiler.compile_kernel(KERNEL)
    assert "True)" in detect.source and "True)" not in plain.source
    assert not (detect.has_dot or detect.uses_barrier_all or detect.uses_sub_vec)


def test_an_operation_without_a_rule_is_an_error_with_its_line(folder):
    text = TTIR.replace(
        "%c = arith.constant 2.5 : f32",
        "%a = arith.constant 2.5 : f32\n    %c = math.erf %a : f32\n    "
        '%z = tt.extern_elementwise %a {libname = "other", libpath = "", pure = false, symbol = "mystery"} '
        ": (f32) -> f32 loc(#loc1)",
    )
    with pytest.raises(KernelError, match=r"k\.py:7.*tt\.extern_elementwise"):
        compiler.compile_kernel(KernelIR("fill", text, KERNEL.args))


def test_polynomials():
    x, y = Poly.symbol("x"), Poly.symbol("y")
    assert (x + y) * (x - y) == x * x - y * y and not x - x
    assert (x * y + x + Poly.const(3)).linear_in("y") == (x + Poly.const(3), x)
    assert (x * x).linear_in("x") is None
    assert (x * y).substituted({"x": y + Poly.const(1)}) == y * y + y
    assert x.scaled(4).divided(2) == x.scaled(2) and x.scaled(3).divided(2) is None
    assert (x.name, Poly.const(5).value, x.value) == ("x", 5, None)


def test_bf16_scalars_round_as_torch_does():
    from tdist.platforms.sim.codegen.arithmetic import round_bf16, round_f16

    values = torch.tensor(
        [0.1, 1.00390625, 1.01171875, 3e38, 3.4e38, -7e-41, 65519.0, 65520.0, 6e-8], dtype=torch.float64
    )
    assert [round_bf16(v) for v in values.tolist()] == values.float().bfloat16().double().tolist()
    assert [round_f16(v) for v in values.tolist()] == values.float().half().double().tolist()
