"""`meshrt quantize`: a folder that the reference runs, figures that are that folder's, and folders that are bad."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from losses import before_is_computed_once  # noqa: F401 - a fixture for all
from random_models import CASES, case_ids, case_seed, random_checkpoint
from safetensors.numpy import load_file, save_file

from meshrt.commands.quantize import command
from meshrt.models.calibrate import layer_grams
from meshrt.models.catalogue import find_model
from meshrt.models.compress.decompose import feature_error, weight_error
from meshrt.models.compress.model import compress
from meshrt.models.config import Config, read_config
from meshrt.models.errors import ModelError
from meshrt.models.folders.checkpoint import check_shapes, open_checkpoint
from meshrt.models.perplexity import difference, losses, of_losses, perplexity
from meshrt.models.quantize.folder import read_dense, read_parts
from meshrt.models.quantize.form import Quantized
from meshrt.models.quantize.model import quantize, read_model, statistics
from meshrt.models.quantize.sizes import CodeScheme
from meshrt.models.quantize.statistics import kurtosis
from meshrt.models.reference import forward, load_weights
from meshrt.models.stories import HELD_OUT_SEED
from meshrt.models.texts import story_sequences
from meshrt.models.tokenizer import load_tokenizer
from meshrt.programs.arm.reader import ArmScheme, codes_of
from meshrt.studies.grid import Cell, Grid
from meshrt.studies.quantized import said

BASE = find_model("llama-tiny")
QUICK = ("--held-out-stories", "16")
ONCE = ("--rounds", "1", "--held-out-stories", "0")


def meshrt_quantize(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def quantized(out: Path, *arguments: str) -> dict[str, Any]:
    """The report of `meshrt quantize llama-tiny`, written to the folder `out`."""
    done = meshrt_quantize("llama-tiny", "--out", out, "--json", out.with_suffix(".json"), *QUICK, *arguments)
    assert (done.exit_code, done.stderr) == (0, "")
    report: dict[str, Any] = json.loads(out.with_suffix(".json").read_text())
    return report


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def eighth(place: Path) -> dict[str, Any]:
    """llama-tiny with compensators of rank 8 in 3 bits."""
    return quantized(place / "eighth", "--ranks", "uniform-8", "--rounds", "3")


@pytest.fixture(scope="module")
def plain(place: Path) -> dict[str, dict[str, Any]]:
    """By RTN, HQQ and GPTQ."""
    return {
        method: quantized(place / method, "--method", method, *(("--calibration-stories", "24") * (method == "gptq")))
        for method in ("rtn", "hqq", "gptq")
    }


# ------------------------------------------------------------------------------------------------------ the folder


def test_folder_is_an_ordinary_one_with_one_key_more(place: Path, eighth: dict[str, Any]) -> None:
    data, base = (json.loads((folder / "config.json").read_text()) for folder in (place / "eighth", BASE))
    key = data.pop("quantized")
    assert data == base
    assert key == {
        "method": "milo", "bits": 3, "group": 64, "symmetric": False, "compensator_bits": 3,
        "ranks": dict.fromkeys(read_config(BASE).matrices(), 8),
    }  # fmt: skip
    names = {path.name for path in (place / "eighth").iterdir()}
    assert names == {path.name for path in BASE.iterdir()} - {"README.md"}


def test_tensors_are_those_of_the_format(place: Path, eighth: dict[str, Any]) -> None:
    """k_proj is 64 x 128: two groups of 24 bytes a row; U has 512 numbers, 8 groups, and V 1,024."""
    tensors, base = (load_file(folder / "model.safetensors") for folder in (place / "eighth", BASE))
    name = "model.layers.2.self_attn.k_proj."
    forms = {
        tensor_name.removeprefix(name): (x.dtype, x.shape)
        for tensor_name, x in tensors.items()
        if tensor_name.startswith(name)
    }
    half, byte = np.dtype(np.float16), np.dtype(np.uint8)
    assert forms == {
        "codes": (byte, (64, 48)), "scale": (half, (64, 2)), "zero": (half, (64, 2)),
        "u_codes": (byte, (8, 24)), "u_scale": (half, (8,)), "v_codes": (byte, (16, 24)), "v_scale": (half, (16,)),
    }  # fmt: skip
    matrices = read_config(BASE).matrices()
    for tensor_name, tensor in base.items():
        if tensor_name.removesuffix(".weight") in matrices:
            assert tensor_name not in tensors
        else:
            np.testing.assert_array_equal(tensors[tensor_name], tensor)
    check_shapes(open_checkpoint(place / "eighth"), read_config(place / "eighth", quantized=True))


def test_reported_bytes_are_those_on_disk(place: Path, eighth: dict[str, Any], plain: dict[str, Any]) -> None:
    for name, report in {"eighth": eighth, **plain}.items():
        tensors = load_file(place / name / "model.safetensors")
        assert report["bytes"] == sum(tensor.nbytes for tensor in tensors.values())
        assert report["bytes_before"] == sum(tensor.nbytes for tensor in load_file(BASE / "model.safetensors").values())
        for matrix in report["matrices"]:
            own = [x.nbytes for key, x in tensors.items() if key.startswith(matrix["name"] + ".")]
            assert matrix["bytes"] == [2 * math.prod(matrix["shape"]), sum(own)]
        assert sum(matrix["bytes"][1] for matrix in report["matrices"]) == sum(
            group["bytes"] for group in report["groups"]
        )
    written = load_file(place / "eighth" / "model.safetensors")
    factors = sum(x.nbytes for key, x in written.items() if re.search(r"\.[uv]_(codes|scale)$", key))
    assert eighth["compensator_bytes"] == factors > 0 == plain["hqq"]["compensator_bytes"]
    assert plain["hqq"]["bits_per_weight"] == 3.5


def test_sizes_by_shape_are_those_of_the_folder(eighth: dict[str, Any]) -> None:
    done = meshrt_quantize("llama-tiny", "--ranks", "uniform-8", "--sizes", "--json", "-")
    sizes = json.loads(done.stdout)
    for key in ("quantized_weights", "other_weights", "bytes", "published_bytes", "bits_per_weight", "groups"):
        assert sizes[key] == eighth[key]


def test_reported_errors_are_those_of_what_was_written(place: Path, eighth: dict[str, Any]) -> None:
    checkpoint, config = open_checkpoint(place / "eighth"), read_config(place / "eighth", quantized=True)
    base = load_file(BASE / "model.safetensors")
    for matrix in eighth["matrices"]:
        w = base[matrix["name"] + ".weight"].astype(float)
        error = weight_error(w, read_dense(checkpoint, config.matrices()[matrix["name"]]))
        assert matrix["weight_error"] == pytest.approx(error, rel=1e-12)
        assert matrix["weight_error"] == pytest.approx(matrix["rounds"][matrix["kept"] - 1][1], rel=1e-9)
        assert (
            matrix["rounds"][matrix["kept"] - 1][1]
            == min(error for _, error in matrix["rounds"])
            <= matrix["rounds"][0][1]
        )
        assert matrix["kurtosis"] == kurtosis(w) and matrix["rank"] == 8 and matrix["feature_error"] is None


def test_feature_errors_are_those_on_the_calibration(place: Path, plain: dict[str, Any]) -> None:
    config, base = read_config(BASE), load_weights(BASE, np.float32)
    texts = [ids[:-1] for ids in story_sequences(config, load_tokenizer(BASE), 0, 24)]
    assert plain["gptq"]["calibration"] == {"text": "24 stories of seed 0", "tokens": sum(map(len, texts))}
    grams: dict[str, Any] = {}
    for layer in layer_grams(config, base, texts):
        grams |= layer
    dense = {method: load_weights(place / method) for method in plain}
    for at, matrix in enumerate(plain["gptq"]["matrices"]):
        name = matrix["name"]
        lost = {
            method: feature_error(base[name + ".weight"].T.astype(float), w[name + ".weight"].T, grams[name])
            for method, w in dense.items()
        }
        assert matrix["feature_error"] == pytest.approx(lost["gptq"], rel=1e-9)
        assert lost["gptq"] < min(lost["rtn"], lost["hqq"])
        assert (
            matrix["weight_error"]
            > plain["rtn"]["matrices"][at]["weight_error"]
            > plain["hqq"]["matrices"][at]["weight_error"]
        )


def test_reported_perplexities_are_those_of_both_models(place: Path, eighth: dict[str, Any]) -> None:
    config, test = read_config(BASE), story_sequences(read_config(BASE), load_tokenizer(BASE), HELD_OUT_SEED, 16)
    stated = eighth["perplexity"]
    assert stated["tokens"] == sum(len(ids) - 1 for ids in test)
    before = losses(config, load_weights(BASE, np.float32), test)
    after = losses(config, load_weights(place / "eighth", np.float32), test)
    assert stated["before"] == of_losses(before) == perplexity(config, load_weights(BASE, np.float32), test)
    assert stated["after"] == of_losses(after)
    assert (stated["nats_more"], stated["standard_error"]) == difference(before, after)
    assert stated["nats_more"] == pytest.approx(math.log(stated["after"] / stated["before"]))


def test_the_difference_of_two_models_is_paired() -> None:
    """Sequences of one token each: the mean of the differences, and the error of a mean."""
    before, more = np.array([1.0, 5.0, 9.0, 2.0]), np.array([0.1, 0.3, 0.2, 0.4])
    mean_and_error = difference([(x, 1) for x in before], [(x, 1) for x in before + more])
    assert mean_and_error == pytest.approx((0.25, more.std(ddof=1) / 2))
    assert difference([(3.0, 6)], [(4.5, 6)]) == (0.25, None)


def test_rtn_hqq_and_milo_come_in_the_published_order(
    place: Path, eighth: dict[str, Any], plain: dict[str, Any]
) -> None:
    """Table 3, on 16 held-out stories; the figures are those of prototypes of another hand."""
    perplexities = {name: report["perplexity"]["after"] for name, report in plain.items()} | {
        "milo": eighth["perplexity"]["after"]
    }
    base = eighth["perplexity"]["before"]
    assert perplexities["rtn"] > perplexities["hqq"] > perplexities["milo"] > base
    assert perplexities["rtn"] > perplexities["gptq"] > base
    assert base == pytest.approx(1.24495, abs=2e-5)
    assert perplexities["rtn"] == pytest.approx(1.25667, abs=2e-4)
    assert perplexities["hqq"] == pytest.approx(1.25554, abs=2e-4)
    for method, error in (("rtn", 0.1934), ("hqq", 0.1855)):
        assert np.mean([matrix["weight_error"] for matrix in plain[method]["matrices"]]) == pytest.approx(
            error, abs=2e-4
        )


def test_error_grows_with_kurtosis(plain: dict[str, Any]) -> None:
    """Figure 5: over the 28 matrices, a correlation of 0.785 for RTN and 0.753 for HQQ in the prototypes."""
    for method, expected in (("rtn", 0.785), ("hqq", 0.753)):
        pairs = [(matrix["kurtosis"], matrix["weight_error"]) for matrix in plain[method]["matrices"]]
        assert np.corrcoef(np.array(pairs).T)[0, 1] == pytest.approx(expected, abs=0.02)


def test_same_arguments_give_the_same_bytes(place: Path, eighth: dict[str, Any], tmp_path: Path) -> None:
    again = quantized(tmp_path / "again", "--ranks", "uniform-8", "--rounds", "3")
    assert {**again, "out": ""} == {**eighth, "out": ""}
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (place / "eighth" / name).read_bytes()


@pytest.mark.parametrize("bits", ["8", "16"])
def test_compensators_in_more_bits(bits: str, tmp_path: Path, eighth: dict[str, Any]) -> None:
    """The same first round, stored better."""
    common = ("--ranks", "uniform-8", "--rounds", "1", "--compensator-bits", bits, "--held-out-stories", "0")
    report = quantized(tmp_path / "out", *common)
    dense, config = load_weights(tmp_path / "out"), read_config(tmp_path / "out", quantized=True)
    base = load_weights(BASE)
    for matrix, other in zip(report["matrices"], eighth["matrices"], strict=True):
        assert matrix["rounds"][0][0] == other["rounds"][0][0]
        assert matrix["weight_error"] == pytest.approx(matrix["rounds"][0][1], rel=1e-9)
        assert matrix["rounds"][0][1] < other["rounds"][0][1]
        key = matrix["name"] + ".weight"
        assert matrix["weight_error"] == pytest.approx(weight_error(base[key], dense[key]), rel=1e-9)
        assert config.quantized[matrix["name"]] == Quantized(3, 64, False, 8, int(bits))


@pytest.mark.parametrize("symmetric", [False, True])
def test_four_bits_in_groups_of_32(symmetric: bool, tmp_path: Path) -> None:
    options = ("--symmetric",) if symmetric else ()
    report = quantized(tmp_path / "out", "--method", "rtn", "--bits", "4", "--group", "32", *options)
    assert report["bits_per_weight"] == (4.5 if symmetric else 5)
    assert any(name.endswith(".zero") for name in load_file(tmp_path / "out" / "model.safetensors")) != symmetric
    assert report["perplexity"]["before"] < report["perplexity"]["after"] < 1.252  # 3 bits in groups of 64: 1.2567
    assert {matrix["method"] for matrix in report["matrices"]} == {"rtn"}


def test_a_budget_and_a_policy_by_kurtosis(tmp_path: Path) -> None:
    report = quantized(
        tmp_path / "out", "--ranks", "kurtosis", "--budget", "32KiB", "--rounds", "1", "--held-out-stories", "0"
    )
    assert 0.95 * 2**15 < report["compensator_bytes"] <= 2**15 == report["recipe"]["budget"]
    average = int(report["recipe"]["ranks"].removeprefix("kurtosis-"))
    assert sum(matrix["rank"] for matrix in report["matrices"]) == 28 * average
    by_kurtosis = sorted(report["matrices"], key=lambda matrix: matrix["kurtosis"])
    assert by_kurtosis[-1]["rank"] > by_kurtosis[0]["rank"]
    key = json.loads((tmp_path / "out" / "config.json").read_text())["quantized"]
    assert key["ranks"] == {matrix["name"]: matrix["rank"] for matrix in report["matrices"] if matrix["rank"]}


def test_table_for_people(tmp_path: Path) -> None:
    done = meshrt_quantize("llama-tiny", "--out", tmp_path / "out", "--ranks", "dense-100", "--rounds", "2", *QUICK)
    lines = done.stdout.splitlines()
    assert " ".join(lines[0].split()) == "matrix out x in kurtosis bytes error W rank round"
    assert re.fullmatch(r"0\.self_attn\.q_proj +128 x 128 +0\.\d\d +\d+\.\d KiB +0\.\d{4} +100 +[12] of 2", lines[1])
    assert lines[2].split()[8] == "64"  # the limit of k_proj, 64 x 128
    assert re.fullmatch(r".*out: 0\.\d\d MiB of 1\.63 MiB, \d\.\d+ bits a quantized weight", lines[29])
    assert lines[30].startswith("compensators: 0.") and lines[31].startswith("as published: 0.")
    assert "28 compensators have more numbers than their matrix, such as that of model.layers.0." in lines[32]
    assert re.match(r"perplexity 1\.2450 before, 1\.2\d+ after, -?0\.\d+ \+- 0\.\d+ nats a token more", lines[33])
    assert max(map(len, lines[:29])) <= 80 and len(lines) == 34
    sizes = meshrt_quantize("mixtral-8x7b", "--sizes", "--method", "hqq").stdout.splitlines()
    assert " ".join(sizes[0].split()) == "kind matrices weights rank bytes"
    assert sizes[-2:] == [
        "mixtral-8x7b: 19.4126 GiB of 86.9907 GiB, 3.5 bits a quantized weight",
        "as published: 20.4939 GiB",
    ]


# ------------------------------------------------------------------------------------------- every kind of model


@pytest.mark.parametrize("name", ["bias", "qwen2", "tied", "headdim", "oddvocab"])
def test_a_folder_of_eight_bits_computes_what_the_model_computed(name: str, tmp_path: Path) -> None:
    """Odd sizes: inputs of 30, 36, 48, 50 and 80 in groups of 32, the last one padded, and compensators over it."""
    folder, ids = random_checkpoint(CASES[name], tmp_path / "base", case_seed(name)), case_ids(name)
    ranks = dict.fromkeys(read_config(folder).matrices(), 3)
    records = quantize(
        folder, tmp_path / "out", CodeScheme("milo", 8, 32, False, 16), ranks, 2, statistics(*read_model(folder))
    )
    assert len(records) == 14 and max(record.weight_error for record in records) < 5e-3
    config = read_config(tmp_path / "out", quantized=True)
    check_shapes(open_checkpoint(tmp_path / "out"), config)
    expected = forward(read_config(folder), load_weights(folder), ids)
    logits = forward(config, load_weights(tmp_path / "out"), ids)
    assert 0 < np.linalg.norm(logits - expected) / np.linalg.norm(expected) < 0.02


def test_gptq_falls_back_to_hqq_where_no_input_occurs(tmp_path: Path) -> None:
    """A norm of zeros in front of a layer's attention."""
    folder = random_checkpoint(CASES["mha"], tmp_path / "base", 0)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.input_layernorm.weight"][...] = 0
    save_file(tensors, folder / "model.safetensors")
    texts = [[1, 2, 3, 4], [5, 6, 7]]
    records = quantize(
        folder, tmp_path / "out", CodeScheme("gptq", 3, 32, False, 16), {}, 1, statistics(*read_model(folder)), texts
    )
    other = [record.name.removeprefix("model.layers.1.") for record in records if record.method == "hqq"]
    # Where q, k and v are 0, so is what o_proj sees.
    assert other == ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
    assert {record.method for record in records} == {"gptq", "hqq"}


