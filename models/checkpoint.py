"""Weights in safetensors files, read a slice at a time: every rank takes its own tiles and nothing else.

The format (https://github.com/huggingface/safetensors): 8 bytes of little-endian header length, a JSON header that
gives each tensor's dtype, shape and place, then the data. The header is not trusted: it is checked against the file.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from meshrt.models.config import Config
from meshrt.models.errors import ModelError
from meshrt.models.family import family_of
from meshrt.models.files import MAX_JSON_BYTES, find_file, parse_object, read_object
from meshrt.models.matrix import factor_names
from meshrt.models.opt import OptConfig

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
FLOATS, CODES = ("F32", "F16", "BF16"), ("U8",)  # codes are those of quantized matrices, under names of their own
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1}
MAX_AXES = 8

Index: TypeAlias = slice | NDArray[np.integer]


@dataclass(frozen=True)
class Tensor:
    """Where one tensor lies: `nbytes` from `offset` on, counted from the start of the file."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a model folder by their Hugging Face names. Nothing is loaded before `read`.

    `rebuilt` are tensors that are made of others as they are read (models/quantize/head.py).
    """

    folder: Path
    tensors: Mapping[str, Tensor]
    rebuilt: Mapping[str, Callable[..., NDArray[Any]]] = field(default_factory=dict)

    def find(self, name: str) -> Tensor:
        """Raises ModelError if there is no such tensor or its dtype is none of F32, F16, BF16, or U8 of codes."""
        if name not in self.tensors:
            raise ModelError(f"{self.folder}: the checkpoint has no tensor {name}")
        tensor = self.tensors[name]
        supported = CODES if name.endswith("codes") else FLOATS
        if tensor.dtype not in supported:
            raise ModelError(
                f"{tensor.file}: tensor {name} has dtype {tensor.dtype}; supported are {', '.join(supported)}"
            )
        return tensor

    def shape(self, name: str) -> tuple[int, ...]:
        return self.find(name).shape

    def dtype(self, name: str) -> np.dtype[Any]:
        """float32, float16 or ml_dtypes.bfloat16."""
        return _numpy_dtype(self.find(name).dtype)

    def view(self, name: str) -> NDArray[Any]:
        """A tensor where it lies on the disk: what is looked at is read. Raises ModelError for what `find` refuses."""
        tensor = self.find(name)
        dtype, size = _numpy_dtype(tensor.dtype), tensor.nbytes
        try:
            # An empty map is not possible, an empty array is.
            data = np.memmap(tensor.file, np.uint8, "r", tensor.offset, size) if size else np.empty(0, np.uint8)
            array: NDArray[Any] = data.view(dtype).reshape(tensor.shape)
        except (OSError, ValueError) as error:
            raise ModelError(f"{tensor.file}: tensor {name} cannot be read: {error}") from error
        return array

    def read(self, name: str, *index: Index) -> NDArray[Any]:
        """Reads the part of a tensor that `index` picks: a fresh array of the checkpoint's own dtype.

        There is one index for each of the leading axes. A slice is a range; an integer array gathers along its axis,
        whatever the other indices are. Raises ModelError for what `find` refuses and for an id outside its axis.
        """
        if name in self.rebuilt:
            return self.rebuilt[name](*index)
        tensor = self.find(name)
        if len(index) > len(tensor.shape):
            raise ModelError(f"{tensor.file}: tensor {name} has {len(tensor.shape)} axes; {len(index)} were indexed")
        array = self.view(name)
        # Slices first: they only narrow the map. A gather then touches no more pages than it must.
        array = array[tuple(part if isinstance(part, slice) else slice(None) for part in index)]
        for axis, part in enumerate(index):
            if not isinstance(part, slice):
                if part.size and not 0 <= int(part.min()) <= int(part.max()) < array.shape[axis]:
                    raise ModelError(f"{tensor.file}: tensor {name}: index outside 0..{array.shape[axis] - 1}")
                array = np.take(array, part, axis)
        return np.array(array, order="C")


def open_checkpoint(folder: str | Path) -> Checkpoint:
    """Opens model.safetensors, or the shards of model.safetensors.index.json, and checks their headers.

    Raises ModelError naming the file (and tensor) for whatever is missing, truncated, malformed or outside the folder.
    """
    folder = Path(folder)
    if single := find_file(folder, SINGLE):
        return Checkpoint(folder, read_header(single))
    if index := find_file(folder, INDEX):
        return Checkpoint(folder, _read_shards(folder, index))
    raise ModelError(
        f"{folder}: holds neither {SINGLE} nor {INDEX}; other weight formats must be converted first, and without"
        " weights a model runs by its shape alone, with --payload none"
    )


def expected_shapes(config: Config | OptConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that a model of this configuration has, by name. Projections are [out, in]."""
    family = family_of(config)
    hidden = family.hidden

    def norm(name: str) -> dict[str, tuple[int, ...]]:
        return {f"{name}.{part}": (hidden,) for part in ("weight", "bias")[: 1 + family.layer_norm]}

    shapes: dict[str, tuple[int, ...]] = {family.embedding + ".weight": (family.vocabulary, hidden)}
    if family.positions is not None:
        shapes[family.positions + ".weight"] = (family.max_positions + family.position_offset, hidden)
    for layer in family.layers:
        shapes |= norm(layer.attention_norm)
        for matrix in layer.attention:
            shapes |= matrix.tensors()
        shapes |= {f"{one.name}.weight": (one.size,) for one in layer.head_norms}
        shapes |= norm(layer.mlp_norm)
        for matrix in (*layer.routing, *layer.mlp.matrices()):
            shapes |= matrix.tensors()
    shapes |= norm(family.norm)
    if isinstance(config, Config) and config.head is not None:
        shapes |= config.head_matrix.tensors()
    elif family.head != family.embedding:
        shapes[family.head + ".weight"] = (family.vocabulary, hidden)
    return shapes


