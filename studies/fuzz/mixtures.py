"""Mixtures of experts to fuzz with: numbers of experts that do not go together, tensors that are not there or have
other shapes. What is accepted has to run in the reference.
"""

import json
import struct
from copy import deepcopy
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from meshrt.models.config import Config, read_config
from meshrt.models.folders.checkpoint import SINGLE, check_shapes, expected_shapes, open_checkpoint
from meshrt.models.reference import forward, load_weights
from meshrt.studies.fuzz.models import CONFIG, VARIANTS, FuzzCase, refused
from meshrt.studies.fuzz.mutate import mutated_json

MIXTURES = tuple(variant for variant in VARIANTS if "num_experts_per_tok" in variant)
COUNTS = (
    "num_local_experts", "num_experts", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size",
    "intermediate_size", "n_shared_experts", "shared_expert_intermediate_size", "first_k_dense_replace",
    "moe_layer_freq", "decoder_sparse_step", "mlp_only_layers", "norm_topk_prob",
)  # fmt: skip
WRONG: tuple[Any, ...] = (
    0, -1, 1, 2, 4, 6, 7, 1 << 14, (1 << 14) + 1, 2**31, None, True, False, 3.0, "3", [], [0, 0], [1], [2], [-1], {},
)  # fmt: skip


@cache
def valid_checkpoint(at: int) -> tuple[dict[str, Any], bytes]:
    """Header and data of a valid checkpoint of MIXTURES[at]."""
    header, data, rng = {}, bytearray(), np.random.default_rng(at)
    for name, shape in expected_shapes(Config.from_dict(CONFIG | MIXTURES[at])).items():
        begin = len(data)
        data += (0.3 * rng.standard_normal(shape, np.float32)).tobytes()
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, len(data)]}
    return header, bytes(data)


def valid_mixture(rng: Random) -> dict[str, bytes]:
    """The files of a mixture that runs."""
    at = rng.randrange(len(MIXTURES))
    return files(json.dumps(CONFIG | MIXTURES[at]).encode(), *valid_checkpoint(at))


def make_mixture(rng: Random) -> FuzzCase:
    """One wrong number, a few; tensors that are gone, or others; the same with changes anywhere in the key."""
    at = rng.randrange(len(MIXTURES))
    config, (header, data) = CONFIG | MIXTURES[at], valid_checkpoint(at)
    text = json.dumps(config).encode()
    match rng.randrange(3):
        case 0:
            names = rng.sample(COUNTS, rng.choice((1, 1, 2)))
            text = json.dumps(config | {name: rng.choice(WRONG) for name in names}).encode()
        case 1:
            header = _changed(rng, header)
        case _:
            text = mutated_json(rng, config)
    return FuzzCase(files(text, header, data))


def _changed(rng: Random, header: dict[str, Any]) -> dict[str, Any]:
    """A router, an expert or a shared one that is not as it should be."""
    header = deepcopy(header)
    of_experts = [name for name in header if "expert" in name or ".gate." in name]
    name, other = rng.sample(of_experts, 2)
    match rng.randrange(6):
        case 0:
            del header[name]
        case 1:
            header[name + rng.choice(("x", ".weight", ""))] = header.pop(name)
        case 2:
            header[name]["shape"] = header[name]["shape"][::-1]
        case 3:
            (begin, end), (rows, *rest) = header[name]["data_offsets"], header[name]["shape"]
            header[name] |= {"shape": [rows - 1, *rest], "data_offsets": [begin, end - (end - begin) // rows]}
        case 4:
            header[name], header[other] = header[other], header[name]
        case _:
            header[name]["dtype"] = rng.choice(("F16", "BF16", "U8", "I32", "F64"))
    return header


def files(text: bytes, header: dict[str, Any], data: bytes) -> dict[str, bytes]:
    """Of a folder with that config.json."""
    head = json.dumps(header).encode()
    return {"config.json": text, SINGLE: struct.pack("<Q", len(head)) + head + data}


def run_a_mixture(folder: Path, arguments: tuple[str | None, ...]) -> None:
    """In the reference: what was accepted has logits, and those of finite weights are finite."""
    with refused():
        config = read_config(folder)
        check_shapes(open_checkpoint(folder), config)
        logits = forward(config, load_weights(folder), [1, 2, 3])
        assert logits.shape == (3, config.vocab_size), "not a logit for each token and word"
        assert np.isfinite(logits).all(), "logits that are not finite"