def test_a_matrix_that_cannot_be_quantized_is_named(tmp_path: Path) -> None:
    folder = random_checkpoint(CASES["mha"], tmp_path / "base", 0)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = np.nan
    save_file(tensors, folder / "model.safetensors")
    scheme = CodeScheme("hqq", 3, 64, False, 16)
    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.up_proj: has weights that are NaN"):
        quantize(folder, tmp_path / "out", scheme, {}, 1, statistics(*read_model(folder)))
    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.up_proj: has weights that are NaN"):
        compress(folder, tmp_path / "out", {"model.layers.1.mlp.up_proj": 4}, "plain-svd", [[1, 2]], {})
    matrix = read_config(folder).layer(1).dense_mlp.up
    with pytest.raises(ModelError, match=r"base: model\.layers\.1\.mlp\.up_proj: has weights that are NaN"):
        codes_of(open_checkpoint(folder), matrix, ArmScheme(4, 64, False, 8, False))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("method", "figure"), [("gptq", "feature_error"), ("w4a8", "activation_error")])
def test_a_matrix_to_which_no_token_of_a_text_came_has_no_error_on_it(method: str, figure: str) -> None:
    """As an expert's that nobody chose."""
    matrix = {"name": "gate", "shape": (4, 8), "kurtosis": 0.0, "bytes": (64, 16), "weight_error": 0.5, figure: None}
    sizes = dict.fromkeys(("bytes", "bytes_before", "published_bytes", "bits_per_weight"), 16)
    scores = {"before": 1.0, "after": 1.0, "nats_more": 0.0, "standard_error": None, "tokens": 1, "text": "t"}
    document = {"out": "o", "recipe": {"method": method}, "matrices": [matrix], "perplexity": scores, **sizes}
    table = next(said(document | dict.fromkeys(("compensator_bytes", "published_compensator_bytes"), 0)))
    assert isinstance(table, Grid) and table.rows[0][-1] == Cell(None, "-")


