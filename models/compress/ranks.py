"""Which matrices of a model get which rank."""

import math
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from meshrt.models.config import Config
from meshrt.models.errors import ModelError
from meshrt.models.folders.files import MAX_JSON_BYTES, parse_object, read_text


def block_aligned_rank(k: int, n: int, ratio: float, block: int) -> int:
    """The rank, in whole blocks, at which [k, r] and [r, n] have some 1 - ratio of the parameters of [k, n].

    NeuronMM, section 4.1, equation 5, with floor(x + 1/2) blocks instead of the printed ceiling: that is what Table 6
    shows (2048 x 8192 at 0.2 in blocks of 128: 1280). At least one block, at most as many as min(k, n) holds. Raises
    ModelError if that is none.
    """
    if not 0 <= ratio < 1:
        raise ModelError(f"ratio {ratio}: it is the share of the parameters that goes, from 0 to below 1")
    if not 1 <= block <= min(k, n):
        raise ModelError(f"block {block} for a matrix of {k} x {n}: give 1..{min(k, n)}")
    blocks = math.floor(k * n * (1 - ratio) / ((k + n) * block) + 0.5)
    return block * min(max(blocks, 1), min(k, n) // block)


def aligned_ranks(config: Config, part: str, ratio: float, block: int) -> dict[str, int]:
    """Equation 5 for the matrices of a part of every layer, `mlp`, `attention` or `all`, by name. Raises ModelError."""
    ranks = {}
    for layer in map(config.layer, range(config.layers)):
        parts = {"mlp": layer.mlp.matrices(), "attention": layer.attention, "all": layer.matrices()}
        for matrix in parts[part]:
            ranks[matrix.name] = block_aligned_rank(matrix.columns, matrix.rows, ratio, block)
    return ranks


def parse_ranks(texts: Iterable[str]) -> list[tuple[str, int]]:
    """`NAME=R`, or a JSON file of {NAME: R}, as pairs in the order given. Raises ModelError."""
    pairs: list[tuple[str, int]] = []
    for text in texts:
        name, equals, rank = text.rpartition("=")
        if equals and rank.isascii() and rank.isdecimal() and len(rank) < 10:
            pairs.append((name, int(rank)))
            continue
        if equals and not Path(text).is_file():
            raise ModelError(f"rank {text!r}: give NAME=R with a number R, or a JSON file")
        pairs += _read_file(Path(text)).items()
    return pairs


def _read_file(path: Path) -> Mapping[str, int]:
    try:
        data = parse_object(read_text(path, MAX_JSON_BYTES))
    except (ModelError, ValueError) as error:
        raise ModelError(f"ranks {path}: neither NAME=R nor a file that is readable as JSON: {error}") from error
    if any(type(rank) is not int for rank in data.values()):
        raise ModelError(f"ranks {path}: give an object of whole numbers such as {{'gate_proj': 64}}")
    return data


def named_ranks(config: Config, pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Ranks of matrices by their whole name, its end or a pattern: `gate_proj`, `layers.0.mlp.*`. Later ones win.

    Raises ModelError for a name that no matrix has and for a rank that is not 1..min(in, out) of each it names.
    """
    matrices, ranks = config.matrices(), {}
    for pattern, rank in pairs:
        named = [name for name in matrices if fnmatchcase(name, pattern) or fnmatchcase(name, "*." + pattern)]
        if not named:
            raise ModelError(f"rank of {pattern!r}: no matrix of the {config.layers} layers has that name")
        for name in named:
            most = matrices[name].most_rank
            if not 1 <= rank <= most:
                raise ModelError(f"rank {rank} of {name}: give 1..{most}, the matrix's own limit")
            ranks[name] = rank
    return ranks
