"""Mixtures of experts: the router, and the reference against transformers and against each token alone."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from moe_models import CASES, DEEPSEEK, IDS, MIXTRAL, QWEN2, random_moe
from random_models import random_weights

from meshrt.models.config import Config, read_config
from meshrt.models.experts import route
from meshrt.models.matrix import Experts
from meshrt.models.reference import experts, forward, load_weights, mlp, project

GOLDEN = Path(__file__).parents[1] / "golden"


def by_hand(logits: list[float], top: int, renormalise: bool) -> tuple[list[int], list[float]]:
    """Experts and shares of one token."""
    e = [math.exp(logit - max(logits)) for logit in logits]
    p = [power / math.fsum(e) for power in e]
    chosen = sorted(sorted(range(len(p)), key=lambda at: (-p[at], at))[:top])
    whole = math.fsum(p[at] for at in chosen) if renormalise else 1.0
    return chosen, [p[at] / whole for at in chosen]


@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize(("count", "top"), [(7, 3), (5, 1), (1, 1), (6, 6), (60, 4)])
def test_route_is_the_definition(count: int, top: int, renormalise: bool) -> None:
    logits = 3 * np.random.default_rng(count).standard_normal((19, count))
    chosen, shares = route(logits, top, renormalise)
    assert chosen.shape == shares.shape == (19, top) and shares.dtype == np.float64
    for row, taken, own in zip(logits.tolist(), chosen.tolist(), shares, strict=True):
        expected = by_hand(row, top, renormalise)
        assert taken == expected[0]
        np.testing.assert_allclose(own, expected[1], rtol=1e-13)


def test_the_likeliest_first_and_softmax_of_these_is_the_same_as_dividing_by_their_sum() -> None:
    logits = np.random.default_rng(5).standard_normal((11, 9))
    chosen, shares = route(logits, 4, True)
    kept = np.exp(np.take_along_axis(logits, chosen, 1))
    np.testing.assert_allclose(shares, kept / kept.sum(1, keepdims=True), rtol=1e-13)


@pytest.mark.parametrize(
    ("logits", "top", "expected"),
    [
        ([0.0, 0.0, 0.0, 0.0, 0.0], 3, [0, 1, 2]),
        ([1.0, 2.0, 2.0, 1.0, 2.0], 2, [1, 2]),
        ([1.0, 2.0, 1.0, 1.0, 2.0], 4, [0, 1, 2, 4]),
        ([0.0, -2000.0, -3000.0, -1000.0, 0.0], 3, [0, 1, 4]),  # of the three whose probability is 0
    ],
)
def test_of_equally_likely_experts_those_of_lower_numbers_are_taken(
    logits: list[float], top: int, expected: list[int]
) -> None:
    for dtype in (np.float16, np.float32, np.float64):
        chosen, shares = route(np.array([logits, logits], dtype), top, False)
        assert chosen.tolist() == [expected, expected]
        assert shares.dtype == (np.float64 if dtype == np.float64 else np.float32)
        assert np.isfinite(shares).all()


def test_equal_shares_add_up_to_one_only_where_they_are_renormalised() -> None:
    logits = np.zeros((2, 8), np.float32)
    assert route(logits, 3, False)[1].tolist() == [[0.125] * 3] * 2
    np.testing.assert_allclose(route(logits, 3, True)[1], 1 / 3, rtol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_the_reference_is_transformers(name: str, tmp_path: Path) -> None:
    """In float64 transformers takes norms and the router in float32 all the same: hence 1e-5 there."""
    golden, folder = {**np.load(GOLDEN / f"{name}.npz")}, random_moe(name, tmp_path)
    config = read_config(folder)
    assert golden["ids"].tolist() == IDS[name]
    for dtype, key, tolerance in ((np.float32, "logits", 1e-4), (np.float64, "wide", 1e-5)):
        logits = forward(config, load_weights(folder, dtype), IDS[name], dtype)
        assert logits.dtype == dtype
        np.testing.assert_allclose(logits, golden[key], rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_what_the_families_say_matters(name: str) -> None:
    """Each switch of a router or of attention moves the logits by far more than the comparison above lets pass."""
    data = CASES[name]
    changes: list[dict[str, Any]] = [{"num_experts_per_tok": 1}]
    if data["model_type"] != "mixtral" and data.get("num_experts_per_tok") != data.get("num_experts"):
        changes.append({"norm_topk_prob": not data["norm_topk_prob"]})
    if data.get("clip_qkv"):
        changes.append({"clip_qkv": None})
    weights = random_weights(data, 3)
    expected = forward(Config.from_dict(data), weights, IDS[name])
    for change in changes:
        assert np.abs(forward(Config.from_dict(data | change), weights, IDS[name]) - expected).max() > 1e-2, change


@pytest.mark.parametrize("name", CASES)
def test_the_reference_is_causal(name: str) -> None:
    config, weights = Config.from_dict(CASES[name]), random_weights(CASES[name], 4)
    np.testing.assert_allclose(
        forward(config, weights, IDS[name][:5]), forward(config, weights, IDS[name])[:5], rtol=0, atol=1e-12
    )


def layer_of(data: dict[str, Any], seed: int = 0) -> tuple[Experts, dict[str, Any], Any]:
    """The experts of a layer, all weights in float64, and an input."""
    config = Config.from_dict(data)
    mixture = next(mlp for mlp in (config.layer(number).mlp for number in range(3)) if isinstance(mlp, Experts))
    w = {name: weight.astype(float) for name, weight in random_weights(data, seed).items()}
    return mixture, w, np.random.default_rng(seed).standard_normal((17, data["hidden_size"]))


def token_by_token(mixture: Experts, w: dict[str, Any], x: Any) -> Any:
    """y of each token alone, from its definition."""
    out = []
    for token in x:
        chosen, shares = by_hand(
            (w[mixture.router.name + ".weight"] @ token).tolist(), mixture.top, mixture.renormalise
        )
        y = sum(share * mlp(w, mixture.experts[at], token) for at, share in zip(chosen, shares, strict=True))
        if mixture.shared is not None:
            gate = 1.0
            if mixture.shared_gate is not None:
                gate = 1 / (1 + np.exp(-(w[mixture.shared_gate.name + ".weight"] @ token)))
            y = y + gate * mlp(w, mixture.shared, token)
        out.append(y)
    return np.array(out)


@pytest.mark.parametrize("name", CASES)
def test_experts_together_are_each_token_alone(name: str) -> None:
    mixture, w, x = layer_of(CASES[name])
    np.testing.assert_allclose(experts(w, mixture, x), token_by_token(mixture, w, x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("count, top", [(5, 1), (5, 5), (1, 1), (4, 3)])
@pytest.mark.parametrize("data", [MIXTRAL, DEEPSEEK, QWEN2], ids=["mixtral", "deepseek", "qwen2-moe"])
def test_all_experts_one_expert_and_one_of_them(data: dict[str, Any], count: int, top: int) -> None:
    key = {"mixtral": "num_local_experts", "deepseek": "n_routed_experts"}.get(data["model_type"], "num_experts")
    mixture, w, x = layer_of(data | {key: count, "num_experts_per_tok": top})
    outputs = experts(w, mixture, x)
    np.testing.assert_allclose(outputs, token_by_token(mixture, w, x), rtol=0, atol=1e-12)
    if count == 1 and mixture.shared is None:
        np.testing.assert_array_equal(outputs, mlp(w, mixture.experts[0], x))


def test_a_skewed_router_and_experts_without_a_token() -> None:
    """All tokens go to the experts 3, 0 and 1, and what the others hold is not touched: it is NaN."""
    mixture, w, x = layer_of(MIXTRAL)
    x[:, 0] = 1
    w[mixture.router.name + ".weight"] = np.zeros((5, 36))
    w[mixture.router.name + ".weight"][3, 0] = 30.0
    for number in (2, 4):
        for matrix in mixture.experts[number].matrices():
            w[matrix.name + ".weight"] = np.full_like(w[matrix.name + ".weight"], np.nan)
    chosen, shares = route(project(w, mixture.router, x), mixture.top, mixture.renormalise)
    assert chosen.tolist() == [[0, 1, 3]] * 17 and (shares[:, 2] > 0.999999).all()
    outputs = experts(w, mixture, x)
    np.testing.assert_allclose(outputs, token_by_token(mixture, w, x), rtol=0, atol=1e-12)
    np.testing.assert_allclose(outputs, mlp(w, mixture.experts[3], x), rtol=0, atol=1e-9)


def test_sums_are_in_order_of_the_experts_numbers() -> None:
    """To the bit, in float32, where other orders give other bits."""
    mixture, w, x = layer_of(MIXTRAL)
    narrow, x = {name: weight.astype(np.float32) for name, weight in w.items()}, x.astype(np.float32)
    chosen, shares = route(project(narrow, mixture.router, x), mixture.top, mixture.renormalise)

    def added(numbers: list[int]) -> Any:
        y = np.zeros_like(x)
        for number in numbers:
            tokens, places = np.nonzero(chosen == number)
            y[tokens] += shares[tokens, places, None] * mlp(narrow, mixture.experts[number], x[tokens])
        return y

    outputs = experts(narrow, mixture, x)
    assert outputs.dtype == np.float32
    np.testing.assert_array_equal(outputs, added([0, 1, 2, 3, 4]))
    assert (outputs != added([4, 3, 2, 1, 0])).any()
