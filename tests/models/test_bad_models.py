"""Model folders from anywhere: what is wrong in them is named, what they link to is theirs, and nothing is executed."""

from __future__ import annotations

import json
import pickle
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi_jobs import run_ranks
from random_models import BASE, LLAMA3, random_checkpoint, random_weights
from safetensors.numpy import save_file

from meshrt.models.config import MAX_LAYERS, Config, read_config
from meshrt.models.errors import ModelError
from meshrt.models.folders.checkpoint import check_shapes, open_checkpoint
from meshrt.models.folders.files import MAX_JSON_BYTES, read_text
from meshrt.models.keys import MAX_SIZE
from meshrt.models.tokenizer import decode, encode, load_tokenizer

Run = Callable[..., Any]
TINY = Path(__file__).parents[2] / "models" / "llama-tiny"


# -------------------------------------------------------------------------------------------------- JSON


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('{"model_type": "llama", "model_type": "qwen2"}', "'model_type' is there twice"),
        ("[" * 100_000, "too deeply"),
        ('{"a":' * 100_000, "too deeply"),
        ("[1]", "holds a list"),
        ('"config"', "holds a str"),
        ("null", "holds a NoneType"),
        ("", "not readable"),
        ("\ufeff{}", "not readable"),
        ('{"vocab_size": ' + "9" * 5000 + "}", "not readable"),
        (b"\xff\xfe{}", "UTF-8"),
        (b" " * (MAX_JSON_BYTES + 1), "limit"),
    ],
    ids=range(11),
)
def test_json_that_is_none(text: str | bytes, word: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ModelError, match=rf"config\.json: .*{word}"):
        read_config(tmp_path)


@pytest.mark.parametrize("value", [0, -1, MAX_SIZE + 1, 10**30, 1.5, "8", True, [8], {}, float("nan")])
@pytest.mark.parametrize(
    "key",
    ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim",
     "num_key_value_heads", "max_position_embeddings"],
)  # fmt: skip
def test_sizes_that_are_none(key: str, value: Any) -> None:
    with pytest.raises(ModelError, match=key):
        Config.from_dict(BASE | {key: value})


@pytest.mark.parametrize("value", [-1.0, 1.5, 1e300, 10**400, float("nan"), float("inf"), "1e-5", True, []])
def test_eps_that_is_none(value: Any) -> None:
    with pytest.raises(ModelError, match="rms_norm_eps"):
        Config.from_dict(BASE | {"rms_norm_eps": value})


@pytest.mark.parametrize("value", [0, -1.0, 1e-300, 1e300, 10**400, float("nan"), float("-inf"), "8", None])
@pytest.mark.parametrize("key", ["rope_theta", "factor", "low_freq_factor", "high_freq_factor"])
def test_rotary_numbers_that_are_none(key: str, value: Any) -> None:
    rope = LLAMA3 | {"rope_type": "llama3", key: value}
    if (key, value) == ("rope_theta", None):  # null is as good as absent, and there is a default
        assert Config.from_dict(BASE | {"rope_parameters": rope}).rope.theta == 10000.0
        return
    with pytest.raises(ModelError, match=key):
        Config.from_dict(BASE | {"rope_parameters": rope})


def test_sizes_that_multiply_beyond_all_limits() -> None:
    assert Config.from_dict(BASE | {"num_hidden_layers": MAX_LAYERS}).layers == MAX_LAYERS
    with pytest.raises(ModelError, match="num_hidden_layers"):
        Config.from_dict(BASE | {"num_hidden_layers": MAX_LAYERS + 1})
    with pytest.raises(ModelError, match="head_dim"):
        Config.from_dict(BASE | {"num_attention_heads": 2**14, "num_key_value_heads": 1, "head_dim": 2**12})


# ------------------------------------------------------------------------------------------- checkpoints


def safetensors(folder: Path, header: Any, data: bytes = bytes(64)) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return folder


