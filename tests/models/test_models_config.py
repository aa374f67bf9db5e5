"""config.json: the keys of transformers 4 and 5, and a clear refusal of everything that would give other numbers."""

import json
from pathlib import Path
from typing import Any

import pytest
from random_models import BASE, CASES, LLAMA3

from meshrt.models.catalogue import find_model, packaged
from meshrt.models.config import Config, Rope, read_config
from meshrt.models.errors import ModelError

QWEN2, MISTRAL = CASES["qwen2"], CASES["mistral"]
SCALING = {"rope_type": "llama3"} | LLAMA3


def without(key: str, data: dict[str, Any] = BASE) -> dict[str, Any]:
    return {k: v for k, v in data.items() if k != key}


def test_config_of_transformers_5() -> None:
    config = Config.from_dict(CASES["headdim"])
    assert (config.hidden_size, config.heads, config.kv_heads, config.head_dim, config.group) == (36, 3, 1, 10, 3)
    assert (config.layers, config.vocab_size, config.intermediate_size, config.max_positions) == (2, 96, 80, 128)
    assert (config.rope, config.dtype, config.eps) == (Rope(theta=10000.0), "float32", 1e-5)
    assert (config.bos_token_id, config.eos_token_ids, config.tie_word_embeddings) == (1, (2,), False)
    assert (config.qkv_bias, config.o_bias) == (False, False)


def test_config_v4_and_v5_keys_say_the_same() -> None:
    v4 = without("rope_parameters", without("dtype")) | {
        "rope_theta": LLAMA3["rope_theta"],
        "rope_scaling": {"type": "llama3"} | without("rope_theta", LLAMA3),
        "torch_dtype": "float32",
    }
    expected = Rope(
        theta=500.0, kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=48
    )
    assert Config.from_dict(v4) == Config.from_dict(BASE | {"rope_parameters": SCALING})
    assert Config.from_dict(v4).rope == expected


@pytest.mark.parametrize(
    ("data", "rope"),
    [
        (without("rope_parameters"), Rope()),
        (without("rope_parameters") | {"rope_theta": 5e5, "rope_scaling": None}, Rope(theta=5e5)),
        (BASE | {"rope_theta": 1000000}, Rope(theta=10000.0)),
        (BASE | {"rope_parameters": {"rope_type": "default"}, "rope_theta": 7.0}, Rope(theta=7.0)),
        (
            without("rope_parameters") | {"rope_theta": 9.0, "rope_scaling": {"type": "linear", "factor": 2}},
            Rope(theta=9.0, kind="linear", factor=2.0),
        ),
    ],
)
def test_config_rope(data: dict[str, Any], rope: Rope) -> None:
    assert Config.from_dict(data).rope == rope


def test_config_bias() -> None:
    qwen2, llama = Config.from_dict(QWEN2), Config.from_dict(BASE | {"attention_bias": True})
    assert (qwen2.qkv_bias, qwen2.o_bias) == (True, False)
    assert (llama.qkv_bias, llama.o_bias) == (True, True)


def test_config_defaults_are_those_of_transformers() -> None:
    data = without("num_key_value_heads", without("tie_word_embeddings", without("eos_token_id", without("dtype"))))
    config = Config.from_dict(data)
    assert (config.kv_heads, config.tie_word_embeddings, config.eos_token_ids, config.dtype) == (4, False, (), None)
    mistral = without("num_key_value_heads", MISTRAL) | {"num_attention_heads": 16, "head_dim": 4}
    assert Config.from_dict(mistral).kv_heads == 8
    assert Config.from_dict(mistral | {"num_key_value_heads": None}).kv_heads == 16


@pytest.mark.parametrize(
    ("generation", "expected"),
    [(None, (2,)), ({}, (2,)), ({"eos_token_id": 7}, (7,)), ({"eos_token_id": [5, 6]}, (5, 6))],
)
def test_config_eos(tmp_path: Path, generation: dict[str, Any] | None, expected: tuple[int, ...]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BASE))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert read_config(tmp_path).eos_token_ids == expected


def test_config_unknown_keys_are_ignored() -> None:
    assert Config.from_dict(BASE | {"use_cache": True, "pretraining_tp": 1, "nobody": {"knows": 1}}) == (
        Config.from_dict(BASE)
    )


