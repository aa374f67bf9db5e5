"""MiLo's folders on Arm cores: 3 bits, and compensators of any bits and rank, added to what they compensate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_models import CASES, random_checkpoint
from runs import run_on_arm
from test_arm_factors import watched_down
from test_arm_linear import expected
from test_arm_llama import logits_of

from meshrt.models.catalogue import find_model
from meshrt.models.config import read_config
from meshrt.models.folders.checkpoint import open_checkpoint
from meshrt.models.quantize import codes as grids
from meshrt.models.quantize.folder import read_parts
from meshrt.models.quantize.model import quantize, read_model, statistics
from meshrt.models.quantize.sizes import CodeScheme
from meshrt.models.reference import forward, load_weights
from meshrt.models.stories import stories
from meshrt.models.tokenizer import encode, load_tokenizer
from meshrt.programs.arm.products.compensators import rows_of

GIVEN: dict[str, Any] = {"prompt_ids": "1,5,2,9,3,3,8", "max_new_tokens": 3, "kv": "float32", "ignore_eos": True}
RANKS = {"self_attn.k_proj": 5, "self_attn.o_proj": 8, "mlp.gate_proj": 7, "mlp.up_proj": 3, "mlp.down_proj": 16}


def folder_of(path: Path, bits: int, compensator_bits: int, group: int = 32, symmetric: bool = False) -> Path:
    """A small Qwen2, whose hidden size of 36 no group divides, quantized; q and v have no compensators."""
    random_checkpoint(CASES["qwen2"], path / "plain", 7)
    config, checkpoint = read_model(path / "plain")
    ranks = {name: rank for name in config.matrices() for end, rank in RANKS.items() if name.endswith(end)}
    scheme = CodeScheme("milo", bits, group, symmetric, compensator_bits)
    quantize(path / "plain", path / "q", scheme, ranks, 1, statistics(config, checkpoint))
    return path / "q"


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(1)
@pytest.mark.parametrize(("bits", "compensator_bits"), [(8, 3), (6, 8), (8, 16), (7, 3)])
def test_logits_are_near_those_of_the_numbers(bits: int, compensator_bits: int, comm: Any, tmp_path: Path) -> None:
    """By payload; and by shape the counters are the same."""
    folder = folder_of(tmp_path, bits, compensator_bits)
    given = {"model": str(folder), "cores": 5, **GIVEN}
    logits = logits_of(comm, tmp_path, **given)
    report, shape = (run_on_arm(comm, "llama", payload=payload, **given) for payload in (True, False))
    ids = [1, 5, 2, 9, 3, 3, 8, *report["result"]["token_ids"][:-1]]
    truth = forward(read_config(folder, quantized=True), load_weights(folder), ids)
    assert np.linalg.norm(logits - truth) <= 0.05 * np.linalg.norm(truth)
    assert shape["measured"] == report["measured"] and shape["phases"] == report["phases"]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(2)
@pytest.mark.parametrize(("compensator_bits", "group"), [(3, 32), (8, 32), (16, 64)])
def test_every_product_of_a_compensator_is_that_of_the_integer_reference(
    compensator_bits: int, group: int, comm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """down_proj of 3 bits with its compensator: both factors in codes, and in 8 bits what lies between them."""
    folder = folder_of(tmp_path, 3, compensator_bits, group)
    seen = watched_down(monkeypatch)
    logits_of(comm, tmp_path, model=str(folder), **GIVEN)
    matrix = read_config(folder, quantized=True).matrices()["model.layers.1.mlp.down_proj"]
    parts = read_parts(open_checkpoint(folder), matrix.name, matrix.form, matrix.columns, matrix.rows)
    assert parts.compensator is not None and len(seen) == 3
    codes, inner, rank = parts.codes, matrix.rows, matrix.form.rank
    own = min(group, inner)
    exact = compensator_bits < 16 and inner % group == 0
    v = rows_of(parts.compensator.v, rank, inner, own, exact)
    u = rows_of(parts.compensator.u, matrix.columns, rank, rank, exact)
    if exact:
        product = u.dequantized() @ v.dequantized()
        assert np.abs(product - parts.compensator.product()).max() == 0
    for x, y in seen:
        whole = grids.Codes(codes.codes[..., :own], codes.scale, codes.zero, codes.bits, inner)
        truth = expected(x, whole, own) + expected(expected(x, v, own), u, rank)
        assert (y == truth).all()


@pytest.mark.parametrize(("rows", "columns", "old"), [(5, 64, 32), (64, 5, 32), (7, 48, 64), (9, 1, 64), (40, 24, 64)])
def test_codes_of_groups_that_span_rows_are_the_same_numbers(rows: int, columns: int, old: int) -> None:
    numbers = np.random.default_rng(0).standard_normal((rows, columns))
    stored = grids.symmetric(numbers.reshape(1, -1), 3, old)
    divided = rows_of(stored, rows, columns, np.gcd(columns, old), True)
    assert (divided.dequantized() == stored.dequantized().reshape(rows, columns)).all()


@pytest.mark.mpi(ranks=[1])
@pytest.mark.all
@pytest.mark.parametrize("name", ["mixtral-tiny", "deepseek-tiny"])
def test_a_packaged_mixture_in_three_bits_tells_a_story(name: str, comm: Any, tmp_path: Path) -> None:
    """Of one that it has not seen it loses as much as by the numbers of its folder, but for what 8 bits do to rows."""
    source, folder = find_model(name), tmp_path / "q"
    config, checkpoint = read_model(source)
    ranks = {matrix: 16 if "self_attn" in matrix else 4 for matrix in config.matrices()}
    quantize(source, folder, CodeScheme("milo", 3, 64, False, 3), ranks, 1, statistics(config, checkpoint))
    ids = encode(load_tokenizer(source), next(iter(stories(987_654_321, 1))))[:48]
    given = {"model": str(folder), "prompt_ids": ",".join(map(str, ids)), "max_new_tokens": 1}
    on_arm = logits_of(comm, tmp_path, **given)
    truth = forward(read_config(folder, quantized=True), load_weights(folder), ids)
    nats = []
    for logits in (on_arm.astype(np.float64), truth):
        sums = np.log(np.exp(logits[:-1] - logits[:-1].max(axis=1, keepdims=True)).sum(axis=1))
        own = logits[np.arange(len(ids) - 1), ids[1:]] - logits[:-1].max(axis=1)
        nats.append(float(np.mean(sums - own)))
    assert abs(nats[0] - nats[1]) < 0.02 and nats[0] < 1
