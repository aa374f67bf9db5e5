"""Rank policies: whom they give ranks, averages to the number, caps, budgets."""

from collections.abc import Mapping
from itertools import pairwise
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrt.models.catalogue import find_model
from meshrt.models.errors import ModelError
from meshrt.models.quantize.choice import choose
from meshrt.models.quantize.policies import PolicyTerm, Statistics, fit, parse, ranks, share_out
from meshrt.models.quantize.shapes import MatrixShape, read_shapes
from meshrt.models.quantize.sizes import CodeScheme, compensator_bytes
from meshrt.models.quantize.statistics import kurtosis, residual_rank

TINY, MIXTRAL, DEEPSEEK = (read_shapes(find_model(n)) for n in ("llama-tiny", "mixtral-8x7b", "deepseek-moe-16b"))
SCHEME = CodeScheme("milo", 3, 64, False, 3)


def small(experts: int = 3, layers: int = 2) -> tuple[MatrixShape, ...]:
    """Attention of 24 x 24 and experts of 24 x 40 and back, in each layer."""
    shapes = []
    for i in range(layers):
        shapes.append(MatrixShape(f"{i}.q_proj", 24, 24, "attention"))
        for j in range(experts):
            name = f"{i}.experts.{j}"
            shapes += [
                MatrixShape(f"{name}.up", 40, 24, "expert", name),
                MatrixShape(f"{name}.down", 24, 40, "expert", name),
            ]
    return tuple(shapes)


def statistics_of(shapes: tuple[MatrixShape, ...], seed: int = 0) -> Statistics:
    rng = np.random.default_rng(seed)
    frequency = {shape.expert: float(rng.integers(1, 100)) for shape in shapes if shape.expert}
    return Statistics({shape.name: float(rng.uniform(-0.5, 20)) for shape in shapes}, frequency)


def test_dense_and_sparse_are_all_matrices() -> None:
    """Sums of rows and columns as the paper's sizes have them."""
    for shapes, dense, sparse in ((MIXTRAL, (128, 851_968), (768, 14_155_776)),
                                  (DEEPSEEK, (196, 891_712), (5_184, 17_915_904))):  # fmt: skip
        for policy, (count, both) in (("dense", dense), ("sparse", sparse)):
            chosen = ranks(parse(f"{policy}-7"), shapes.matrices, None)
            assert set(chosen.values()) == {7} and len(chosen) == count
            assert sum(matrix.rows + matrix.columns for matrix in shapes.matrices if matrix.name in chosen) == both
        every = ranks(parse("uniform-7"), shapes.matrices, None)
        assert every == ranks(parse("dense-7+sparse-7"), shapes.matrices, None)


def test_dense_matrices_are_those_that_every_token_goes_through() -> None:
    chosen = ranks(parse("dense-1"), DEEPSEEK.matrices, None)
    assert {name for name in chosen if "self_attn" not in name and "shared_experts" not in name} == {
        f"model.layers.0.mlp.{name}_proj" for name in ("gate", "up", "down")
    }
    assert not any(".experts." in name for name in chosen)
    assert len(ranks(parse("dense-1"), TINY.matrices, None)) == len(TINY.matrices) == 28


def test_ranks_end_at_the_smaller_side() -> None:
    """Mixtral's k_proj is 1024 x 4096; ranks of a sum add up first."""
    chosen = ranks(parse("dense-1000+uniform-100"), MIXTRAL.matrices, None)
    assert chosen["model.layers.0.self_attn.k_proj"] == 1024
    assert chosen["model.layers.0.self_attn.q_proj"] == 1100
    assert chosen["model.layers.0.block_sparse_moe.experts.0.w1"] == 100


def test_factors_with_more_numbers_than_their_matrix_are_told() -> None:
    """Rank 1024 of 1024 x 4096 is 125 % of its numbers; of 4096 x 4096 it is half."""
    recipe = choose(MIXTRAL, SCHEME, "dense-1024+kurtosis-32", None, None)[1]
    assert recipe["larger_than_matrix"] == [f"model.layers.{i}.self_attn.{x}_proj" for i in range(32) for x in "kv"]
    assert choose(MIXTRAL, SCHEME, "dense-512", None, None)[1]["larger_than_matrix"] == []


