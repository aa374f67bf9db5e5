"""One matrix in two factors: the equations of NeuronMM's section 4.1 and AFM as properties of what comes out."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from meshrt.models.compress.decompose import (
    DAMPING,
    absorb,
    afm,
    balanced,
    damping,
    feature_error,
    svd,
    weight_error,
    whitened_svd,
)
from meshrt.models.compress.ranks import aligned_ranks, block_aligned_rank
from meshrt.models.config import Config
from meshrt.models.errors import ModelError

Matrix = NDArray[np.float64]
METHODS: dict[str, Callable[[Matrix, Matrix, int], tuple[Matrix, Matrix]]] = {
    "svd": lambda w, gram, rank: svd(w, rank),
    "whitened": whitened_svd,
    "afm": afm,
}
sizes = st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(0, 3), st.integers(0, 10**6))


def example(k: int, n: int, more: int, seed: int) -> tuple[Matrix, Matrix, int]:
    """W [k, n], X [tokens, k] whose inputs differ a hundredfold in size and mix, and a rank."""
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((k, n))
    x = (rng.standard_normal((3 * k + more, k)) * 10.0 ** rng.uniform(-1, 1, k)) @ rng.standard_normal((k, k))
    return w, x, int(rng.integers(1, min(k, n) + 1))


def tail(matrix: Matrix, rank: int) -> float:
    """The norm of the singular values that a cut at `rank` discards: what no approximation of that rank goes below."""
    return float(np.linalg.norm(np.linalg.svd(matrix, compute_uv=False)[rank:]))


def test_ranks_of_table_6() -> None:
    """Llama-3.2-1B at ratio 0.2 in blocks of 128: 2048 * 8192 * 0.8 / (10240 * 128) = 10.24 blocks, so 10."""
    assert block_aligned_rank(2048, 8192, 0.2, 128) == block_aligned_rank(8192, 2048, 0.2, 128) == 1280


@pytest.mark.parametrize(
    ("blocks", "rounded"), [(2.5, 3), (2.49, 2), (3.5, 4), (0.5, 1), (0.2, 1), (0.0, 1), (4.0, 4), (7.6, 8)]
)
def test_half_a_block_rounds_up_and_one_block_is_the_least(blocks: float, rounded: int) -> None:
    """A square matrix of 2 * 8 * 16 has k * n / (k + n) = 128 = 8 blocks of 16; a ratio leaves `blocks` of them."""
    assert block_aligned_rank(256, 256, 1 - blocks / 8 if blocks else 1 - 1e-9, 16) == 16 * rounded


@given(k=st.integers(1, 400), n=st.integers(1, 400), ratio=st.floats(0, 1, exclude_max=True), block=st.integers(1, 130))
def test_rank_is_whole_blocks_nearest_to_the_ratio_within_the_matrix(k: int, n: int, ratio: float, block: int) -> None:
    if block > min(k, n):
        with pytest.raises(ModelError, match=f"block {block} .*give 1..{min(k, n)}"):
            block_aligned_rank(k, n, ratio, block)
        return
    rank, wanted = block_aligned_rank(k, n, ratio, block), k * n * (1 - ratio) / (k + n)
    assert rank % block == 0 and block <= rank <= min(k, n)
    assert abs(rank - wanted) <= block / 2 + 1e-9 or rank in (block, min(k, n) // block * block)


@pytest.mark.parametrize("ratio", [-0.1, 1.0, 2.0, float("nan")])
def test_ratio_outside_is_refused(ratio: float) -> None:
    with pytest.raises(ModelError, match="ratio"):
        block_aligned_rank(64, 64, ratio, 8)


def test_ranks_of_a_model_follow_its_matrices() -> None:
    """Llama-3.2-1B: hidden 2048, inner 8192, 512 keys: 2048 * 512 * 0.8 / (2560 * 128) = 2.56 blocks, so 3."""
    config = Config.from_dict(
        {"model_type": "llama", "vocab_size": 8, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 2}
        | {"num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 8}
    )
    ranks = aligned_ranks(config, "mlp", 0.2, 128)
    assert len(ranks) == 6 and set(ranks.values()) == {1280}
    attention = aligned_ranks(config, "attention", 0.2, 128)
    assert len(attention) == 8 and attention["model.layers.1.self_attn.k_proj"] == 3 * 128
    assert aligned_ranks(config, "all", 0.2, 128) == ranks | attention


@given(sizes)
def test_svd_is_the_best_of_the_weights(size: tuple[int, int, int, int]) -> None:
    """No matrix of that rank is nearer: what is left are the singular values after the first."""
    w, _, rank = example(*size)
    u, v = svd(w, rank)
    assert u.shape == (w.shape[0], rank) and v.shape == (rank, w.shape[1])
    assert np.linalg.norm(w - u @ v) == pytest.approx(tail(w, rank), rel=1e-6, abs=1e-9)


@given(sizes)
def test_both_sides_have_the_root_of_the_singular_values(size: tuple[int, int, int, int]) -> None:
    """Equations 6 and 7. Of the whitened one, U is sqrt(Sigma) long as S^T sees it."""
    w, x, rank = example(*size)
    sigma = np.linalg.svd(w, compute_uv=False)[:rank]
    u, v = svd(w, rank)
    np.testing.assert_allclose(u.T @ u, np.diag(sigma), atol=1e-9)
    np.testing.assert_allclose(v @ v.T, np.diag(sigma), atol=1e-9)
    gram = x.T @ x
    if not damping(gram):
        u, v = whitened_svd(w, gram, rank)
        sigma = np.linalg.svd(x @ w, compute_uv=False)[:rank]
        np.testing.assert_allclose(u.T @ gram @ u, np.diag(sigma), atol=1e-6 * sigma[0])
        np.testing.assert_allclose(v @ v.T, np.diag(sigma), atol=1e-6 * sigma[0])


@given(sizes)
def test_whitened_svd_is_the_best_of_the_features(size: tuple[int, int, int, int]) -> None:
    """||X (W - UV)|| is what the singular values of X W that were cut off come to: equations 2, 3 and 8."""
    w, x, rank = example(*size)
    u, v = whitened_svd(w, x.T @ x, rank)
    whole = np.linalg.norm(x @ w)
    lost = np.linalg.norm(x @ (w - u @ v))
    # Where X^T X had to be damped, by up to 1e-8 of its mean diagonal: as much of ||W||^2 may be lost on top.
    slack = np.sqrt(DAMPING) * np.linalg.norm(x) * np.linalg.norm(w)
    assert tail(x @ w, rank) - 1e-6 * whole <= lost <= tail(x @ w, rank) + 1e-6 * whole + slack
    plain_u, plain_v = svd(w, rank)
    assert lost <= np.linalg.norm(x @ (w - plain_u @ plain_v)) + 1e-6 * whole + slack


@given(sizes)
def test_afm_is_the_best_projection_of_the_features(size: tuple[int, int, int, int]) -> None:
    """U V is W Q Q^T with orthonormal Q, loses what was cut off, and no other projection of that rank loses less."""
    w, x, rank = example(*size)
    u, v = afm(w, x.T @ x, rank)
    whole, lost = np.linalg.norm(x @ w), np.linalg.norm(x @ (w - u @ v))
    q = (v / np.linalg.norm(v, axis=1, keepdims=True)).T
    np.testing.assert_allclose(q.T @ q, np.eye(rank), atol=1e-9)
    np.testing.assert_allclose(u @ v, w @ q @ q.T, atol=1e-9 * np.linalg.norm(w))
    assert lost == pytest.approx(tail(x @ w, rank), abs=1e-6 * whole)
    other = np.linalg.qr(np.random.default_rng(size[3]).standard_normal((w.shape[1], rank)))[0]
    assert lost <= np.linalg.norm(x @ w - x @ w @ other @ other.T) + 1e-6 * whole


@given(sizes)
def test_afm_and_whitened_svd_are_one_approximation(size: tuple[int, int, int, int]) -> None:
    w, x, rank = example(*size)
    sigma = np.linalg.svd(x @ w, compute_uv=False)
    gap = rank == len(sigma) or sigma[rank - 1] > 1.1 * sigma[rank]
    if damping(x.T @ x) == 0 and gap:
        (a, b), (c, d) = whitened_svd(w, x.T @ x, rank), afm(w, x.T @ x, rank)
        assert np.linalg.norm(x @ (a @ b - c @ d)) <= 1e-5 * np.linalg.norm(x @ w)


@pytest.mark.parametrize("method", METHODS)
@given(sizes)
def test_full_rank_gives_the_matrix_back(method: str, size: tuple[int, int, int, int]) -> None:
    w, _, _ = example(*size)
    rng = np.random.default_rng(size[3])
    x = rng.standard_normal((5 * len(w) + 5, len(w)))
    u, v = METHODS[method](w, x.T @ x, min(w.shape))
    np.testing.assert_allclose(u @ v, w, atol=1e-6 * np.linalg.norm(w))


@pytest.mark.parametrize("method", METHODS)
def test_inputs_that_never_occur_do_no_harm(method: str) -> None:
    """Five of eight inputs are always 0, so X^T X is singular; there is one exact answer of rank 3 on X."""
    rng = np.random.default_rng(0)
    w, x = rng.standard_normal((8, 6)), np.zeros((20, 8))
    x[:, :3] = rng.standard_normal((20, 3))
    u, v = METHODS[method](w, x.T @ x, 3)
    assert np.all(np.isfinite(u)) and np.all(np.isfinite(v))
    if method != "svd":
        assert feature_error(w, u @ v, x.T @ x) < 1e-3
    u, v = METHODS[method](w, np.zeros((8, 8)), 3)  # no input ever
    assert np.all(np.isfinite(u)) and np.all(np.isfinite(v))
    u, v = METHODS[method](np.zeros((8, 6)), x.T @ x, 3)  # no matrix
    assert not np.any(u @ v)


def test_damping_lifts_the_smallest_eigenvalue_to_its_floor() -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((3, 5))
    gram = x.T @ x
    assert damping(np.eye(5)) == 0
    assert damping(gram) == pytest.approx(DAMPING * np.trace(gram) / 5, rel=1e-6)
    lifted = gram + damping(gram) * np.eye(5)
    assert np.linalg.eigvalsh(lifted)[0] == pytest.approx(DAMPING * np.trace(gram) / 5, rel=1e-5)
    assert damping(4.0 * gram) == pytest.approx(4 * damping(gram))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_activations_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(ModelError, match="not finite"):
        whitened_svd(np.eye(3), np.full((3, 3), bad), 2)


@given(sizes)
def test_balanced_keeps_the_product(size: tuple[int, int, int, int]) -> None:
    w, x, rank = example(*size)
    u, v = balanced(x[:, :rank], w[:rank])
    np.testing.assert_allclose(u @ v, x[:, :rank] @ w[:rank], atol=1e-9 * np.linalg.norm(x) * np.linalg.norm(w))
    np.testing.assert_allclose(np.linalg.norm(u, axis=0), np.linalg.norm(v, axis=1))


def test_balanced_leaves_zeros_alone() -> None:
    u, v = balanced(np.array([[0.0, 3.0]]), np.array([[5.0], [0.0]]))
    assert (u.tolist(), v.tolist()) == ([[0.0, 3.0]], [[5.0], [0.0]])


@given(inner=st.lists(st.integers(1, 6), min_size=3, max_size=6), seed=st.integers(0, 10**6))
def test_more_factors_are_absorbed_into_two_at_the_thinnest_place(inner: list[int], seed: int) -> None:
    """DeInfer, section 4.3: whatever a decomposition gives, two factors say the same."""
    rng = np.random.default_rng(seed)
    factors = [rng.standard_normal(shape) for shape in pairwise(inner)]
    u, v = absorb(factors)
    expected = factors[0]
    for factor in factors[1:]:
        expected = expected @ factor
    np.testing.assert_allclose(u @ v, expected, atol=1e-9)
    assert u.shape == (inner[0], min(inner[1:-1])) and v.shape == (min(inner[1:-1]), inner[-1])


@pytest.mark.parametrize("shapes", [[], [(2, 3)], [(2, 3), (2, 3)]])
def test_factors_without_a_product_are_refused(shapes: list[tuple[int, int]]) -> None:
    with pytest.raises(ModelError, match="factors"):
        absorb([np.zeros(shape) for shape in shapes])


@given(sizes)
def test_errors_are_those_of_their_definition(size: tuple[int, int, int, int]) -> None:
    w, x, rank = example(*size)
    u, v = svd(w, rank)
    other = u @ v + 0.01
    assert weight_error(w, other) == pytest.approx(np.linalg.norm(w - other) / np.linalg.norm(w))
    assert feature_error(w, other, x.T @ x) == pytest.approx(
        np.linalg.norm(x @ (w - other)) / np.linalg.norm(x @ w), rel=1e-5
    )


def test_errors_of_nothing() -> None:
    assert (
        weight_error(np.zeros((2, 2)), np.zeros((2, 2))) == feature_error(np.eye(2), np.eye(2), np.zeros((2, 2))) == 0
    )
