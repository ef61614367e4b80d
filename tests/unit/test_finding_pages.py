"""A page for each finding kind, which says what the code says, with an example that the corpus runs."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tdist.findings.kinds import KINDS
from tdist.user_file import execute

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "findings"
CORPUS = ROOT / "tests" / "faults" / "corpus"
EXAMPLE = re.compile(r"`(?P<pair>\w+)` in `tests/faults/corpus/(?P<file>\w+\.py)`")
COMMAND = re.compile(
    r"^    tdist-verify tests/faults/corpus/(?P<file>\w+\.py)::(?P<operator>\w+)(?P<options>.*)$", re.M
)
RULE = re.compile(r"\b([A-Z]{3}-\d+)\b")
WITHOUT_CODE = {
    "canary": "a kernel cannot write outside its allocation unseen: only a host's raw pointer can",
    "host-error": "an exception of a host function, no fault of a kernel",
}


def page(kind_id: str) -> str:
    return (PAGES / f"{kind_id.removeprefix('tdist.')}.md").read_text()


@pytest.fixture(scope="module")
def corpus():
    sys.path.insert(0, str(CORPUS))
    try:
        yield lambda file: execute(CORPUS / file)
    finally:
        sys.path.remove(str(CORPUS))


def test_there_is_a_page_for_each_kind_and_no_other():
    names = {path.stem for path in PAGES.glob("*.md")} - {"README"}
    assert names == {kind.removeprefix("tdist.") for kind in KINDS}


@pytest.mark.parametrize("kind_id", KINDS)
def test_a_page_names_its_kind_its_weight_and_what_to_try(kind_id):
    text = page(kind_id)
    assert text.startswith(f"# {kind_id}: ")
    assert f"Severity: {KINDS[kind_id].severity.value}:" in text
    assert re.search(r"^What to try:\n\n- ", text, re.M)


@pytest.mark.parametrize("kind_id", [kind for kind in KINDS if ".compiled." not in kind])
def test_the_example_is_one_that_the_corpus_runs(kind_id, corpus):
    short, text = kind_id.removeprefix("tdist."), page(kind_id)
    found = EXAMPLE.search(text)
    assert found is not None
    pair = next(pair for pair in corpus(found["file"]).PAIRS if pair.name == found["pair"])
    assert short in {expected.kind for expected in pair.expected} and not pair.missed
    command = COMMAND.search(text)
    assert command is not None and command["operator"] == f"{pair.name}_faulty" and command["file"] == found["file"]
    assert f"--nranks {pair.nranks}" in command["options"]
    assert ("--profile ascend" in command["options"]) == (pair.profile == "ascend")
    block = re.search(r"```python\n(.*?)```", text, re.S)
    if block is None:
        assert short in WITHOUT_CODE
        return
    assert block[1].strip() in (CORPUS / found["file"]).read_text()


def test_rules_that_pages_name_exist():
    known = set(RULE.findall((ROOT / "docs" / "ordering-model.md").read_text()))
    for kind_id in KINDS:
        assert set(RULE.findall(page(kind_id))) <= known, kind_id


def test_the_index_lists_every_page():
    index = (PAGES / "README.md").read_text()
    assert set(re.findall(r"\]\(([\w.-]+)\.md\)", index)) >= {kind.removeprefix("tdist.") for kind in KINDS}