# ----------------------------------------------------------------------------------------------------- what is bad


def test_forms_are_not_mixed(place: Path, eighth: dict[str, Any], tmp_path: Path) -> None:
    """Factors are not quantized, and quantized matrices neither decomposed nor quantized again, nor run by machines."""
    base = random_checkpoint(CASES["lowrank"], tmp_path / "base", 0)
    with pytest.raises(ModelError, match="has matrices in two factors"):
        read_model(base)
    for refuses in (
        lambda: read_model(place / "eighth"),
        lambda: compress(place / "eighth", tmp_path / "out", {"model.layers.0.mlp.up_proj": 4}, "svd", [[1]], {}),
        lambda: read_config(place / "eighth"),
    ):
        with pytest.raises(ModelError, match="'quantized' is set: quantized matrices run on all machines and in the"):
            refuses()
    done = meshrt_quantize(place / "eighth", "--sizes")
    assert done.exit_code == 2 and "'quantized' is set" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": 1}, "'bits' 1; it must be 2 to 8"),
        ({"bits": "3"}, "'bits' '3'"),
        ({"bits": True}, "'bits' True"),
        ({"group": 0}, "'group' 0; it must be a multiple of 32"),
        ({"group": 48}, "'group' 48"),
        ({"group": 64.0}, "'group' 64.0; it must be a whole number"),
        ({"group": 1 << 20}, "65536 at most"),
        ({"symmetric": 1}, "'symmetric' 1"),
        ({"compensator_bits": 4}, "'compensator_bits' 4; it must be one of 3, 8, 16"),
        ({"ranks": None}, "no 'ranks'"),
        ({"ranks": {"model.layers.0.mlp.nowhere": 1}}, "no matrix of this model's layers"),
        ({"ranks": {"model.layers.0.self_attn.k_proj": 49}}, "rank 49 for .*k_proj; it must be 1..48"),
        ({"ranks": {"model.layers.0.self_attn.k_proj": 0}}, "rank 0"),
        ({"ranks": {"model.layers.0.self_attn.k_proj": True}}, "rank True"),
        ({"actorder": "group"}, "'actorder', which is not known here and may change the numbers"),
        ({"group": "rows"}, "'group' 'rows'; it must be a whole number, or 'row'"),
        ({"offset": 1}, "'offset' 1; it must be true or false"),
        ({"offset": True, "symmetric": True}, "'offset' True; it must be true or false, and false where"),
        ({"activations": "token"}, "'activations' 'token'; it must be one of row, block"),
        (
            {"activations": "row", "ranks": {"model.layers.0.self_attn.k_proj": 4}},
            "'activations' and 'ranks': products of whole numbers have no compensators",
        ),
    ],
)
def test_keys_that_are_wrong(change: dict[str, Any], message: str) -> None:
    key = {"method": "hqq", "bits": 3, "group": 64, "symmetric": False, "compensator_bits": 16, "ranks": {}}
    assert len(Config.from_dict(CASES["mha"] | {"quantized": key}).quantized) == 14
    with pytest.raises(ModelError, match=rf"config\.json: 'quantized' has .*{message}"):
        Config.from_dict(CASES["mha"] | {"quantized": key | change})


