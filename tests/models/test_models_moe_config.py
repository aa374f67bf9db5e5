"""Mixtures of experts: configurations, names and shapes of tensors, and what is refused."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from moe_models import CASES, DEEPSEEK, MIXTRAL, OLMOE, QWEN2, QWEN3, random_moe

from meshrt.models.catalogue import find_model, has_experts, packaged
from meshrt.models.config import Config, read_config
from meshrt.models.errors import ModelError
from meshrt.models.folders.checkpoint import check_shapes, expected_shapes, open_checkpoint
from meshrt.models.matrix import Experts
from meshrt.studies.fuzz.mixtures import COUNTS, MIXTURES, WRONG, files, valid_checkpoint
from meshrt.studies.fuzz.models import CONFIG, VARIANTS

PACKAGED = {
    "mixtral-8x7b": 46_702_792_704,
    "deepseek-moe-16b": 16_375_728_128,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "olmoe-1b-7b": 6_919_161_856,
    "qwen3-30b-a3b": 30_532_122_624,
}


def without(key: str, data: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in data.items() if k != key}


@pytest.mark.parametrize("name", PACKAGED)
def test_packaged_shapes_have_the_published_number_of_parameters(name: str) -> None:
    assert sum(map(math.prod, expected_shapes(read_config(find_model(name))).values())) == PACKAGED[name]


def test_the_catalogue_knows_mixtures() -> None:
    assert {name for name in packaged() if has_experts(name)} == {*PACKAGED, "mixtral-tiny", "deepseek-tiny"}


def test_names_of_tensors() -> None:
    """As Hugging Face's folders have them; transformers has read the other families' for the golden files."""
    tensors = set(expected_shapes(Config.from_dict(DEEPSEEK | {"n_routed_experts": 3})))
    stems = [f"experts.{at}" for at in range(3)] + ["shared_experts"]
    block = {f"mlp.{stem}.{projection}_proj.weight" for stem in stems for projection in ("gate", "up", "down")} | {
        "mlp.gate.weight"
    }
    dense = {f"mlp.{projection}_proj.weight" for projection in ("gate", "up", "down")}
    for number, expected in ((0, dense), (1, block), (2, block)):
        stem = f"model.layers.{number}."
        assert {name.removeprefix(stem) for name in tensors if name.startswith(stem + "mlp.")} == expected
    mixtral = expected_shapes(Config.from_dict(MIXTRAL))
    stem = "model.layers.2.block_sparse_moe."
    assert mixtral[stem + "gate.weight"] == (5, 36)
    assert [mixtral[f"{stem}experts.4.{matrix}.weight"] for matrix in ("w1", "w3", "w2")] == [
        (22, 36),
        (22, 36),
        (36, 22),
    ]
    qwen2 = expected_shapes(Config.from_dict(QWEN2))
    assert qwen2["model.layers.0.mlp.shared_expert_gate.weight"] == (1, 36)
    norms = {
        name: expected_shapes(Config.from_dict(data))["model.layers.0.self_attn.q_norm.weight"]
        for name, data in (("all", OLMOE), ("head", QWEN3))
    }
    assert norms == {"all": (36,), "head": (10,)}


def test_which_layers_have_experts() -> None:
    def have_experts(data: dict[str, Any]) -> list[bool]:
        config = Config.from_dict(data)
        return [isinstance(config.layer(number).mlp, Experts) for number in range(config.layers)]

    assert have_experts(MIXTRAL) == [True, True, True]
    assert have_experts(DEEPSEEK) == [False, True, True]
    assert have_experts(DEEPSEEK | {"first_k_dense_replace": 3}) == [False, False, False]
    assert have_experts(QWEN2) == [True, False, True]
    assert have_experts(QWEN2 | {"decoder_sparse_step": 2}) == [False, False, False]
    assert have_experts(QWEN3 | {"decoder_sparse_step": 3}) == [False, False, True]


def test_one_expert_of_deepseek_keeps_its_probability() -> None:
    of_deepseek, of_mixtral = (
        Config.from_dict(data | {"num_experts_per_tok": 1, "norm_topk_prob": True}).moe for data in (DEEPSEEK, MIXTRAL)
    )
    assert of_deepseek is not None and of_mixtral is not None
    assert (of_deepseek.renormalise, of_mixtral.renormalise) == (False, True)


def test_mixtral_turns_by_a_base_of_its_own_where_none_is_given() -> None:
    for data, theta in ((MIXTRAL, 1e6), (QWEN3, 1e4)):
        rope = Config.from_dict(without("rope_parameters", data)).rope
        assert rope is not None and rope.theta == theta


def test_the_number_of_experts_has_two_names() -> None:
    for data in (MIXTRAL, QWEN2, OLMOE, QWEN3):
        plain = without("num_experts", without("num_local_experts", data))
        first, second, both = (
            Config.from_dict(plain | more)
            for more in ({"num_experts": 5}, {"num_local_experts": 5}, {"num_experts": 5, "num_local_experts": 5})
        )
        assert first == second == both and first.moe is not None and first.moe.experts == 5
        with pytest.raises(ModelError, match="both set and differ"):
            Config.from_dict(plain | {"num_experts": 5, "num_local_experts": 6})


@pytest.mark.parametrize(
    ("data", "key"),
    [
        (without("num_local_experts", MIXTRAL), "num_experts"),
        (MIXTRAL | {"num_local_experts": 0}, "num_local_experts"),
        (MIXTRAL | {"num_local_experts": 20_000}, "num_local_experts"),
        (MIXTRAL | {"num_experts_per_tok": 6}, "num_experts_per_tok"),
        (MIXTRAL | {"num_experts_per_tok": 0}, "num_experts_per_tok"),
        (without("num_experts_per_tok", MIXTRAL), "num_experts_per_tok"),
        (MIXTRAL | {"sliding_window": 4096}, "sliding_window"),
        (MIXTRAL | {"attention_bias": True}, "attention_bias"),
        (MIXTRAL | {"mlp_bias": True}, "mlp_bias"),
        (MIXTRAL | {"model_type": "deepseek_v2"}, "model_type"),
        (DEEPSEEK | {"scoring_func": "sigmoid"}, "scoring_func"),
        (DEEPSEEK | {"topk_method": "group_limited_greedy"}, "topk_method"),
        (DEEPSEEK | {"n_group": 8}, "n_group"),
        (DEEPSEEK | {"routed_scaling_factor": 2.5}, "routed_scaling_factor"),
        (DEEPSEEK | {"moe_layer_freq": 2}, "moe_layer_freq"),
        (DEEPSEEK | {"first_k_dense_replace": 4}, "first_k_dense_replace"),
        (DEEPSEEK | {"first_k_dense_replace": -1}, "first_k_dense_replace"),
        (DEEPSEEK | {"n_shared_experts": 1 << 24}, "n_shared_experts"),
        (DEEPSEEK | {"n_shared_experts": 1.5}, "n_shared_experts"),
        (DEEPSEEK | {"norm_topk_prob": 1}, "norm_topk_prob"),
        (without("n_routed_experts", DEEPSEEK), "n_routed_experts"),
        (without("moe_intermediate_size", DEEPSEEK), "moe_intermediate_size"),
        (without("shared_expert_intermediate_size", QWEN2), "shared_expert_intermediate_size"),
        (QWEN2 | {"mlp_only_layers": [3]}, "mlp_only_layers"),
        (QWEN2 | {"mlp_only_layers": [True]}, "mlp_only_layers"),
        (QWEN2 | {"mlp_only_layers": 1}, "mlp_only_layers"),
        (QWEN2 | {"decoder_sparse_step": 0}, "decoder_sparse_step"),
        (QWEN2 | {"use_sliding_window": True}, "use_sliding_window"),
        (QWEN2 | {"qkv_bias": "yes"}, "qkv_bias"),
        (OLMOE | {"clip_qkv": -1.0}, "clip_qkv"),
        (OLMOE | {"clip_qkv": "8"}, "clip_qkv"),
        (OLMOE | {"sliding_window": 8}, "sliding_window"),
        (QWEN3 | {"low_rank": {"ranks": {"model.layers.1.mlp.gate": 2}}}, "low_rank"),
        (QWEN3 | {"low_rank": {"ranks": {"model.layers.0.mlp.experts.0.up_proj": 2}}}, "low_rank"),
        (QWEN3 | {"low_rank": {"ranks": {"model.layers.1.mlp.experts.0.up_proj": 15}}}, "low_rank"),
    ],
)
def test_config_refuses(data: dict[str, Any], key: str) -> None:
    with pytest.raises(ModelError) as caught:
        Config.from_dict(data, source="here/config.json")
    assert str(caught.value).startswith(f"here/config.json: {key!r} ") and "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_the_fuzzer_starts_from_configurations_that_are_good() -> None:
    configs = [Config.from_dict(CONFIG | variant) for variant in VARIANTS]
    assert {config.model_type for config in configs if config.moe} == {data["model_type"] for data in CASES.values()}


@pytest.mark.parametrize("tensor", ["model.layers.1.mlp.gate.weight", "model.layers.2.mlp.experts.10.down_proj.weight"])
def test_a_tensor_that_is_missing_is_named(tensor: str, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = random_moe("qwen3-moe", tmp_path)
    check_shapes(open_checkpoint(folder), read_config(folder))
    weights = load_file(folder / "model.safetensors")
    save_file(without(tensor, weights), folder / "model.safetensors")
    with pytest.raises(ModelError, match=f"has no tensor {tensor}"):
        check_shapes(open_checkpoint(folder), read_config(folder))


@pytest.mark.sample(2)
@pytest.mark.parametrize("at", range(len(MIXTURES)), ids=[str(mixture["model_type"]) for mixture in MIXTURES])
def test_numbers_of_experts_that_do_not_fit_are_one_line(at: int, tmp_path: Path) -> None:
    """Every key that says something of experts, with every such value: what is accepted uses all experts' tensors."""
    for file, data in files(b"", *valid_checkpoint(at)).items():
        (tmp_path / file).write_bytes(data)
    refused = set()
    for name, value in ((name, value) for name in COUNTS for value in WRONG):
        (tmp_path / "config.json").write_text(json.dumps(CONFIG | MIXTURES[at] | {name: value}))
        try:
            config = read_config(tmp_path)
            checkpoint = open_checkpoint(tmp_path)
            check_shapes(checkpoint, config)
            assert {tensor for tensor in checkpoint.tensors if "expert" in tensor} <= {*expected_shapes(config)}
        except ModelError as error:
            refused.add((name, repr(value)))
            assert str(error).startswith(str(tmp_path)) and "\n" not in str(error)
    count = next(name for name in ("num_experts", "num_local_experts", "n_routed_experts") if name in MIXTURES[at])
    must = {(key, value) for key in (count, "num_experts_per_tok") for value in ("0", "-1", "7", "3.0", "True")}
    assert must <= refused | {(count, "None")}


