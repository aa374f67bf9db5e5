"""`meshrt compress`: from a model to a folder in factors that runs, with figures that are those of the folder."""

import json
import re
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from generations import same_as_on_one_rank
from losses import before_is_computed_once  # noqa: F401 - a fixture for all
from mpi_jobs import Finished
from random_models import CASES, case_ids, case_seed, random_checkpoint, random_weights
from safetensors.numpy import load_file, save_file

from meshrt.commands.compress import command, print_report
from meshrt.models.calibrate import layer_grams
from meshrt.models.catalogue import find_model
from meshrt.models.compress.model import compress
from meshrt.models.config import Config, read_config
from meshrt.models.errors import ModelError
from meshrt.models.family import family_of
from meshrt.models.folders.checkpoint import check_shapes, expected_shapes, open_checkpoint
from meshrt.models.matrix import Matrix
from meshrt.models.perplexity import perplexity
from meshrt.models.reference import attention, forward, layer, load_weights, normed, project
from meshrt.models.rope import cos_sin
from meshrt.models.stories import HELD_OUT_SEED, HELD_OUT_STORIES
from meshrt.models.texts import file_sequences, story_sequences, windows
from meshrt.models.tokenizer import load_tokenizer

BASE = find_model("llama-tiny")
MLP = [f"model.layers.{i}.mlp.{name}_proj" for i in range(4) for name in ("gate", "up", "down")]
QUICK = ("--calibration-stories", "12", "--held-out-stories", "6")


