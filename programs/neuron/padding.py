"""Heads that are padded where cores cannot share them evenly: the further ones' weights are zeros.

As the Neuron SDK does it (NxD Inference: attention heads are padded to the tensor parallel degree): each core has as
many query heads, each with keys and values beside it. What the further ones attend to meets zeros of the output.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.models.config import Config
from meshrt.models.family import family_of
from meshrt.models.folders.checkpoint import Checkpoint


def padded(config: Config, checkpoint: Checkpoint | None, cores: int) -> tuple[Config, Checkpoint | None]:
    """The model with heads for so many cores; itself where they share its own. UsageError for numbers in codes, and for
    more cores than there are columns to share out.

    Where there are more heads of keys and values than cores, each core has as many, with all of their query heads.
    Otherwise several cores have the same one, each with as many of its query heads.
    """
    most = min(config.intermediate_size, config.vocab_size)
    if cores > most:
        raise UsageError(
            f"--cores is {cores}; each has columns of the MLP and of the vocabulary, and the model has"
            f" {config.intermediate_size} and {config.vocab_size}: {most} cores at most"
        )
    group = config.heads // config.kv_heads
    if config.kv_heads >= cores:
        kv_heads = -(-config.kv_heads // cores) * cores
    else:
        kv_heads = next(count for count in range(config.kv_heads, cores + 1) if cores % count == 0)
        group = -(-group // (cores // kv_heads)) * (cores // kv_heads)
    if (kv_heads, group) == (config.kv_heads, config.heads // config.kv_heads):
        return config, checkpoint
    wider = replace(config, heads=kv_heads * group, kv_heads=kv_heads)
    if checkpoint is None:
        return wider, None
    if config.quantized:
        even = [count for count in range(1, min(config.heads, most) + 1) if _even(config, count)]
        raise UsageError(
            f"--cores is {cores}; matrices in codes are not padded, and the {config.heads} heads of the model, with"
            f" {config.kv_heads} of keys and values, do not come out even: take {', '.join(map(str, even))} cores"
        )
    return wider, replace(checkpoint, rebuilt={**checkpoint.rebuilt, **_wider(config, wider, checkpoint)})


def _even(config: Config, cores: int) -> bool:
    """Do so many cores share the heads as they are?"""
    return padded(config, None, cores)[0] is config


def _wider(config: Config, wider: Config, checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Readers of what has heads on a side, by name: that side has those of the padded model."""
    queries = (config.kv_heads, wider.kv_heads, config.heads // config.kv_heads, wider.heads // wider.kv_heads)
    keys = (config.kv_heads, wider.kv_heads, 1, 1)
    tensors = {}
    for layer in family_of(config).layers:
        for matrix, counts in ((layer.q, queries), (layer.k, keys), (layer.v, keys)):
            tensors[matrix.factors()[-1].name + ".weight"] = (0, counts)
            if matrix.bias:
                tensors[matrix.name + ".bias"] = (0, counts)
        tensors[layer.o.factors()[0].name + ".weight"] = (1, queries)
    return {
        name: partial(_read, checkpoint, name, axis, counts, config.head_dim)
        for name, (axis, counts) in tensors.items()
    }


def _read(
    checkpoint: Checkpoint, name: str, axis: int, counts: tuple[int, int, int, int], head_dim: int, *index: Any
) -> np.ndarray:
    """A part of a tensor that has heads along an axis, in groups: more groups, of more heads, all zeros."""
    whole = np.moveaxis(checkpoint.read(name), axis, 0)
    groups, more_groups, heads, more_heads = counts
    rest = whole.shape[1:]
    wide = np.zeros((more_groups, more_heads, head_dim, *rest), whole.dtype)
    wide[:groups, :heads] = whole.reshape(groups, heads, head_dim, *rest)
    part: np.ndarray = np.moveaxis(wide.reshape(-1, *rest), 0, axis)[index]
    return part
