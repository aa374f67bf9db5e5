"""GGUF files as model folders: gguf's own writer and dequantizer as the oracle, words, and files that are bad."""

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from click.testing import CliRunner, Result
from gguf_files import permuted, write_gguf
from random_models import BASE, random_checkpoint
from runs import run_program

from meshrt.commands.import_ import command
from meshrt.models.catalogue import find_model
from meshrt.models.config import Config, read_config
from meshrt.models.errors import ModelError
from meshrt.models.folders.checkpoint import check_shapes, open_checkpoint
from meshrt.models.foreign.blocks import codes_of, with_offset
from meshrt.models.foreign.gguf import Gguf, GgufTensor, open_gguf
from meshrt.models.foreign.ggufmodel import read_gguf, read_sizes
from meshrt.models.foreign.words import tokenizer_texts
from meshrt.models.quantize.codes import Codes
from meshrt.models.reference import forward, load_weights, rotate
from meshrt.models.rope import inverse_frequencies
from meshrt.models.tokenizer import decode, encode, load_tokenizer

TINY = find_model("llama-tiny")
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
IDS = [5, 77, 31, 4, 90, 12]
MODELS: dict[str, dict[str, Any]] = {
    "llama": BASE | SIZES | {"attention_bias": True},
    "tied": BASE | SIZES | {"tie_word_embeddings": True, "head_dim": 32, "rms_norm_eps": 1e-6},
    "linear": BASE | SIZES | {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0}},
    "qwen2": {k: v for k, v in (BASE | SIZES).items() if k not in ("attention_bias", "mlp_bias")}
    | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
}


def without(key: str, data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != key}


def meshrt_import(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def imported(source: Path, out: Path, *arguments: str) -> dict[str, Any]:
    done = meshrt_import(source, "--out", out, "--json", out.with_suffix(".json"), *arguments)
    assert (done.exit_code, done.stderr) == (0, "")
    report: dict[str, Any] = json.loads(out.with_suffix(".json").read_text())
    return report


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return random_checkpoint(MODELS["llama"], tmp_path / "base", 1)


# ------------------------------------------------------------------------------------------------------ what it means


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "F16"])
def test_a_file_is_what_its_own_dequantizer_makes_of_it(kind: str, name: str, tmp_path: Path) -> None:
    base = random_checkpoint(MODELS[name], tmp_path / "base", 1)
    rebuilt = write_gguf(base, tmp_path / "model.gguf", kind)
    report = imported(tmp_path / "model.gguf", tmp_path / "out")
    config, before = read_config(tmp_path / "out", quantized=True), read_config(base)
    check_shapes(open_checkpoint(tmp_path / "out"), config)
    for field in (
        "hidden_size", "layers", "kv_heads", "head_dim", "eps", "rope", "eos_token_ids", "bos_token_id",
        "qkv_bias", "o_bias", "tie_word_embeddings", "max_positions",
    ):  # fmt: skip
        assert getattr(config, field) == getattr(before, field), field
    loaded = load_weights(tmp_path / "out", np.float32)
    assert loaded.keys() == rebuilt.keys()
    for tensor_name, want in rebuilt.items():
        if (
            tensor_name not in config.quantized
            and tensor_name.removesuffix(".weight") not in config.quantized
            and want.ndim == 2
        ):
            want = want.astype(np.float16)  # embedding and head
        np.testing.assert_array_equal(loaded[tensor_name], want.astype(np.float32), err_msg=tensor_name)
    if kind == "F16":
        assert not config.quantized and report["quantized"] is None and config.dtype == "float16"
        return
    bits = 8 if kind == "Q8_0" else 4
    key = {"method": f"gguf {kind}", "bits": bits, "group": 32, "symmetric": kind != "Q4_1", "compensator_bits": 16,
           "ranks": {}}  # fmt: skip
    assert report["quantized"] == key | ({"offset": True} if kind == "Q4_1" else {})
    logits = forward(config, load_weights(tmp_path / "out"), IDS)
    want = forward(before, {tensor_name: w.astype(float) for tensor_name, w in rebuilt.items()}, IDS)
    assert np.linalg.norm(logits - want) < 1e-3 * np.linalg.norm(want)  # embedding and head in float16


