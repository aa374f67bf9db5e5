"""What `meshrt import` reads, to fuzz with: GGUF files, and folders of compressed-tensors."""

import json
import struct
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from meshrt.models.config import Config, read_config
from meshrt.models.folders.checkpoint import SINGLE, check_shapes, expected_shapes, open_checkpoint
from meshrt.models.foreign.compressed import read_compressed
from meshrt.models.foreign.ggufmodel import INSIDE, OUTSIDE, read_gguf
from meshrt.models.foreign.model import write
from meshrt.studies.fuzz.models import CONFIG, FuzzCase, refused
from meshrt.studies.fuzz.mutate import INTEGERS, mutated_bytes, mutated_json

FILE = "model.gguf"
SIZES = CONFIG | {"hidden_size": 32, "intermediate_size": 32, "tie_word_embeddings": False}
BLOCKS = {"Q4_0": (2, 18), "Q4_1": (3, 20), "Q8_0": (8, 34)}  # number, bytes of 32 weights
WORDS = ["<unk>", "<s>", "</s>", *"abcdefghijklmnopqrs", "ab", "bc"]
VALUES: dict[str, Any] = {
    "general.architecture": "llama", "llama.context_length": 64, "llama.embedding_length": 32, "llama.block_count": 2,
    "llama.feed_forward_length": 32, "llama.attention.head_count": 2, "llama.attention.head_count_kv": 1,
    "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.dimension_count": 16, "llama.rope.freq_base": 1e4,
    "general.alignment": 32, "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": WORDS,
    "tokenizer.ggml.scores": [0.0] * len(WORDS), "tokenizer.ggml.token_type": [2, 3, 3, *[1] * (len(WORDS) - 3)],
    "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.add_bos_token": True,
}  # fmt: skip
SCHEMES: tuple[dict[str, Any], ...] = (
    {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32},
    {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "channel", "actorder": None},
    {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "tensor"},
)


def make_gguf(rng: Random) -> FuzzCase:
    """Changes in what the file says, in where its tensors are, or in its bytes."""
    kind, values = rng.choice([*BLOCKS]), dict(VALUES)
    headers: dict[str, list[int]] = {}
    change = rng.randrange(4)
    if change == 0:
        name = rng.choice([*values])
        values[name] = rng.choice([*INTEGERS, "x", "", [], ["a"], 1.5, float("nan"), -1, True, [3, 4], values[name]])
        if rng.random() < 0.3:
            del values[rng.choice([*values])]
    elif change == 1:
        headers[rng.choice([*tensors()])] = [rng.choice(INTEGERS) % 2**64 for _ in range(rng.randrange(1, 6))]
    data = gguf_file(kind, values, headers)
    return FuzzCase({FILE: mutated_bytes(rng, data) if change == 2 else data[: rng.randrange(len(data))]
                     if change == 3 and rng.random() < 0.5 else data})  # fmt: skip


@cache
def tensors() -> dict[str, tuple[int, ...]]:
    """Shapes of SIZES, by GGUF's names."""
    outside = {target: name for name, target in OUTSIDE.items()}
    inside = {target: name for name, target in INSIDE.items()}
    shapes = {}
    for name, shape in expected_shapes(Config.from_dict(SIZES)).items():
        number, _, rest = name.removeprefix("model.layers.").partition(".")
        stem, _, end = rest.rpartition(".")
        shapes[outside[name] if name in outside else f"blk.{number}.{inside[stem]}.{end}"] = shape
    return shapes


