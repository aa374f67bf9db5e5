"""`meshrt quantize --method w4a8`: the folder, what it reports, and what the reference computes of it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from losses import before_is_computed_once  # noqa: F401 - a fixture for all
from random_models import CASES, case_ids, case_seed, random_checkpoint
from safetensors.numpy import load_file, save_file

from meshrt.commands.quantize import command
from meshrt.models import reference
from meshrt.models.catalogue import find_model
from meshrt.models.compress.decompose import weight_error
from meshrt.models.config import Config, read_config
from meshrt.models.errors import ModelError
from meshrt.models.family import family_of
from meshrt.models.folders.checkpoint import check_shapes, open_checkpoint
from meshrt.models.integer import linear, projection
from meshrt.models.matrix import Matrix
from meshrt.models.perplexity import losses, of_losses
from meshrt.models.quantize.folder import read_parts
from meshrt.models.quantize.head import checked_checkpoint
from meshrt.models.quantize.model import quantize, read_model, statistics
from meshrt.models.quantize.sizes import CodeScheme
from meshrt.models.reference import forward, load_weights
from meshrt.models.stories import HELD_OUT_SEED
from meshrt.models.texts import story_sequences
from meshrt.models.tokenizer import load_tokenizer

BASE = find_model("llama-tiny")
OPTIONS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "symmetric": ("--symmetric", "--block", "32"),
    "row": ("--block", "row", "--activations", "row"),
    "block": ("--activations", "block", "--group", "128", "--head", "8"),
}


def meshrt_quantize(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Folders of llama-tiny and their reports, perplexity on 8 stories."""
    place, folders = tmp_path_factory.mktemp("models"), {}
    for name, options in OPTIONS.items():
        out = place / name
        done = meshrt_quantize(
            "llama-tiny", "--method", "w4a8", "--out", out, "--json", place / f"{name}.json", "--held-out-stories", "8",
            *options,
        )  # fmt: skip
        assert (done.exit_code, done.stderr) == (0, "")
        folders[name] = out, json.loads((place / f"{name}.json").read_text())
    return folders


def test_the_folder_says_how(made: Any) -> None:
    keys = {name: json.loads((out / "config.json").read_text())["quantized"] for name, (out, _) in made.items()}
    common = {"method": "w4a8", "bits": 4, "compensator_bits": 16, "ranks": {}}
    assert keys == {
        "plain": common | {"group": 64, "symmetric": False, "offset": True, "activations": "row"},
        "symmetric": common | {"group": 32, "symmetric": True, "activations": "row"},
        "row": common | {"group": "row", "symmetric": False, "offset": True, "activations": "row"},
        "block": common | {"group": 128, "symmetric": False, "offset": True, "activations": "block", "head": 8},
    }
    for out, _ in made.values():
        check_shapes(open_checkpoint(out), read_config(out, quantized=True))


def test_tensors_and_bytes_are_those_reported(made: Any) -> None:
    name = "model.layers.2.mlp.down_proj."  # 128 x 384
    want = {"plain": (6, True), "symmetric": (12, False), "row": (1, True), "block": (3, True)}
    for kind, (out, report) in made.items():
        tensors = load_file(out / "model.safetensors")
        stated = {
            tensor_name.removeprefix(name): x.shape
            for tensor_name, x in tensors.items()
            if tensor_name.startswith(name)
        }
        groups, offset = want[kind]
        scales = {"scale": (128, groups)} | ({"offset": (128, groups)} if offset else {})
        assert stated == {"codes": (128, 192), **scales}
        assert report["bytes"] == sum(tensor.nbytes for tensor in tensors.values())
        for matrix in report["matrices"]:
            assert matrix["bytes"][1] == sum(
                x.nbytes for key, x in tensors.items() if key.startswith(matrix["name"] + ".")
            )
        by_shape = meshrt_quantize("llama-tiny", "--method", "w4a8", "--sizes", "--json", "-", *OPTIONS[kind])
        stated = json.loads(by_shape.stdout)
        assert all(stated[key] == report[key] for key in ("bytes", "bits_per_weight", "bytes_before", "groups"))
    assert made["plain"][1]["bits_per_weight"] == 4.5 and made["symmetric"][1]["bits_per_weight"] == 4.5