def test_rows_of_q_and_k_are_turned_back() -> None:
    """llama.cpp turns neighbours, Hugging Face halves: with the rows in order, the same numbers."""
    rng = np.random.default_rng(0)
    q, angle = rng.standard_normal((3, 5, 8)), rng.standard_normal((5, 4))  # heads, tokens, numbers
    turned = rotate(q, np.cos(angle), np.sin(angle))
    pairs = permuted(q.transpose(0, 2, 1).reshape(24, 5), 3).reshape(3, 4, 2, 5)
    even, odd = pairs[:, :, 0], pairs[:, :, 1]  # [heads, pairs, tokens]
    cos, sin = np.cos(angle).T, np.sin(angle).T
    neighbours = np.stack((even * cos - odd * sin, even * sin + odd * cos), axis=2).reshape(24, 5)
    np.testing.assert_allclose(permuted(turned.transpose(0, 2, 1).reshape(24, 5), 3), neighbours)


def test_four_bits_of_two_kinds_get_offsets_and_lose_nothing(model: Path, tmp_path: Path) -> None:
    """Q4_0 files have some matrices in Q4_1 where they were made with an importance matrix, and a head in Q6_K."""
    kinds = {"blk.0.ffn_down.weight": "Q4_1", "token_embd.weight": "Q8_0", "output.weight": "F16"}
    rebuilt = write_gguf(model, tmp_path / "model.gguf", "Q4_0", kinds)
    report = imported(tmp_path / "model.gguf", tmp_path / "out")
    assert report["quantized"]["offset"] is True and report["quantized"]["method"] == "gguf Q4_0 Q4_1"
    loaded = load_weights(tmp_path / "out", np.float32)
    for name in read_config(tmp_path / "out", quantized=True).quantized:
        np.testing.assert_array_equal(loaded[name + ".weight"], rebuilt[name + ".weight"])


def test_a_head_in_blocks_of_another_kind_is_rebuilt_by_the_package(model: Path, tmp_path: Path) -> None:
    write_gguf(model, tmp_path / "model.gguf", "Q8_0", {"output.weight": "Q5_1"})
    imported(tmp_path / "model.gguf", tmp_path / "out")
    w = open_checkpoint(model).read("lm_head.weight").astype(np.float32)
    kind = gguf.GGMLQuantizationType.Q5_1
    want = gguf.quants.dequantize(gguf.quants.quantize(w, kind), kind).astype(np.float16)
    np.testing.assert_array_equal(open_checkpoint(tmp_path / "out").read("lm_head.weight"), want)


def test_factors_of_rotary_embedding(tmp_path: Path) -> None:
    """LLaMA 3.1's table, made by its formula; another table is refused."""
    rope = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192}  # fmt: skip
    sizes = BASE | SIZES | {"head_dim": 64, "rope_parameters": rope}
    base = random_checkpoint(sizes, tmp_path / "base", 1)
    plain = Config.from_dict(sizes | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}})
    table = (inverse_frequencies(plain) / inverse_frequencies(read_config(base))).astype(np.float32)
    assert len(np.unique(table)) > 3  # some kept, some slowed, some between
    write_gguf(base, tmp_path / "model.gguf", "Q4_0", more={"rope_freqs.weight": table})
    imported(tmp_path / "model.gguf", tmp_path / "out")
    assert read_config(tmp_path / "out", quantized=True).rope == read_config(base).rope
    table[-3] = 5
    write_gguf(base, tmp_path / "other.gguf", "Q4_0", more={"rope_freqs.weight": table})
    with pytest.raises(ModelError, match=r"rope_freqs\.weight is not the table of LLaMA 3\.1"):
        read_gguf(tmp_path / "other.gguf")


