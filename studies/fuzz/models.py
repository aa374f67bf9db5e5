"""Model folders to fuzz with: configurations, checkpoints, tokenizers and prompts, and what reads them."""

import json
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from meshrt.errors import MeshrtError
from meshrt.models.catalogue import find_model
from meshrt.models.config import Config, read_config
from meshrt.models.errors import ModelError
from meshrt.models.folders.checkpoint import INDEX, SINGLE, check_shapes, expected_shapes, open_checkpoint
from meshrt.models.rope import cos_sin
from meshrt.models.tokenizer import decode, encode, load_tokenizer
from meshrt.programs.generation.options import GenerationOptions
from meshrt.programs.generation.prompt import Teller, read_prompt
from meshrt.ranks.board import Board
from meshrt.ranks.console import Console
from meshrt.studies.fuzz.mutate import INTEGERS, VALUES, mutated_bytes, mutated_json

CONFIG: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 24, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "hidden_act": "silu", "tie_word_embeddings": True, "attention_bias": False, "bos_token_id": 1, "eos_token_id": [2],
    "dtype": "float32",
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 48,
}  # fmt: skip
MOE = {"num_experts_per_tok": 3, "moe_intermediate_size": 6, "norm_topk_prob": True}
EXPERT_RANKS = {"ranks": {"model.layers.0.mlp.experts.4.up_proj": 3, "model.layers.1.mlp.experts.0.down_proj": 2}}
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"rope_parameters": LLAMA3},
    {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}},
    {"low_rank": {"ranks": {"model.layers.0.mlp.gate_proj": 4, "model.layers.1.self_attn.q_proj": 2}}},
    {"model_type": "qwen2", "attention_bias": None, "head_dim": 6},
    {"model_type": "mistral", "attention_bias": None, "sliding_window": None},
    MOE | {"model_type": "mixtral", "attention_bias": None, "num_local_experts": 5, "sliding_window": None},
    MOE | {
        "model_type": "deepseek", "n_routed_experts": 6, "n_shared_experts": 2, "first_k_dense_replace": 1,
        "moe_layer_freq": 1, "scoring_func": "softmax",
    },
    MOE | {
        "model_type": "qwen2_moe", "attention_bias": None, "qkv_bias": True, "num_experts": 5,
        "shared_expert_intermediate_size": 10, "mlp_only_layers": [0], "decoder_sparse_step": 1,
    },
    MOE | {"model_type": "olmoe", "num_experts": 5, "clip_qkv": 8.0, "low_rank": EXPERT_RANKS},
    MOE | {"model_type": "qwen3_moe", "num_experts": 5, "num_local_experts": 5, "decoder_sparse_step": 2},
)  # fmt: skip
LINKS = ("/etc/hostname", "../outside", "/dev/zero", "model.safetensors", ".", "/proc/self/environ")


@dataclass(frozen=True)
class FuzzCase:
    """One input: the files and links of a model folder, and arguments. `{folder}` in these stands for the folder."""

    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str | None, ...] = ()


@contextmanager
def refused() -> Iterator[None]:
    """The errors that the project raises for its users are no findings; all others are, and NumPy's warnings."""
    with warnings.catch_warnings(), suppress(MeshrtError, ModelError):
        warnings.simplefilter("error", RuntimeWarning)
        yield


# ----------------------------------------------------------------------------------------------------- configurations


def make_config(rng: Random) -> FuzzCase:
    files = {"config.json": mutated_json(rng, CONFIG | rng.choice(VARIANTS))}
    if rng.random() < 0.2:
        files["generation_config.json"] = mutated_json(rng, {"eos_token_id": [2, 3], "temperature": 0.6})
    return FuzzCase(files, _links(rng, "config.json"))


