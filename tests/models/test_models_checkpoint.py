"""safetensors: what is read is what was written, and a bad file is named and never believed."""

import json
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_models import BASE, CASES, case_seed, random_checkpoint, random_weights
from safetensors.numpy import save_file

from meshrt.models.config import Config, read_config
from meshrt.models.errors import ModelError
from meshrt.models.folders.checkpoint import check_shapes, expected_shapes, open_checkpoint

Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def write_raw(folder: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    """A safetensors file of exactly these parts; `header` is bytes or something for JSON."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if length is None else length
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", size) + text + data)
    return folder


def entry(dtype: Any = "F32", shape: Any = (2, 2), offsets: Any = (0, 16)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize("name", ["mha", "tied", "bias", "qwen2", "headdim"])
def test_checkpoint_reads_all_tensors(tmp_path: Path, name: str) -> None:
    folder = random_checkpoint(CASES[name], tmp_path, case_seed(name))
    checkpoint = open_checkpoint(folder)
    check_shapes(checkpoint, read_config(folder))
    for tensor, expected in random_weights(CASES[name], case_seed(name)).items():
        assert checkpoint.shape(tensor) == expected.shape
        assert checkpoint.dtype(tensor) == np.float32
        np.testing.assert_array_equal(checkpoint.read(tensor), expected)


@pytest.mark.parametrize(
    "index",
    [
        (),
        (slice(3, 9),),
        (slice(None), slice(10, 20)),
        (slice(0, 48, 4), slice(5, 6)),
        (np.array([7, 0, 7]),),
        (np.array([1, 2]), slice(3, 8)),
        (slice(3, 8), np.array([40, 2])),
        (np.array([], int), slice(0, 4)),
        (slice(100, 200),),
    ],
)
def test_checkpoint_slices_equal_full(tmp_path: Path, index: tuple[Any, ...]) -> None:
    checkpoint = open_checkpoint(random_checkpoint(BASE, tmp_path, 0))
    part = checkpoint.read(Q_PROJ, *index)
    np.testing.assert_array_equal(part, checkpoint.read(Q_PROJ)[index])
    assert part.flags.c_contiguous and part.flags.writeable and not isinstance(part, np.memmap)


def test_checkpoint_two_gathers_are_orthogonal(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(random_checkpoint(BASE, tmp_path, 0))
    rows, columns = np.array([3, 1, 3]), np.array([0, 40])
    np.testing.assert_array_equal(
        checkpoint.read(Q_PROJ, rows, columns), checkpoint.read(Q_PROJ)[np.ix_(rows, columns)]
    )


@pytest.mark.parametrize("index", [(np.array([48]),), (np.array([-1]),), (slice(1), slice(1), slice(1))])
def test_checkpoint_index_outside(tmp_path: Path, index: tuple[Any, ...]) -> None:
    with pytest.raises(ModelError, match="q_proj"):
        open_checkpoint(random_checkpoint(BASE, tmp_path, 0)).read(Q_PROJ, *index)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_checkpoint_dtypes(tmp_path: Path, dtype: Any) -> None:
    array = np.arange(-6, 6).reshape(3, 4).astype(dtype)
    raw = {"t": entry({4: "F32", 2: "F16"}[array.itemsize], [3, 4], [1, 1 + array.nbytes])}
    if dtype is ml_dtypes.bfloat16:
        raw["t"]["dtype"] = "BF16"
    # One byte in front: nothing in the format promises alignment.
    checkpoint = open_checkpoint(write_raw(tmp_path, raw, b"\0" + array.tobytes()))
    assert checkpoint.dtype("t") == checkpoint.read("t").dtype == dtype
    np.testing.assert_array_equal(checkpoint.read("t", slice(1, 3), slice(0, 2)), array[1:3, :2])


def test_checkpoint_written_by_the_library(tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "a": np.ones((1, 2), np.float16),
        "scalar": np.full((), 3.0, np.float32),
        "none": np.zeros((0, 5), np.float32),
    }
    save_file(arrays, tmp_path / "model.safetensors", metadata={"format": "pt"})
    checkpoint = open_checkpoint(tmp_path)
    assert sorted(checkpoint.tensors) == sorted(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(checkpoint.read(name), array)


def shard(folder: Path, weight_map: Any, **files: dict[str, np.ndarray]) -> Path:
    for name, tensors in files.items():
        save_file(tensors, folder / f"{name}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def test_checkpoint_sharded(tmp_path: Path) -> None:
    weights = random_weights(BASE, 0)
    names = list(weights)
    parts = {"s1": names[::2], "s2": names[1::2]}
    weight_map = {name: f"{part}.safetensors" for part, members in parts.items() for name in members}
    folder = shard(tmp_path, weight_map, **{part: {n: weights[n] for n in members} for part, members in parts.items()})
    checkpoint = open_checkpoint(folder)
    check_shapes(checkpoint, Config.from_dict(BASE))
    for name in names:
        np.testing.assert_array_equal(checkpoint.read(name, slice(2, 20)), weights[name][2:20])


@pytest.mark.parametrize(
    "name", ["../s1.safetensors", "/etc/passwd", "..", ".", "", "a/b.safetensors", "a\\b", "C:x", "s1\0", None, 3]
)
def test_checkpoint_index_cannot_leave_the_folder(tmp_path: Path, name: Any) -> None:
    (tmp_path / "model").mkdir()
    save_file({"t": np.zeros(2, np.float32)}, tmp_path / "s1.safetensors")
    with pytest.raises(ModelError, match=r"tensor t: .* not the plain name"):
        open_checkpoint(shard(tmp_path / "model", {"t": name}))


@pytest.mark.parametrize("weight_map", [None, [], {"t": "missing.safetensors"}, {"u": "s1.safetensors"}])
def test_checkpoint_bad_index(tmp_path: Path, weight_map: Any) -> None:
    with pytest.raises(ModelError, match=r"safetensors"):
        open_checkpoint(shard(tmp_path, weight_map, s1={"t": np.zeros(2, np.float32)}))


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000])
def test_checkpoint_index_that_is_no_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ModelError, match=r"index\.json"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"\0", b"\xff" * 8, b"\xff" * 100, b"PK\x03\x04" * 50, struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 0)],
)
def test_checkpoint_garbage(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        open_checkpoint(tmp_path)


def test_checkpoint_truncated_anywhere(tmp_path: Path) -> None:
    """Whatever the length at which the copy broke off, opening says so."""
    whole = (random_checkpoint(BASE, tmp_path, 0) / "model.safetensors").read_bytes()
    rng = np.random.default_rng(0)
    for size in [0, 1, 7, 8, 9, 2000, len(whole) - 1, *rng.integers(0, len(whole), 40)]:
        (tmp_path / "model.safetensors").write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"model\.safetensors"):
            open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "bad",
    [
        entry(offsets=[0, 17]),
        entry(offsets=[1, 17]),
        entry(offsets=[16, 0]),
        entry(offsets=[-16, 0]),
        entry(offsets=[0]),
        entry(offsets=[0, 16, 16]),
        entry(offsets=[0.0, 16.0]),
        entry(offsets=[0, 2**64]),
        entry(offsets=None),
        entry(shape=[2, 3]),
        entry(shape=[-2, -2]),
        entry(shape=[2**40, 2**40]),
        entry(shape="22"),
        entry(shape=[2, True]),
        entry(shape=[[2], 2]),
        entry(dtype=4),
        entry(dtype="BF16"),
        {},
        [],
        None,
        7,
    ],
)
def test_checkpoint_hostile_header(tmp_path: Path, bad: Any) -> None:
    with pytest.raises(ModelError, match=r"model\.safetensors: tensor evil"):
        open_checkpoint(write_raw(tmp_path, {"good": entry(), "evil": bad}, bytes(16)))


@pytest.mark.parametrize("header", [b"", b"{", b"null", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 20_000])
def test_checkpoint_header_that_is_no_json(tmp_path: Path, header: bytes) -> None:
    with pytest.raises(ModelError, match=r"model\.safetensors: no readable safetensors header"):
        open_checkpoint(write_raw(tmp_path, header))


@given(data=st.binary(max_size=200), length=st.one_of(st.none(), st.integers(0, 2**64 - 1)))
def test_checkpoint_random_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes, length: int | None) -> None:
    folder = write_raw(tmp_path_factory.mktemp("c"), data, length=length)
    with pytest.raises(ModelError):
        open_checkpoint(folder)


@pytest.mark.parametrize("dtype", ["F64", "I32", "F8_E4M3", "bogus"])
def test_checkpoint_other_dtypes_are_refused_when_asked_for(tmp_path: Path, dtype: str) -> None:
    checkpoint = open_checkpoint(write_raw(tmp_path, {"t": entry(dtype), "used": entry(offsets=(16, 32))}, bytes(32)))
    assert checkpoint.read("used").shape == (2, 2)
    for ask in (checkpoint.read, checkpoint.shape, checkpoint.dtype):
        with pytest.raises(ModelError, match=f"model.safetensors: tensor t has dtype {dtype}"):
            ask("t")


def test_checkpoint_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="neither"):
        open_checkpoint(tmp_path)
    with pytest.raises(ModelError, match="no tensor nonsense"):
        open_checkpoint(random_checkpoint(BASE, tmp_path, 0)).read("nonsense")


@pytest.mark.parametrize("name", list(expected_shapes(Config.from_dict(BASE))))
def test_checkpoint_check_shapes_names_the_missing_tensor(tmp_path: Path, name: str) -> None:
    weights = random_weights(BASE, 0)
    del weights[name]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=f"no tensor {name}"):
        check_shapes(open_checkpoint(tmp_path), Config.from_dict(BASE))


def test_checkpoint_check_shapes_names_both_shapes(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(random_checkpoint(BASE, tmp_path, 0))
    with pytest.raises(ModelError, match=r"k_proj.weight has shape \[48, 48\]; config.json asks for \[24, 48\]"):
        check_shapes(checkpoint, Config.from_dict(BASE | {"num_key_value_heads": 2}))


@pytest.mark.parametrize("scale", [1.0, 1.5])
def test_checkpoint_a_head_beside_a_shared_embedding_is_the_embedding(tmp_path: Path, scale: float) -> None:
    folder = random_checkpoint(BASE | {"tie_word_embeddings": True}, tmp_path, 1)
    weights = random_weights(BASE | {"tie_word_embeddings": True}, 1)
    head = (weights["model.embed_tokens.weight"] * np.float32(scale)).astype(np.float32)
    save_file(weights | {"lm_head.weight": head}, folder / "model.safetensors")
    checkpoint, config = open_checkpoint(folder), read_config(folder)
    if scale == 1:
        return check_shapes(checkpoint, config)
    with pytest.raises(ModelError, match="set tie_word_embeddings to false, or remove the tensor"):
        check_shapes(checkpoint, config)


@pytest.mark.parametrize(
    "name", ["self_attn.q_proj.bias", "self_attn.q_norm.weight", "mlp.up_proj.lora_A.weight", "self_attn.attn.bias", ""]
)
def test_checkpoint_a_tensor_beside_those_of_a_layer_is_refused(name: str, tmp_path: Path) -> None:
    """But for what is computed anew, and layers that are left out."""
    beside = {f"model.layers.1.{name}": np.ones(48, np.float32)} if name else {
        "model.layers.1.self_attn.rotary_emb.inv_freq": np.ones(6, np.float32),
        "model.layers.2.self_attn.q_proj.bias": np.ones(48, np.float32),
    }  # fmt: skip
    save_file(random_weights(BASE, 0) | beside, tmp_path / "model.safetensors")
    checkpoint, config = open_checkpoint(tmp_path), Config.from_dict(BASE)
    if not name:
        return check_shapes(checkpoint, config)
    with pytest.raises(ModelError, match=f"layers.1.{name}, of which config.json knows nothing; one of them is wrong;"):
        check_shapes(checkpoint, config)
