"""The programming rules of distributed kernels, checked in their Python source without running anything.

Source: seed 001, *Single Operator Development*; seed 000, *Distributed Architecture Design* §6.3.
"""

from tdist.lint.linter import Remark, lint_file, lint_text
from tdist.lint.rules import RULES, Rule, rule_of

__all__ = ["RULES", "Remark", "Rule", "lint_file", "lint_text", "rule_of"]
