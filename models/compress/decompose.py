"""One matrix as the product of two thin ones: y = x W with W [K, N] ~ U [K, r] V [r, N].

G [K, K] is X^T X of calibration activations X [tokens, K], divided by whatever number; it says which inputs occur.
As ||X A|| = ||S^T A|| (Frobenius) for every A where S S^T = G, errors on the features X W are computed from G alone.
All in float64. Ranks are 1..min(K, N).

NeuronMM's equations 3 and 7 (section 4.1) have W S, and S^-1 behind: that fits W as Hugging Face stores it, [out, in].
Here W is [in, out] as in x W, so it is S^T W, and S^-T in front.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from meshrt.models.errors import ModelError

Array: TypeAlias = NDArray[Any]
FactorPair: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64]]

DAMPING = 1e-8


def svd(w: Array, rank: int) -> FactorPair:
    """The best approximation of W itself ("The approximation of one matrix by another of lower rank",
    Psychometrika 1936), U = P sqrt(Sigma), V = sqrt(Sigma) Q^T.
    """
    p, sigma, q = np.linalg.svd(np.asarray(w, np.float64), full_matrices=False)
    root = np.sqrt(sigma[:rank])
    return p[:, :rank] * root, root[:, None] * q[:rank]


def whitened_svd(w: Array, gram: Array, rank: int) -> FactorPair:
    """The best approximation of the features X W: the SVD of S^T W, cut off, and S^-T in front again.

    NeuronMM, section 4.1, equations 2, 3, 6, 7 and 8, after its reference [72]. S is the Cholesky factor of G with
    `damping(G)` added to the diagonal.
    """
    s = np.linalg.cholesky(gram + damping(gram) * np.eye(len(gram)))
    u, v = svd(s.T @ w, rank)
    return np.linalg.solve(s.T, u), v


def damping(gram: Array) -> float:
    """What the diagonal of X^T X lacks to be factored, 0 if nothing: inputs that never occur make it singular.

    It lifts the smallest eigenvalue to DAMPING times the mean of the diagonal. Raises ModelError where X^T X is not
    finite.
    """
    if not np.all(np.isfinite(gram)):
        raise ModelError("the calibration's activations are not finite; use another text, or --no-whiten")
    scale = np.trace(gram) / len(gram) or 1.0
    return float(max(0.0, DAMPING * scale - np.linalg.eigvalsh(gram)[0]))


def afm(w: Array, gram: Array, rank: int) -> FactorPair:
    """Atomic feature mimicking: the principal components Q [N, r] of the features X W; U = W Q, V = Q^T.

    Feature-based factorisation by principal components: DeInfer, section 3.1, and its reference [20]. The features'
    mean is not taken out: what stands for it would be a bias, which LLaMA's matrices do not have, and without one this
    is the best projection there is. In exact arithmetic U V is then the same as that of `whitened_svd`: both are
    W Q Q^T, and Q are the right singular vectors of X W. No inverse is needed, nor damping.
    """
    features = np.asarray(w, np.float64).T @ gram @ w
    q = np.linalg.eigh((features + features.T) / 2)[1][:, : -rank - 1 : -1]
    return balanced(w @ q, q.T)


def balanced(u: Array, v: Array) -> FactorPair:
    """The same product, with columns of U as long as rows of V: for an SVD, sqrt(Sigma) on both sides."""
    long, wide = np.linalg.norm(u, axis=0), np.linalg.norm(v, axis=1)
    scale = np.sqrt(np.divide(wide, long, out=np.ones_like(long), where=(long > 0) & (wide > 0)))
    return u * scale, v / scale[:, None]


def absorb(factors: Sequence[Array]) -> FactorPair:
    """Two factors of a product of two or more, cut where it is thinnest (DeInfer, section 4.3).

    Raises ModelError if they do not fit one another.
    """
    if len(factors) < 2 or any(a.shape[1] != b.shape[0] for a, b in pairwise(factors)):
        raise ModelError(
            f"factors of shapes {[list(factor.shape) for factor in factors]} have no product of two factors"
        )
    cut = 1 + int(np.argmin([factor.shape[1] for factor in factors[:-1]]))
    wide = [np.asarray(factor, np.float64) for factor in factors]
    return _chain(wide[:cut]), _chain(wide[cut:])


def _chain(factors: Sequence[Array]) -> NDArray[np.float64]:
    return np.linalg.multi_dot(factors) if len(factors) > 1 else factors[0]


def weight_error(w: Array, approximation: Array) -> float:
    """||W - W'|| / ||W||."""
    return _ratio(np.sum((w - approximation) ** 2), np.sum(w * w))


def feature_error(w: Array, approximation: Array, gram: Array) -> float:
    """||X (W - W')|| / ||X W||."""
    lost = w - approximation
    return _ratio(np.sum(lost * (gram @ lost)), np.sum(w * (gram @ w)))


def _ratio(lost: float, whole: float) -> float:
    return float(np.sqrt(max(lost, 0.0) / whole)) if whole > 0 else 0.0