def entry(begin: int, end: int, *shape: int) -> dict[str, Any]:
    return {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "header",
    [
        {"a": entry(0, 32, 8), "b": entry(16, 48, 8)},
        {"a": entry(0, 32, 8), "b": entry(0, 32, 8)},
        {"a": entry(0, 64, 16), "b": entry(4, 8, 1)},
        {"a": entry(0, 8, 2), "b": entry(4, 5) | {"dtype": "U8", "shape": [1]}},
    ],
)
def test_tensors_that_overlap(header: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.safetensors: tensors a and b overlap"):
        open_checkpoint(safetensors(tmp_path, header))


def test_tensors_side_by_side_and_empty_ones_do_not_overlap(tmp_path: Path) -> None:
    header = {"a": entry(32, 64, 8), "b": entry(0, 32, 8), "none": entry(16, 16, 0, 5)}
    assert sorted(open_checkpoint(safetensors(tmp_path, header)).tensors) == ["a", "b", "none"]


@pytest.mark.parametrize(
    "shape", [[1] * 9, [1] * 100_000, [0, 2**63], [2**64, 0], [10**4000] * 50], ids=["9", "many", "63", "64", "digits"]
)
def test_shapes_beyond_all_limits(shape: list[int], tmp_path: Path) -> None:
    header = {"t": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}}
    with pytest.raises(ModelError, match=r"tensor t: shape .*limits"):
        open_checkpoint(safetensors(tmp_path, header))


def test_a_tensor_that_is_there_twice(tmp_path: Path) -> None:
    text = json.dumps({"a": entry(0, 4, 1)})
    with pytest.raises(ModelError, match="'a' is there twice"):
        open_checkpoint(safetensors(tmp_path, (text[:-1] + "," + text[1:]).encode()))


def test_a_header_that_is_longer_than_any(tmp_path: Path) -> None:
    with (tmp_path / "model.safetensors").open("wb") as stream:  # a hole: no disk is filled
        stream.write(struct.pack("<Q", MAX_JSON_BYTES + 1))
        stream.truncate(MAX_JSON_BYTES + 100)
    with pytest.raises(ModelError, match=f"header of {MAX_JSON_BYTES + 1} bytes; the limit is {MAX_JSON_BYTES}"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("dtype", ["F64", "I32", "F8_E4M3", "BOOL", ""])
def test_weights_of_another_dtype(dtype: str, tmp_path: Path) -> None:
    weights = {name: {"dtype": "F32", "array": array} for name, array in random_weights(BASE, 0).items()}
    folder = random_checkpoint(BASE, tmp_path, 0)
    raw = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    first = next(iter(weights))
    header[first]["dtype"] = dtype
    safetensors(folder, header, raw[8 + length :])
    with pytest.raises(ModelError, match=rf"tensor {first} has dtype {dtype}; supported are"):
        check_shapes(open_checkpoint(folder), read_config(folder))


@pytest.mark.parametrize(
    ("bad", "how"),
    [
        (np.nan, ("--mesh", "4x4")),
        (np.inf, ("--mesh", "4x4")),
        (3e38, ("--mesh", "4x4")),
        (np.nan, ("--mesh", "4x4", "--temperature", "1")),
        (np.nan, ("--on", "neuron")),
        (np.nan, ("--on", "gpu", "--tp", "2")),
        (np.inf, ("--on", "gpu")),
        (np.nan, ("--on", "gpu", "--tp", "2", "--temperature", "1")),
    ],
)
def test_weights_that_are_no_numbers_pick_no_token(
    bad: float, how: tuple[str, ...], run_meshrt: Run, tmp_path: Path
) -> None:
    """Also those that are numbers and overflow: both norm and head are so large."""
    weights = random_weights(BASE, 0)
    weights["model.norm.weight"][:] = bad
    weights["lm_head.weight"][:] = bad
    folder = random_checkpoint(BASE, tmp_path, 0)
    save_file(weights, folder / "model.safetensors")
    finished = run_meshrt("run", "llama", "--model", str(folder), "--prompt-ids", "5,6", *how, "--quiet")
    assert finished.code == 2 and finished.stderr.count("\n") == 1, finished.stderr
    assert "no token can be picked" in finished.stderr


# --------------------------------------------------------------------------------------------- elsewhere


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"])
def test_a_link_out_of_the_folder(name: str, tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "model"
    shutil.copytree(TINY, folder)
    source = folder / (name if name != "generation_config.json" else "config.json")
    shutil.copyfile(source, outside)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("../outside")
    with pytest.raises(ModelError, match=rf"{name}: is a link to .*/outside, outside the model folder"):
        read_config(folder)
        open_checkpoint(folder)
        load_tokenizer(folder)


def test_a_shard_that_is_a_link_out_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"t": np.zeros(2, np.float32)}, tmp_path / "secret")
    (folder / "s1.safetensors").symlink_to(tmp_path / "secret")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"t": "s1.safetensors"}}))
    with pytest.raises(ModelError, match="outside the model folder"):
        open_checkpoint(folder)