def test_errors_are_those_of_what_was_written(made: Any) -> None:
    base = load_file(BASE / "model.safetensors")
    for out, report in made.values():
        dense = load_weights(out)
        for matrix in report["matrices"]:
            w = base[matrix["name"] + ".weight" if matrix["name"] != "lm_head" else "model.embed_tokens.weight"].astype(
                float
            )
            assert matrix["weight_error"] == pytest.approx(
                weight_error(w, dense[matrix["name"] + ".weight"]), rel=1e-12
            )
            assert 0.001 < matrix["activation_error"] < 0.06
    assert {matrix["name"] for matrix in made["block"][1]["matrices"]} - {
        matrix["name"] for matrix in made["plain"][1]["matrices"]
    } == {"lm_head"}


def test_perplexity_is_that_of_whole_products_and_stays_within_half_a_percent(made: Any) -> None:
    config = read_config(BASE)
    test = story_sequences(config, load_tokenizer(BASE), HELD_OUT_SEED, 8)
    for name, (out, report) in made.items():
        stated, own = report["perplexity"], read_config(out, quantized=True)
        after = losses(own, load_weights(out, np.float32), test, project=projection(out, own))
        assert stated["after"] == of_losses(after)
        assert stated["after"] != of_losses(losses(own, load_weights(out, np.float32), test))
        assert 1.0005 < stated["after"] / stated["before"] < (1.005 if name != "symmetric" else 1.006), name
    assert stated["before"] == pytest.approx(1.24498, abs=2e-5)


@pytest.mark.parametrize("kind", OPTIONS)
def test_every_layer_computes_the_whole_products_of_its_inputs(kind: str, made: Any) -> None:
    """Each projection of a forward pass on the inputs it had there: int64 sums, the rest in float64."""
    out = made[kind][0]
    config, checkpoint = read_config(out, quantized=True), open_checkpoint(out)
    project, seen = projection(out, config), []
    matrices = {**config.matrices(), "lm_head": config.head_matrix}
    forms = {**config.quantized, **({"lm_head": config.head} if config.head else {})}

    def looked_at(w: reference.NamedArrays, matrix: Matrix, x: reference.Array) -> reference.Array:
        y = project(w, matrix, x)
        if matrix.name not in forms:
            return y
        form, whole = forms[matrix.name], matrices[matrix.name]
        codes = read_parts(checkpoint, matrix.name, form, whole.columns, whole.rows).codes
        blocks = codes.codes.shape[1]
        padded = np.pad(x.astype(float), ((0, 0), (0, blocks * form.group - x.shape[1]))).reshape(len(x), blocks, -1)
        most = np.abs(padded).max(axis=-1 if form.activations == "block" else (1, 2), keepdims=True)
        scale = np.where(most > 0, most / 127, 1)
        a = np.rint(padded / scale).astype(np.int64)
        flat = 2 ** (form.bits - 1) * codes.scale.astype(float)
        offset = -flat if codes.offset is None else codes.offset.astype(float)
        dots = np.einsum("tbk,nbk->tbn", a, codes.codes.astype(np.int64))
        want = (dots * codes.scale.astype(float).T + a.sum(axis=-1)[..., None] * offset.T) * scale
        error = np.abs(y - want.sum(axis=1)).max() / np.abs(want).max()
        seen.append((matrix.name, error))
        return y

    forward(config, load_weights(out, np.float32), case_ids("mha"), np.float32, looked_at)
    assert sorted(name for name, _ in seen) == sorted(forms)
    # A rounding that goes the other way in float64 moves one code by 1, some 1e-3 of an output: a few of them may.
    assert np.median([error for _, error in seen]) < 1e-5 and max(error for _, error in seen) < 0.02


