"""Mixtures of experts where matrices are walked (families, calibration, compress), and the machines' refusal."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from moe_models import CASES, DEEPSEEK, IDS, QWEN2, QWEN3, random_moe
from mpi_jobs import Finished
from random_models import BASE, random_checkpoint, random_weights

from meshrt.models.calibrate import expert_tokens, layer_grams
from meshrt.models.compress.model import compress
from meshrt.models.compress.ranks import aligned_ranks, named_ranks
from meshrt.models.config import Config, read_config
from meshrt.models.errors import ModelError
from meshrt.models.family import check_plain, evenly, family_of, with_ranks
from meshrt.models.folders.checkpoint import expected_shapes
from meshrt.models.matrix import Experts, Matrix, Mlp
from meshrt.models.quantize.choice import choose
from meshrt.models.quantize.model import quantize, read_model, statistics
from meshrt.models.quantize.shapes import shapes_of
from meshrt.models.quantize.sizes import CodeScheme, compensator_bytes
from meshrt.models.reference import forward, layer, load_weights, project
from meshrt.models.rope import cos_sin


def test_matrices_are_all_but_routers_and_gates() -> None:
    config = Config.from_dict(QWEN2)
    shapes = {name.removesuffix(".weight"): shape for name, shape in expected_shapes(config).items()}
    small = {matrix.name for number in range(3) for matrix in config.layer(number).routing}
    assert small == {f"model.layers.{at}.mlp.{gate}" for at in (0, 2) for gate in ("gate", "shared_expert_gate")}
    projections = {name for name in shapes if name.endswith("_proj")}
    assert {*config.matrices()} == projections and not projections & small
    assert all(shapes[name] == (matrix.columns, matrix.rows) for name, matrix in config.matrices().items())
    for layer_number in (0, 1):
        own = config.layer(layer_number)
        assert [matrix for together in own.inputs() for matrix in together] == [*own.matrices()]
    with pytest.raises(ModelError, match="no matrix of the 3 layers"):
        named_ranks(config, [("mlp.gate", 2)])
    assert {*aligned_ranks(config, "mlp", 0.2, 2)} == {name for name in projections if ".mlp." in name}


def test_families_by_shape() -> None:
    """Dense layers, experts and the shared expert each get half of their own shorter side."""
    family = evenly(family_of(Config.from_dict(DEEPSEEK)), 0.5)
    ranks = {matrix.name.partition("layers.")[2]: matrix.rank for own in family.layers for matrix in own.matrices()}
    assert ranks["0.mlp.up_proj"] == 18 and ranks["1.self_attn.k_proj"] == 6  # of 36 x 50 and 36 x 10
    assert ranks["1.mlp.experts.8.up_proj"] == 8 and ranks["2.mlp.shared_experts.down_proj"] == 14  # of 14 and 28
    named = with_ranks(family_of(Config.from_dict(DEEPSEEK)), {"down_proj": 3})
    assert all(
        (matrix.rank == 3) == matrix.name.endswith("down_proj") for own in named.layers for matrix in own.matrices()
    )


@pytest.mark.parametrize("name", ["qwen2-moe", "mixtral"])
def test_recorded_inputs_are_those_of_every_matrix(name: str) -> None:
    """X^T X / tokens of each matrix: of an expert, over its own tokens; zero where none came."""
    config, weights = Config.from_dict(CASES[name]), random_weights(CASES[name], 0)
    stem = "model.layers.2." + ("block_sparse_moe." if name == "mixtral" else "mlp.")
    weights[stem + "gate.weight"][1] = 0
    weights["model.layers.2.post_attention_layernorm.weight"][:] = 0  # all are equal, and the first three are taken
    family, texts = family_of(config), [[3, 1, 4, 1, 5], [9, 2]]
    inputs: dict[str, list[Any]] = {}

    def watch(w: Any, matrix: Matrix, x: Any) -> Any:
        inputs.setdefault(matrix.name, []).append(x)
        return project(w, matrix, x)

    for ids in texts:
        x = weights["model.embed_tokens.weight"].astype(float)[ids]
        for block in family.layers:
            x = layer(family, weights, block, x, (cos_sin(config, np.arange(len(ids))),), watch)
    by_matrix: dict[str, Any] = {}
    for grams in layer_grams(config, weights, texts, np.float64):
        by_matrix |= grams
    assert set(by_matrix) == set(config.matrices())
    mixture = family.layers[2].mlp
    assert isinstance(mixture, Experts)
    assert {matrix for matrix in by_matrix if stem + "experts" in matrix} - {*inputs} == {
        matrix.name for expert in mixture.experts[3:] for matrix in expert.matrices()
    }
    for matrix, gram in by_matrix.items():
        if matrix in inputs:
            every = np.concatenate(inputs[matrix])
            np.testing.assert_allclose(gram, every.T @ every / len(every), rtol=1e-6, atol=1e-9)
        else:
            assert gram.shape == 2 * (config.matrices()[matrix].rows,) and not gram.any()


@pytest.mark.parametrize("method", ["svd", "plain-svd", "afm"])
@pytest.mark.parametrize("name", ["mixtral", "deepseek", "olmoe"])
def test_full_rank_computes_what_the_model_computed(name: str, method: Any, tmp_path: Path) -> None:
    """Every matrix in two factors that lose nothing, also of experts that no token of the calibration came to."""
    folder = random_moe(name, tmp_path / "base")
    config = read_config(folder)
    ranks = {name: matrix.most_rank for name, matrix in config.matrices().items()}
    texts = [IDS[name][:1]]  # one token takes three experts
    records = compress(folder, tmp_path / "out", ranks, method, texts, {"method": method})
    assert [record.name for record in records] == [*ranks]
    assert all(record.weight_error < 1e-5 for record in records if record.feature_error is None)
    none = {record.name for record in records if record.feature_error is None}
    assert none and all(".experts." in matrix for matrix in none)
    if method == "plain-svd":
        assert max(record.weight_error for record in records) < 1e-5
        expected = forward(config, load_weights(folder), IDS[name])
        logits = forward(read_config(tmp_path / "out"), load_weights(tmp_path / "out"), IDS[name])
        np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["mixtral", "deepseek", "qwen2-moe"])
def test_quantized_folders_run_in_the_reference(name: str, tmp_path: Path) -> None:
    """GPTQ on the tokens of each expert, HQQ where an expert has none; router, gates and norms as they were."""
    folder = random_moe(name, tmp_path / "base")
    config, checkpoint = read_model(folder)
    records = quantize(
        folder, tmp_path / "out", CodeScheme("gptq", 8, 64, False, 16), {}, 1, statistics(config, checkpoint),
        [IDS[name][:1]],
    )  # fmt: skip
    assert [record.name for record in records] == [*config.matrices()]
    alone = {record.name for record in records if record.method == "hqq"}
    assert alone == {record.name for record in records if record.feature_error is None}
    assert (
        alone
        and all(".experts." in matrix for matrix in alone)
        and {record.method for record in records} == {"hqq", "gptq"}
    )
    before, after = load_weights(folder), load_weights(tmp_path / "out")
    changed = {tensor for tensor in before if (before[tensor] != after[tensor]).any()}
    assert changed == {matrix + ".weight" for matrix in config.matrices()}
    for record in records:
        w, lost = before[record.name + ".weight"], before[record.name + ".weight"] - after[record.name + ".weight"]
        assert record.weight_error == pytest.approx(np.linalg.norm(lost) / np.linalg.norm(w), rel=1e-5)
    logits = forward(read_config(tmp_path / "out", quantized=True), after, IDS[name])
    np.testing.assert_array_equal(logits, forward(config, after, IDS[name]))


@pytest.mark.parametrize("name", ["mixtral", "deepseek", "qwen2-moe", "qwen3-moe"])
def test_tokens_of_experts_are_what_the_router_chose(name: str) -> None:
    """Counted from the logits of each layer's router, taken down on the way."""
    config, weights, texts = Config.from_dict(CASES[name]), random_weights(CASES[name], 0), [IDS[name], IDS[name][::2]]
    family = family_of(config)
    expected: dict[str, int] = {}
    for ids in texts:
        x = weights["model.embed_tokens.weight"].astype(float)[ids]
        for block in family.layers:
            logits: list[Any] = []

            def watch(w: Any, matrix: Matrix, x: Any, logits: list[Any] = logits, of: Any = block.routing) -> Any:
                y = project(w, matrix, x)
                logits += [y] * (matrix in of[:1])
                return y

            x = layer(family, weights, block, x, (cos_sin(config, np.arange(len(ids))),), watch)
            if isinstance(block.mlp, Experts):
                stem = block.mlp.router.name.removesuffix("gate") + "experts."
                for number in range(len(block.mlp.experts)):
                    likelier = (logits[0] > logits[0][:, number, None]).sum(axis=1)
                    taken = int(np.sum(likelier < block.mlp.top))
                    expected[f"{stem}{number}"] = expected.get(f"{stem}{number}", 0) + taken
    counts = expert_tokens(config, weights, texts, np.float64)
    assert counts == expected and [*counts] == [*expected]
    assert {matrix.expert for matrix in shapes_of(config).matrices if matrix.expert} == {*counts}
    mixtures = sum(isinstance(block.mlp, Experts) for block in family.layers)
    assert config.moe is not None
    assert sum(counts.values()) == mixtures * config.moe.top * sum(map(len, texts))