@pytest.mark.parametrize(
    "scaling, factor",
    [
        ({}, None),
        ({"rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scale_linear": 4.0}, 4.0),
        ({"rope.scale_linear": 8.0, "rope.scaling.factor": 2.0, "rope.scaling.type": "linear"}, 2.0),
        ({"rope.scaling.factor": 4.0, "rope.scaling.type": "none"}, None),
        ({"rope.scaling.factor": 0.0}, None),
        ({"rope.scaling.factor": 1.0, "rope.scaling.type": "linear"}, None),
    ],
)
def test_a_factor_of_positions_counts_where_llama_cpp_lets_it(scaling: dict[str, Any], factor: float | None) -> None:
    assert sizes_with(scaling).get("rope_scaling", {}).get("factor") == factor


@pytest.mark.parametrize(
    ("key", "none", "value"),
    [("attention.causal", True, False), ("rope.scaling.attn_factor", 1.0, 1.5), ("rope.scaling.alpha", 0.0, 2.0)],
)
def test_what_llama_cpp_takes_of_any_model_is_refused(key: str, none: Any, value: Any) -> None:
    assert sizes_with({key: none}) == sizes_with({})
    with pytest.raises(ModelError, match=f"'llama.{key}' is {value}; only {none} can be read"):
        sizes_with({key: value})


def sizes_with(more: dict[str, Any]) -> dict[str, Any]:
    """What is read of a small file that says this beside its sizes."""
    sizes = {"embedding_length": 64, "attention.head_count": 4, "feed_forward_length": 96, "block_count": 1,
             "context_length": 128, "attention.layer_norm_rms_epsilon": 1e-5}  # fmt: skip
    values = {"general.architecture": "llama"} | {f"llama.{key}": value for key, value in (sizes | more).items()}
    tensors = {"token_embd.weight": GgufTensor("F32", (96, 64), 0, 4 * 96 * 64)}
    return read_sizes(Gguf(Path("x.gguf"), values, tensors))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_all_bit_patterns_of_blocks(kind: str) -> None:
    """Random bytes, as long as their scales are numbers: scales may be negative, or subnormal."""
    number = gguf.GGMLQuantizationType[kind]
    rows = np.random.default_rng(3).integers(0, 256, (40, 3 * gguf.GGML_QUANT_SIZES[number][1]), np.uint8)
    halves = rows.reshape(40, 3, -1)[..., : 4 if kind == "Q4_1" else 2].view("<f2")
    halves[~np.isfinite(halves)] = -0.5
    coded = codes_of(kind, rows)
    np.testing.assert_array_equal(coded.dequantized().astype(np.float32), gguf.quants.dequantize(rows, number))
    if kind == "Q4_0":
        small = Codes(coded.codes, np.clip(coded.scale, -100, 100), None, 4, coded.columns)
        np.testing.assert_array_equal(with_offset(small).dequantized(), small.dequantized())
        with pytest.raises(ModelError, match="too large for offsets"):
            with_offset(Codes(coded.codes, np.full_like(coded.scale, 9000), None, 4, coded.columns))


def test_activations_are_asked_for(model: Path, tmp_path: Path) -> None:
    write_gguf(model, tmp_path / "model.gguf", "Q4_0")
    assert imported(tmp_path / "model.gguf", tmp_path / "out", "--activations", "block")["quantized"]["activations"]
    assert {form.activations for form in read_config(tmp_path / "out", quantized=True).quantized.values()} == {"block"}
    write_gguf(model, tmp_path / "float.gguf", "F16")
    done = meshrt_import(tmp_path / "float.gguf", "--out", tmp_path / "no", "--activations", "row")
    assert done.exit_code == 2 and "its matrices are no codes" in done.stderr


def test_same_file_same_bytes(model: Path, tmp_path: Path) -> None:
    write_gguf(model, tmp_path / "model.gguf", "Q4_1")
    for out in ("one", "two"):
        imported(tmp_path / "model.gguf", tmp_path / out)
    assert (tmp_path / "one/model.safetensors").read_bytes() == (tmp_path / "two/model.safetensors").read_bytes()