def test_one_form_at_a_time() -> None:
    with pytest.raises(ModelError, match="'quantized' and 'low_rank' are both set"):
        Config.from_dict(CASES["lowrank"] | {"quantized": {}})


def copy(source: Path, target: Path, **changes: Any) -> Path:
    """A model folder with other tensors: None takes one out."""
    target.mkdir()
    (target / "config.json").write_bytes((source / "config.json").read_bytes())
    tensors = load_file(source / "model.safetensors") | changes
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, target / "model.safetensors")
    return target


NAME = "model.layers.0.self_attn.k_proj"


@pytest.mark.parametrize(
    ("end", "tensor", "message"),
    [
        ("codes", None, "no tensor"),
        ("zero", None, "no tensor"),
        ("u_codes", None, "no tensor"),
        ("codes", np.zeros((64, 47), np.uint8), r"U8 \[64, 47\]; .* asks for U8 \[64, 48\]"),
        ("codes", np.zeros((64, 96), np.float16), "dtype F16; supported are U8"),
        ("scale", np.ones((64, 4), np.float16), r"\[64, 4\]"),
        ("scale", np.ones((64, 2), np.float32), r"F32 \[64, 2\]"),
        ("zero", np.zeros((64, 2), np.uint8), "dtype U8; supported are F32, F16, BF16"),
        ("scale", np.full((64, 2), np.inf, np.float16), "NaN or infinite"),
        ("v_scale", np.full(16, np.nan, np.float16), "NaN or infinite"),
        ("v_codes", np.zeros((15, 24), np.uint8), r"U8 \[16, 24\]"),
        ("weight", np.zeros((64, 128), np.float16), "but not the form that config"),
    ],
)  # fmt: skip
def test_tensors_that_are_wrong(
    end: str, tensor: Any, message: str, place: Path, eighth: dict[str, Any], tmp_path: Path
) -> None:
    bad = copy(place / "eighth", tmp_path / "bad", **{f"{NAME}.{end}": tensor})
    with pytest.raises(ModelError, match=rf"{NAME}.*{message}|{message}"):
        load_weights(bad)


