"""Folders of `meshrt quantize` to fuzz with: the key that says how matrices are kept, and their tensors."""

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
from meshrt.models.integer import projection
from meshrt.models.quantize.folder import read_dense
from meshrt.models.quantize.form import Spec
from meshrt.models.reference import load_weights
from meshrt.studies.fuzz.mixtures import MIXTURES
from meshrt.studies.fuzz.models import CONFIG, FuzzCase, refused
from meshrt.studies.fuzz.mutate import mutated_bytes, mutated_json

RANKS = {"model.layers.0.mlp.gate_proj": 4, "model.layers.1.self_attn.q_proj": 2}
EXPERT_RANKS = {"model.layers.0.block_sparse_moe.experts.4.w1": 3, "model.layers.1.self_attn.o_proj": 8}
KEYS: tuple[dict[str, Any], ...] = (
    {"method": "hqq", "bits": 3, "group": 32, "symmetric": False, "compensator_bits": 16, "ranks": {}},
    {"method": "milo", "bits": 3, "group": 32, "symmetric": False, "compensator_bits": 3, "ranks": RANKS},
    {"method": "milo", "bits": 4, "group": 64, "symmetric": True, "compensator_bits": 16, "ranks": RANKS},
    {"method": "w4a8", "bits": 4, "group": "row", "symmetric": False, "compensator_bits": 16, "ranks": {},
     "offset": True, "activations": "block"},
    {"method": "milo", "bits": 3, "group": 64, "symmetric": False, "compensator_bits": 8, "ranks": EXPERT_RANKS},
    {"method": "rtn", "bits": 5, "group": 96, "symmetric": True, "compensator_bits": 16, "ranks": {}},
)  # fmt: skip
BASES = (CONFIG, CONFIG, CONFIG, CONFIG, CONFIG | MIXTURES[0], CONFIG | MIXTURES[2])
WRONG: dict[str, tuple[Any, ...]] = {
    "bits": (0, 1, 2, 4, 5, 8, 9, -3, 3.0, "3", None), "symmetric": (True, False, 0, 1, None),
    "group": ("row", 0, -32, 1, 31, 48, 96, 128, 1 << 16, (1 << 16) + 32), "compensator_bits": (3, 8, 16, 4, 0, None),
    "method": ("w4a8", "gptq", "", 0, None),
}  # fmt: skip


@cache
def checkpoint(at: int) -> tuple[dict[str, Any], bytes]:
    """Header and data of a valid folder of KEYS[at]."""
    config = Config.from_dict(BASES[at] | {"quantized": KEYS[at]})
    specs: dict[str, Spec] = {name: ("F32", shape) for name, shape in expected_shapes(config).items()}
    for name, matrix in config.matrices().items():
        specs |= config.quantized[name].tensors(name, matrix.columns, matrix.rows)
    header, data, rng = {}, bytearray(), np.random.default_rng(at)
    for name, (dtype, shape) in specs.items():
        begin = len(data)
        if dtype == "U8":
            data += rng.integers(0, 256, shape, np.uint8).tobytes()
        else:
            data += (0.3 * rng.standard_normal(shape)).astype({"F16": "<f2", "F32": "<f4"}[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, len(data)]}
    return header, bytes(data)


def make_quantized(rng: Random) -> FuzzCase:
    """Changes in the key, in the header, or in the data; values that do not fit the tensors that are there."""
    at = rng.randrange(len(KEYS))
    header, data = checkpoint(at)
    key: Any = json.dumps(KEYS[at]).encode()
    text = json.dumps(header).encode()
    match rng.randrange(5):
        case 0:
            key = mutated_json(rng, KEYS[at])
        case 1:
            text = mutated_json(rng, header)
        case 2:
            key = json.dumps(_misfit(rng, KEYS[at])).encode()
        case 3:
            text = json.dumps(_cut(rng, header)).encode()
        case _:
            data = mutated_bytes(rng, data)
    config = json.dumps(BASES[at]).encode()[:-1] + b', "quantized": ' + key + b"}"
    return FuzzCase({"config.json": config, SINGLE: struct.pack("<Q", len(text)) + text + data})


def _misfit(rng: Random, key: dict[str, Any]) -> dict[str, Any]:
    """A value of the key that is another, or a rank that a matrix cannot have, or has not."""
    name = rng.choice((*WRONG, "ranks", "ranks"))
    if name != "ranks":
        return key | {name: rng.choice(WRONG[name])}
    matrix = rng.choice((*key["ranks"], "model.layers.1.self_attn.k_proj", "model.layers.9.mlp.gate_proj", "lm_head"))
    return key | {"ranks": key["ranks"] | {matrix: rng.choice((0, -1, 1, 4, 8, 9, 13, 10**6, 2.0, None))}}


def _cut(rng: Random, header: dict[str, Any]) -> dict[str, Any]:
    """A tensor with a row less, of another dtype, of another's numbers, or none."""
    header = deepcopy(header)
    name, other = rng.sample([key for key in header if not key.endswith("weight")], 2)
    begin, end = header[name]["data_offsets"]
    rows, *rest = header[name]["shape"]
    match rng.randrange(5):
        case 0:
            header[name] |= {"shape": [rows - 1, *rest], "data_offsets": [begin, end - (end - begin) // rows]}
        case 1:
            header[name] |= {"shape": [rows, 0], "data_offsets": [begin, begin]}
        case 2:
            header[name]["dtype"] = rng.choice(("F16", "BF16", "F32", "U8", "I8", "U32"))
        case 3:
            header[name], header[other] = header[other], header[name]
        case _:
            del header[name]
    return header


def read_a_quantized_folder(folder: Path, arguments: tuple[str | None, ...]) -> None:
    """As the reference does: what was accepted has all its matrices, in their shapes, and finite."""
    with refused():
        config, checkpoint = read_config(folder, quantized=True), open_checkpoint(folder)
        check_shapes(checkpoint, config)
        for name, matrix in config.matrices().items() if config.quantized else ():
            w = read_dense(checkpoint, matrix)
            assert w.shape == (matrix.columns, matrix.rows), f"{name} is not what config.json says"
            assert np.isfinite(w).all(), f"{name} is not finite"
        if config.quantized:
            first = next(iter(config.matrices().values()))
            projection(folder, config)(
                load_weights(checkpoint, np.float32, config), first, np.ones((1, first.rows), np.float32)
            )
