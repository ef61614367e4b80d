"""The programming rules on sources: each rule speaks where it is broken and is silent where it is kept."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner

from tdist.errors import UsageError
from tdist.lint import RULES, lint_file, lint_text, rule_of
from tdist.tools.lint import lint_command

ROOT = Path(__file__).parents[2]
HEAD = """
import torch
import triton
import triton.language as tl
import triton_dist.language as dl
from triton.language.extra.cann.extension import sub_vec_id
from triton_dist.language.extra import libshmem_device

N_CORES = 24
"""
BROKEN = {
    "scalar-base": [
        """
        @triton.jit
        def kernel(ptr, peer, B: tl.constexpr):
            offs = tl.arange(0, B)
            remote = dl.symm_at(ptr + offs, peer)  # <here>
        """,
        """
        @triton.jit
        def move(block_ptr, peer):
            return libshmem_device.remote_ptr(block_ptr, peer)  # <here>

        @triton.jit
        def kernel(ptr, peer, B: tl.constexpr):
            move(ptr + tl.arange(0, B)[:, None] * 4, peer)
        """,
    ],
    "missing-consume-token": [
        """
        @triton.jit
        def kernel(data, sig, out):
            dl.wait(sig, 1, "npu", "acquire")  # <here>
            tl.store(out, tl.load(data))
        """,
        """
        @triton.jit
        def kernel(data, sig, out):
            token = dl.wait(sig, 1, "npu", "acquire")  # <here>
            tl.store(out, tl.load(data))
        """,
    ],
    "narrow-accumulator": [
        """
        @triton.jit
        def kernel(a, b, c):
            acc = tl.zeros((16, 16), dtype=tl.float16)  # <here>
            for k in range(4):
                acc += tl.dot(a, b)
        """,
        """
        @triton.jit
        def kernel(a, b, c):
            acc = tl.zeros((16, 16), tl.bfloat16)  # <here>
            acc = tl.dot(a, b, acc)
        """,
    ],
    "remote-atomic": [
        """
        @triton.jit
        def kernel(ptr, peer, B: tl.constexpr):
            remote = dl.symm_at(ptr, peer) + tl.arange(0, B)
            tl.atomic_add(remote, 1)  # <here>
        """,
        """
        @triton.jit
        def add(target_ptr):
            tl.atomic_max(target_ptr, 1)  # <here>

        @triton.jit
        def kernel(ptr, peer):
            add(dl.symm_at(ptr, peer))
        """,
    ],
    "hard-coded-cores": [
        """
        def host(x):
            kernel[(24,)](x)  # <here>

        @triton.jit
        def kernel(x):
            pass
        """,
        """
        @triton.jit
        def kernel(x, tasks):
            for task in range(tl.program_id(0), tasks, 20):  # <here>
                tl.store(x + task, 1)
        """,
        """
        def host(x):
            kernel[N_CORES,](x)  # <here>

        @triton.jit
        def kernel(x):
            pass
        """,
        """
        def host(x, grid):
            num_cores = 48  # <here>
            kernel[grid](x)

        @triton.jit
        def kernel(x):
            pass
        """,
    ],
    "gated-barrier": [
        """
        @triton.jit
        def kernel(x):
            if sub_vec_id() == 0:
                libshmem_device.barrier_all()  # <here>
        """,
        """
        @triton.jit
        def kernel(x):
            pid = tl.program_id(0)
            if pid > 0:
                return
            libshmem_device.barrier_all_vec()  # <here>
        """,
        """
        @triton.jit
        def kernel(x):
            first = dl.rank() == 0
            for step in range(3):
                if first:
                    tl.store(x, 1)
                    libshmem_device.barrier_all()  # <here>
        """,
    ],
    "no-grid-stride": [
        """
        @triton.jit
        def kernel(x, peer, B: tl.constexpr):
            pid = tl.program_id(0)  # <here>
            offs = pid * B + tl.arange(0, B)
            tl.store(dl.symm_at(x, peer) + offs, 1)
        """,
    ],
    "unrotated-target": [
        """
        @triton.jit
        def kernel(x, sig):
            world = dl.num_ranks()
            for i in range(tl.program_id(0), world * 4, tl.num_programs(0)):
                peer = i % world
                dl.notify(sig, peer, signal=1)  # <here>
        """,
        """
        @triton.jit
        def kernel(x, world_size):
            for peer in range(0, world_size):
                tl.store(dl.symm_at(x, peer), 1)  # <here>
        """,
    ],
    "one-dimensional-split": [
        """
        @triton.jit
        def kernel(x, tiles):
            world = dl.num_ranks()
            for r in range(tl.program_id(0), world, tl.num_programs(0)):  # <here>
                for t in range(tiles):
                    tl.store(x + r * tiles + t, 1)
        """,
        """
        @triton.jit
        def kernel(x, rank_size):
            core, cores = tl.program_id(0), tl.num_programs(0)
            for r in range(core, rank_size, cores):  # <here>
                tl.store(x + r, 1)
        """,
    ],
    "padding": [
        """
        import torch.nn.functional as F

        def host(x):
            x = F.pad(x, (0, 7))  # <here>
            kernel[(2,)](x)

        @triton.jit
        def kernel(x):
            pass
        """,
        """
        def host(x, m):
            padded = torch.zeros((triton.cdiv(m, 64) * 64, 8))
            padded[:m, :] = x  # <here>
            kernel[(2,)](padded)

        @triton.jit
        def kernel(x):
            pass
        """,
    ],
    "narrow-slots": [
        """
        @triton.jit
        def kernel(sig, tiles):
            for tile in range(tiles):
                dl.wait(sig + tile, 1, "npu", "acquire")  # <here> # tdist: allow missing-consume-token: not the point
        """,
        """
        @triton.jit
        def kernel(sig, peer):
            rank = dl.rank()
            dl.notify(sig + 4 * rank, peer, signal=1)  # <here>
        """,
        """
        @triton.jit
        def kernel(sig, peer):
            slot = tl.program_id(0) % 8
            dl.notify(sig + slot, peer, signal=1)  # <here>
        """,
    ],
}
KEPT = {
    "scalar-base": """
        @triton.jit
        def kernel(ptr, peer, B: tl.constexpr):
            remote = dl.symm_at(ptr + peer * 64, peer) + tl.arange(0, B)
            tl.store(remote, 1)
        """,
    "missing-consume-token": """
        @triton.jit
        def use(ptr, token):
            return tl.load(dl.consume_token(ptr, token))

        @triton.jit
        def wait_for(sig):
            return dl.wait(sig, 1, "npu", "acquire")

        @triton.jit
        def kernel(data, sig, out):
            token = dl.wait(sig, 1, "npu", "acquire")
            tl.store(out, use(data, token))
        """,
    "narrow-accumulator": """
        @triton.jit
        def kernel(a, b, c):
            tile = tl.zeros((16, 16), dtype=tl.float16)
            acc = tl.zeros((16, 16), dtype=tl.float32)
            acc += tl.dot(a, tile)
        """,
    "remote-atomic": """
        @triton.jit
        def kernel(ptr, out, peer):
            rank = dl.rank()
            tl.atomic_add(out, tl.load(dl.symm_at(ptr, peer)))
            tl.atomic_add(dl.symm_at(out, rank), 1)
        """,
    "hard-coded-cores": """
        def host(x, cores):
            kernel[(cores,)](x, block=24)
            kernel[(8,)](x)

        @triton.jit
        def kernel(x, tasks):
            for task in range(tl.program_id(0), tasks, tl.num_programs(0)):
                tl.store(x + task, 1)
            for k in range(0, 64, 20):
                tl.store(x + k, 1)
        """,
    "gated-barrier": """
        @triton.jit
        def kernel(x, steps, LAST: tl.constexpr):
            if sub_vec_id() == 0:
                tl.store(x, 1)
            for step in range(steps):
                libshmem_device.barrier_all()
            if LAST:
                libshmem_device.barrier_all()
        """,
    "no-grid-stride": """
        @triton.jit
        def kernel(x, peer, tasks, B: tl.constexpr):
            for task in range(tl.program_id(0), tasks, tl.num_programs(0)):
                tl.store(dl.symm_at(x, peer) + task * B + tl.arange(0, B), 1)

        @triton.jit
        def local(x, B: tl.constexpr):
            tl.store(x + tl.program_id(0) * B + tl.arange(0, B), 1)
        """,
    "unrotated-target": """
        @triton.jit
        def kernel(x, sig, table):
            rank, world = dl.rank(), dl.num_ranks()
            for i in range(tl.program_id(0), world, tl.num_programs(0)):  # tdist: allow one-dimensional-split: one tile
                dl.notify(sig, (rank + i) % world, signal=1)
                dl.notify(sig, tl.load(table + i), signal=1)
            dl.notify(sig, 0, signal=1)
        """,
    "one-dimensional-split": """
        @triton.jit
        def kernel(x, tiles):
            world = dl.num_ranks()
            for task in range(tl.program_id(0), world * tiles, tl.num_programs(0)):
                tl.store(x + task, 1)
            for r in range(0, world):
                tl.store(x + r, 1)
        """,
    "padding": """
        def host(x, m):
            buffer = torch.zeros((triton.cdiv(m, 64) * 64, 8))
            kernel[(2,)](x, buffer, m)

        def elsewhere(x):
            return torch.nn.functional.pad(x, (0, 1))

        @triton.jit
        def kernel(x, buffer, m):
            pass
        """,
    "narrow-slots": """
        @triton.jit
        def kernel(sig, peer, STRIDE: tl.constexpr):
            stride: tl.constexpr = dl.SIGNAL_SLOT_STRIDE(sig)
            rank = dl.rank()
            dl.notify(sig + rank * stride, peer, signal=1)
            dl.notify(sig + (rank + 3) * STRIDE, peer, signal=1)
            dl.notify(sig + rank * 16, peer, signal=1)
            dl.notify(sig + 1, peer, signal=1)
        """,
}


def text_of(snippet: str) -> str:
    return HEAD + textwrap.dedent(snippet)


def lines_of(text: str, marker: str = "# <here>") -> list[int]:
    return [number for number, line in enumerate(text.splitlines(), 1) if marker in line]


def remarks(text: str) -> list[tuple[str, int]]:
    return [(remark.rule.id, remark.line) for remark in lint_text(text) if not remark.allowed]


CASES = [(rule, snippet) for rule, snippets in BROKEN.items() for snippet in snippets]


@pytest.mark.parametrize(("rule", "snippet"), CASES, ids=[rule for rule, _ in CASES])
def test_a_broken_rule_is_remarked_at_its_line_and_nothing_else(rule, snippet):
    text = text_of(snippet)
    assert remarks(text) == [(rule, line) for line in lines_of(text)]


@pytest.mark.parametrize("rule", KEPT)
def test_a_kept_rule_is_silent(rule):
    assert remarks(text_of(KEPT[rule])) == []


def test_every_rule_has_both():
    assert set(BROKEN) == set(KEPT) == set(RULES)


def test_names_are_followed_through_imports():
    text = """
