"""Folders of Hugging Face's compressed-tensors, format `pack-quantized`: matrices of 2 to 8 bits in words of 32.

In place of `..mlp.gate_proj.weight` [out, in] such a folder has

    ..mlp.gate_proj.weight_packed       I32 [out, words]       codes q + 2^(bits - 1), the first in the lowest bits
    ..mlp.gate_proj.weight_scale        [out, groups]; [out, 1] by row, [1] for all
    ..mlp.gate_proj.weight_zero_point   I32 [words, groups]    as codes, packed along the outputs; not where symmetric
    ..mlp.gate_proj.weight_shape        I64 [2]                out, in

and stands for (q - zero point) * scale (compressors/pack_quantized of compressed-tensors 0.20). Codes are a folder's
here as they are; scales become float16, which bfloat16's are exactly. Bits are 4 and 8: of others, versions differ.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshrt.models.config import Config
from meshrt.models.errors import ModelError
from meshrt.models.folders.checkpoint import Checkpoint, open_checkpoint
from meshrt.models.folders.files import find_file, read_object
from meshrt.models.foreign.model import Foreign, add, check_all_or_none
from meshrt.models.keys import Keys
from meshrt.models.matrix import Matrix
from meshrt.models.quantize.codes import Codes
from meshrt.models.quantize.form import GROUP_UNIT, Activations, GroupSize, check_group, row_group
from meshrt.models.quantize.halves import halves
from meshrt.models.quantize.packing import unpack
from meshrt.records import dataclass

ENDS = ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx")
WORDS = {"I32": "<i4", "I64": "<i8"}


@dataclass(frozen=True)
class CompressedScheme:
    """How all matrices are kept. `group` None: a row is one."""

    bits: int
    symmetric: bool
    group: int | None
    activations: Activations | None

    def group_of(self, inputs: int) -> int:
        """Of a matrix with so many inputs."""
        return self.group or row_group(inputs)


def read_scheme(read: Keys) -> CompressedScheme:
    """Of `quantization_config`. Raises ModelError."""
    kind, form = read.get("quant_method", str, "compressed-tensors"), read.get("format", str)
    if (kind, form) != ("compressed-tensors", "pack-quantized"):
        raise read.bad("format", f"is {form!r} of {kind!r}; pack-quantized of compressed-tensors can be read")
    if read.has("kv_cache_scheme"):
        raise read.bad("kv_cache_scheme", "is set; a cache in fewer bits cannot be read")
    if read.get("transform_config", dict, {}):
        raise read.bad("transform_config", "is set; inputs that are turned before a product cannot be read")
    sparsity = Keys(read.get("sparsity_config", dict, {}), read.source, read.prefix + "sparsity_config.")
    if sparsity.get("format", str, "dense") != "dense":
        raise sparsity.bad("format", f"is {sparsity.found('format')!r}; only dense can be read")
    groups = read.get("config_groups", dict)
    name, group = next(iter(groups.items()), ("", None))
    if len(groups) != 1 or not isinstance(group, dict):
        raise read.bad("config_groups", f"has {len(groups)} groups of matrices; one for all can be read")
    own = Keys(group, read.source, f"{read.prefix}config_groups.{name}.")
    if own.has("output_activations"):
        raise own.bad("output_activations", "is set; only inputs in fewer bits can be read")
    weights = Keys(own.get("weights", dict), read.source, own.prefix + "weights.")
    bits = weights.get("num_bits", int)
    if weights.get("type", str, "int") != "int" or bits not in (4, 8):
        raise weights.bad("num_bits", f"is {bits} of {weights.data.get('type')!r}; int of 4 and 8 can be read")
    strategy = weights.get("strategy", str)
    if strategy not in ("group", "channel", "tensor"):
        raise weights.bad("strategy", f"is {strategy!r}; group, channel and tensor can be read")
    if weights.get("actorder", object, False) not in (False, "weight", "static"):
        raise weights.bad("actorder", f"is {weights.data['actorder']!r}: groups out of order cannot be read")
    size = weights.size("group_size") if strategy == "group" else None
    try:
        check_group(size or GROUP_UNIT)
    except ValueError as error:
        raise weights.bad("group_size", str(error)) from None
    activations = _activations(own, size) if own.has("input_activations") else None
    return CompressedScheme(bits, weights.get("symmetric", bool, True), size, activations)


def _activations(own: Keys, group: int | None) -> Activations:
    read = Keys(own.get("input_activations", dict), own.source, own.prefix + "input_activations.")
    kind = read.get("num_bits", int), read.get("type", str, "int"), read.get("symmetric", bool, True)
    if kind != (8, "int", True) or read.get("dynamic", object, False) is not True:
        raise read.bad("num_bits", "and what follows: 8 bits, int, symmetric and dynamic can be read")
    strategy = read.get("strategy", str)
    if strategy == "token":
        return "row"
    if strategy == "group" and group is not None and read.size("group_size") == group:
        return "block"
    raise read.bad("strategy", f"is {strategy!r}; token can be read, and group with the group_size of the weights")


def is_compressed(folder: Path) -> bool:
    """Does config.json have a quantization_config?"""
    source = find_file(folder, "config.json")
    return source is not None and read_object(source).get("quantization_config") is not None


def read_compressed(folder: Path) -> Foreign:
    """The model in such a folder. Raises ModelError."""
    source = find_file(folder, "config.json")
    if source is None:
        raise ModelError(f"{folder}: no config.json there")
    data = read_object(source)
    whole = Keys(data, str(source))
    scheme = read_scheme(Keys(whole.get("quantization_config", dict), str(source), "quantization_config."))
    data = {key: value for key, value in data.items() if key != "quantization_config"}
    config, checkpoint = Config.from_dict(data, source=str(source)), open_checkpoint(folder)
    matrices, head = config.matrices(), Matrix("lm_head", config.hidden_size, config.vocab_size)
    group: GroupSize = scheme.group or "row"
    foreign = Foreign(folder, "pack-quantized", data, group, activations=scheme.activations, base=folder)
    for name in checkpoint.tensors:
        stem, _, end = name.rpartition(".")
        if end == "weight_packed" and stem in matrices:
            add(foreign, stem, read_codes(checkpoint, scheme, matrices[stem]))
        elif end == "weight_packed" and stem == head.name:
            numbers = read_codes(checkpoint, scheme, head).dequantized()
            foreign.tensors["lm_head.weight"] = numbers.astype(np.float16)
        elif end not in ENDS:
            foreign.tensors[name] = checkpoint.read(name)
    check_all_or_none(foreign)
    left = [name for name in matrices if name not in foreign.forms]
    if left:
        raise ModelError(f"{folder}: {left[0]} has no weight_packed: matrices of the layers are packed, or none is")
    return foreign


def read_codes(checkpoint: Checkpoint, scheme: CompressedScheme, matrix: Matrix) -> Codes:
    """One matrix [out, in]. Raises ModelError naming the tensor."""
    name, rows, columns, bits = matrix.name, matrix.columns, matrix.rows, scheme.bits
    group = scheme.group_of(columns)
    groups, per_word = -(-columns // group), 32 // bits
    shape = words(checkpoint, f"{name}.weight_shape", None, (2,)).tolist()
    if shape != [rows, columns]:
        raise ModelError(f"{checkpoint.folder}: {name}.weight_shape is {shape}; config.json asks for {[rows, columns]}")
    packed = words(checkpoint, f"{name}.weight_packed", "I32", (rows, -(-columns // per_word)))
    codes = np.zeros((rows, groups * group), np.uint8)
    codes[:, :columns] = codes_in(packed, bits)[:, :columns]
    if f"{name}.weight_g_idx" in checkpoint.tensors:
        order = words(checkpoint, f"{name}.weight_g_idx", None, (columns,))
        if not np.array_equal(order, np.arange(columns) // group):
            raise ModelError(f"{checkpoint.folder}: {name}.weight_g_idx has groups out of order, which cannot be read")
    where, end = checkpoint.folder, f"{name}.weight_scale"
    scale = halves(f"{where}: {end}", checkpoint.read(end))
    if scale.size == 1:
        scale = np.broadcast_to(scale.reshape(1, 1), (rows, groups))
    if scale.shape != (rows, groups):
        raise ModelError(f"{where}: {end} has shape {list(scale.shape)}; {[rows, groups]} is needed")
    zero = None
    if not scheme.symmetric:
        zero = _zeros(checkpoint, scheme, f"{name}.weight_zero_point", rows, groups)
    return Codes(codes.reshape(rows, groups, group), np.ascontiguousarray(scale), zero, bits, columns)


def _zeros(checkpoint: Checkpoint, scheme: CompressedScheme, name: str, rows: int, groups: int) -> NDArray[np.float16]:
    """Zero points as zeros of codes, float16 [rows, groups]: packed along the rows, or one for all."""
    tensor = checkpoint.tensors.get(name)
    if tensor is None:
        raise ModelError(f"{checkpoint.folder}: the checkpoint has no tensor {name}")
    if tensor.dtype == "I32":
        packed = words(checkpoint, name, "I32", (-(-rows * scheme.bits // 32), groups))
        return codes_in(np.ascontiguousarray(packed.T), scheme.bits)[:, :rows].T.astype(np.float16)
    if tensor.dtype != "I8" or tensor.nbytes != 1 or tensor.shape not in ((), (1,)):
        raise ModelError(f"{tensor.file}: tensor {name} is {tensor.dtype} {list(tensor.shape)}, no packed zero points")
    zero = np.fromfile(tensor.file, np.int8, 1, offset=tensor.offset)
    return np.full((rows, groups), zero.astype(np.float16) + np.float16(2 ** (scheme.bits - 1)))


def words(checkpoint: Checkpoint, name: str, dtype: str | None, shape: tuple[int, ...]) -> NDArray[Any]:
    """A tensor of whole numbers, of that dtype (None: either) and shape. ModelError."""
    tensor = checkpoint.tensors.get(name)
    if tensor is None:
        raise ModelError(f"{checkpoint.folder}: the checkpoint has no tensor {name}")
    kinds = (dtype,) if dtype else tuple(WORDS)
    if tensor.dtype not in kinds or tensor.shape != shape:
        raise ModelError(
            f"{tensor.file}: tensor {name} is {tensor.dtype} {list(tensor.shape)};"
            f" {' or '.join(kinds)} {list(shape)} is needed"
        )
    try:
        numbers = np.fromfile(tensor.file, WORDS[tensor.dtype], int(np.prod(shape)), offset=tensor.offset)
        return numbers.reshape(shape)
    except (OSError, ValueError) as error:
        raise ModelError(f"{tensor.file}: tensor {name} cannot be read: {error}") from error


def codes_in(packed: NDArray[np.int32], bits: int) -> NDArray[np.uint8]:
    """Words [n, words] to codes [n, words * 32 / bits]."""
    return unpack(np.ascontiguousarray(packed).view(np.uint8), bits)
