"""Folders of `meshrt quantize` to fuzz with: the key that says how matrices are kept, and their tensors."""

import json
import struct
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from meshrt.models.checkpoint import SINGLE, check_shapes, expected_shapes, open_checkpoint
from meshrt.models.config import Config, read_config
from meshrt.models.integer import projection
from meshrt.models.quantize.folder import read_dense
from meshrt.models.quantize.form import Spec
from meshrt.models.reference import load_weights
from meshrt.studies.fuzz.models import CONFIG, Case, refused
from meshrt.studies.fuzz.mutate import mutated_bytes, mutated_json

RANKS = {"model.layers.0.mlp.gate_proj": 4, "model.layers.1.self_attn.q_proj": 2}
KEYS: tuple[dict[str, Any], ...] = (
    {"method": "hqq", "bits": 3, "group": 32, "symmetric": False, "compensator_bits": 16, "ranks": {}},
    {"method": "milo", "bits": 3, "group": 32, "symmetric": False, "compensator_bits": 3, "ranks": RANKS},
    {"method": "milo", "bits": 4, "group": 64, "symmetric": True, "compensator_bits": 16, "ranks": RANKS},
    {"method": "w4a8", "bits": 4, "group": "row", "symmetric": False, "compensator_bits": 16, "ranks": {},
     "offset": True, "activations": "block"},
)  # fmt: skip


@cache
def checkpoint(at: int) -> tuple[dict[str, Any], bytes]:
    """Header and data of a valid folder of KEYS[at]."""
    config = Config.from_dict(CONFIG | {"quantized": KEYS[at]})
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


def make_quantized(rng: Random) -> Case:
    """Changes in the key, in the header, or in the data."""
    at = rng.randrange(len(KEYS))
    header, data = checkpoint(at)
    key: Any = json.dumps(KEYS[at]).encode()
    text = json.dumps(header).encode()
    match rng.randrange(3):
        case 0:
            key = mutated_json(rng, KEYS[at])
        case 1:
            text = mutated_json(rng, header)
        case _:
            data = mutated_bytes(rng, data)
    config = json.dumps(CONFIG).encode()[:-1] + b', "quantized": ' + key + b"}"
    return Case({"config.json": config, SINGLE: struct.pack("<Q", len(text)) + text + data})


def read_a_quantized_folder(folder: Path, arguments: tuple[str | None, ...]) -> None:
    """As the reference does: what was accepted has all its matrices, in their shapes, and finite."""
    with refused():
        config, found = read_config(folder, quantized=True), open_checkpoint(folder)
        check_shapes(found, config)
        for name, matrix in config.matrices().items() if config.quantized else ():
            w = read_dense(found, matrix)
            assert w.shape == (matrix.columns, matrix.rows), f"{name} is not what config.json says"
            assert np.isfinite(w).all(), f"{name} is not finite"
        if config.quantized:
            one = next(iter(config.matrices().values()))
            projection(folder, config)(load_weights(found, np.float32, config), one, np.ones((1, one.rows), np.float32))
