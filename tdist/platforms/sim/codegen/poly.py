"""Integer polynomials over the names of generated locals: the symbol algebra of indices, masks, addresses and bounds.

One algebra for all of them makes equality of bounds and strides, induction and linearity in a loop variable
comparisons of dictionaries. A `Poly` is immutable and hashable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Monomial = tuple[str, ...]


class Poly:
    """A polynomial with integer coefficients; `terms` maps a sorted monomial to its coefficient (never 0)."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms = terms
        self._hash: int | None = None

    @staticmethod
    def const(value: int) -> Poly:
        return Poly({(): value}) if value else ZERO

    @staticmethod
    def symbol(name: str) -> Poly:
        return Poly({(name,): 1})

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self.terms.items()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Poly) and self.terms == other.terms

    def __bool__(self) -> bool:
        return bool(self.terms)

    def __repr__(self) -> str:
        return f"Poly({render(self)})"

    def __add__(self, other: Poly) -> Poly:
        terms = dict(self.terms)
        for monomial, coefficient in other.terms.items():
            total = terms.get(monomial, 0) + coefficient
            if total:
                terms[monomial] = total
            else:
                terms.pop(monomial, None)
        return Poly(terms)

    def __neg__(self) -> Poly:
        return self.scaled(-1)

    def __sub__(self, other: Poly) -> Poly:
        return self + -other

    def __mul__(self, other: Poly) -> Poly:
        terms: dict[Monomial, int] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                monomial = tuple(sorted(left + right))
                terms[monomial] = terms.get(monomial, 0) + a * b
        return Poly({m: c for m, c in terms.items() if c})

    def scaled(self, factor: int) -> Poly:
        if factor == 1:
            return self
        return Poly({m: c * factor for m, c in self.terms.items()}) if factor else ZERO

    def divided(self, divisor: int) -> Poly | None:
        """The quotient if `divisor` divides every coefficient, else None."""
        if any(c % divisor for c in self.terms.values()):
            return None
        return Poly({m: c // divisor for m, c in self.terms.items()})

    @property
    def value(self) -> int | None:
        """The value of a constant polynomial, None if it has symbols."""
        if not self.terms:
            return 0
        if len(self.terms) == 1:
            return self.terms.get(())
        return None

    @property
    def name(self) -> str | None:
        """The symbol, if the polynomial is exactly one symbol."""
        if len(self.terms) != 1:
            return None
        ((monomial, coefficient),) = self.terms.items()
        return monomial[0] if len(monomial) == 1 and coefficient == 1 else None

    def symbols(self) -> set[str]:
        return {name for monomial in self.terms for name in monomial}

    def substituted(self, values: Mapping[str, Poly]) -> Poly:
        """The polynomial with symbols replaced."""
        result = ZERO
        for monomial, coefficient in self.terms.items():
            product = Poly.const(coefficient)
            for name in monomial:
                product = product * values.get(name, Poly.symbol(name))
            result = result + product
        return result

    def linear_in(self, name: str) -> tuple[Poly, Poly] | None:
        """`(rest, slope)` with `self == rest + slope * name` and neither containing `name`; None if there is none."""
        rest: dict[Monomial, int] = {}
        slope: dict[Monomial, int] = {}
        for monomial, coefficient in self.terms.items():
            power = monomial.count(name)
            if power > 1:
                return None
            if power:
                factors = list(monomial)
                factors.remove(name)
                slope[tuple(factors)] = coefficient
            else:
                rest[monomial] = coefficient
        return Poly(rest), Poly(slope)


ZERO = Poly({})
ONE = Poly.const(1)


def total(polys: Iterable[Poly]) -> Poly:
    """Sum of polynomials."""
    result = ZERO
    for poly in polys:
        result = result + poly
    return result


def render(poly: Poly) -> str:
    """Python text of a polynomial, constants last; deterministic."""
    if not poly.terms:
        return "0"
    ordered = sorted(poly.terms.items(), key=lambda term: (not term[0], term[0]))
    text = "".join(_term(monomial, coefficient) for monomial, coefficient in ordered)
    return text[3:] if text.startswith(" + ") else "-" + text[3:]


def _term(monomial: Monomial, coefficient: int) -> str:
    sign = " - " if coefficient < 0 else " + "
    size = abs(coefficient)
    factors = " * ".join(monomial)
    if not monomial:
        return f"{sign}{size}"
    return f"{sign}{factors}" if size == 1 else f"{sign}{size} * {factors}"
