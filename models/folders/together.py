"""Tensors that folders have in place of several: one for queries, keys and values, or matrices kept as [in, out].

All are found under the names of a configuration (models/kinds.py), as parts of what lies in the file, and are read as
all others are. Folders may also leave away the first part of all names, as those of transformers' bare models do.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from meshrt.models.config import Config
from meshrt.models.errors import ModelError
from meshrt.models.folders.tensors import ITEM_BYTES, StoredTensor
from meshrt.models.matrix import Matrix


def named(tensors: Mapping[str, StoredTensor], config: Config) -> dict[str, StoredTensor]:
    """The tensors, also by the names that the configuration has for them. ModelError for one of another shape."""
    kind = config.kind
    renamed, first = dict(tensors), kind.names.embedding.partition(".")[0] + "."
    if not any(name.startswith(first) for name in tensors):
        renamed |= {first + name: tensor for name, tensor in tensors.items()}
    for number in range(config.layers if kind.together else 0):
        stem, matrices = f"{kind.names.layer}{number}.", config.layer(number).matrices()
        by_name = {matrix.name: matrix for matrix in matrices}
        for source, parts in kind.together.items():
            for end in (".weight", ".bias"):
                if whole := renamed.get(stem + source + end):
                    renamed |= _cut(whole, [by_name[stem + part] for part in parts], end, kind.turned)
    return renamed


def _cut(whole: StoredTensor, parts: Iterable[Matrix], end: str, turned: bool) -> dict[str, StoredTensor]:
    """Matrices of one input, or their biases, that lie in one tensor."""
    parts = list(parts)
    inner, total = parts[0].rows, sum(matrix.columns for matrix in parts)
    shape = (total,) if end == ".bias" else (inner, total) if turned else (total, inner)
    if whole.shape != shape:
        raise ModelError(
            f"{whole.file}: tensor {whole.name} has shape {list(whole.shape)}; config.json asks for {list(shape)}"
        )
    pieces, low, item = {}, 0, ITEM_BYTES.get(whole.dtype, 0)
    for matrix in parts:
        name = matrix.name + end
        if end == ".weight" and turned:
            pieces[name] = replace(whole, shape=(matrix.columns, inner), turned=(low, total))
        else:
            row = item * (1 if end == ".bias" else inner)
            pieces[name] = replace(
                whole, shape=(matrix.columns, *shape[1:]), offset=whole.offset + low * row, nbytes=matrix.columns * row
            )
        low += matrix.columns
    return pieces
