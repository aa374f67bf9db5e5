"""How a measured number grows with the side N of the mesh: a power of N, fitted to the measurements."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite, log

from meshrt.errors import UsageError

TOLERANCE = 0.2  # how far a fitted exponent may lie from a stated one: (N - 1) / N from 8 to 64 alone gives 0.05
KNOWN = ((0.0, "constant"), (1 / 3, "N^(1/3)"), (1 / 2, "sqrt N"), (1.0, "N"), (2.0, "N^2"))


@dataclass(frozen=True)
class Growth:
    """The exponent of N that fits best over all sizes, and `late`, over the larger half of them.

    Both are None where too little was measured to tell. A number that levels off has grown, but grows no more.
    """

    exponent: float | None
    late: float | None
    name: str  # "constant", "sqrt N", "N", "N^0.7", "levels off" ...
    appears: bool = False  # 0 at small N and more later; the exponents are those of what came later

    @property
    def levels(self) -> bool:
        """Has it grown, but grows no more?"""
        if self.exponent is None or self.late is None:
            return False
        return (self.appears or self.exponent > TOLERANCE) and abs(self.late) <= TOLERANCE

    def faster_than(self, exponent: float) -> bool:
        """Does it grow by a larger power of N, by more than the tolerance, and to the end?"""
        if self.exponent is None or self.late is None:
            return self.appears and exponent < TOLERANCE
        return min(self.exponent, self.late) > exponent + TOLERANCE


def fit(sizes: Sequence[int], values: Sequence[float], limit: float | None = None) -> Growth:
    """Least squares of log value on log N over the sizes at which something was measured.

    Values at a limit no longer say how much was wanted: only the first of them counts. Zeros have no logarithm: where
    all are zero that is constant, and otherwise the fit begins after the last of them.
    """
    points = sorted(zip(sizes, values, strict=True))
    if points and not any(value for _, value in points):
        return Growth(0.0, 0.0, "constant")
    zeros = [at for at, (_, value) in enumerate(points) if not value]
    fitted = points[zeros[-1] + 1 :] if zeros else points
    full = [at for at, (_, value) in enumerate(fitted) if limit is not None and value >= limit]
    fitted = fitted[: full[0] + 1] if full else fitted
    appears = bool(zeros) and bool(fitted)
    if len(fitted) < 2:
        return Growth(None, None, "at its limit" if full else "from 0" if appears else "unknown", appears)
    exponent, late = slope(fitted), slope(fitted[len(fitted) // 2 :] if len(fitted) >= 3 else fitted)
    growth = Growth(exponent, late, name(exponent), appears)
    return replace(growth, name="levels off") if growth.levels else growth


def slope(points: Sequence[tuple[int, float]]) -> float:
    """d log y / d log x of two or more points with different x, by least squares."""
    xs, ys = [log(n) for n, _ in points], [log(value) for _, value in points]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    exponent = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)
    return round(exponent, 4) + 0.0  # no -0.0


def name(exponent: float) -> str:
    """What such a growth is called: the nearest of those that are known by a name, or the power as it is."""
    power, text = min(KNOWN, key=lambda entry: abs(entry[0] - exponent))
    near = TOLERANCE if power in (0.0, 1.0, 2.0) else 0.1
    return text if abs(power - exponent) <= near else f"N^{exponent:.2f}"


def parse(text: str) -> float:
    """'1', 'N', 'N^0.5', 'N^(1/3)' -> the exponent. UsageError."""
    plain = text.replace(" ", "")
    if plain in ("1", "constant"):
        return 0.0
    if plain.upper() == "N":
        return 1.0
    base, _, power = plain.partition("^")
    over, slash, under = power.removeprefix("(").removesuffix(")").partition("/")
    try:
        if base.upper() != "N":
            raise ValueError(base)
        exponent = float(over) / (float(under) if slash else 1.0)
        if not isfinite(exponent):
            raise ValueError(exponent)
        return exponent
    except (ValueError, ZeroDivisionError):
        raise UsageError(f"{text!r} is no growth: 1, N, N^0.5 or N^(1/3) are") from None
