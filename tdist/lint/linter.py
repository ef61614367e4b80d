"""A file's remarks: every rule over every kernel and host function, without what the file itself allows.

`# tdist: allow RULE: reason` at the end of a line (or on a line of its own above it) allows a rule there; the reason is
required and shown.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tdist.errors import UsageError
from tdist.lint import host_checks, kernel_checks
from tdist.lint.labels import LabelTable
from tdist.lint.rules import RULES, Rule, rule_of
from tdist.lint.source import Source

_KERNELS: Final[Mapping[str, tuple[Callable[..., Iterator[kernel_checks.Place]], ...]]] = {
    "scalar-base": (kernel_checks.scalar_base,),
    "missing-consume-token": (kernel_checks.missing_consume_token,),
    "narrow-accumulator": (kernel_checks.narrow_accumulator,),
    "remote-atomic": (kernel_checks.remote_atomic,),
    "hard-coded-cores": (kernel_checks.fixed_stride,),
    "gated-barrier": (kernel_checks.gated_barrier,),
    "no-grid-stride": (kernel_checks.no_grid_stride,),
    "unrotated-target": (kernel_checks.unrotated_target,),
    "one-dimensional-split": (kernel_checks.one_dimensional_split,),
    "narrow-slots": (kernel_checks.narrow_slots,),
}
_HOSTS: Final[Mapping[str, Callable[..., Iterator[kernel_checks.Place]]]] = {
    "hard-coded-cores": host_checks.hard_coded_cores,
    "padding": host_checks.padding,
}
_ALLOW = re.compile(r"#\s*tdist:\s*allow\s+(?P<rule>[\w-]+)\s*(?::\s*(?P<reason>\S.*))?")
MAX_BYTES: Final = 16 << 20
"""No kernel's source is larger; a file that is was not meant."""


@dataclass(frozen=True)
class Remark:
    """One place that breaks a rule.

    Attributes:
        text: the source line.
        allowed: the reason for which the file allows it; empty if it does not.
    """

    rule: Rule
    file: str
    line: int
    column: int
    message: str
    text: str
    allowed: str = ""

    def to_json(self) -> dict[str, Any]:
        place = {"file": self.file, "line": self.line, "column": self.column, "text": self.text}
        told = {"message": self.message, "instead": self.rule.instead, "allowed": self.allowed}
        return {"rule": self.rule.id, "source": self.rule.source, **place, **told}


def lint_file(path: Path, shown: str = "") -> list[Remark]:
    """Remarks of a file, by line.

    Args:
        shown: what remarks call the file; by default the path.

    Raises: UsageError if it cannot be read, is no Python source, or allows an unknown rule or one without a reason.
    """
    name = shown or str(path)
    if not path.is_file():
        raise UsageError(f"no such file: {name}" if not path.exists() else f"{name} is no regular file")
    try:
        content = path.read_bytes()
        if len(content) > MAX_BYTES:
            raise UsageError(f"{name} has {len(content)} bytes; a Python source of more than {MAX_BYTES} is refused")
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror or error}") from error
    except (UnicodeDecodeError, SyntaxError) as error:
        raise UsageError(f"{name} is no Python text: {error}") from error
    return lint_text(text, name)


def lint_text(text: str, name: str = "<text>") -> list[Remark]:
    """Remarks of a source text, by line.

    Raises: UsageError, as `lint_file`.
    """
    try:
        source = Source.parse(name, text)
    except SyntaxError as error:
        raise UsageError(f"{name}:{error.lineno or 1}: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{name} cannot be parsed: {error or 'it nests too deeply'}") from error
    allowed = _allowances(source)
    try:
        places = list(_places(source))
    except RecursionError as error:
        raise UsageError(f"{name} nests expressions too deeply to be checked") from error
    lines = text.splitlines()
    remarks = {_remark(source, lines, allowed, *place) for place in places}
    return sorted(remarks, key=lambda remark: (remark.line, remark.column, remark.rule.id))


def _places(source: Source) -> Iterator[tuple[str, Any, str]]:
    labels = LabelTable(source)
    for kernel in source.kernels.values():
        for rule, checks in _KERNELS.items():
            for check in checks:
                yield from ((rule, node, message) for node, message in check(source, labels, kernel))
    for function in source.others:
        for rule, check in _HOSTS.items():
            yield from ((rule, node, message) for node, message in check(source, function))


def _remark(
    source: Source, lines: list[str], allowed: Mapping[tuple[int, str], str], rule: str, node: Any, message: str
) -> Remark:
    line, column = node.lineno, node.col_offset + 1
    span = range(line, (getattr(node, "end_lineno", None) or line) + 1) if not hasattr(node, "body") else (line,)
    reason = next((allowed[at, rule] for at in span if (at, rule) in allowed), "")
    return Remark(RULES[rule], source.path, line, column, message, lines[line - 1].strip(), reason)


def _allowances(source: Source) -> dict[tuple[int, str], str]:
    """(line, rule) → reason. A comment on a line of its own counts for the next line of code."""
    found: dict[tuple[int, str], str] = {}
    tokens = list(tokenize.generate_tokens(io.StringIO(source.text).readline))
    code = sorted({t.start[0] for t in tokens if t.type not in _NO_CODE})
    for token in tokens:
        match = _ALLOW.search(token.string) if token.type == tokenize.COMMENT else None
        if match is None:
            continue
        line = token.start[0]
        where = f"{source.path}:{line}"
        try:
            rule = rule_of(match["rule"])
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from error
        if not match["reason"]:
            raise UsageError(
                f"{where}: `allow {rule.id}` needs a reason: # tdist: allow {rule.id}: why it is right here"
            )
        target = line if line in code else next((at for at in code if at > line), line)
        found[target, rule.id] = match["reason"].strip()
    return found


_NO_CODE: Final = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)
