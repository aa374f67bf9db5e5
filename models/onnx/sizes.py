"""Sizes that are not known yet: whole polynomials of names, such as S, P + S and 4 S. All names are at least 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from meshrt.records import dataclass

Term = tuple[str, ...]  # the names of a product, in order; () is 1
MAX_TERMS = 32  # above it, a size is a new name: hostile graphs multiply sums


@dataclass(frozen=True)
class SymbolicSize:
    """The sum of `terms`: products of names, each with the whole number that it is multiplied by, never 0."""

    terms: tuple[tuple[Term, int], ...]

    @staticmethod
    def of(value: int | str | SymbolicSize) -> SymbolicSize:
        if isinstance(value, SymbolicSize):
            return value
        return SymbolicSize(_tidy([((value,), 1)] if isinstance(value, str) else [((), int(value))]))

    @property
    def value(self) -> int | None:
        """The number, where no name is in it."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and self.terms[0][0] == () else None

    def __add__(self, other: SymbolicSize) -> SymbolicSize:
        return SymbolicSize(_tidy([*self.terms, *other.terms]))

    def __sub__(self, other: SymbolicSize) -> SymbolicSize:
        return self + other * SymbolicSize.of(-1)

    def __mul__(self, other: SymbolicSize) -> SymbolicSize:
        return SymbolicSize(_tidy((tuple(sorted(a + b)), m * n) for a, m in self.terms for b, n in other.terms))

    def over(self, other: SymbolicSize) -> SymbolicSize | None:
        """self / other, where that is whole for all values of the names, and `other` one product."""
        if len(other.terms) != 1:
            return SymbolicSize.of(1) if self == other and self.terms else None
        names, number = other.terms[0]
        terms = []
        for own, times in self.terms:
            left = [*own]
            for name in names:
                if name not in left:
                    return None
                left.remove(name)
            if times % number:
                return None
            terms.append((tuple(left), times // number))
        return SymbolicSize(_tidy(terms))

    def never_zero(self) -> bool:
        """For no values of the names: all parts have one sign, and a number is among them."""
        signs = {times > 0 for _, times in self.terms}
        return len(signs) == 1 and any(names == () for names, _ in self.terms)

    def at(self, values: Mapping[str, int], default: int) -> int:
        """With numbers for names; `default` for those that have none."""
        total = 0
        for names, times in self.terms:
            for name in names:
                times *= values.get(name, default)
            total += times
        return total

    def __str__(self) -> str:
        parts = ["*".join([*([str(n)] if n != 1 or not names else []), *names]) for names, n in self.terms]
        return " + ".join(parts) or "0"


def _tidy(terms: Iterable[tuple[Term, int]]) -> tuple[tuple[Term, int], ...]:
    sums: dict[Term, int] = {}
    for names, times in terms:
        sums[names] = sums.get(names, 0) + times
    tidy = tuple(sorted((names, times) for names, times in sums.items() if times))
    if len(tidy) > MAX_TERMS or any(abs(times) >= 1 << 63 or len(names) > 8 for names, times in tidy):
        raise OverflowError("a size of too many parts")
    return tidy


def product(sizes: Iterable[Any]) -> SymbolicSize:
    """Of any number of sizes."""
    total = SymbolicSize.of(1)
    for size in sizes:
        total = total * size
    return total
