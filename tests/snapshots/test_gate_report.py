"""What a reader of `tdist compile` sees, word for word."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from tdist.findings import Party, make
from tdist.frontend.kernel_ir import KernelArg, KernelIR
from tdist.platforms.ascend.gate import GateKernel, GateReport, GateResult, Refusal, Use
from tdist.platforms.ascend.gate_report import _where, render_gate, to_text

WIDE = """\
push [fp16 fine]  mine.py:7
  Ascend910B3, Ascend910B2
                barrier-all false              barrier-all true
  verdict       1 finding                      clean
  calls         two-phase, func.call carriers  two-phase, func.call carriers
  UB            10240 of 196608 B (5 %)        10240 of 196608 B (5 %)
  set_flag      2                              0
  pipe_barrier  1                              8
  time          0.50 s, 0.50 s                 0.25 s, 0.25 s (cached)
  barrier-all false: note: only fitted after the vendor's retry

in the compiled code, barrier-all false:
hazard [tdist.hazard.undrained-release] undrained signal: notify of box can overtake store on Ascend
  first  vector core: store of box
         at mine.py:10
  second vector core: notify
         at mine.py:12
  why    no fence, quiet, barrier or draining signal lies between the access and its agent's release
  when   under the ascend profile only
  try    put `libshmem_device.fence()` between the access and the notify

pull  mine.py:30
  Ascend910B3, Ascend910B2
           barrier-all false              barrier-all true
  verdict  refused by bishengir-compile   refused by bishengir-compile
  calls    two-phase, func.call carriers  two-phase, func.call carriers
  time     0.50 s, 0.50 s                 0.50 s, 0.50 s
  refused by bishengir-compile: mine.py:33: kernel `pull` does not fit into UB
    try: smaller tiles
FAILED  6 of 8 compilations not clean, 2.5 s
  push [fp16 fine] is clean with barrier-all true only
  no hivmc: the final module is the result; code generation and link were not run
  tools: bishengir-compile 1.2.0
Not seen by this run:
  - nothing ran on hardware
  - code generation and link: no hivmc here (it comes with CANN), the final module is the result
  - no argument is specialised by its value: the vendor's launcher compiles an int argument of value 1 in"""


def kernel(name: str, line: int, label: str = "") -> GateKernel:
    return GateKernel(KernelIR(name, f'#loc = loc("mine.py":{line}:0)\n', (KernelArg("x", "*fp16"),)), {}, label)


def report() -> GateReport:
    push, pull = kernel("push", 7, "fp16 fine"), kernel("pull", 30)
    parties = [
        Party(0, file="mine.py", line=10, op="store", tensor="box", role="vector core"),
        Party(0, file="mine.py", line=12, op="notify", role="vector core"),
    ]
    found = make("hazard.undrained-release", parties, tensor="box", first="store", second="notify")
    refusal = Refusal("bishengir-compile", "mine.py:33: kernel `pull` does not fit into UB\n  try: smaller tiles")
    through = {"form": "call", "use": (Use("UB", 10240, 196608),)}
    results = []
    for target in ("Ascend910B3", "Ascend910B2"):
        results += [
            GateResult(
                push,
                target,
                False,
                counts={"set_flag": 2, "pipe_barrier": 1, "sync_block_set": 0},
                notes=("only fitted after the vendor's retry",),
                findings=(found,),
                seconds={"adapter": 0.25, "bishengir": 0.25},
                **through,
            ),
            GateResult(
                push,
                target,
                True,
                counts={"set_flag": 0, "pipe_barrier": 8},
                seconds={"a": 0.25},
                cached=True,
                **through,
            ),
        ]
    for target in ("Ascend910B3", "Ascend910B2"):
        results += [GateResult(pull, target, b, refusal, form="call", seconds={"a": 0.5}) for b in (False, True)]
    return GateReport(tuple(results), ("bishengir-compile 1.2.0",), 2.5)


def test_the_report_word_for_word():
    assert to_text(report(), width=160) == WIDE


@pytest.mark.parametrize("width", [60, 100])
def test_a_narrow_terminal_breaks_lines_and_loses_nothing(width):
    """Cells are folded, never cut; what is not a table is one line whatever its length."""
    narrow = to_text(report(), width=width)
    assert sorted(narrow.replace("\n", " ").split()) == sorted(WIDE.replace("\n", " ").split())


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ((0, 1, 2, 3), ""),
        ((0, 2), "barrier-all false: "),
        ((0, 1), "Ascend910B3: "),
        ((3,), "Ascend910B2 barrier-all true: "),
        ((0, 3), "Ascend910B3 barrier-all false, Ascend910B2 barrier-all true: "),
        ((0, 1, 2), "Ascend910B3 barrier-all false, Ascend910B3 barrier-all true, Ascend910B2 barrier-all false: "),
    ],
)
def test_where_something_holds_is_said_briefly(places, said):
    results = report().results[:4]
    assert _where([results[place] for place in places], results) == said


def test_colours_change_nothing_but_colours():
    out = io.StringIO()
    render_gate(report(), Console(file=out, width=160, force_terminal=True, color_system="standard"))
    assert "\x1b[" in out.getvalue()
    plain = "\n".join(line.rstrip() for line in _without_escapes(out.getvalue()).splitlines())
    assert plain == WIDE


def _without_escapes(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
