"""Every rule of the model has a litmus test, and no test names a rule that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

from tdist.findings.kinds import KINDS, PREFIX

HERE = Path(__file__).parent
MODEL = HERE.parents[1] / "docs" / "ordering-model.md"
COMPILED = "tdist.compiled."
RULE = re.compile(r"^\| ([A-Z]{3}-\d+) \|", re.MULTILINE)
CITED = re.compile(r"@covers\(([^)]*)\)")


def rules() -> list[str]:
    return RULE.findall(MODEL.read_text(encoding="utf-8"))


def cited() -> set[str]:
    texts = [path.read_text(encoding="utf-8") for path in HERE.glob("test_litmus_*.py")]
    return {rule for text in texts for args in CITED.findall(text) for rule in re.findall(r'"([A-Z]{3}-\d+)"', args)}


def test_rules_have_one_id_each():
    found = rules()
    assert len(found) > 60
    assert len(found) == len(set(found))


def test_every_rule_has_a_test_and_every_test_a_rule():
    assert cited() == set(rules())


def test_the_guide_explains_every_kind_of_finding():
    text = MODEL.read_text(encoding="utf-8")
    table = text[text.index("## What the findings mean") : text.index("## What the tool cannot see")]
    firsts = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    explained = {PREFIX + name for cell in firsts for name in re.findall(r"`([^`]+)`", cell)}
    assert explained == {kind for kind in KINDS if not kind.startswith(COMPILED)}


def test_the_pages_on_compiled_code_name_every_kind_of_theirs():
    pages = [MODEL.with_name(name).read_text(encoding="utf-8") for name in ("compiled-code.md", "compiled-effects.md")]
    named = set(re.findall(r"^\| (.*?) \|", "\n".join(pages), re.M))
    words = {word.removeprefix("tdist.compiled.") for cell in named for word in re.findall(r"`([^`]+)`", cell)}
    assert {kind.removeprefix(COMPILED) for kind in KINDS if kind.startswith(COMPILED)} <= words
