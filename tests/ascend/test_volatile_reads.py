"""Polling loops and volatile loads that the vendor's adapter deletes are findings; what is kept is silent."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

pytest.importorskip("triton.backends.ascend", reason="waits for triton-ascend, whose adapter it runs")
pytest.importorskip("ascendnpuir", reason="waits for ascendnpu-ir, whose compiler it runs")

from effects_kernels import polls_with_volatile_loads, volatile_loads
from effects_kit import build, effects, kinds

from tdist.errors import KernelError
from tdist.findings import to_text
from tdist.platforms.ascend.compiled.final_module import FinalModule
from tdist.platforms.ascend.multiplicity import check_multiplicity
from tdist.platforms.ascend.provenance import full_name

GONE = [
    (polls_with_volatile_loads, "loop", "the loop that polls sig"),
    (volatile_loads, "unused", "the volatile load of sig"),
    (volatile_loads, "unused before a used one", "the volatile load of sig"),
    (volatile_loads, "unused in a loop", "the volatile load of sig"),
]
KEPT = [
    *(
        (polls_with_volatile_loads, how)
        for how in ("counted", "used", "atomics", "tile", "translates in the loop", "not at all")
    ),
    *((volatile_loads, how) for how in ("used", "used in a loop", "decides", "not volatile", "not at all")),
]


def _line(fn: Any, name: str) -> int:
    lines, first = inspect.getsourcelines(fn.fn)
    return next(first + index for index, text in enumerate(lines) if f"# <{name}>" in text)


def _loops(final: FinalModule) -> list[str]:
    return [full_name(op) for op in final.module.walk() if full_name(op) in ("scf.while", "scf.for")]


@pytest.mark.parametrize("barrier_all", [False, True], ids=["fine", "barrier-all"])
@pytest.mark.parametrize(("fn", "how", "what"), GONE)
def test_what_is_gone_is_found_once_at_its_line(fn, how: str, what: str, barrier_all: bool) -> None:
    prepared, final = build(fn, HOW=how, barrier_all=barrier_all)
    assert not _loops(final)
    found = check_multiplicity(prepared, final)
    assert kinds(found) == ["lost-effect"], [to_text(finding) for finding in found]
    assert what in found[0].title and "dl.wait" in found[0].cure
    assert [party.line for party in found[0].parties] == [_line(fn, how)]


@pytest.mark.parametrize(("fn", "how"), KEPT)
def test_what_is_kept_is_silent(fn, how: str) -> None:
    found = effects(fn, HOW=how)
    assert not found, [to_text(finding) for finding in found]
    if fn is polls_with_volatile_loads and how != "not at all":
        assert _loops(build(fn, HOW=how)[1])


def test_a_remote_address_that_only_the_deleted_loop_used_is_refused() -> None:
    """The two-phase form cannot put the address back where no access is left."""
    with pytest.raises(KernelError, match=r"effects_kernels\.py:\d+: aclshmem_ptr_int32: .*wait with dl\.wait"):
        build(polls_with_volatile_loads, HOW="remote loop")