@pytest.mark.parametrize("name", ["bias", "qwen2", "tied", "headdim", "oddvocab"])
def test_odd_sizes_short_tails_and_biases(name: str, tmp_path: Path) -> None:
    """Inputs of 30, 36, 48, 50 and 80 in groups of 32; a head of 8 bits beside an embedding that is tied."""
    folder, ids = random_checkpoint(CASES[name], tmp_path / "base", case_seed(name)), case_ids(name)
    for group, activations in ((32, "block"), ("row", "row")):
        out, figures = tmp_path / str(group), statistics(*read_model(folder))
        scheme = CodeScheme("w4a8", 4, group, False, 16, activations, True)
        assert len(quantize(folder, out, scheme, {}, 1, figures)) == 15
        config = read_config(out, quantized=True)
        check_shapes(open_checkpoint(out), config)
        assert family_of(config).head == "lm_head" and not config.tie_word_embeddings
        expected = forward(read_config(folder), load_weights(folder), ids)
        only_weights = forward(config, load_weights(out), ids)
        logits = forward(config, load_weights(out, np.float32), ids, np.float32, projection(out, config))
        assert logits.dtype == np.float32
        size = np.linalg.norm(expected)
        assert 0 < np.linalg.norm(logits - only_weights) < 0.1 * size
        assert 0.01 * size < np.linalg.norm(logits - expected) < 0.6 * size


def test_mixtures_of_experts_have_whole_products(tmp_path: Path) -> None:
    from moe_models import random_moe

    folder = random_moe("mixtral", tmp_path / "base")
    scheme = CodeScheme("w4a8", 4, 32, True, 16, "row")
    quantize(folder, tmp_path / "out", scheme, {}, 1, statistics(*read_model(folder)))
    config, ids = read_config(tmp_path / "out", quantized=True), [5, 6, 7, 40, 2, 3, 60]
    weights = load_weights(tmp_path / "out", np.float32)
    logits = forward(config, weights, ids, np.float32, projection(tmp_path / "out", config))
    expected = forward(config, weights, ids, np.float32)
    assert 0 < np.linalg.norm(logits - expected) < 0.2 * np.linalg.norm(expected)


def test_tokens_do_not_change_each_other(made: Any) -> None:
    """Rows are put into 8 bits one by one: the first tokens of a longer text have the same logits, to the bit."""
    out = made["plain"][0]
    checkpoint, config = open_checkpoint(out), read_config(out, quantized=True)
    matrix = config.matrices()["model.layers.0.mlp.up_proj"]
    codes = read_parts(checkpoint, matrix.name, config.quantized[matrix.name], matrix.columns, matrix.rows).codes
    x = np.random.default_rng(1).standard_normal((50, matrix.rows)).astype(np.float32)
    whole = linear(x, codes)
    for rows in (1, 7, 33):
        np.testing.assert_array_equal(linear(x[:rows], codes), whole[:rows])


# --------------------------------------------------------------------------------------------------------- the head


def test_a_head_in_codes_is_rebuilt_as_it_is_read(made: Any) -> None:
    out = made["block"][0]
    checkpoint = checked_checkpoint(out, read_config(out, quantized=True))
    whole = load_weights(out, np.float32)["lm_head.weight"]
    for rows, columns in ((slice(None), slice(None)), (slice(3, 500, 2), slice(5, 60)), (np.array([7, 7, 500]), 0)):
        if isinstance(columns, int):
            np.testing.assert_array_equal(checkpoint.read("lm_head.weight", rows), whole[rows])
            columns = np.array([3, 1, 127])
            np.testing.assert_array_equal(checkpoint.read("lm_head.weight", rows, columns), whole[rows][:, columns])
        else:
            np.testing.assert_array_equal(checkpoint.read("lm_head.weight", rows, columns), whole[rows, columns])
    assert "lm_head.weight" not in open_checkpoint(out).tensors