def test_a_dense_model_has_no_experts_to_count() -> None:
    assert expert_tokens(Config.from_dict(BASE), random_weights(BASE, 0), [[1, 2]]) == {}


@pytest.mark.parametrize("policy", ["frequency-2", "dense-2+frequency-kurtosis-2"])
def test_policies_by_frequency_need_text_to_count_on(policy: str, tmp_path: Path) -> None:
    config, checkpoint = read_model(random_moe("mixtral", tmp_path))
    shapes, scheme = shapes_of(config), CodeScheme("milo", 3, 64, False, 3)
    with pytest.raises(ModelError, match="how often experts are chosen was not counted"):
        choose(shapes, scheme, policy, None, statistics(config, checkpoint))
    counted = statistics(config, checkpoint, [IDS["mixtral"]])
    ranks, recipe = choose(shapes, scheme, policy, None, counted)
    experts = [matrix for matrix in shapes.matrices if matrix.expert]
    assert sum(ranks.get(matrix.name, 0) for matrix in experts) == 2 * len(experts) and recipe["ranks"] == policy
    bytes_of = sum(compensator_bytes(scheme, matrix, ranks.get(matrix.name, 0)) for matrix in shapes.matrices)
    open_rank = policy.rpartition("-")[0]
    assert choose(shapes, scheme, open_rank, bytes_of, counted) == (ranks, recipe | {"budget": bytes_of})
    if policy == "frequency-2":
        for matrix in experts:
            stem = (matrix.expert or "").rpartition(".")[0]
            layer_tokens = sum(count for name, count in counted.frequency.items() if name.startswith(stem + "."))
            own = counted.frequency[matrix.expert or ""] / layer_tokens * 2 * 5
            assert abs(ranks.get(matrix.name, 0) - own) < 1  # 5 experts; the limit of 14 is never reached