@given(st.data())
def test_shares_add_up_and_keep_to_their_limits(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    weights = data.draw(st.lists(st.floats(0, 1e6), min_size=count, max_size=count))
    most = data.draw(st.lists(st.integers(0, 40), min_size=count, max_size=count))
    total = data.draw(st.integers(0, 500))
    shares = share_out(total, weights, most)
    assert sum(shares) == min(total, sum(most))
    assert all(0 <= part <= limit for part, limit in zip(shares, most, strict=True))
    free = [at for at in range(count) if shares[at] < most[at]]
    for place in free:  # who is below the limit is not further from its share than whole numbers are
        for other in free:
            if weights[place] >= weights[other]:
                assert shares[place] >= shares[other] - 1


@pytest.mark.parametrize(
    ("total", "weights", "most", "expected"),
    [
        (10, [1, 1, 1], [9, 9, 9], [4, 3, 3]),  # the earlier one of those that are equal
        (10, [5, 3, 2], [9, 9, 9], [5, 3, 2]),
        (7, [5, 3, 2], [9, 9, 9], [4, 2, 1]),  # 3.5, 2.1, 1.4: the largest remainder first
        (10, [8, 1, 1], [4, 9, 9], [4, 3, 3]),  # what is over goes to the others
        (10, [8, 1, 1], [4, 2, 9], [4, 2, 4]),
        (30, [1, 2, 3], [4, 5, 6], [4, 5, 6]),
        (5, [0, 0], [9, 9], [3, 2]),
    ],
)
def test_shares(total: int, weights: list[float], most: list[int], expected: list[int]) -> None:
    assert share_out(total, weights, most) == expected


def test_frequency_gives_an_experts_matrices_the_same_and_each_layer_the_average() -> None:
    shapes = small(experts=5)
    statistics = statistics_of(shapes)
    chosen = ranks(parse("frequency-7"), shapes, statistics)
    for layer in range(2):
        times = [statistics.frequency[f"{layer}.experts.{j}"] for j in range(5)]
        got = [chosen.get(f"{layer}.experts.{j}.up", 0) for j in range(5)]
        assert got == [chosen.get(f"{layer}.experts.{j}.down", 0) for j in range(5)]
        assert sum(got) == 7 * 5
        for rank, share in zip(got, times, strict=True):
            assert abs(rank - min(share / sum(times) * 35, 24)) < 1.5
    assert not any("q_proj" in name for name in chosen)


@pytest.mark.parametrize("policy", ["kurtosis", "frequency-kurtosis"])
def test_policies_by_kurtosis_keep_the_average_and_rise(policy: str) -> None:
    shapes = small()
    statistics = statistics_of(shapes)
    experts = [shape for shape in shapes if shape.expert]
    for rank in (1, 4, 11, 23):
        chosen = ranks(parse(f"{policy}-{rank}"), shapes, statistics)
        assert sum(chosen.values()) == rank * len(experts) and set(chosen) <= {shape.name for shape in experts}
        weight = {
            shape.name: statistics.kurtosis[shape.name] if policy == "kurtosis" else
            (statistics.kurtosis[shape.name] - min(statistics.kurtosis[o.name] for o in experts))
            * statistics.frequency[shape.expert or ""]
            for shape in experts
        }  # fmt: skip
        order = sorted(weight, key=lambda name: weight[name])
        got = [chosen.get(name, 0) for name in order]
        assert all(lower <= higher for lower, higher in pairwise(got[1:]))


def test_kurtosis_of_a_model_without_experts_is_of_all_matrices() -> None:
    """Twice as far above the lowest is twice the rank."""
    shapes = tuple(MatrixShape(f"{i}", 100, 100, "mlp") for i in range(4))
    chosen = ranks(parse("kurtosis-15"), shapes, Statistics({"0": 1.0, "1": 2.0, "2": 3.0, "3": 4.0}, {}))
    assert sum(chosen.values()) == 60 and chosen["3"] == 30 and chosen["2"] == 20 and chosen["1"] == 10
    assert "0" not in chosen  # a hundredth of 3 of 6
    level = ranks(parse("kurtosis-15"), shapes, Statistics(dict.fromkeys("0123", 0.3), {}))
    assert level == dict.fromkeys("0123", 15)


def test_the_published_steps() -> None:
    """Not monotone: 9 gets 2,048, 24 gets 1,024; and half to even."""
    values = {0.4: 0, 0.5: 0, 1.0: 8, 1.5: 16, 2.5: 16, 9.4: 2048, 9.6: 1024, 24.0: 1024, -1.0: 0}
    shapes = tuple(MatrixShape(f"{k}", 4096, 14336, "expert", f"{k}") for k in values)
    statistics = Statistics({f"{k}": k for k in values}, {})
    chosen = ranks(parse("kurtosis-steps-16"), shapes, statistics)
    assert {k: chosen.get(f"{k}", 0) for k in values} == values
    more = ranks(parse("kurtosis-steps-32"), shapes, statistics)
    assert more == {name: rank if float(name) > 9.5 else 2 * rank for name, rank in chosen.items()}


def test_by_shape_an_average_is_as_good_as_the_ranks() -> None:
    """Mixtral's and DeepSeek's experts all have the same m + n; llama-tiny's matrices do not."""
    for policy in ("kurtosis", "frequency", "frequency-kurtosis"):
        assert ranks(parse(f"{policy}-16"), MIXTRAL.matrices, None) == ranks(parse("sparse-16"), MIXTRAL.matrices, None)
    for policy, shapes in (("kurtosis-16", TINY), ("kurtosis-steps-16", MIXTRAL)):
        with pytest.raises(ModelError, match="depends on the weights, and sizes are told by shape"):
            ranks(parse(policy), shapes.matrices, None)


@given(st.data())
def test_a_budget_is_held_and_used(data: st.DataObject) -> None:
    shapes = small(experts=data.draw(st.integers(1, 4)))
    policy = data.draw(st.sampled_from(["uniform", "sparse", "dense-3+kurtosis", "frequency", "dense"]))
    statistics = statistics_of(shapes, data.draw(st.integers(0, 5)))
    budget = data.draw(st.integers(4_000, 40_000))

    def bytes_of(chosen: Mapping[str, int]) -> int:
        return sum(compensator_bytes(SCHEME, shape, chosen.get(shape.name, 0)) for shape in shapes)

    terms = fit(parse(policy), shapes, statistics, budget, bytes_of)
    assert bytes_of(ranks(terms, shapes, statistics)) <= budget
    policy_terms = parse(policy)
    assert all(
        before.rank == after.rank for before, after in zip(policy_terms, terms, strict=True) if before.rank is not None
    )
    more = tuple(
        PolicyTerm(fitted.kind, (fitted.rank or 0) + (before.rank is None))
        for before, fitted in zip(policy_terms, terms, strict=True)
    )
    beyond = ranks(more, shapes, statistics)
    assert bytes_of(beyond) > budget or beyond == ranks(terms, shapes, statistics)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("uniform", "give it a rank, such as uniform-16, or a budget"),
        ("dense+uniform", "one rank at most"),
        ("dense-", "give one of uniform, dense, sparse"),
        ("dense-x", "give one of"),
        ("dense-\u0661", "give one of"),
        ("dense-9999999999", "give one of"),
        ("", "give one of"),
        ("dense-4+", "give one of"),
        ("lowrank-4", "give one of"),
        ("kurtosis-steps-8", "kurtosis-steps-16 and kurtosis-steps-32"),
        ("sparse-4", "it gives ranks to experts, and this model has none"),
        ("frequency-4", "this model has none"),
    ],
)
def test_policies_that_are_none(policy: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        ranks(parse(policy), TINY.matrices, None)


def test_budgets_that_find_nothing() -> None:
    for policy, budget, message in (("uniform", 3, "rank 1 takes"), ("uniform-8", 10**6, "leave one open")):
        with pytest.raises(ModelError, match=message):
            choose(TINY, SCHEME, policy, budget, None)


def test_kurtosis_is_the_excess() -> None:
    rng = np.random.default_rng(0)
    assert kurtosis(np.array([[1.0, -1.0]] * 50)) == pytest.approx(-2)
    assert kurtosis(rng.standard_normal((400, 500))) == pytest.approx(0, abs=0.05)
    assert kurtosis(rng.laplace(size=(400, 500)) + 7) == pytest.approx(3, abs=0.2)
    assert kurtosis(np.full((3, 4), 0.5)) == 0
    assert kurtosis(np.float16(1e-4) * np.array([[1, 2, 3, 9]], np.float16)) == pytest.approx(-0.77, abs=0.1)


@pytest.mark.parametrize("shape", [(30, 50), (50, 30), (20, 20)])
def test_residual_rank_counts_singular_values(shape: tuple[int, int]) -> None:
    """Below half of the largest, and from there on; of a flat spectrum none is below."""
    w = np.random.default_rng(1).standard_normal(shape)
    sigma = np.linalg.svd(w, compute_uv=False)
    assert residual_rank(w) == (int(np.sum(sigma < sigma[0] / 2)), int(np.sum(sigma >= sigma[0] / 2)))
    assert sum(residual_rank(w)) == min(shape) and min(residual_rank(w)) > 0
    flat = np.linalg.qr(w if shape[0] >= shape[1] else w.T)[0]
    assert residual_rank(flat) == (0, min(shape)) and residual_rank(np.zeros(shape)) == (0, min(shape))


def test_shapes_of_mixtures_that_are_wrong(tmp_path: Path) -> None:
    source = (find_model("mixtral-8x7b") / "config.json").read_text()
    for before, after in (
        ('experts": 8', 'experts": 0'),
        ('size": 4096', 'size": "4"'),
        ('layers": 32', 'layers": 1e9'),
    ):
        assert before in source
        (tmp_path / "config.json").write_text(source.replace(before, after))
        with pytest.raises(ModelError, match=r"config\.json: '.*' is .*"):
            read_shapes(tmp_path)


def test_shapes_of_a_dense_model_are_all_its_weights() -> None:
    assert TINY.weights == 786_432 and TINY.others == 66_688
    assert all(prod((matrix.rows, matrix.columns)) > 0 and matrix.expert is None for matrix in TINY.matrices)