@pytest.mark.parametrize("change, message", [
    ({"head": 4}, "'head' 4; it must be 8"),
    ({"head": True}, "'head' True; it must be 8"),
])  # fmt: skip
def test_heads_that_are_wrong(change: dict[str, Any], message: str) -> None:
    key = {"bits": 4, "group": 64, "symmetric": True, "compensator_bits": 16, "ranks": {}}
    assert Config.from_dict(CASES["mha"] | {"quantized": key | {"head": 8}}).head is not None
    with pytest.raises(ModelError, match=message):
        Config.from_dict(CASES["mha"] | {"quantized": key | change})
    with pytest.raises(ModelError, match="tie_word_embeddings says that it is the embedding"):
        Config.from_dict(CASES["tied"] | {"quantized": key | {"head": 8}})


def test_a_head_that_is_damaged(made: Any, tmp_path: Path) -> None:
    out = made["block"][0]
    tensors = load_file(out / "model.safetensors")
    (tmp_path / "config.json").write_bytes((out / "config.json").read_bytes())
    for end, bad, message in (
        ("scale", np.full((512, 1), np.inf, np.float16), "NaN or infinite"),
        ("offset", np.full((512, 1), np.nan, np.float16), "NaN or infinite"),
        ("scale", np.ones((512, 2), np.float16), r"\[512, 2\]"),
        ("codes", np.zeros((512, 128), np.float16), "dtype F16"),
    ):
        save_file(tensors | {f"lm_head.{end}": bad}, tmp_path / "model.safetensors")
        with pytest.raises(ModelError, match=message):
            checked_checkpoint(tmp_path, read_config(tmp_path, quantized=True)).read("lm_head.weight", slice(0, 3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--bits", "3"), "--bits 3: w4a8 has 4 bits a weight"),
        (("--block", "40"), "--group: 'group' 40; it must be a multiple of 32"),
        (("--ranks", "uniform-8"), "--ranks goes with --method milo"),
        (("--seed", "3"), "--seed goes with --method gptq"),
        (("--method", "rtn", "--activations", "row"), "--activations goes with --method w4a8; rtn has no use for it"),
        (("--method", "hqq", "--head", "8"), "--head goes with --method w4a8; hqq has no use for it"),
        (("--method", "hqq", "--symmetric"), "--symmetric goes with --method rtn or w4a8; hqq"),
    ],
)
def test_options_that_do_not_go_together(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = meshrt_quantize("llama-tiny", "--method", "w4a8", "--out", tmp_path / "out", *arguments)
    assert done.exit_code == 2 and message in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_word_that_is_no_group() -> None:
    done = meshrt_quantize("llama-tiny", "--method", "w4a8", "--sizes", "--block", "rows")
    assert done.exit_code == 2 and "rows" in done.stderr


def test_weights_whose_scale_float16_has_not_are_named(tmp_path: Path) -> None:
    folder = random_checkpoint(CASES["mha"], tmp_path / "base", 0)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"] *= 1e-4
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.up_proj: a group's scale is .*--method rtn"):
        scheme = CodeScheme("w4a8", 4, 32, False, 16, "row")
        quantize(folder, tmp_path / "out", scheme, {}, 1, statistics(*read_model(folder)))
    assert not (tmp_path / "out").exists()


def test_table_for_people(made: Any, tmp_path: Path) -> None:
    done = meshrt_quantize("llama-tiny", "--method", "w4a8", "--out", tmp_path / "o", "--held-out-stories", "2")
    lines = done.stdout.splitlines()
    assert " ".join(lines[0].split()) == "matrix out x in kurtosis bytes error W error X"
    assert max(map(len, lines[:29])) <= 80
    assert lines[-1].startswith("perplexity 1.")