def test_shapes_by_kind_are_all_weights() -> None:
    config = Config.from_dict(QWEN2)
    shapes = shapes_of(config)
    every = sum(map(math.prod, expected_shapes(config).values()))
    assert shapes.weights + shapes.others == every
    assert shapes.others == 2 * 61 * 36 + 7 * 36 + 2 * (7 + 1) * 36 + 3 * 50  # norms; routers and gates; biases
    assert [matrix.kind for matrix in shapes.matrices] == [
        *4 * ["attention"], *21 * ["expert"], *3 * ["shared"],
        *4 * ["attention"], *3 * ["mlp"],
        *4 * ["attention"], *21 * ["expert"], *3 * ["shared"],
    ]  # fmt: skip
    assert {matrix.expert for matrix in shapes.matrices if matrix.kind == "expert"} == {
        f"model.layers.{layer}.mlp.experts.{number}" for layer in (0, 2) for number in range(7)
    }


@pytest.mark.parametrize("name", ["mixtral", "olmoe"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "llama", "--on", "neuron", "--model"),
        ("tune", "--prompt-tokens", "4", "--new-tokens", "2"),
    ],
    ids=" ".join,
)
def test_machines_refuse_it_in_one_line(
    name: str, arguments: tuple[str, ...], tmp_path: Path, run_meshrt: Callable[..., Finished]
) -> None:
    folder = random_moe(name, tmp_path)
    finished = run_meshrt(*arguments, str(folder))
    parts = "experts" if name == "mixtral" else "experts and norms of all heads together and clip_qkv"
    assert finished.code == 2 and finished.stdout == ""
    (line,) = finished.stderr.splitlines()
    assert f"{folder}: the model has {parts}, which" in line and "docs/moe.md" in line


def test_dense_layers_alone_make_it_run(tmp_path: Path, run_meshrt: Callable[..., Finished]) -> None:
    """Without a layer of experts it is a Qwen3."""
    folder = random_checkpoint(QWEN3 | {"mlp_only_layers": [0, 1, 2]}, tmp_path, 0)
    assert all(isinstance(block.mlp, Mlp) for block in family_of(read_config(folder)).layers)
    given = ("--prompt-ids", "1,2,3", "--max-new-tokens", "2", "--ignore-eos", "--logits", str(tmp_path / "logits.npy"))
    finished = run_meshrt("run", "llama", "--on", "neuron", "--model", str(folder), *given)
    assert finished.code == 0
    truth = forward(read_config(folder), load_weights(folder), [1, 2, 3])
    np.testing.assert_allclose(np.load(tmp_path / "logits.npy")[:3], truth, rtol=0, atol=1e-3)


@pytest.mark.parametrize("on", ["neuron"])
def test_packaged_shapes_are_refused_too(on: str, run_meshrt: Callable[..., Finished]) -> None:
    finished = run_meshrt("run", "mixtral-8x7b", "--on", on, "--payload", "none", "--prompt-tokens", "4")
    assert finished.code == 2 and len(finished.stderr.splitlines()) == 1 and "has experts" in finished.stderr


def test_deepseek_with_dense_layers_alone_is_llama(tmp_path: Path) -> None:
    """The same logits, and no machine refuses it."""
    dense = DEEPSEEK | {"first_k_dense_replace": 3}
    same = {key: dense[key] for key in BASE if key in dense and key != "architectures"} | {"model_type": "llama"}
    weights = random_weights(dense, 1)
    logits = forward(Config.from_dict(dense), weights, [3, 4, 5])
    np.testing.assert_array_equal(logits, forward(Config.from_dict(same | {"head_dim": 10}), weights, [3, 4, 5]))
    (tmp_path / "config.json").write_text(json.dumps(dense))
    check_plain(family_of(read_config(tmp_path)), tmp_path, "the mesh")
