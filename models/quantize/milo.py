"""MiLo (algorithm 1): quantize what a low-rank compensator leaves, compensate what the quantization leaves, in rounds.

A round need not lower the error. HQQ starts anew in each from the least and largest weight of W - U V, without the
zero of the round before (equation 9's z^(t-1) is not what the published code does), so it is no descent step of
equation 1; section 4.2's "decreases monotonically" does not hold, above all where the rank is large beside the matrix.
And a smaller error with the factors as numbers can be a larger one with their codes. So the round that is kept is the
one with the least error of what is stored; the published code runs a fixed number of rounds and keeps the last.
"""

import numpy as np

from meshrt.models.quantize.codes import Array, Codes
from meshrt.models.quantize.compensator import Compensator, factors, stored
from meshrt.models.quantize.hqq import hqq
from meshrt.records import dataclass

WINDOW, LEAST_GAIN = 3, 1e-4  # of equation 14


@dataclass(frozen=True)
class MiloRound:
    """Errors of a round, relative to |W|: with the factors as numbers (equation 13), and as they are stored."""

    error: float
    stored_error: float


@dataclass(frozen=True)
class Milo:
    """The best round's codes and compensator, and how it came to them.

    `stopped_by` is `rounds`, `converged` or `diverged`: the average error of the last three rounds fell by less than
    1e-4 of it (equation 14), or rose.
    """

    codes: Codes
    compensator: Compensator | None
    curve: tuple[MiloRound, ...]
    kept: int  # which round, from 1 on
    stopped_by: str


def milo(w: Array, rank: int, bits: int, group: int, compensator_bits: int, rounds: int) -> Milo:
    """W [rows, columns] in at most that many rounds. Rank 0 is HQQ. Raises ModelError."""
    whole = float(np.linalg.norm(w)) or 1.0
    if not rank:
        codes = hqq(w, bits, group)
        error = float(np.linalg.norm(w - codes.dequantized())) / whole
        return Milo(codes, None, (MiloRound(error, error),), 1, "rounds")
    curve: list[MiloRound] = []
    codes = hqq(w, bits, group)
    while True:
        lost = w - codes.dequantized()
        u, v = factors(lost, rank)
        compensator, product = stored(u, v, compensator_bits, group), u @ v
        left = (
            float(np.linalg.norm(lost - approximation)) / whole for approximation in (product, compensator.product())
        )
        curve.append(MiloRound(*left))
        if all(curve[-1].stored_error < earlier.stored_error for earlier in curve[:-1]):
            best = codes, compensator, len(curve)
        stopped_by = _verdict([point.error for point in curve]) or ("rounds" if len(curve) == rounds else None)
        if stopped_by:
            return Milo(best[0], best[1], tuple(curve), best[2], stopped_by)
        codes = hqq(w - product, bits, group)


def _verdict(errors: list[float]) -> str | None:
    """Equation 14, once there are two windows; None: go on."""
    if len(errors) <= WINDOW:
        return None
    before, now = sum(errors[-WINDOW - 1 : -1]), sum(errors[-WINDOW:])
    if before - now >= LEAST_GAIN * before > 0:
        return None
    return "converged" if now <= before else "diverged"