def test_links_within_the_folder_and_of_the_hub_s_cache(tmp_path: Path) -> None:
    """snapshots/REVISION/NAME -> ../../blobs/HASH, and the folder itself may be reached by a link."""
    blobs, snapshot = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for at, name in enumerate(("config.json", "model.safetensors", "tokenizer.json")):
        shutil.copyfile(TINY / name, blobs / str(at))
        (snapshot / name).symlink_to(f"../../blobs/{at}")
    (snapshot / "generation_config.json").symlink_to("config.json")
    (tmp_path / "by-link").symlink_to(snapshot)
    for folder in (snapshot, tmp_path / "by-link"):
        check_shapes(open_checkpoint(folder), read_config(folder))
        assert decode(load_tokenizer(folder), [5]) is not None


PICKLES = ("pytorch_model.bin", "model.pt", "consolidated.00.pth", "training_args.bin", "model.pkl", "logits.npy")
MODULES = (
    "modeling_llama", "configuration_llama", "tokenization_llama", "json", "numpy", "meshrt", "sitecustomize", "setup",
    "conftest", "__init__", "tokenizers", "ml_dtypes", "click",
)  # fmt: skip
# What is opened in a folder goes to a file of the rank's own.
AUDITED = """
import sys
folder, told = sys.argv[1:3]
del sys.argv[1:3]
opened = set()

def hook(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(folder + "/"):
        opened.add(arguments[0].removeprefix(folder + "/"))

sys.addaudithook(hook)
import json, os
from meshrt.cli import main
try:
    main()
finally:
    with open(f"{told}/{os.getpid()}", "w") as stream:
        json.dump(sorted(opened), stream)
"""