def check_shapes(checkpoint: Checkpoint, config: Config | OptConfig) -> None:
    """Raises ModelError naming the first tensor of the configuration that is missing or of another shape, or one of an
    expert that it does not have: the model's numbers would be others.
    """
    for matrix in config.factored:
        if matrix + ".weight" in checkpoint.tensors:
            raise ModelError(
                f"{checkpoint.folder}: config.json has {matrix} as two factors in 'low_rank', but the checkpoint has"
                " the matrix itself as well; remove one of them"
            )
    shapes = expected_shapes(config)
    for name, shape in shapes.items():
        if name not in checkpoint.tensors and name == "lm_head.weight":
            raise ModelError(
                f"{checkpoint.folder}: the checkpoint has no tensor {name}; "
                "if the model shares its embedding, config.json must set tie_word_embeddings"
            )
        matrix = name.removesuffix(".weight")
        if name not in checkpoint.tensors and all(
            one + ".weight" in checkpoint.tensors for one in factor_names(matrix)
        ):
            raise ModelError(
                f"{checkpoint.folder}: the checkpoint has {name} as two factors; config.json must give their rank in"
                " 'low_rank'"
            )
        tensor = checkpoint.find(name)
        if tensor.shape != shape:
            raise ModelError(
                f"{tensor.file}: tensor {name} has shape {list(tensor.shape)}; config.json asks for {list(shape)}"
            )
    of_experts = [name for name in checkpoint.tensors if "expert" in name and name.endswith((".weight", ".codes"))]
    known = {*shapes, *(matrix + ".codes" for matrix in config.matrices())} if of_experts else {}
    layers = {f"model.layers.{number}" for number in range(config.layers)}
    for name in of_experts:
        if name not in known and ".".join(name.split(".")[:3]) in layers:
            raise ModelError(
                f"{checkpoint.folder}: the checkpoint has an expert's tensor {name}, of which config.json knows"
                " nothing; one of them is wrong"
            )


def read_header(file: Path) -> dict[str, Tensor]:
    """Reads and checks the header of one safetensors file. After this, every tensor has bytes of the file to itself."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > size - 8:
                raise ModelError(f"{file}: truncated, or not a safetensors file: {size} bytes, header of {length}")
            if length > MAX_JSON_BYTES:
                raise ModelError(f"{file}: a header of {length} bytes; the limit is {MAX_JSON_BYTES}")
            header = parse_object(stream.read(length).decode("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file}: no readable safetensors header: {error}") from error
    header.pop("__metadata__", None)
    start = 8 + length
    tensors = {name: _check_tensor(file, name, entry, start, size) for name, entry in header.items()}
    _check_apart(file, tensors.values())
    return tensors


def _check_apart(file: Path, tensors: Iterable[Tensor]) -> None:
    placed = sorted((one for one in tensors if one.nbytes), key=lambda one: one.offset)
    for one, other in pairwise(placed):
        if other.offset < one.offset + one.nbytes:
            raise ModelError(f"{file}: tensors {one.name} and {other.name} overlap: the header is damaged or forged")


def _check_tensor(file: Path, name: str, entry: object, start: int, size: int) -> Tensor:
    where = f"{file}: tensor {name}"
    if not isinstance(entry, dict):
        raise ModelError(f"{where}: its header entry is not an object")
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or not _sizes(shape) or not _sizes(offsets) or len(offsets) != 2:
        raise ModelError(f"{where}: malformed header entry: dtype {dtype!r}, shape {shape!r}, data_offsets {offsets!r}")
    begin, end = offsets
    if not begin <= end <= size - start:
        raise ModelError(
            f"{where}: its data is at bytes {begin}..{end} of {size - start}: the file is truncated or damaged"
        )
    if len(shape) > MAX_AXES or max(shape, default=0) >= 1 << 63:
        raise ModelError(f"{where}: shape {shape}; the limits are {MAX_AXES} axes of less than 2^63")
    # Of a dtype that is not supported the size is not known; such a tensor is refused when it is asked for.
    if dtype in ITEM_BYTES and math.prod(shape) * ITEM_BYTES[dtype] != end - begin:
        raise ModelError(f"{where}: shape {shape} of {dtype} does not fill the {end - begin} bytes that it is given")
    return Tensor(file, name, dtype, tuple(shape), start + begin, end - begin)


def _sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def _read_shards(folder: Path, index: Path) -> dict[str, Tensor]:
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ModelError(f"{index}: has no 'weight_map' object")
    shards: dict[str, dict[str, Tensor]] = {}
    tensors = {}
    for name, shard in weight_map.items():
        # A shard is a file of this folder, so that a checkpoint from elsewhere can read nothing else.
        if not isinstance(shard, str) or not shard or set(shard) & set("/\\:\0") or shard in (".", ".."):
            raise ModelError(f"{index}: tensor {name}: {shard!r} is not the plain name of a file in the folder")
        if shard not in shards:
            file = find_file(folder, shard)
            if file is None:
                raise ModelError(f"{index}: tensor {name}: the shard {shard} is missing from {folder}")
            shards[shard] = read_header(file)
        if name not in shards[shard]:
            raise ModelError(f"{folder / shard}: has no tensor {name}, though {INDEX} says so")
        tensors[name] = shards[shard][name]
    return tensors


def _numpy_dtype(name: str) -> np.dtype[Any]:
    if name == "BF16":
        import ml_dtypes  # only bfloat16 needs it, and every rank pays for an import

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype({"F32": "<f4", "F16": "<f2", "U8": "u1"}[name])
