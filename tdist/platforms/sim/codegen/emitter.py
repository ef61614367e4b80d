"""Lines of generated Python, in scopes: naming, hoisting of loop-invariant terms, reuse of equal expressions."""

from __future__ import annotations

import keyword
import re
from collections.abc import Hashable
from dataclasses import dataclass, field

from .poly import Monomial, Poly, render

INDENT = "    "
LOOPS = ("for", "while")


@dataclass
class Scope:
    """A block being written. `before` are lines that belong in front of it (its loop-invariant terms)."""

    kind: str
    lines: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    known: dict[Hashable, str] = field(default_factory=dict)
    hoisted: dict[Poly, str] = field(default_factory=dict)


class DryRun(Exception):
    """Something would have been written while only a symbolic evaluation was asked for."""


class Emitter:
    """Writes one function. The level of a name is the index of the scope in which it was defined."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = [Scope("function")]
        self.level: dict[str, int] = {}
        self.dry = False
        self._count = 0

    # --- names and lines

    def fresh(self, hint: str = "v", level: int | None = None) -> str:
        """A new local name; `level` defaults to the current scope."""
        self._count += 1
        stem = re.sub(r"\W", "_", hint).strip("_0123456789") or "v"
        name = f"{stem}_{self._count}"
        self.level[name] = len(self.scopes) - 1 if level is None else level
        return name

    def argument(self, hint: str) -> str:
        """A parameter name that no keyword, helper or fresh name can equal."""
        name = re.sub(r"\W", "_", hint)
        name = name if not keyword.iskeyword(name) else name + "_"
        self.level[name] = 0
        return name

    def line(self, text: str) -> None:
        if self.dry:
            raise DryRun(text)
        self.scopes[-1].lines.append(text)

    def bind(self, expression: str, hint: str = "v") -> str:
        """Assign an expression to a new local and return the local."""
        name = self.fresh(hint)
        self.line(f"{name} = {expression}")
        return name

    def reuse(self, key: Hashable, expression: str, hint: str = "v") -> str:
        """As `bind`, or the local that an equal expression already has in this scope or one around it."""
        found = self.find(key)
        if found is None:
            found = self.bind(expression, hint)
            self.scopes[-1].known[key] = found
        return found

    def find(self, key: Hashable) -> str | None:
        for scope in reversed(self.scopes):
            if key in scope.known:
                return scope.known[key]
        return None

    # --- scopes

    def push(self, kind: str) -> Scope:
        scope = Scope(kind)
        self.scopes.append(scope)
        return scope

    def pop(self) -> Scope:
        return self.scopes.pop()

    def block(self, header: str, scope: Scope, placeholder: str = "pass") -> None:
        """Write a finished scope under a header line, its invariant terms in front of it."""
        for text in scope.before:
            self.line(text)
        self.line(header)
        for text in scope.lines or [placeholder]:
            self.line(INDENT + text)

    # --- polynomials

    def text(self, poly: Poly) -> str:
        """A local or literal with the value of `poly`; invariant parts are computed in front of the loops."""
        simple = _simple(poly)
        if simple is not None:
            return simple
        whole = self._hoist_invariant(poly)
        simple = _simple(whole)
        if simple is not None:
            return simple
        return self.reuse(whole, render(whole), "e")

    def _hoist_invariant(self, poly: Poly) -> Poly:
        groups: dict[int | None, dict[Monomial, int]] = {}
        for monomial, coefficient in poly.terms.items():
            groups.setdefault(self._outermost_loop(monomial), {})[monomial] = coefficient
        here = groups.pop(None, {})
        for index in sorted(k for k in groups if k is not None):
            part = Poly(groups[index])
            name = _simple(part)
            if name is not None:
                for monomial, coefficient in part.terms.items():
                    here[monomial] = here.get(monomial, 0) + coefficient
            else:
                here[(self._hoisted(index, part),)] = 1
        return Poly({m: c for m, c in here.items() if c})

    def _outermost_loop(self, monomial: Monomial) -> int | None:
        """Index of the outermost loop scope in which all of the monomial is invariant; None if there is none."""
        level = max((self.level[name] for name in monomial), default=0)
        for index in range(level + 1, len(self.scopes)):
            if self.scopes[index].kind in LOOPS:
                return index
        return None

    def _hoisted(self, index: int, part: Poly) -> str:
        if self.dry:
            raise DryRun(render(part))
        scope = self.scopes[index]
        for outer in reversed(self.scopes[:index]):
            if part in outer.known:
                return outer.known[part]
        if part not in scope.hoisted:
            name = self.fresh("inv", index - 1)
            scope.before.append(f"{name} = {render(part)}")
            scope.hoisted[part] = name
        return scope.hoisted[part]


def _simple(poly: Poly) -> str | None:
    if poly.value is not None:
        return str(poly.value) if poly.value >= 0 else f"({poly.value})"
    return poly.name