def read_a_config(folder: Path, arguments: tuple[str | None, ...]) -> None:
    """Reads it; what was accepted has to have tables of shapes and finite angles."""
    with refused():
        config = read_config(folder)
        shapes = expected_shapes(config)
        assert all(0 < size <= 1 << 24 for shape in shapes.values() for size in shape), "sizes beyond the limit"
        if config.head_dim <= 4096:
            ends = np.array([0, 1, config.max_positions - 1])
            assert all(np.isfinite(table).all() for table in cos_sin(config, ends)), "angles that are not finite"


def _links(rng: Random, name: str) -> dict[str, str]:
    return {name: rng.choice(LINKS)} if rng.random() < 0.02 else {}


# -------------------------------------------------------------------------------------------------------- checkpoints


@cache
def checkpoint(ends: int | None = None) -> tuple[dict[str, Any], bytes]:
    """Header and data of the valid checkpoint of CONFIG."""
    header, data = {}, bytearray()
    rng = np.random.default_rng(0)
    for name, shape in islice(expected_shapes(Config.from_dict(CONFIG)).items(), ends):
        begin = len(data)
        data += (0.3 * rng.standard_normal(shape, np.float32)).tobytes()
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, len(data)]}
    return header, bytes(data)


@cache
def _valid_model() -> dict[str, bytes]:
    header, data = checkpoint()
    text = json.dumps(header).encode()
    return {
        "config.json": json.dumps(CONFIG).encode(),
        SINGLE: struct.pack("<Q", len(text)) + text + data,
        "tokenizer.json": tokenizer_text(),
    }


def valid_model() -> dict[str, bytes]:
    """The files of a model that runs, and runs fast."""
    return dict(_valid_model())


def make_checkpoint(rng: Random) -> FuzzCase:
    header, data = checkpoint(rng.choice((1, 3, None)))
    text = mutated_json(rng, header)
    length = len(text)
    if rng.random() < 0.1:
        length = rng.choice(
            (*(size for size in INTEGERS if 0 <= size < 2**64), max(0, length - 1), length + 1, 16 << 20)
        )
    if rng.random() < 0.1:
        data = mutated_bytes(rng, data)
    shard = struct.pack("<Q", length) + text + data
    shard = mutated_bytes(rng, shard) if rng.random() < 0.05 else shard
    files = {"config.json": _valid_model()["config.json"]}
    if rng.random() < 0.7:
        return FuzzCase(files | {SINGLE: shard}, _links(rng, SINGLE))
    index = {"metadata": {"total_size": len(data)}, "weight_map": dict.fromkeys(header, "s1.safetensors")}
    return FuzzCase(files | {INDEX: mutated_json(rng, index), "s1.safetensors": shard}, _links(rng, "s1.safetensors"))