def meshrt_compress(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def compressed(out: Path, *arguments: str) -> dict[str, Any]:
    """The report of `meshrt compress llama-tiny`, written to the folder `out`."""
    done = meshrt_compress("llama-tiny", "--out", out, "--json", out.with_suffix(".json"), *QUICK, *arguments)
    assert (done.exit_code, done.stderr) == (0, "")
    report: dict[str, Any] = json.loads(out.with_suffix(".json").read_text())
    return report


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def fifth(place: Path) -> dict[str, Any]:
    """llama-tiny at ratio 0.2, in blocks of 16."""
    return compressed(place / "fifth", "--ratio", "0.2", "--block", "16")


def test_ranks_and_sizes_are_those_of_equations_4_and_5(fifth: dict[str, Any]) -> None:
    """128 * 384 * 0.8 / (512 * 16) = 4.8 blocks of 16, so 80: 80 * 512 of 49,152 parameters are left."""
    assert [matrix["name"] for matrix in fifth["matrices"]] == MLP
    for matrix in fifth["matrices"]:
        assert matrix["rank"] == 80
        assert matrix["shape"] == ([384, 128] if "down" in matrix["name"] else [128, 384])
        assert matrix["parameters"] == [128 * 384, 80 * 512] and matrix["bytes"] == [2 * 128 * 384, 2 * 80 * 512]
    assert fifth["ratio"]["matrices"] == pytest.approx(1 - 80 * 512 / (128 * 384))
    saved = 12 * (128 * 384 - 80 * 512)
    was = fifth["parameters"]["before"]
    assert fifth["parameters"]["after"] == was - saved
    assert fifth["ratio"]["model"] == pytest.approx(saved / was)
    assert fifth["bytes"] == {"before": 2 * was, "after": 2 * (was - saved)}


def test_folder_is_an_ordinary_one_with_one_key_more(place: Path, fifth: dict[str, Any]) -> None:
    data, base = (json.loads((folder / "config.json").read_text()) for folder in (place / "fifth", BASE))
    low_rank = data.pop("low_rank")
    assert data == base
    assert low_rank == {"method": "svd", "whiten": True, "ratio": 0.2, "block": 16, "ranks": dict.fromkeys(MLP, 80)}
    names = {path.name for path in (place / "fifth").iterdir()}
    assert names == {path.name for path in BASE.iterdir()} - {"README.md"}
    for name in names - {"config.json", "model.safetensors"}:
        assert (place / "fifth" / name).read_bytes() == (BASE / name).read_bytes()
    assert (place / "fifth").stat().st_mode & 0o777 == 0o777 & ~umask()
    assert (place / "fifth" / "model.safetensors").stat().st_mode & 0o777 == 0o666 & ~umask()


def umask() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    raise AssertionError("no umask")


def test_tensors_are_the_base_models_but_for_the_factors(place: Path, fifth: dict[str, Any]) -> None:
    tensors, base = load_file(place / "fifth" / "model.safetensors"), load_file(BASE / "model.safetensors")
    check_shapes(open_checkpoint(place / "fifth"), read_config(place / "fifth"))
    assert {name for name in base if name not in tensors} == {f"{name}.weight" for name in MLP}
    assert len(tensors) == len(base) + len(MLP)
    for name, tensor in tensors.items():
        assert tensor.dtype == np.float16
        if name in base:
            np.testing.assert_array_equal(tensor, base[name])


def test_reported_errors_are_those_of_what_was_written(place: Path, fifth: dict[str, Any]) -> None:
    """Once more from the two folders: the weights', and the features' on activations that are recorded anew."""
    tensors, base = load_file(place / "fifth" / "model.safetensors"), load_file(BASE / "model.safetensors")
    config, weights = read_config(BASE), load_weights(BASE, np.float32)
    texts = [ids[:-1] for ids in story_sequences(config, load_tokenizer(BASE), 0, 12)]
    assert fifth["calibration"] == {"text": "12 stories of seed 0", "tokens": sum(map(len, texts))}
    states = np.concatenate([inputs_of_first_mlp(config, weights, ids) for ids in texts])
    for matrix in fifth["matrices"][:2]:
        name = matrix["name"]
        u, v = (tensors[f"{name[:-5]}_{factor}_proj.weight"].astype(float).T for factor in "uv")
        w = base[name + ".weight"].astype(float).T
        assert matrix["weight_error"] == pytest.approx(np.linalg.norm(w - u @ v) / np.linalg.norm(w))
        lost = np.linalg.norm(states @ (w - u @ v)) / np.linalg.norm(states @ w)
        assert matrix["feature_error"] == pytest.approx(lost, rel=1e-4)
        # No approximation of this rank loses less on these activations, and float16 costs next to nothing.
        sigma = np.linalg.svd(states @ w, compute_uv=False)
        assert lost == pytest.approx(np.linalg.norm(sigma[80:]) / np.linalg.norm(sigma), rel=1e-3)


def inputs_of_first_mlp(config: Config, weights: Any, ids: list[int]) -> Any:
    """What gate_proj and up_proj of layer 0 are applied to: [tokens, hidden]."""
    family = family_of(config)
    first_layer, turns = family.layers[0], (cos_sin(config, np.arange(len(ids))),)
    x = weights["model.embed_tokens.weight"][ids]
    x = x + attention(family, weights, first_layer, normed(family, weights, first_layer.attention_norm, x), turns)
    return normed(family, weights, first_layer.mlp_norm, x).astype(float)


def test_reported_perplexities_are_those_of_both_models(place: Path, fifth: dict[str, Any]) -> None:
    config, test = read_config(BASE), story_sequences(read_config(BASE), load_tokenizer(BASE), HELD_OUT_SEED, 6)
    stated = fifth["perplexity"]
    assert stated["tokens"] == sum(len(ids) - 1 for ids in test)
    assert stated["before"] == perplexity(config, load_weights(BASE, np.float32), test)
    written = read_config(place / "fifth"), load_weights(place / "fifth", np.float32)
    assert stated["after"] == perplexity(*written, test)


@pytest.mark.parametrize("ratio", ["0.1", "0.2"])
@pytest.mark.all
def test_whitening_costs_clearly_less_perplexity(ratio: str, place: Path) -> None:
    """At least an eighth of what truncation costs is saved, on held-out stories; and errors trade places."""
    common = ("--ratio", ratio, "--block", "8", "--calibration-stories", "128", "--held-out-stories", "40")
    white = compressed(place / f"white{ratio}", *common)
    plain = compressed(place / f"plain{ratio}", *common, "--no-whiten")
    before = white["perplexity"]["before"]
    assert before == plain["perplexity"]["before"]
    assert 0 < white["perplexity"]["after"] - before < 7 / 8 * (plain["perplexity"]["after"] - before)
    for whitened, truncated in zip(white["matrices"], plain["matrices"], strict=True):
        assert whitened["rank"] == truncated["rank"] == {"0.1": 88, "0.2": 80}[ratio]  # 12 blocks of 8, * 0.9 and * 0.8
        assert (
            whitened["feature_error"] < truncated["feature_error"]
            and whitened["weight_error"] > truncated["weight_error"]
        )


def test_afm_is_whitened_svd_by_another_way(place: Path, fifth: dict[str, Any]) -> None:
    report = compressed(place / "afm", "--ratio", "0.2", "--block", "16", "--method", "afm")
    for matrix, other in zip(report["matrices"], fifth["matrices"], strict=True):
        assert matrix["feature_error"] == pytest.approx(other["feature_error"], rel=1e-3)
    assert report["perplexity"]["after"] == pytest.approx(fifth["perplexity"]["after"], rel=1e-3)
    assert report["recipe"] == {"method": "afm", "ratio": 0.2, "block": 16}


def test_ranks_by_name_win_over_the_ratio(place: Path) -> None:
    """Any subset of the seven matrices, any rank for each."""
    (place / "ranks.json").write_text(json.dumps({"layers.3.mlp.up_proj": 5, "*.1.self_attn.*": 9}))
    named = ("--ranks", str(place / "ranks.json"), "--ranks", "o_proj=33", "--ranks", "layers.1.self_attn.o_proj=3")
    report = compressed(place / "named", "--ratio", "0.2", "--block", "16", *named)
    expected = dict.fromkeys(MLP, 80) | {"model.layers.3.mlp.up_proj": 5}
    expected |= {f"model.layers.1.self_attn.{name}_proj": 9 for name in "qkv"}
    expected |= {f"model.layers.{i}.self_attn.o_proj": 3 if i == 1 else 33 for i in range(4)}
    assert (
        {matrix["name"]: matrix["rank"] for matrix in report["matrices"]}
        == expected
        == read_config(place / "named").factored
    )
    assert report["perplexity"]["after"] > report["perplexity"]["before"]


def test_compressed_folder_can_be_compressed_again(place: Path, fifth: dict[str, Any]) -> None:
    done = meshrt_compress(
        place / "fifth", "--out", place / "again", "--ranks", "layers.0.mlp.*=20", *QUICK, "--json", "-"
    )
    report = json.loads(done.stdout)
    ranks = dict.fromkeys(MLP, 80) | dict.fromkeys(MLP[:3], 20)
    assert read_config(place / "again").factored == ranks
    assert [matrix["parameters"] for matrix in report["matrices"]] == 3 * [[80 * 512, 20 * 512]]
    before, after = (load_file(place / name / "model.safetensors") for name in ("fifth", "again"))
    for name in MLP[3:]:
        for factor in (f"{name[:-5]}_{letter}_proj.weight" for letter in "uv"):
            np.testing.assert_array_equal(after[factor], before[factor])


def test_texts_of_the_users_own(place: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("One day, a fox met a bear. " * 80)
    done = meshrt_compress(
        "llama-tiny", "--out", tmp_path / "out", "--ratio", "0.2", "--block", "16", "--json", "-",
        "--calibration", text, "--held-out", text,
    )  # fmt: skip
    report = json.loads(done.stdout)
    ids = load_tokenizer(BASE).encode(text.read_text()).ids
    assert report["perplexity"]["tokens"] == report["calibration"]["tokens"] == len(ids) - 1 > 512
    assert report["perplexity"]["text"] == report["calibration"]["text"] == str(text)


def test_same_arguments_give_the_same_bytes(place: Path, fifth: dict[str, Any], tmp_path: Path) -> None:
    again = compressed(tmp_path / "again", "--ratio", "0.2", "--block", "16")
    assert {**again, "out": ""} == {**fifth, "out": ""}
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (place / "fifth" / name).read_bytes()


def test_table_for_people(place: Path, tmp_path: Path) -> None:
    arguments = ("--out", tmp_path / "out", "--ranks", "gate_proj=16", "--calibration-stories", "2")
    done = meshrt_compress("llama-tiny", *arguments, "--held-out-stories", "2")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["matrix", "in", "x", "out", "rank", "parameters", "bytes", "error", "W", "error", "XW"]
    assert re.fullmatch(r"0\.mlp\.gate_proj +128 x 384 +16 +8,192 +16\.0 KiB +0\.\d{4} +0\.\d{4}", lines[1])
    assert lines[5].endswith("of the model") and "ratio 0.833 of these matrices" in lines[5]  # 1 - 16 * 512 / 49152
    assert re.match(r"perplexity 1\.\d{4} before, \d+\.\d{4} after \(\d+ tokens, 2 stories, held out\)", lines[6])
    assert max(map(len, lines[:5])) <= 80 and len(lines) == 7


@pytest.mark.parametrize(("reached", "said"), [(-1 / 3, True), (0.0, False)])
def test_a_block_that_saves_nothing_is_told(reached: float, said: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """llama-tiny with the default's blocks of 128: ranks of 128 of matrices of 128 x 384."""
    sizes = {"before": 3, "after": 4}
    document = {"out": "o", "matrices": [], "parameters": sizes, "ratio": {"matrices": reached, "model": reached}}
    print_report(document | {"recipe": {"ratio": 0.2, "block": 128}, "perplexity": None}, "table")
    way = "larger than before, and --ratio 0.2 was asked for: ranks are multiples of --block 128; give a smaller one"
    assert (way in capsys.readouterr().out) == said


def test_quiet_says_nothing_and_no_perplexity_is_none(tmp_path: Path) -> None:
    arguments = ("--out", tmp_path / "out", "--ranks", "gate_proj=16", "--calibration-stories", "2", "-q")
    done = meshrt_compress("llama-tiny", *arguments, "--held-out-stories", "0", "--json", tmp_path / "told.json")
    assert (done.exit_code, done.output) == (0, "")
    assert json.loads((tmp_path / "told.json").read_text())["perplexity"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --ratio 0.2, or --ranks gate_proj=64"),
        (("--ratio", "0.2", "--block", "129"), "block 129 for a matrix of 384 x 128: give 1..128"),
        (("--ratio", "0.2", "--block", "16", "--method", "afm", "--no-whiten"), "--no-whiten goes with --method svd"),
        (("--ratio", "0.2", "--block", "16", "--seed", str(HELD_OUT_SEED)), "that of the held-out stories"),
        (("--ranks", "gate=16"), "rank of 'gate': no matrix of the 4 layers has that name"),
        (("--ranks", "gate_proj=0"), "rank 0 of model.layers.0.mlp.gate_proj: give 1..128"),
        (("--ranks", "k_proj=65"), "rank 65 of model.layers.0.self_attn.k_proj: give 1..64"),
        (("--ranks", "gate_proj=x"), "rank 'gate_proj=x': give NAME=R"),
        (("--ranks", "nowhere.json"), "ranks nowhere.json: neither NAME=R nor a file"),
        (("--ranks", "@list.json"), "ranks @list.json: neither NAME=R nor a file"),
        (("--ranks", "@text.json"), "ranks @text.json: neither NAME=R nor a file"),
        (("--ranks", "@bool.json"), "ranks @bool.json: give an object of whole numbers"),
        (("--ranks", "gate_proj=16", "--calibration", "nowhere.txt"), "nowhere.txt: No such file or directory"),
        (("--ranks", "gate_proj=16", "--held-out", "@bytes.txt"), "@bytes.txt: not readable as UTF-8 text"),
        (("--ranks", "gate_proj=16", "--held-out", "@empty.txt"), "@empty.txt: 1 tokens of text"),
        (("--ranks", "gate_proj=16", "--json", "."), "--json . is a folder"),
        (("--ranks", "gate_proj=16", "--block", "8"), "--block 8 is of the ranks of --ratio: give that too"),
        (("--ranks", "gate_proj=16", "--matrices", "all"), "--matrices all is of the ranks of --ratio"),
        (("--ratio", "0.2", "--calibration", "t", "--seed", "3"), "--seed 3 is of generated stories, and --calibr"),
        (("--ratio", "0.2", "--held-out", "t", "--held-out-stories", "3"), "--held-out t is a text: leave one of the"),
    ],
)
def test_bad_input_is_refused_and_nothing_written(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "@list.json").write_text("[1]")
    (tmp_path / "@text.json").write_text("gate_proj")
    (tmp_path / "@bool.json").write_text('{"gate_proj": true}')
    (tmp_path / "@bytes.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "@empty.txt").write_text("")
    before = set(tmp_path.iterdir())
    done = meshrt_compress("llama-tiny", "--out", "out", *arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith("meshrt: error: ") and message in done.stderr and done.stderr.count("\n") == 1
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_is_there_is_never_overwritten(kind: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if kind == "folder":
        out.mkdir()
    elif kind == "file":
        out.write_text("mine")
    else:
        out.symlink_to(tmp_path / "nowhere")
    done = meshrt_compress("llama-tiny", "--out", out, "--ranks", "gate_proj=16")
    assert done.exit_code == 2 and f"{out}: is there already" in done.stderr
    assert list(tmp_path.iterdir()) == [out]


def test_folder_that_cannot_be_made_is_refused_before_any_work(tmp_path: Path) -> None:
    done = meshrt_compress("llama-tiny", "--out", tmp_path / "no" / "out", "--ranks", "gate_proj=16")
    assert done.exit_code == 2 and "there is no folder" in done.stderr


def test_model_without_weights_is_refused(tmp_path: Path) -> None:
    done = meshrt_compress("llama3-8b", "--out", tmp_path / "out", "--ratio", "0.2")
    assert done.exit_code == 2 and "holds neither model.safetensors" in done.stderr


def test_a_model_without_a_tokenizer_is_told_what_text_is_for(tmp_path: Path) -> None:
    random_checkpoint(CASES["gqa82"], tmp_path / "model", 1)
    done = meshrt_compress(tmp_path / "model", "--out", tmp_path / "out", "--ranks", "gate_proj=4")
    assert done.exit_code == 2 and "no tokenizer.json there; text is read by it: put the model's own" in done.stderr


def test_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when the weights are written: the last file of the folder."""

    def full(*arguments: Any, **options: Any) -> None:
        Path(arguments[1]).write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    done = meshrt_compress("llama-tiny", "--out", tmp_path / "out", "--ranks", "gate_proj=16", *QUICK)
    assert done.exit_code == 2 and "cannot be written: No space left on device" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_command_is_one_of_meshrts(run_meshrt: Callable[..., Finished], tmp_path: Path) -> None:
    finished = run_meshrt("compress", "llama-tiny", "--out", str(tmp_path / "out"))
    assert finished.code == 2 and finished.stderr.startswith("meshrt: error: nothing says how far to compress")


def test_perplexity_of_no_idea_is_the_vocabulary() -> None:
    """All weights 0: all logits 0, so every token has probability 1 / 96."""
    config = Config.from_dict(CASES["mha"])
    weights = {name: np.zeros(shape) for name, shape in expected_shapes(config).items()}
    assert perplexity(config, weights, [[1, 2, 3], [4, 5]]) == pytest.approx(96)
    with pytest.raises(ModelError, match="no token to predict"):
        perplexity(config, weights, [[1], []])
    weights["model.norm.weight"][0] = np.inf
    with pytest.raises(ModelError, match="there is no perplexity: a logit is infinite or not a number"):
        perplexity(config, weights, [[1, 2, 3]])


def test_a_text_by_the_tokenizer_of_another_model_is_refused() -> None:
    """llama-tiny's has 512 tokens; the id that ends a text may be none of the vocabulary, as elsewhere."""
    tokenizer = load_tokenizer(BASE)
    with pytest.raises(ModelError, match=r"makes token \d+ of the text, and the model's vocabulary is 0 to 95"):
        story_sequences(Config.from_dict(CASES["mha"]), tokenizer, 0, 1)
    (ids,) = story_sequences(Config.from_dict(CASES["mha"] | {"vocab_size": 512, "eos_token_id": 512}), tokenizer, 0, 1)
    assert max(ids) < 512


@pytest.mark.all
def test_perplexity_is_that_of_the_training_program() -> None:
    """The README's figure was computed in torch by models/training/train.py, over the same 200 stories."""
    config, tokenizer = read_config(BASE), load_tokenizer(BASE)
    test = story_sequences(config, tokenizer, HELD_OUT_SEED, HELD_OUT_STORIES)
    readme = (BASE / "README.md").read_text()
    stated, tokens = re.search(r"perplexity per token \| ([\d.]+)", readme), re.search(r"([\d,]+) tokens", readme)
    assert stated and tokens
    assert sum(len(ids) - 1 for ids in test) == int(tokens[1].replace(",", ""))
    assert round(perplexity(config, load_weights(BASE, np.float32), test), 3) == float(stated[1])


@pytest.mark.parametrize("count", [2, 3, 4, 5, 9, 10])
def test_windows_predict_every_token_once(count: int) -> None:
    cut = windows(range(count), 4)
    assert [token for ids in cut for token in ids[1:]] == list(range(1, count))
    assert [token for ids in cut for token in ids[:-1]] == list(range(count - 1))
    assert max(map(len, cut)) <= 5


def test_long_texts_keep_to_the_models_positions(tmp_path: Path) -> None:
    config = read_config(BASE)
    (tmp_path / "long.txt").write_text("a fox " * 2000)
    (tmp_path / "marked.txt").write_text("\ufeff" + "a fox " * 2000, encoding="utf-8")  # as some editors do
    sequences, marked = (
        file_sequences(config, load_tokenizer(BASE), tmp_path / name) for name in ("long.txt", "marked.txt")
    )
    assert max(map(len, sequences)) == config.max_positions + 1 and marked == sequences


def test_recorded_inputs_are_those_of_every_matrix() -> None:
    """G = X^T X / tokens of each of the 14 matrices, against inputs taken down in the forward pass itself."""
    config, weights = Config.from_dict(CASES["gqa82"]), random_weights(CASES["gqa82"], 0)
    family = family_of(config)
    texts = [[3, 1, 4, 1, 5], [9, 2]]
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
    assert set(by_matrix) == set(inputs) == set(config.matrices())
    for name, seen in inputs.items():
        every = np.concatenate(seen)
        np.testing.assert_allclose(by_matrix[name], every.T @ every / 7, rtol=1e-6, atol=1e-9)


@pytest.mark.sample(6)
@pytest.mark.parametrize("method", ["svd", "plain-svd", "afm"])
@pytest.mark.parametrize("name", ["bias", "qwen2", "tied", "headdim"])
def test_full_rank_computes_what_the_model_computed(name: str, method: Any, tmp_path: Path) -> None:
    """Every matrix of every kind of model in two factors that lose nothing: the same logits, of (x U) V."""
    folder, ids = random_checkpoint(CASES[name], tmp_path / "base", case_seed(name)), case_ids(name)
    config = read_config(folder)
    ranks = {name: matrix.most_rank for name, matrix in config.matrices().items()}
    texts = np.random.default_rng(0).integers(0, config.vocab_size, (40, 20)).tolist()
    records = compress(folder, tmp_path / "out", ranks, method, texts, {"method": method})
    assert len(records) == 14 and max(record.weight_error for record in records) < 1e-5
    expected = forward(config, load_weights(folder), ids)
    logits = forward(read_config(tmp_path / "out"), load_weights(tmp_path / "out"), ids)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-3)


def test_factors_that_leave_their_type_are_refused(tmp_path: Path) -> None:
    """float16 ends at 65504. Inputs of 60000, in one direction, and a matrix of 60000s: the one singular value of the
    features is 60000^2 * 48 * sqrt(80), and each of 80 elements of V is its root / sqrt(80), 1.4e5."""
    data = CASES["mha"] | {"dtype": "float16"}
    folder = random_checkpoint(data, tmp_path / "base", 0)
    weights = {name: w.astype(np.float16) for name, w in random_weights(data, 0).items()}
    weights["model.embed_tokens.weight"][...] = 1
    weights["model.layers.0.self_attn.o_proj.weight"][...] = weights["model.layers.0.mlp.gate_proj.weight"][...] = 0
    weights["model.layers.0.post_attention_layernorm.weight"][...] = 60000
    weights["model.layers.0.mlp.up_proj.weight"][...] = 60000
    save_file(weights, folder / "model.safetensors")
    ranks = {"model.layers.0.mlp.up_proj": 1}
    with pytest.raises(ModelError, match=r"layers\.0\.mlp\.up_proj: its factors of rank 1 are not finite in float16"):
        compress(folder, tmp_path / "white", ranks, "svd", [[1, 2, 3]], {})
    compress(folder, tmp_path / "plain", ranks, "plain-svd", [[1, 2, 3]], {})
    assert [path.name for path in tmp_path.iterdir() if path.name != "base"] == ["plain"]


def test_rank_that_a_matrix_cannot_have_is_refused(tmp_path: Path) -> None:
    folder = random_checkpoint(CASES["gqa82"], tmp_path / "base", 0)
    with pytest.raises(ModelError, match=r"rank 17 for model\.layers\.0\.self_attn\.k_proj; it must be 1\.\.16"):
        compress(folder, tmp_path / "out", {"model.layers.0.self_attn.k_proj": 17}, "svd", [[1, 2, 3]], {})
    with pytest.raises(ModelError, match="has no 'ranks'"):
        compress(folder, tmp_path / "out", {}, "svd", [[1, 2, 3]], {})


@pytest.mark.mpi(ranks=[1, 2, 4])
def test_compressed_model_runs_on_a_mesh_as_on_one_rank(comm: Any, tmp_path: Path) -> None:
    """llama on 4 x 4 cores, unchanged: the logits of (x U) V from products that the ranks read in slices."""
    folder = Path(comm.bcast(str(tmp_path)))
    if comm.rank == 0:
        base = random_checkpoint(CASES["gqa82"], folder / "base", case_seed("gqa82"))
        ranks = {name: 12 if name.endswith(("k_proj", "v_proj")) else 24 for name in read_config(base).matrices()}
        compress(base, folder / "model", ranks, "svd", [[*range(90)], [*range(0, 90, 7)]], {})
    comm.Barrier()

    report, written = same_as_on_one_rank(
        comm, folder / "model", (4, 4), folder, prompt_ids="5,6,7,40,2", max_new_tokens=6
    )
    error = None
    if comm.rank == 0:
        config, weights = read_config(folder / "model"), load_weights(folder / "model")
        ids = [5, 6, 7, 40, 2, *report["result"]["token_ids"][:-1]]
        error = float(np.abs(np.load(BytesIO(written)) - forward(config, weights, ids)).max())
    assert comm.bcast(error) < 1e-3