from triton import jit
from tdist.language import symm_at as at, rank as me
from triton.language import atomic_add

@jit
def kernel(p, peer):
    atomic_add(at(p, peer), 1)
    atomic_add(at(p, me()), 1)
"""
    assert remarks(text) == [("remote-atomic", 8)]


@pytest.mark.parametrize("folder", ["tdist/kernels", "verify/operators"])
def test_our_own_kernels_keep_the_rules(folder):
    for path in sorted((ROOT / folder).glob("*.py")):
        assert [remark for remark in lint_file(path) if not remark.allowed] == [], path


def test_an_allowance_needs_a_reason_and_is_shown():
    line = "    dl.wait(sig, 1, 'npu', 'acquire')"
    base = HEAD + "@triton.jit\ndef kernel(sig):\n"
    with_reason = base + line + "  # tdist: allow missing-consume-token: a fence follows\n"
    (remark,) = lint_text(with_reason)
    assert remark.allowed == "a fence follows"
    above = base + "    # tdist: allow missing-consume-token: a fence follows\n" + line + "\n"
    assert [remark.allowed for remark in lint_text(above)] == ["a fence follows"]
    with pytest.raises(UsageError, match="needs a reason"):
        lint_text(base + line + "  # tdist: allow missing-consume-token\n", "k.py")
    with pytest.raises(UsageError, match=r"k.py:\d+: there is no rule 'missing-token' \(did you mean"):
        lint_text(base + line + "  # tdist: allow missing-token: because\n", "k.py")


def test_a_rule_that_does_not_exist():
    with pytest.raises(UsageError, match=r"there is no rule 'remote_atomic' \(did you mean 'remote-atomic'\?\)"):
        rule_of("remote_atomic")


HOSTILE = {
    "syntax": b"def f(:\n",
    "null": b"x = 1\0\n",
    "encoding": b"x = '\xff\xfe'\n",
    "deep": b"x = " + b"(" * 3000 + b"1" + b")" * 3000 + b"\n",
    "sum": b"x = " + b"+".join([b"1"] * 20000) + b"\n",
    "codec": b"# -*- coding: nonsense -*-\n",
}


@pytest.mark.parametrize("name", [*HOSTILE, "folder", "missing"])
def test_what_cannot_be_read_is_one_line(name, tmp_path):
    path = tmp_path / f"{name}.py"
    if name in HOSTILE:
        path.write_bytes(HOSTILE[name])
    elif name == "folder":
        path.mkdir()
    try:
        found = lint_file(path)
    except UsageError as error:
        assert "\n" not in str(error) and path.name in str(error)
    else:
        assert name == "sum" and found == []


def run(*args: str):
    return CliRunner().invoke(lint_command, args, standalone_mode=False)


def test_the_command(tmp_path):
    text = text_of(BROKEN["remote-atomic"][0])
    (tmp_path / "kernels.py").write_text(text)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "kernels.py").write_text(text)
    report = tmp_path / "remarks.json"
    result = run(str(tmp_path), "--json", str(report))
    assert result.return_value == 1
    assert re.search(r"kernels\.py:\d+:5: remote-atomic: ", result.output)
    assert "Single Operator Development §2.2" in result.output and "1 file, 1 remark" in result.output
    (remark,) = json.loads(report.read_text())["remarks"]
    assert (remark["rule"], remark["line"]) == ("remote-atomic", lines_of(text)[0])
    assert run(str(tmp_path), "--rule", "gated-barrier").return_value == 0


def test_the_command_refuses_without_losing_what_it_found(tmp_path):
    (tmp_path / "a.py").write_text(text_of(BROKEN["remote-atomic"][0]))
    (tmp_path / "b.py").write_text("def f(:\n")
    result = run(str(tmp_path))
    assert isinstance(result.exception, UsageError) and "b.py:1" in str(result.exception)
    assert "remote-atomic" in result.output
    for args, told in [((), "which files"), ((str(tmp_path), "--rule", "x"), "there is no rule 'x'")]:
        result = run(*args)
        assert isinstance(result.exception, UsageError) and told in str(result.exception)


def test_the_list_names_all_rules():
    result = run("--list")
    assert all(rule in result.output for rule in RULES)