# -------------------------------------------------------------------------------------------------------------- words


def words(model: str = "gpt2", pre: str = "gpt-2") -> dict[str, Any]:
    """llama-tiny's, as GGUF has them."""
    data = json.loads((TINY / "tokenizer.json").read_text())["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in data["merges"]]
    tokens = sorted(data["vocab"], key=data["vocab"].get)
    kinds = np.ones(len(tokens), np.int32)
    kinds[0] = 3
    return {
        "tokenizer.ggml.model": model, "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges, "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
    }  # fmt: skip


TEXTS = (
    "Once upon a time, there was a fox.",
    "  two  spaces\nand 12345 numbers",
    "caf\u00e9 \u2014 \U0001f98a",
    "it's",
)


def test_words_of_llama_tiny_come_back(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(tokenizer_texts(words(), tmp_path)["tokenizer.json"])
    tokenizer, want = load_tokenizer(tmp_path), load_tokenizer(TINY)
    for text in TEXTS:
        assert encode(tokenizer, text) == encode(want, text)
        assert decode(tokenizer, encode(tokenizer, text)) == text


@pytest.mark.parametrize("pre, runs", [("llama-bpe", ["123", "45"]), ("qwen2", ["1", "2", "3", "4", "5"])])
def test_numbers_are_cut_as_the_model_wants_them(pre: str, runs: list[str], tmp_path: Path) -> None:
    tokenizer = json.loads(tokenizer_texts(words(pre=pre), tmp_path)["tokenizer.json"])
    from tokenizers import Regex, pre_tokenizers

    cut = pre_tokenizers.Split(Regex(tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]), "isolated")
    assert [word for word, _ in cut.pre_tokenize_str("it's 12345")] == ["it", "'s", " ", *runs]
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    loaded = load_tokenizer(tmp_path)
    for text in TEXTS:
        assert decode(loaded, encode(loaded, text)) == text


def test_pieces_join_in_the_order_of_their_scores(tmp_path: Path) -> None:
    """SentencePiece's rule, worked out by hand: of all neighbours the pair with the best score joins first."""
    pieces = {"\u2581": -9, "a": -10, "b": -11, "c": -12, "ab": -2, "bc": -1, "\u2581a": -3, "abc": -8, "\u2581abc": -4}
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{at:02X}>" for at in range(256)), *pieces]
    kinds = np.array([2, 3, 3, *[6] * 256, *[1] * len(pieces)], np.int32)
    values = {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": np.array([0.0] * 259 + list(pieces.values()), np.float32),
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.unknown_token_id": 0,
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(tokenizer_texts(values, tmp_path)["tokenizer.json"])
    tokenizer = load_tokenizer(tmp_path)

    def cut(text: str) -> list[str]:
        return [tokens[at] for at in encode(tokenizer, text)]

    assert cut("abc") == ["<s>", "\u2581abc"]  # bc, _a, and then these two
    assert cut("babc") == ["<s>", "\u2581", "b", "abc"]
    assert cut("abab") == ["<s>", "\u2581", "ab", "ab"]  # from the left it were _a, b, ab
    assert cut("\u00e9") == ["<s>", "\u2581", "<0xC3>", "<0xA9>"]
    assert decode(tokenizer, encode(tokenizer, "ab c\u00e9")) == "ab c\u00e9"


@pytest.mark.mpi(ranks=[1])
def test_a_file_with_words_runs_with_a_prompt(tmp_path: Path, comm: Any) -> None:
    write_gguf(TINY, tmp_path / "model.gguf", "Q4_0", words=words())
    assert imported(tmp_path / "model.gguf", tmp_path / "out")["tokenizer"]
    report = run_program(comm, "llama", (8, 8), model=str(tmp_path / "out"), prompt="Once upon", max_new_tokens=5)
    assert report["result"]["prompt_ids"] == encode(load_tokenizer(TINY), "Once upon")
    assert report["result"]["text"].startswith(" a time")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "no list of words, each of them there once"),
        ({"tokenizer.ggml.tokens": 5}, "no list of words"),
        ({"tokenizer.ggml.token_type": np.ones(3, np.int32)}, "has 3 types for 512 words"),
        ({"tokenizer.ggml.merges": ["ab"]}, "no list of pairs"),
        ({"tokenizer.ggml.bos_token_id": 512}, "bos_token_id is 512, none of 512 words"),
        ({"tokenizer.ggml.model": "llama"}, "scores has no number for each of 512 words"),
    ],
)
def test_words_that_are_wrong(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        tokenizer_texts(words() | change, Path("x.gguf"))


def test_words_that_are_not_known_are_left_out() -> None:
    assert tokenizer_texts(words(pre="another"), Path("x.gguf")) == {} == tokenizer_texts({}, Path("x.gguf"))
    assert tokenizer_texts(words(model="t5"), Path("x.gguf")) == {}
    assert tokenizer_texts(without("tokenizer.ggml.pre", words()), Path("x.gguf")) == {}


@pytest.mark.parametrize("pre, begins", [("llama-bpe", True), ("qwen2", False), ("gpt-2", False)])
def test_a_text_begins_as_llama_cpp_lets_it_where_a_file_does_not_say(pre: str, begins: bool) -> None:
    texts = tokenizer_texts(without("tokenizer.ggml.add_bos_token", words(pre=pre)), Path("x.gguf"))
    assert (json.loads(texts["tokenizer.json"])["post_processor"] is not None) == begins


# ------------------------------------------------------------------------------------------------------------ bad files


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def header(tensors: int = 0, values: list[bytes] | None = None, version: int = 3) -> bytes:
    values = values or []
    return b"GGUF" + struct.pack("<IQQ", version, tensors, len(values)) + b"".join(values)


def entry(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


WORD = text("general.name") + struct.pack("<I", 8) + text("x")
BAD: list[tuple[bytes, str]] = [
    (b"", "is no GGUF file"),
    (b"GGML" + bytes(40), "is no GGUF file"),
    (b"GGUF", "is truncated"),
    (header(version=1), "version 1; 2 and 3"),
    (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), r"big-endian"),
    (header(tensors=1 << 40), "tensors and 0 values; 65536 are the most"),
    (header(values=[WORD, WORD]), "'general.name' twice"),
    (header(values=[text("x") + struct.pack("<IIQ", 9, 8, 1 << 60)]), "a list of texts goes beyond its end"),
    (header(values=[text("x") + struct.pack("<IIQ", 9, 4, 1 << 60)]), "is truncated"),
    (header(values=[text("x") + struct.pack("<IIQ", 9, 9, 1)]), "list of type 9"),
    (header(values=[text("x") + struct.pack("<I", 77)]), "type 77"),
    (header(values=[struct.pack("<Q", 1 << 62)]), "is truncated"),
    (header(values=[struct.pack("<Q", 2) + b"\xff\xfe"]), "utf-8"),
    (header(values=[text("general.alignment") + struct.pack("<II", 4, 24)]), "general.alignment is 24"),
    (header(1) + entry("a", (1 << 40,), 0, 0), "sizes from 1 to"),
    (header(1) + entry("a", (0,), 0, 0), "sizes from 1 to"),
    (header(1) + entry("a", (1,) * 5, 0, 0), "5 axes"),
    (header(1) + entry("a", (40, 2), 2, 0), "no whole blocks of Q4_0"),
    (header(1) + entry("a", (32,), 16, 0), "of type 16"),
    (header(1) + entry("a", (32,), 0, 1 << 62), "are not in the file"),
    (header(1) + entry("a", (32,), 0, 8) + bytes(300), "or not aligned"),
    (header(2) + entry("a", (32,), 0, 0) + entry("a", (32,), 0, 128) + bytes(600), "tensor a twice"),
    (header(2) + entry("a", (32,), 0, 0) + entry("b", (32,), 0, 64) + bytes(600), "a and b overlap"),
]  # fmt: skip


@pytest.mark.parametrize("data, message", BAD, ids=[message for _, message in BAD])
def test_files_that_are_no_gguf(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(data)
    with pytest.raises(ModelError, match=message):
        open_gguf(tmp_path / "bad.gguf")
    done = meshrt_import(tmp_path / "bad.gguf", "--out", tmp_path / "out")
    assert done.exit_code == 2 and done.stderr.count("\n") == 1 and not (tmp_path / "out").exists()


def test_every_end_of_a_file_is_told(model: Path, tmp_path: Path) -> None:
    write_gguf(model, tmp_path / "model.gguf", "Q4_0")
    data = (tmp_path / "model.gguf").read_bytes()
    for end in (0, 3, 4, 20, 30, 100, 500, 1500, len(data) // 2, len(data) - 1):
        (tmp_path / "cut.gguf").write_bytes(data[:end])
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            read_gguf(tmp_path / "cut.gguf")


@pytest.mark.parametrize(
    "kinds, more, message",
    [
        ({"blk.1.attn_v.weight": "Q8_0"}, {}, "are kept in other ways"),
        ({"blk.1.attn_v.weight": "F16"}, {}, "v_proj.weight is no codes, and other matrices are"),
        ({"blk.1.attn_v.weight": "Q5_0"}, {}, "tensor blk.1.attn_v.weight is Q5_0; matrices of Q4_0"),
        ({}, {"blk.0.ffn_gate_exps.weight": np.zeros((2, 32, 32), np.float32)}, "none of a LLaMA's or Qwen2's"),
        ({}, {"blk.7.attn_norm.weight": np.zeros(64, np.float32)}, "which such a model does not have"),
        ({}, {"blk.9999999999.attn_norm.weight": np.zeros(64, np.float32)}, "none of a LLaMA's"),
    ],
)
def test_models_that_cannot_be_read(kinds: Any, more: Any, message: str, model: Path, tmp_path: Path) -> None:
    write_gguf(model, tmp_path / "model.gguf", "Q4_0", kinds, more)
    done = meshrt_import(tmp_path / "model.gguf", "--out", tmp_path / "out")
    assert done.exit_code == 2 and message in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "before, after, message",
    [
        (b"llama", b"lamma", "general.architecture' is 'lamma'; llama and qwen2 can be read"),
        (b"llama.block_count", b"llama.block_size_", "block_count' is missing"),
        (b"output_norm.weight", b"output_nrom.weight", "none of a LLaMA's"),
        (b"token_embd.weight", b"token_embx.weight", "has no tensor token_embd.weight"),
    ],
)
def test_names_that_are_wrong(before: bytes, after: bytes, message: str, model: Path, tmp_path: Path) -> None:
    write_gguf(model, tmp_path / "model.gguf", "Q4_0")
    data = (tmp_path / "model.gguf").read_bytes()
    assert before in data
    (tmp_path / "bad.gguf").write_bytes(data.replace(before, after, 1))
    with pytest.raises(ModelError, match=message):
        read_gguf(tmp_path / "bad.gguf")


def test_scales_that_are_no_numbers(model: Path, tmp_path: Path) -> None:
    write_gguf(model, tmp_path / "model.gguf", "Q4_0")
    file = open_gguf(tmp_path / "model.gguf")
    data = bytearray((tmp_path / "model.gguf").read_bytes())
    at = file.tensors["blk.0.attn_q.weight"].offset
    data[at : at + 2] = struct.pack("<e", float("inf"))
    (tmp_path / "model.gguf").write_bytes(data)
    with pytest.raises(ModelError, match=r"blk\.0\.attn_q\.weight: has scales that are NaN or infinite"):
        read_gguf(tmp_path / "model.gguf")


def test_what_is_neither_is_told(tmp_path: Path) -> None:
    for source, reason in ((tmp_path / "nowhere.gguf", "is not there"), (TINY, "no quantization_config")):
        done = meshrt_import(source, "--out", tmp_path / "out")
        assert done.exit_code == 2 and reason in done.stderr and done.stderr.count("\n") == 1