def test_truncated_files(place: Path, eighth: dict[str, Any], tmp_path: Path) -> None:
    bad = copy(place / "eighth", tmp_path / "bad")
    data = (bad / "model.safetensors").read_bytes()
    for end in (len(data) - 1, len(data) // 2, 100, 0):
        (bad / "model.safetensors").write_bytes(data[:end])
        with pytest.raises(ModelError, match="truncated"):
            load_weights(bad)


def test_another_form_than_was_written(place: Path, eighth: dict[str, Any], tmp_path: Path) -> None:
    bad = copy(place / "eighth", tmp_path / "bad")
    text = (bad / "config.json").read_text()
    ranks = text[text.index('"ranks": {') :]
    for before, after in (
        ('"group": 64', '"group": 32'), ('"bits": 3', '"bits": 4'), ('"symmetric": false', '"symmetric": true'),
        ('"compensator_bits": 3', '"compensator_bits": 8'), ('"compensator_bits": 3', '"compensator_bits": 16'),
        (ranks, '"ranks": {}}}'), ('proj": 8', 'proj": 7'),
    ):  # fmt: skip
        assert before in text
        (bad / "config.json").write_text(text.replace(before, after, 1))
        with pytest.raises(ModelError, match=r"config\.json's 'quantized'|has no tensor"):
            load_weights(bad)


def test_parts_are_what_was_written(place: Path, eighth: dict[str, Any]) -> None:
    """The codes of a matrix and of its factors, from the file's bytes by hand."""
    tensors = load_file(place / "eighth" / "model.safetensors")
    parts = read_parts(open_checkpoint(place / "eighth"), NAME, Quantized(3, 64, False, 8, 3), 64, 128)
    words = tensors[NAME + ".codes"].view("<u4").reshape(-1, 3)
    np.testing.assert_array_equal(parts.codes.codes.reshape(-1, 32)[:, 0], words[:, 0] & 7)  # e0
    np.testing.assert_array_equal(parts.codes.codes.reshape(-1, 32)[:, 20], words[:, 2] >> 16 & 7)
    assert parts.compensator is not None
    u = parts.compensator.u
    assert not isinstance(u, np.ndarray)
    np.testing.assert_array_equal(
        u.codes.reshape(-1, 32)[:, 7], tensors[NAME + ".u_codes"].view("<u4")[:, ::3].ravel() >> 25 & 7
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--out", "out"), "--method milo needs --ranks, such as uniform-8"),
        ((), "give --out DIR to write a folder, or --sizes"),
        (("--out", "out", "--sizes"), "one of the two"),
        (("--out", "out", "--method", "hqq", "--ranks", "uniform-8"), "--ranks goes with --method milo"),
        (("--out", "out", "--method", "hqq", "--rounds", "8"), "--rounds goes with --method milo"),
        (("--out", "out", "--method", "rtn", "--seed", "8"), "--seed goes with --method gptq and --ranks frequency-R"),
        (("--out", "out", "--method", "hqq", "--symmetric"), "--symmetric goes with --method rtn"),
        (("--out", "out", "--ranks", "uniform-8", "--group", "40"), "--group: 'group' 40; it must be a multiple of 32"),
        (("--out", "out", "--ranks", "uniform"), "give it a rank, such as uniform-16, or a budget"),
        (("--out", "out", "--ranks", "sparse-8"), "this model has none"),
        (("--out", "out", "--ranks", "uniform", "--budget", "1"), "rank 1 takes"),
        (("--out", "out", "--ranks", "uniform", "--budget", "1MB"), "give a whole number of bytes, or of KiB"),
        (("--out", "out", "--budget", "1MiB"), "needs --ranks"),
        (("--out", "out", "--method", "gptq", "--seed", str(HELD_OUT_SEED)), "that of the held-out stories"),
        (("--out", "out", "--method", "gptq", "--calibration", "no.txt"), "no.txt: No such file or directory"),
        (("--out", "out", "--method", "hqq", "--held-out", "nowhere.txt"), "nowhere.txt: No such file or directory"),
        (("--out", "out", "--method", "hqq", "--held-out", "t", "--held-out-stories", "3"), "--held-out t is a text"),
        (("--out", "out", "--method", "gptq", "--calibration", "t", "--calibration-stories", "3"), "-calibration t is"),
        (("--out", "out", "--method", "hqq", "--json", "."), "--json . is a folder"),
        (("--out", "no/out", "--method", "hqq"), "there is no folder"),
        (("--sizes", "--rounds", "3"), "--rounds goes with --out"),
        (("--sizes", "--held-out-stories", "3"), "--held-out-stories goes with --out"),
        (("--sizes", "--compensator-bits", "8"), "needs --ranks"),
        (("--sizes", "--ranks", "kurtosis-8"), "sizes are told by shape"),
    ],
)
def test_bad_input_is_refused_and_nothing_written(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = meshrt_quantize("llama-tiny", *arguments)
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("meshrt: error: ") and message in done.stderr and done.stderr.count("\n") == 1
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["eighth", "hqq"])
def test_neuron_cores_say_what_gpus_say(
    name: str, place: Path, eighth: dict[str, Any], plain: dict[str, Any], run_meshrt: Any
) -> None:
    """A folder of 3 bits, with compensators and without."""
    ids = [
        json.loads(
            run_meshrt(
                "run", "llama", "--on", on, "--model", str(place / name), "--prompt-ids", "5,96,7",
                "--max-new-tokens", "5", "--ignore-eos", "--quiet", "--json", "-", ranks=1,
            ).stdout
        )["result"]["token_ids"]
        for on in ("neuron", "gpu")
    ]  # fmt: skip
    assert ids[0] == ids[1]
