"""MiLo's low-rank compensator U V of a matrix's quantization error (sections 3.2.3 and 3.2.6)."""

import numpy as np
from numpy.typing import NDArray

from meshrt.models.errors import ModelError
from meshrt.models.quantize.codes import Array, Codes, symmetric
from meshrt.records import dataclass

Factor = NDArray[np.float16] | Codes


@dataclass(frozen=True)
class Compensator:
    """U [m, rank] and V [rank, n] as they are stored: float16, or codes of the row-major array as a matrix of one row.

    So a group of codes may span rows, and any rank will do.
    """

    u: Factor
    v: Factor
    rank: int

    def product(self) -> NDArray[np.float64]:
        """U V [m, n]."""
        u, v = (
            part.dequantized() if isinstance(part, Codes) else part.astype(np.float64) for part in (self.u, self.v)
        )  # fmt: skip
        whole: NDArray[np.float64] = u.reshape(-1, self.rank) @ v.reshape(self.rank, -1)
        return whole


def stored(u: Array, v: Array, bits: int, group: int) -> Compensator:
    """Factors in `bits` bits: 16 is float16, fewer are equation 15's codes in groups. Raises ModelError."""

    def one(factor: Array) -> Factor:
        if bits < 16:
            return symmetric(factor.reshape(1, -1), bits, group)
        with np.errstate(over="ignore"):
            half = factor.astype(np.float16)
        if not np.isfinite(half).all():
            raise ModelError("its compensator is not finite in float16")
        return half

    return Compensator(one(u), one(v), u.shape[1])


def factors(error: Array, rank: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Equations 11 and 12: the best U [m, rank] and V [rank, n] of E, each with the roots of the singular values.

    Exact, as the singular vectors of the shorter side are the eigenvectors of its Gram matrix: randomised ones
    (torch.svd_lowrank) differ from run to run.
    """
    if error.shape[0] > error.shape[1]:
        v, u = factors(error.T, rank)
        return np.ascontiguousarray(u.T), np.ascontiguousarray(v.T)
    p = np.linalg.eigh(error @ error.T)[1][:, : -rank - 1 : -1]
    rest = p.T @ error  # Sigma Q^T
    sigma = np.linalg.norm(rest, axis=1)
    root = np.sqrt(np.where(sigma > 0, sigma, 1))
    return p * np.sqrt(sigma), rest / root[:, None]
