"""`tdist explain`: every finding's id has something to say, an unknown one is told."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tdist.errors import UsageError
from tdist.findings.kinds import KINDS
from tdist.tools.explain import explain_command


def run(*args: str):
    return CliRunner().invoke(explain_command, args, standalone_mode=False)


def test_the_list_has_every_kind():
    listed = [line.split()[0] for line in run().output.splitlines()]
    assert listed == list(KINDS)


@pytest.mark.parametrize("kind_id", KINDS)
def test_a_kind_says_what_it_means_and_what_to_try(kind_id):
    output = run(kind_id).output
    assert KINDS[kind_id].explanation in output and "try" in output
    assert "{" not in output
    assert run(kind_id.removeprefix("tdist.")).output == output


def test_an_unknown_id_is_one_line():
    result = run("raze")
    assert isinstance(result.exception, UsageError)
    assert "there is no finding 'raze' (did you mean 'race'?)" in str(result.exception)
