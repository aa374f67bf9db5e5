"""Every kind of model that is no LLaMA: the reference against transformers, folders as they are published, refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_models import CASES, GEMMA2, GEMMA3, GPT2, IDS, PHI3, PROMPT, QWEN3, golden_of, random_family

from meshrt.models.config import Config, read_config
from meshrt.models.errors import ModelError
from meshrt.models.reference import forward, load_weights


@pytest.mark.parametrize("name", CASES)
def test_the_reference_is_transformers(name: str, tmp_path: Path) -> None:
    (ids, golden), folder = golden_of(name), random_family(name, tmp_path)
    assert ids[:PROMPT] == IDS[name]
    config = read_config(folder)
    for dtype in (np.float32, np.float64):
        logits = forward(config, load_weights(folder, dtype), ids, dtype)
        assert logits.dtype == dtype
        np.testing.assert_allclose(logits, golden, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("qwen3-late", {"sliding_window": 60}),
        ("qwen3-late", {"max_window_layers": 0}),
        ("mistral-window", {"sliding_window": 7}),
        ("phi3", {"sliding_window": None}),
        ("gemma", {"hidden_activation": "silu", "hidden_act": "silu"}),
        ("gemma2", {"attn_logit_softcapping": None}),
        ("gemma2", {"final_logit_softcapping": None}),
        ("gemma2", {"query_pre_attn_scalar": 10}),
        ("gemma2", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
        ("gemma3", {"rope_parameters": {"full_attention": {}, "sliding_attention": {}}}),
        ("gpt2", {"activation_function": "relu"}),
        ("gpt2", {"layer_norm_epsilon": 0.1}),
    ],
)
def test_what_the_kinds_say_matters(name: str, change: dict[str, Any], tmp_path: Path) -> None:
    """Each switch moves the logits by far more than the comparison above lets pass."""
    weights = load_weights(random_family(name, tmp_path))
    ids, _ = golden_of(name)
    before, after = (forward(Config.from_dict(data), weights, ids) for data in (CASES[name], CASES[name] | change))
    assert np.abs(after - before).max() > 1e-2


def test_defaults_are_those_of_transformers() -> None:
    def of(data: dict[str, Any], *without: str) -> Config:
        return Config.from_dict({key: value for key, value in data.items() if key not in without})

    gemma2 = of(GEMMA2, "sliding_window", "attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar")
    assert gemma2.windows == (4096, None, 4096)
    assert (gemma2.score_cap, gemma2.logit_cap, gemma2.attention_scale) == (50.0, 30.0, 1 / 16)
    gemma3 = of(GEMMA3 | {"num_hidden_layers": 7}, "layer_types", "rope_parameters")
    assert gemma3.windows == (4, 4, 4, 4, 4, None, 4)
    assert [rope.theta for rope in gemma3.ropes] == [1e6, 1e4]
    old = of(
        GEMMA3
        | {"rope_theta": 5e5, "rope_local_base_freq": 7e3, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        "rope_parameters",
    )
    assert [(rope.theta, rope.kind, rope.factor) for rope in old.ropes] == [(5e5, "linear", 8.0), (7e3, "default", 1.0)]
    assert of(QWEN3, "head_dim").head_dim == 128
    assert of(GPT2, "n_inner").intermediate_size == 4 * 36
    mistral = of(CASES["mistral-window"], "sliding_window")
    assert mistral.windows == (4096, 4096)
    assert of(CASES["mistral-window"] | {"sliding_window": None}).windows == ()
    late = {"use_sliding_window": True, "max_window_layers": 0}
    assert of(QWEN3 | late).windows == (4096, 4096)
    assert of(QWEN3 | late | {"sliding_window": None}).windows == ()
    assert of(CASES["gemma"] | {"hidden_act": "gelu", "hidden_activation": None}).activation == "gelu_tanh"
    assert of(GPT2 | {"activation_function": None, "tie_word_embeddings": None}) == of(GPT2)
    both = {"full_attention": {"rope_type": "default"}, "sliding_attention": {}}
    bases = {"rope_theta": 5e5, "rope_local_base_freq": 7e3}
    assert [rope.theta for rope in of(GEMMA3 | bases | {"rope_parameters": both}).ropes] == [5e5, 7e3]


def test_a_bare_gpt2_is_found_without_the_first_part_of_its_names(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = random_family("gpt2", tmp_path)
    weights, file = load_weights(folder), folder / "model.safetensors"
    save_file({name.removeprefix("transformer."): tensor for name, tensor in load_file(file).items()}, file)
    loaded = load_weights(folder)
    assert loaded.keys() == weights.keys()
    assert all((loaded[name] == weights[name]).all() for name in weights)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (GPT2 | {"scale_attn_by_inverse_layer_idx": True}, "'scale_attn_by_inverse_layer_idx' is True"),
        (GPT2 | {"n_embd": 37}, "'n_embd' is 37, not a multiple of num_attention_heads, 3"),
        (GPT2 | {"n_layer": 0}, "'n_layer' is 0"),
        (GPT2 | {"activation_function": "gelu"}, "'activation_function' is 'gelu'; supported are silu"),
        (GEMMA3 | {"attn_logit_softcapping": 50.0}, "'attn_logit_softcapping' is 50.0"),
        (GEMMA3 | {"layer_types": ["full_attention"]}, "'layer_types' has 1 layers; num_hidden_layers is 3"),
        (GEMMA2 | {"layer_types": ["chunked_attention"] * 3}, "'layer_types' has other layers"),
        (GEMMA2 | {"use_bidirectional_attention": True}, "'use_bidirectional_attention' is True"),
        (GEMMA2 | {"sliding_window": None}, "'sliding_window' is missing"),
        (PHI3 | {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "is 'longrope'; supported are"),
        (PHI3 | {"partial_rotary_factor": 0.5}, "'partial_rotary_factor' is not 1"),
        (QWEN3 | {"layer_types": ["sliding_attention"] * 2}, "'use_sliding_window' is not set"),
        (GEMMA3 | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e3}}, "'rope_parameters' must have"),
        (GEMMA3 | {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 8.0}}, "name it 'rope_type'"),
        (GEMMA3 | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, "'rope_scaling' and 'rope_parameters'"),
        (GEMMA3 | {"rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5}}}, "is not 1; only whole"),
        (CASES["gemma"] | {"hidden_act": "silu"}, "'hidden_activation' is 'gelu_pytorch_tanh' and 'hidden_act' 'silu'"),
        (CASES["gemma"] | {"hidden_activation": "relu"}, "'hidden_activation' is 'relu' and 'hidden_act' 'gelu_py"),
        (CASES["gemma"] | {"query_pre_attn_scalar": 7}, "'query_pre_attn_scalar' is 7, which is not what gemma has"),
        (QWEN3 | {"final_logit_softcapping": 30.0}, "'final_logit_softcapping' is 30.0, which is not what qwen3 has"),
        (QWEN3 | {"attn_logit_softcapping": 50.0}, "'attn_logit_softcapping' is 50.0, which is not what qwen3 has"),
        (CASES["opt-odd"] | {"rms_norm_eps": 0.1}, "'rms_norm_eps' is 0.1; only 1e-05 is supported"),
        (QWEN3 | {"mlp_bias": True}, "'mlp_bias' is true, which is not what qwen3 has"),
    ],
)
def test_what_is_not_supported_is_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        Config.from_dict(data)
    assert caught.value.exit_code == 2