@pytest.mark.parametrize(
    ("data", "key"),
    [
        (BASE | {"model_type": "gptj"}, "model_type"),
        (without("model_type"), "model_type"),
        (BASE | {"hidden_act": "gelu"}, "hidden_act"),
        (QWEN2 | {"mlp_bias": True}, "mlp_bias"),
        (BASE | {"attention_bias": "yes"}, "attention_bias"),
        (QWEN2 | {"attention_bias": False}, "attention_bias"),
        (BASE | {"use_sliding_window": True}, "use_sliding_window"),
        (QWEN2 | {"use_sliding_window": True, "sliding_window": 0}, "sliding_window"),
        (QWEN2 | {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        (MISTRAL | {"sliding_window": "4096"}, "sliding_window"),
        (BASE | {"quantization_config": {"bits": 4}}, "quantization_config"),
        (BASE | {"is_causal": False}, "is_causal"),
        (without("num_key_value_heads", MISTRAL), "num_attention_heads"),  # 4, and by default there are 8
        (BASE | {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_parameters.rope_type"),
        (BASE | {"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "rope_parameters"),
        (BASE | {"rope_parameters": {"rope_type": "linear"}}, "rope_parameters.factor"),
        (BASE | {"rope_parameters": {"rope_type": "linear", "factor": 0}}, "rope_parameters.factor"),
        (BASE | {"rope_parameters": without("high_freq_factor", SCALING)}, "rope_parameters.high_freq_factor"),
        (BASE | {"rope_parameters": SCALING | {"low_freq_factor": 4.0}}, "rope_parameters.low_freq_factor"),
        (BASE | {"rope_parameters": {"rope_theta": -1}}, "rope_parameters.rope_theta"),
        (BASE | {"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters.partial_rotary_factor"),
        (BASE | {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        (
            BASE | {"rope_parameters": SCALING, "original_max_position_embeddings": 16},
            "original_max_position_embeddings",
        ),
        (BASE | {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling"),
        (without("rope_parameters") | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling.type"),
        (BASE | {"rope_parameters": 3}, "rope_parameters"),
        (BASE | {"num_key_value_heads": 3}, "num_attention_heads"),
        (BASE | {"hidden_size": 50}, "hidden_size"),
        (BASE | {"head_dim": 7}, "head_dim"),
        (BASE | {"vocab_size": 0}, "vocab_size"),
        (BASE | {"num_hidden_layers": -1}, "num_hidden_layers"),
        (BASE | {"num_hidden_layers": 2.0}, "num_hidden_layers"),
        (BASE | {"hidden_size": True}, "hidden_size"),
        (BASE | {"rms_norm_eps": "1e-5"}, "rms_norm_eps"),
        (BASE | {"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        (BASE | {"tie_word_embeddings": 1}, "tie_word_embeddings"),
        (BASE | {"eos_token_id": ["a"]}, "eos_token_id"),
        (BASE | {"eos_token_id": -1}, "eos_token_id"),
        (BASE | {"dtype": "float8_e4m3fn"}, "dtype"),
        *((without(key), key) for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")),
        *((without(key), key) for key in ("num_attention_heads", "rms_norm_eps", "max_position_embeddings")),
    ],
)
def test_config_refuses(data: dict[str, Any], key: str) -> None:
    with pytest.raises(ModelError) as caught:
        Config.from_dict(data, source="here/config.json")
    assert str(caught.value).startswith(f"here/config.json: {key!r} ")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00", '"text"', "[" * 100_000])
def test_config_file_that_is_no_config(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json"):
        read_config(tmp_path)


def test_config_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        read_config(tmp_path / "nowhere")


def test_catalogue_finds_names_and_folders(tmp_path: Path) -> None:
    assert "llama-tiny" in packaged()
    assert find_model("llama-tiny").name == "llama-tiny"
    (tmp_path / "config.json").write_text("{}")
    assert find_model(tmp_path) == tmp_path


@pytest.mark.parametrize("name", ["llama-huge", "", "models.py", "../models"])
def test_catalogue_lists_what_there_is(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"packaged: .*llama-tiny"):
        find_model(name)
