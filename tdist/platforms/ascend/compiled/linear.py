"""Sums of unknowns with integer factors: offsets that are the same up to a known distance."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Linear:
    """`constant + Σ factor · unknown`; the terms are sorted, without factors of zero."""

    constant: int
    terms: tuple[tuple[Hashable, int], ...] = ()

    @classmethod
    def of(cls, constant: int) -> Linear:
        """A number."""
        return cls(constant)

    @classmethod
    def unknown(cls, name: Hashable) -> Linear:
        """An unknown itself."""
        return cls(0, ((name, 1),))

    @property
    def is_constant(self) -> bool:
        """Whether there is no unknown in it."""
        return not self.terms

    def plus(self, other: Linear) -> Linear:
        """The sum."""
        terms = dict(self.terms)
        for name, factor in other.terms:
            terms[name] = terms.get(name, 0) + factor
        return Linear(self.constant + other.constant, _sorted(terms))

    def times(self, factor: int) -> Linear:
        """A multiple."""
        return Linear(self.constant * factor, _sorted({name: old * factor for name, old in self.terms}))


def _sorted(terms: dict[Hashable, int]) -> tuple[tuple[Hashable, int], ...]:
    return tuple(sorted(((name, factor) for name, factor in terms.items() if factor), key=lambda term: repr(term[0])))


__all__ = ["Linear"]
