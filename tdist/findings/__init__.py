"""Findings: what the simulator and the gates report, how it is kept, compared and shown."""

from tdist.findings.kinds import KINDS, Kind, kind_of, make
from tdist.findings.model import Finding, FindingLog, Party, Severity, dumps
from tdist.findings.render import render, render_log, renderable, to_text

__all__ = [
    "KINDS",
    "Finding",
    "FindingLog",
    "Kind",
    "Party",
    "Severity",
    "dumps",
    "kind_of",
    "make",
    "render",
    "render_log",
    "renderable",
    "to_text",
]