def read_a_checkpoint(folder: Path, arguments: tuple[str | None, ...]) -> None:
    """Opens it, and reads tensors whole, in slices and in gathers: as many numbers as the shapes say."""
    with refused():
        checkpoint = open_checkpoint(folder)
        for name in list(checkpoint.tensors)[:12]:
            with refused():
                shape = checkpoint.shape(name)
                tensor = checkpoint.read(name)
                assert tensor.shape == shape and tensor.dtype == checkpoint.dtype(name), f"{name} is not what it said"
                if prod(shape):
                    checkpoint.read(name, slice(shape[0] // 2, None))
                    checkpoint.read(name, np.array([0, shape[0] - 1]))
                checkpoint.read(name, np.array([shape[0] if shape else 0]))
        check_shapes(checkpoint, read_config(folder))


# --------------------------------------------------------------------------------------------- tokenizers and prompts

PARTS: dict[str, tuple[Any, ...]] = {
    "normalizer": (
        {"type": "NFKC"}, {"type": "Prepend", "prepend": "_"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "_"},
        {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "bb"},
        {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"Regex": "."}, "content": "aa"}] * 40},
        {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
    ),
    "pre_tokenizer": (
        {"type": "Split", "pattern": {"Regex": "(a|a|aa)+$"}, "behavior": "Isolated", "invert": False},
        {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": True}, {"type": "Whitespace"},
    ),
    "decoder": ({"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "WordPiece", "prefix": "##", "cleanup": True}),
    "post_processor": (
        {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "z", "type_id": 0}}], "pair": [],
         "special_tokens": {}},
        {"type": "RobertaProcessing", "sep": ["s", 1], "cls": ["c", 2], "trim_offsets": True, "add_prefix_space": True},
    ),
    "padding": ({"strategy": {"Fixed": 10**12}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                 "pad_type_id": 0, "pad_token": "x"},),
    "truncation": ({"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 5},),
    "model": (
        {"type": "Unigram", "vocab": [["a", -1.0], ["b", -2.0]], "unk_id": 0},
        {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"},
        {"type": "WordPiece", "vocab": {"a": 0, "##b": 1}, "unk_token": "a", "continuing_subword_prefix": "##",
         "max_input_chars_per_word": 10},
    ),
}  # fmt: skip
TEXTS = (
    "Once upon a time",
    "a" * 60 + "b",
    " ",
    "\0",
    "\u00e9\u0301\U0001f600",
    "ab " * 2000,
    "\ud800",
    "<|endoftext|>",
)


@cache
def tokenizer_text() -> bytes:
    """The packaged tokenizer, cut to a few words so that it is fast to change and to load."""
    data = json.loads((find_model("llama-tiny") / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = dict(islice(data["model"]["vocab"].items(), 24))
    data["model"] |= {"vocab": vocab, "merges": []}
    return json.dumps(data).encode()


def make_tokenizer(rng: Random) -> FuzzCase:
    data = json.loads(tokenizer_text())
    for part in rng.sample(list(PARTS), rng.choice((0, 0, 1, 1, 2))):
        data[part] = rng.choice(PARTS[part])
    return FuzzCase({"tokenizer.json": mutated_json(rng, data)}, _links(rng, "tokenizer.json"), (rng.choice(TEXTS),))


def use_a_tokenizer(folder: Path, arguments: tuple[str | None, ...]) -> None:
    with refused():
        tokenizer = load_tokenizer(folder)
        with refused():
            decode(tokenizer, encode(tokenizer, arguments[0] or ""))
        decode(tokenizer, [0, 5, 23, 24, 10**6, 2**31])


def make_prompt(rng: Random) -> FuzzCase:
    text = rng.choice((None, *TEXTS, "".join(chr(rng.randrange(0x110000)) for _ in range(rng.randrange(40)))))
    ids = rng.choice((None, None, None, "1,,2", "1 2", "", "\u0661,\u0662", "1_0", "+1", "1.0", "9" * 5000))
    if rng.random() < 0.3:
        ids = ",".join([str(rng.choice((1, 2, 23, *INTEGERS))) for _ in range(5)] * rng.choice((1, 1, 20, 20_000)))
    number = rng.choice((None, None, None, *(number for number in INTEGERS if not 2**16 < number <= 10_000_000)))
    return FuzzCase(valid_model(), arguments=(text, ids, None if number is None else str(number)))


class AloneControl:
    """The control traffic of a single rank."""

    rank = 0
    board = Board.alone()

    def bcast(self, value: Any) -> Any:
        return value


def use_a_prompt(folder: Path, arguments: tuple[str | None, ...]) -> None:
    """Reads it, and tells a text that begins with it."""
    text, ids, number = arguments
    with refused():
        config, console = read_config(folder), Console()
        tokens = None if number is None else int(number)
        options = GenerationOptions(model=str(folder), prompt=text, prompt_ids=ids, prompt_tokens=tokens)
        prompt = read_prompt(AloneControl(), folder, config.vocab_size, options)  # type: ignore[arg-type]  # one process for a communicator
        assert prompt.ids and all(0 <= token < config.vocab_size for token in prompt.ids), "ids beyond the vocabulary"
        Teller(console, prompt, payload=True).tell([3, 4])
        prompt.decode([5])


NASTY = tuple(str(value) for value in VALUES if not isinstance(value, (list, dict)) and value != 10**400)
