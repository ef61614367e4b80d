"""`tdist-verify OP --mutate`: judging mutants, printing them, JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tdist.errors import UsageError
from tdist.tools.files import check_writable, write_json
from tdist.verify.options import Options


def parse_kinds(text: str) -> tuple[str, ...]:
    """`drop-wait,drop-notify` → a tuple, each once.

    Raises:
        UsageError: a kind that there is none of, or none at all.
    """
    from tdist.mutations import check_kind

    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise UsageError("--mutate-kinds needs at least one kind, such as drop-wait; --list names them")
    for name in names:
        check_kind(name)
    return names


def mutate_command(
    options: Options, mutate: bool, kinds: str | None, json_path: Path | None, given_too: Sequence[str]
) -> int:
    """Judge and report. What cannot be written costs neither the other output nor the verdict.

    Args:
        given_too: options on the command line that mean nothing here.

    Raises:
        UsageError: options that do not go together, or as `mutate_operator`.
    """
    if not mutate:
        raise UsageError("--mutate-kinds chooses among mutants: it needs --mutate")
    if given_too:
        raise UsageError(f"--mutate judges many runs, {given_too[0]} is about one: leave one of them out")
    if json_path is not None:
        check_writable("--json", json_path)
    chosen = () if kinds is None else parse_kinds(kinds)
    from tdist.verify.loader import load_operator
    from tdist.verify.mutation.mutate import mutate_operator
    from tdist.verify.mutation.report import LiveMutation, mutation_json

    live = LiveMutation(sys.stdout, options)
    report = mutate_operator(load_operator(options.operator), options, chosen, observer=live)
    try:
        live.conclude(report)
    finally:
        if json_path is not None:
            write_json(json_path, mutation_json(report))
    return report.exit_code