class Trap:
    """Unpickled, it leaves a file behind."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


@pytest.mark.sample(1)
@pytest.mark.parametrize("ranks", [1, 2])
def test_nothing_of_a_model_folder_is_executed(ranks: int, run_meshrt: Run, tmp_path: Path) -> None:
    """Pickles and Python files lie in it, under every name that some loader is known to take, and it is where the
    command is started; what is opened there is told by Python's own audit.
    """
    folder, marker = tmp_path / "model", tmp_path / "executed"
    shutil.copytree(TINY, folder)
    trap = pickle.dumps(Trap(marker))
    pickle.loads(trap)  # it works
    marker.unlink()
    for name in PICKLES:
        (folder / name).write_bytes(trap)
    code = f"open({str(marker)!r}, 'w')\n"
    for name in MODULES:
        (folder / f"{name}.py").write_text(code)
    config = json.loads((folder / "config.json").read_text())
    config |= {"auto_map": {"AutoConfig": "configuration_llama.C", "AutoModel": "modeling_llama.M"}}
    (folder / "config.json").write_text(json.dumps(config | {"trust_remote_code": True}))
    script, records = tmp_path / "audited.py", tmp_path / "opened"
    records.mkdir()
    script.write_text(AUDITED)
    line = ["run", "llama", "--model", str(folder), "--prompt", "Once", "--max-new-tokens", "1", "--quiet"]
    argv = [sys.executable, "-P", str(script), str(folder), str(records), *line]
    finished = run_ranks(argv, ranks, cwd=folder)
    assert (finished.code, finished.stderr) == (0, "")
    assert not marker.exists()
    opened = {name for path in records.iterdir() for name in json.loads(path.read_text())}
    assert len(list(records.iterdir())) == ranks
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= opened
    assert opened <= {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}


def test_ranks_take_no_module_from_where_they_are_started(run_meshrt: Run, tmp_path: Path) -> None:
    from meshrt.launch.job import meshrt

    (tmp_path / "numpy.py").write_text("raise SystemExit(77)\n")
    finished = run_ranks([*meshrt(), "run", "gemm", "--quiet"], cwd=tmp_path)
    assert finished.code == 0, finished.stderr


# ------------------------------------------------------------------------------------------------ tokenizers and text


def tokenizer_with(folder: Path, **parts: Any) -> Path:
    data = json.loads((TINY / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(data | parts))
    return folder


SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
DOUBLE = {"type": "Replace", "pattern": {"Regex": "."}, "content": "aa"}
NORMALIZED = {"id": 0, "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": True, "special": True}  # fmt: skip
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {"pre_tokenizer": {**SPLIT, "pattern": {"Regex": "((("}}},
        {"model": {"type": "BPE", "vocab": {}, "merges": ["a b"]}},
        {"model": None},
        {"normalizer": {"type": "Sequence", "normalizers": [DOUBLE] * 40}},
        {"normalizer": {"type": "Sequence", "normalizers": [DOUBLE] * 40}, "added_tokens": [NORMALIZED]},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "ByteLevel"}] * 40}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTES] * 40}},
    ],
    ids=["panics", "pattern", "merges", "nothing", "grows", "in its own tokens", "bytes of bytes", "and in words"],
)
def test_tokenizers_that_cannot_be_loaded(parts: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load_tokenizer(tokenizer_with(tmp_path, **parts))
    assert capfd.readouterr().err == "", "the library's own words are kept back"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            '{"normalizer": {"type": "Precompiled", "precompiled_charsmap": "' + "x" * 2000 + '"}, "model"',
            "Expecting ':'",
        ),
        ("[]", "no JSON object"),
        ('{"normalizer": ' + '{"a": ' * 900 + "1" + "}" * 901, "not a usable tokenizer"),
    ],
    ids=["ends early", "list", "deep"],
)
def test_tokenizers_that_the_library_never_sees(text: str, why: str, tmp_path: Path) -> None:
    """Of the first it would make 6.6 GB of room for a table before it came to the end."""
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ModelError, match=why):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "parts",
    [
        {"pre_tokenizer": {**SPLIT, "pattern": {"Regex": "(a+)+$"}}},
        {"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "z", "type_id": 0}}],
                            "pair": [], "special_tokens": {}}},
        {"model": {"type": "WordLevel", "vocab": {}, "unk_token": "x"}},
    ],
    ids=["backtracks", "panics", "unknown"],
)  # fmt: skip
def test_tokenizers_that_fail_on_a_text(parts: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tokenizer = load_tokenizer(tokenizer_with(tmp_path, **parts))
    with pytest.raises(ModelError, match="fails on this text"):
        encode(tokenizer, "a" * 60 + "b")
    assert capfd.readouterr().err == ""


def test_padding_and_truncation_are_not_for_prompts(tmp_path: Path) -> None:
    padding = {"strategy": {"Fixed": 10**12}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
               "pad_type_id": 0, "pad_token": "x"}  # fmt: skip
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 7}
    ids = encode(load_tokenizer(TINY), "Once upon a time")
    assert (
        encode(load_tokenizer(tokenizer_with(tmp_path, padding=padding, truncation=truncation)), "Once upon a time")
        == ids
    )


def test_text_that_is_none() -> None:
    with pytest.raises(ModelError, match=r"not UTF-8 text; --prompt-ids"):
        encode(load_tokenizer(TINY), "a\udcff")


def test_files_are_read_up_to_a_limit(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"12345")
    assert read_text(tmp_path / "text", 5) == "12345"
    with pytest.raises(ModelError, match="more than 4 bytes"):
        read_text(tmp_path / "text", 4)
    with pytest.raises(ModelError, match="more than 100 bytes"):
        read_text(Path("/dev/zero"), 100)