def gguf_file(kind: str, values: dict[str, Any], headers: dict[str, list[int]]) -> bytes:
    """A file whose matrices are such blocks. `places`: type, offset and sizes that a tensor has instead of its own."""
    number, nbytes = BLOCKS[kind]
    head, data, rng = bytearray(), bytearray(), np.random.default_rng(number)
    for name, shape in tensors().items():
        own, offset = (number if len(shape) == 2 else 0), len(data)
        if own:
            blocks = rng.integers(0, 256, (int(np.prod(shape)) // 32, nbytes), np.uint8)
            blocks[:, : 4 if kind == "Q4_1" else 2].view("<f2")[...] = 0.1
            data += blocks.tobytes()
        else:
            data += np.ones(shape, "<f4").tobytes()
        data += bytes(-len(data) % 32)
        own, offset, *sizes = (headers.get(name) or []) + [own, offset, *shape[::-1]][len(headers.get(name) or []) :]
        head += text(name) + struct.pack("<I", len(sizes)) + b"".join(struct.pack("<Q", size) for size in sizes)
        head += struct.pack("<IQ", own % 2**32, offset)
    said = b"".join(text(name) + value(entry) for name, entry in values.items())
    whole = b"GGUF" + struct.pack("<IQQ", 3, len(tensors()), len(values)) + said + head
    return whole + bytes(-len(whole) % 32) + data


def text(word: str) -> bytes:
    return struct.pack("<Q", len(word.encode())) + word.encode()


def value(data: Any) -> bytes:
    """A value with its type in front."""
    if isinstance(data, bool):
        return struct.pack("<I?", 7, data)
    if isinstance(data, int):
        return struct.pack("<Iq", 11, data) if -(2**63) <= data < 2**63 else struct.pack("<IQ", 10, data % 2**64)
    if isinstance(data, float):
        return struct.pack("<If", 6, data)
    if isinstance(data, str):
        return struct.pack("<I", 8) + text(data)
    kinds = [value(part) for part in data] or [struct.pack("<I", 4)]
    return struct.pack("<I", 9) + kinds[0][:4] + struct.pack("<Q", len(data)) + b"".join(part[4:] for part in kinds)


def import_a_gguf(folder: Path, arguments: tuple[str | None, ...]) -> None:
    """What was accepted is a folder that can be read."""
    with refused():
        write(folder / "out", read_gguf(folder / FILE), None)
        check(folder / "out")


def check(out: Path) -> None:
    config = read_config(out, quantized=True)
    check_shapes(open_checkpoint(out), config)


# --------------------------------------------------------------------------------------------------- compressed-tensors


@cache
def packed(at: int) -> tuple[dict[str, Any], bytes]:
    """Header and data of a valid folder in SCHEMES[at]."""
    scheme, config = SCHEMES[at], Config.from_dict(SIZES)
    header: dict[str, Any] = {}
    data, rng = bytearray(), np.random.default_rng(at)

    def put(name: str, dtype: str, array: Any) -> None:
        begin = len(data)
        data.extend(array.tobytes())
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, len(data)]}

    for name, shape in expected_shapes(config).items():
        stem = name.removesuffix(".weight")
        if stem not in config.matrices():
            put(name, "F32", 0.3 * np.ones(shape, "<f4"))
            continue
        words = shape[1] * scheme["num_bits"] // 32
        groups = {"group": shape[1] // 32, "channel": 1, "tensor": 1}[scheme["strategy"]]
        put(f"{stem}.weight_packed", "I32", rng.integers(-(2**31), 2**31, (shape[0], words)).astype("<i4"))
        scales = (1,) if scheme["strategy"] == "tensor" else (shape[0], groups)
        put(f"{stem}.weight_scale", "F16", np.full(scales, 0.1, "<f2"))
        put(f"{stem}.weight_shape", "I64", np.array(shape, "<i8"))
        if not scheme["symmetric"]:
            zeros = -(-shape[0] * scheme["num_bits"] // 32)
            put(f"{stem}.weight_zero_point", "I32", rng.integers(-(2**31), 2**31, (zeros, groups)).astype("<i4"))
    return header, bytes(data)


def make_packed(rng: Random) -> FuzzCase:
    """Changes in quantization_config, in the header, or in the data."""
    at = rng.randrange(len(SCHEMES))
    header, data = packed(at)
    said = {
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"group_0": {
            "targets": ["Linear"], "weights": SCHEMES[at], "input_activations": rng.choice([None, {
                "num_bits": 8, "type": "int", "symmetric": True, "dynamic": True, "strategy": "token",
            }]),
        }},
    }  # fmt: skip
    key: Any = json.dumps(said).encode()
    head = json.dumps(header).encode()
    match rng.randrange(3):
        case 0:
            key = mutated_json(rng, said)
        case 1:
            head = mutated_json(rng, header)
        case _:
            data = mutated_bytes(rng, data)
    config = json.dumps(SIZES).encode()[:-1] + b', "quantization_config": ' + key + b"}"
    return FuzzCase({"config.json": config, SINGLE: struct.pack("<Q", len(head)) + head + data})


def import_a_packed_folder(folder: Path, arguments: tuple[str | None, ...]) -> None:
    """What was accepted is a folder that can be read."""
    with refused():
        foreign = read_compressed(folder)
        write(folder / "out", foreign, foreign.activations)
        check(folder / "out")
