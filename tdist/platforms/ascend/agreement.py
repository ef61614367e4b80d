"""One report of two judges: what simulated ranks say of a kernel at language level, and what its compiled code says.

The simulator judges the executions of a run, under the profiles `seed` (the language) and `ascend` (what the vendor's
library and compiler may do). The checks of the compiled code judge every path of one final module. They are asked the
same questions, each about a place in the source: is what this signal hands over drained, is it made once, does this
load see fresh memory, and so on. Where they answer differently, the row says why, with the assumptions behind it.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tdist.findings import Finding, Severity
from tdist.platforms.ascend.effects_in_code import SIGNAL, WAIT, Code, handed_over, written
from tdist.platforms.ascend.lowering.prepare import Prepared

CLEAN, NOT_ASKED = "clean", "–"
DRAINED, ONCE, FRESH, ALIAS, KEPT, ATOMIC, TURN, ADDRESS, ELSE = (
    *("drained", "made once", "fresh", "own store seen", "kept", "atomic"),
    *("in turn", "translated once", "other"),
)

LANGUAGE_TOPICS: Final[Mapping[str, str]] = {
    "hazard.undrained-release": DRAINED,
    "hazard.double-effect": ONCE,
    "hazard.stale-cache": FRESH,
    "hazard.hidden-alias": ALIAS,
    "hazard.atomic-lock": ATOMIC,
    "hazard.atomic-edge": ATOMIC,
    "hazard.atomic-turn": TURN,
    "lost-wait": KEPT,
    "merged-wait": KEPT,
    "pointer-misuse": ADDRESS,
}
CODE_TOPICS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("both-cores", "both-vector-cores", "split-store", "wrong-core", "repeated-effect"), ONCE),
    "widened-store": ONCE,
    **dict.fromkeys(("lost-effect", "merged-effect", "moved-effect"), KEPT),
    **{"lock-atomic": ATOMIC, "lock-turn": TURN, "translated-twice": ADDRESS},
}
"""Kinds `tdist.compiled.*` that are not about order; the others are told apart by `_ORDER_WORDS`."""

_ORDER_WORDS: Final[tuple[tuple[str, str], ...]] = (("stale", FRESH), ("cache", FRESH), ("alias", ALIAS), ("", DRAINED))


@dataclass(frozen=True, slots=True)
class Reason:
    """Why two judges may differ. `assumptions` are ids of the table of assumptions."""

    id: str
    text: str
    assumptions: tuple[str, ...] = ()


REASONS: Final = {
    reason.id: reason
    for reason in (
        Reason(
            "barrier-all",
            "the profile judges flags between pipes; this setting puts a barrier of all pipes before each operation",
            ("flag-covers-pipe", "scalar-does-not-wait"),
        ),
        Reason(
            "compiler-ordered",
            "the profile lets the signal overtake every access; the compiler ordered this one, because the call has "
            "its memory as an operand or another flag covers it",
            ("flag-covers-pipe",),
        ),
        Reason(
            "halves",
            "at language level a program is one agent (two with sub_vec_id()); the compiler makes a function for the "
            "cube core and one for two vector cores, and decides which of them make a call",
            ("halves-run-alike",),
        ),
        Reason(
            "placed",
            "the profile warns of what may happen in a kernel with tl.dot or sub_vec_id(); here the compiler put it "
            "on one core",
            ("halves-run-alike",),
        ),
        Reason(
            "not-run",
            "the compiled code is judged on every path, the simulator on those that its runs took",
        ),
        Reason(
            "protocol",
            "this is about several ranks or launches; the compiled code of one kernel cannot show it",
        ),
        Reason(
            "vendor-pass",
            "a pass of the vendor's compiler did it, which the simulated compilation does not have",
        ),
        Reason(
            "code-only",
            "the language has no such thing: registers of the core, unified buffer, pipes, the launch's lock",
            ("arguments-do-not-overlap",),
        ),
        Reason(
            "alias",
            "the check of the code takes a peer's memory for another than the rank's own; the simulator saw symm_at of "
            "the rank itself, whose memory it is",
            ("arguments-do-not-overlap", "peers-differ"),
        ),
        Reason(
            "cache-profile",
            "the profile holds every scalar load and gather after a wait for stale; the compiled load is another, or "
            "does not go through the data cache",
            ("wait-invalidates-one-line",),
        ),
    )
}


@dataclass(frozen=True)
class Question:
    """What both are asked: a topic and a place in the source.

    `lines` are (file, line) of everything that a finding on this question may name, `at` is where it is shown.
    """

    topic: str
    at: str
    lines: frozenset[tuple[str, int]]
    about: str = ""


@dataclass(frozen=True)
class Row:
    """The answers to one question. `code` has one for each compiled form, such as "fine" and "barrier-all"."""

    question: Question
    seed: str
    ascend: str
    code: Mapping[str, str]
    reasons: Mapping[str, Reason] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        """Whether the `ascend` profile and every compiled form say the same."""
        return not self.reasons


def compare(prepared: Prepared, language: Iterable[Finding], code: Mapping[str, Iterable[Finding]]) -> list[Row]:
    """Set both judgements side by side.

    Args:
        prepared: the kernel, whose signals, waits and atomics are the questions.
        language: findings of simulated runs; those about other kernels are left out by their lines.
        code: name of a compiled form → findings in its code.

    Returns:
        A row for each question of the kernel and for each finding that answers none of them, in order of lines.
    """
    source = written(prepared.module)
    ours = _lines_of(source)
    told = [finding for finding in language if not _lines(finding) or _lines(finding) & ours]
    found = {name: list(findings) for name, findings in code.items()}
    questions = list(_questions(source))
    asked = [*questions, *_further(questions, told, [f for findings in found.values() for f in findings])]
    return [_row(question, told, found) for question in sorted(asked, key=_order)]


def _order(question: Question) -> tuple:
    return (min(question.lines, default=("", 0)), question.topic)


def _lines(finding: Finding) -> frozenset[tuple[str, int]]:
    return frozenset((party.file, party.line) for party in finding.parties if party.file and party.line)


def _lines_of(code: Code) -> frozenset[tuple[str, int]]:
    located = [*(call.loc for call in code.calls), *(access.loc for access in code.accesses)]
    return frozenset((loc.file, loc.line) for loc in located if loc is not None)


def _questions(code: Code) -> Iterator[Question]:
    """What can be asked of a kernel: is each signal drained and made once, is each wait still there."""
    seen: set[tuple] = set()
    for call in code.calls:
        if call.loc is None or call.kind not in (SIGNAL, WAIT) or (call.kind, str(call.loc)) in seen:
            continue
        seen.add((call.kind, str(call.loc)))
        line = (call.loc.file, call.loc.line)
        if call.kind == WAIT:
            yield Question(KEPT, str(call.loc), frozenset({line}), call.symbol)
            continue
        yield Question(ONCE, str(call.loc), frozenset({line}), call.symbol)
        data = {(a.loc.file, a.loc.line) for a in handed_over(code, call) if a.loc is not None}
        yield Question(DRAINED, str(call.loc), frozenset({line, *data}), call.symbol)


def topic_of(finding: Finding) -> str:
    """What a finding of either judge is about."""
    kind = finding.kind.removeprefix("tdist.")
    if not kind.startswith("compiled."):
        return LANGUAGE_TOPICS.get(kind, ELSE)
    name = kind.removeprefix("compiled.")
    if name in CODE_TOPICS:
        return CODE_TOPICS[name]
    if name == "staging-overlap":
        return ELSE
    return next(topic for word, topic in _ORDER_WORDS if word in name)


def _answers(question: Question, finding: Finding) -> bool:
    """Whether a finding is about a question: of its topic, and at one of its places.

    A release is undrained at the access that is in flight: of a simulated race the earlier one counts, of a finding in
    the code each.
    """
    if topic_of(finding) != question.topic:
        return False
    first = [(p.file, p.line) for p in finding.parties[:1]]
    simulated = not finding.kind.startswith("tdist.compiled.")
    places = set(first) if simulated and question.topic == DRAINED else _lines(finding)
    if question.topic == ELSE:
        return finding.title == question.about
    return bool(places & question.lines)


def _further(questions: Sequence[Question], *lists: Sequence[Finding]) -> Iterator[Question]:
    """A question for each finding that answers none."""
    made: list[Question] = []
    for finding in (finding for findings in lists for finding in findings):
        if any(_answers(question, finding) for question in (*questions, *made)):
            continue
        topic = topic_of(finding)
        at = next((party.at for party in finding.parties if party.line), "")
        made.append(Question(topic, at, _lines(finding), finding.title))
        yield made[-1]


def _row(question: Question, language: Sequence[Finding], code: Mapping[str, Sequence[Finding]]) -> Row:
    said = [finding for finding in language if _answers(question, finding)]
    seed = _word([finding for finding in said if finding.severity is not Severity.HAZARD])
    ascend = _word(said)
    answers = {name: _word([f for f in findings if _answers(question, f)]) for name, findings in code.items()}
    reasons = {}
    for name, answer in answers.items():
        if (answer == CLEAN) != (ascend == CLEAN):
            reasons[name] = REASONS[_why(question, ascend, name)]
    return Row(question, seed, ascend, answers, reasons)


def _word(findings: Sequence[Finding]) -> str:
    kinds = dict.fromkeys(
        f.kind.removeprefix("tdist.").removeprefix("compiled.").removeprefix("hazard.") for f in findings
    )
    return ", ".join(kinds) or CLEAN


_ONLY_LANGUAGE: Final = {
    DRAINED: "compiler-ordered",
    ONCE: "placed",
    FRESH: "cache-profile",
    ALIAS: "alias",
}
_ONLY_CODE: Final = {ONCE: "halves", KEPT: "vendor-pass", ELSE: "code-only"}


def _why(question: Question, ascend: str, form: str) -> str:
    """The reason of a row in which the code says something else than the `ascend` profile."""
    if ascend == CLEAN:
        return _ONLY_CODE.get(question.topic, "not-run")
    if form == "barrier-all" and question.topic in (DRAINED, ALIAS):
        return "barrier-all"
    return _ONLY_LANGUAGE.get(question.topic, "protocol")


WIDE: Final = 100
"""From this many columns on the kinds of a cell stand beside each other, else below each other."""

# ---- for readers -----------------------------------------------------------------------------------------------------


def render_agreement(rows: Sequence[Row], console: Console) -> None:
    """A table of the answers, and below it why some differ."""
    forms = list(dict.fromkeys(form for row in rows for form in row.code))
    narrow = console.width < WIDE
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1 if narrow else 2, 0, 0))
    for name in ("question", "at", "seed", "ascend", *(f"code, {form}" for form in forms), ""):
        table.add_column(name, overflow="fold", no_wrap=name != "at")  # a kind cut in two is no kind
    notes: dict[str, Reason] = {}
    for row in rows:
        for reason in row.reasons.values():
            notes.setdefault(reason.id, reason)
        marks = ", ".join(dict.fromkeys(reason.id for reason in row.reasons.values()))
        cells = [row.seed, row.ascend, *(row.code.get(form, NOT_ASKED) for form in forms)]
        table.add_row(
            row.question.topic, _short(row.question.at), *(_cell(cell, narrow) for cell in cells), Text(marks, "yellow")
        )
    console.print(table)
    for reason in notes.values():
        behind = f" (assumes {', '.join(reason.assumptions)})" if reason.assumptions else ""
        console.print(Text(f"{reason.id}: {reason.text}{behind}"), soft_wrap=True)


def _short(place: str) -> str:
    return place.rsplit("/", 1)[-1]


def _cell(answer: str, narrow: bool) -> Text:
    shown = answer.replace(", ", "\n") if narrow else answer
    return Text(shown, "green" if answer == CLEAN else "dim" if answer == NOT_ASKED else "red")


def to_text(rows: Sequence[Row], width: int = 120) -> str:
    """The same as plain text."""
    out = io.StringIO()
    render_agreement(rows, Console(file=out, width=width, color_system=None, force_terminal=False))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def agreement_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as JSON values."""
    return [
        {
            "topic": row.question.topic,
            "at": row.question.at,
            "about": row.question.about,
            "seed": row.seed,
            "ascend": row.ascend,
            "code": dict(row.code),
            "agrees": row.agrees,
            "reasons": {
                form: {"id": reason.id, "text": reason.text, "assumptions": list(reason.assumptions)}
                for form, reason in row.reasons.items()
            },
        }
        for row in rows
    ]


__all__ = [
    "REASONS",
    "Question",
    "Reason",
    "Row",
    "agreement_json",
    "compare",
    "render_agreement",
    "to_text",
    "topic_of",
]
