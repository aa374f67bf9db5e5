"""Weights in safetensors files, read a slice at a time: every rank takes its own tiles and nothing else."""

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from meshrt.models.config import Config
from meshrt.models.errors import ModelError
from meshrt.models.family import family_of
from meshrt.models.folders.files import find_file, read_object
from meshrt.models.folders.tensors import StoredTensor, numpy_dtype, read_header
from meshrt.models.folders.together import named
from meshrt.models.matrix import factor_names
from meshrt.records import dataclass

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MASKS = ("attn",)  # attn.bias of GPT-2's folders: which tokens a token sees
FLOATS, CODES = ("F32", "F16", "BF16"), ("U8",)  # codes are those of quantized matrices, under names of their own

Index: TypeAlias = slice | NDArray[np.integer]


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a model folder by their Hugging Face names. Nothing is loaded before `read`.

    `rebuilt` are tensors that are made of others as they are read (models/quantize/head.py).
    """

    folder: Path
    tensors: Mapping[str, StoredTensor]
    rebuilt: Mapping[str, Callable[..., NDArray[Any]]] = field(default_factory=dict)

    def find(self, name: str) -> StoredTensor:
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
        return numpy_dtype(self.find(name).dtype)

    def view(self, name: str) -> NDArray[Any]:
        """A tensor where it lies on the disk: what is looked at is read. Raises ModelError for what `find` refuses."""
        return self.find(name).view()

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


def read_finite(checkpoint: Checkpoint, config: Config) -> dict[str, NDArray[Any]]:
    """All tensors that the configuration names, whole, for who makes another model of them. ModelError for one with NaN
    or infinity."""
    tensors = {}
    for name in expected_shapes(config):
        tensors[name] = checkpoint.read(name)
        if not np.isfinite(tensors[name]).all():
            raise ModelError(
                f"{checkpoint.find(name).file}: {name.removesuffix('.weight')}: has weights that are NaN or infinite;"
                " nothing can be made of them: take a checkpoint without"
            )
    return tensors


def open_checkpoint(folder: str | Path, config: Config | None = None) -> Checkpoint:
    """Opens model.safetensors, or the shards of model.safetensors.index.json, and checks their headers.

    With a configuration its tensors are found by the names that it has for them (models/folders/together.py).

    Raises ModelError naming the file (and tensor) for whatever is missing, truncated, malformed or outside the folder.
    """
    folder = Path(folder)
    if single := find_file(folder, SINGLE):
        tensors = read_header(single)
    elif index := find_file(folder, INDEX):
        tensors = _read_shards(folder, index)
    else:
        raise ModelError(
            f"{folder}: holds neither {SINGLE} nor {INDEX}; other weight formats must be converted first, and without"
            " weights a model runs by its shape alone, with --payload none"
        )
    return Checkpoint(folder, tensors if config is None else named(tensors, config))


def expected_shapes(config: Config) -> dict[str, tuple[int, ...]]:
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
        shapes |= {f"{head_norm.name}.weight": (head_norm.size,) for head_norm in layer.head_norms}
        for name in layer.norms[1:]:
            shapes |= norm(name)
        for matrix in (*layer.routing, *layer.mlp.matrices()):
            shapes |= matrix.tensors()
    shapes |= norm(family.norm)
    if config.head is not None:
        shapes |= config.head_matrix.tensors()
    elif family.head != family.embedding:
        shapes[family.head + ".weight"] = (family.vocabulary, hidden)
    return shapes


def check_shapes(checkpoint: Checkpoint, config: Config) -> None:
    """Raises ModelError naming the first tensor of the configuration that is missing or of another shape, or one of its
    layers that it does not have: the model's numbers would be others.
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
            factor + ".weight" in checkpoint.tensors for factor in factor_names(matrix)
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
    _check_one_head(checkpoint, config)
    _check_none_beside(checkpoint, config, shapes)


def _check_none_beside(checkpoint: Checkpoint, config: Config, shapes: Mapping[str, object]) -> None:
    """ModelError where a layer has a matrix, a norm or a bias of which the configuration knows nothing."""
    stem, together = config.kind.names.layer, config.kind.together
    layers = {f"{stem}{number}" for number in range(config.layers)}
    expected = {*shapes, *(matrix + ".codes" for matrix in config.matrices())}
    for name in checkpoint.tensors:
        if name in expected or not name.endswith((".weight", ".bias", ".codes")):
            continue
        layer, _, rest = name.removeprefix(stem).partition(".")
        if stem + layer in layers and name.startswith(stem) and rest.rpartition(".")[0] not in {*together, *MASKS}:
            which, way = ("a", "; set in config.json what it lacks, such as a bias, or remove the tensor")
            if "expert" in name:
                which, way = "an expert's", ""
            raise ModelError(
                f"{checkpoint.folder}: the checkpoint has {which} tensor {name}, of which config.json knows nothing;"
                f" one of them is wrong{way}"
            )


def _check_one_head(checkpoint: Checkpoint, config: Config) -> None:
    """ModelError where a model that shares its embedding has a head beside it that is another: versions of transformers
    differ on which of them counts. Rows all over the tables are compared, since a head of its own differs everywhere.
    """
    embedding, head = config.kind.names.embedding + ".weight", "lm_head.weight"
    if not config.tie_word_embeddings or head not in checkpoint.tensors:
        return
    rows = np.linspace(0, config.vocab_size - 1, min(64, config.vocab_size)).astype(np.intp)
    if checkpoint.shape(head) == checkpoint.shape(embedding):
        ours, other = (checkpoint.read(name, rows).astype(np.float32) for name in (embedding, head))
        if np.array_equal(ours, other):
            return
    raise ModelError(
        f"{checkpoint.folder}: config.json has tie_word_embeddings, but the checkpoint has {head}, which is not"
        f" {embedding}; set tie_word_embeddings to false, or remove the tensor"
    )


def _read_shards(folder: Path, index: Path) -> dict[str, StoredTensor]:
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ModelError(f"{index}: has no 'weight_map' object")
    shards: dict[str, dict[str, StoredTensor]] = {}
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