@pytest.mark.parametrize(
    ("at", "change", "words"),
    [
        (0, "block_sparse_moe.gate.weight -", "has no tensor model.layers.0.block_sparse_moe.gate.weight"),
        (1, "mlp.gate.weight T", r"mlp.gate.weight has shape \[8, 6\]; config.json asks for \[6, 8\]"),
        (2, "experts.3.up_proj.weight -", "has no tensor model.layers.1.mlp.experts.3.up_proj.weight"),
        (2, "shared_expert_gate.weight -", "has no tensor model.layers.1.mlp.shared_expert_gate.weight"),
        (4, "experts.0.down_proj.weight T", r"has shape \[6, 8\]; config.json asks for \[8, 6\]"),
        (1, "n_shared_experts 0", "an expert's tensor model.layers.1.mlp.shared_experts.gate_proj.weight, of which"),
        (1, "n_shared_experts null", "of which config.json knows nothing; one of them is wrong"),
        (1, "n_shared_experts 3", r"has shape \[12, 8\]; config.json asks for \[18, 8\]"),
        (4, "decoder_sparse_step 3", "an expert's tensor model.layers.1.mlp.experts.0.gate_proj.weight|has no tensor"),
    ],
)
def test_tensors_that_do_not_fit_are_one_line(at: int, change: str, words: str, tmp_path: Path) -> None:
    key, how = change.split()
    header, data = valid_checkpoint(at)
    config = CONFIG | MIXTURES[at]
    if how in "-T":
        name = next(tensor for tensor in header if tensor.endswith(key))
        entry = header[name] | {"shape": header[name]["shape"][::-1]}
        header = {tensor_name: tensor for tensor_name, tensor in header.items() if tensor_name != name} | (
            {} if how == "-" else {name: entry}
        )
    else:
        config = config | {key: json.loads(how)}
    for file, text in files(json.dumps(config).encode(), header, data).items():
        (tmp_path / file).write_bytes(text)
    with pytest.raises(ModelError, match=words) as caught:
        check_shapes(open_checkpoint(tmp_path), read_config(tmp_path))
    assert "\n" not in str(caught.value)


def test_layers_that_are_left_out_may_have_experts(tmp_path: Path) -> None:
    """--layers N runs the first of a model: the experts of the others are not in the way."""
    config = read_config(random_moe("mixtral", tmp_path))
    check_shapes(open_checkpoint(tmp_path), replace(config, layers=1))
