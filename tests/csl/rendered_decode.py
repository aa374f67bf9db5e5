"""Decode of MeshInfra/WaferLLM in NumPy: the same steps on arrays of all cores, faults and all.

Nothing of the published text is here; names of variables are its names, memory is flat (rendered_cores.py). What is
wrong in the text is so here: norms scale the squares of their input; the second scales as many numbers as a core has
rows; what is rotated are the even numbers with themselves; the largest score is never below 0; the exponential is
(1 + x / 256)^4; silu is of the ungated part, of as many numbers as a core has of the embedding.
"""

from typing import Any

import numpy as np

from tests.csl.rendered_cores import HALF, Cores, fused, wide


def decode(cores: Cores, groups: int, batch: int, dim: int, rows: int, ffn: int, head_dim: int) -> None:
    """One layer of `batch` sequences. Per core: `dim` columns, `rows` tokens, `ffn` columns of the wide part."""
    at = cores.where
    side = len(cores.memory)
    size = side // groups
    first_root, last_root = size // 2, groups // 2 * size + size // 2

    def reduced(lines: Any, op: Any) -> Any:
        """[line, core, ...] to the sum of each line, in the order of the two trees; the farther half comes first."""
        roots: list[Any] = []
        for begin in range(0, side, size):
            mine = lines[:, begin : begin + size]
            total = mine[:, first_root]
            for way in (range(size - 1, first_root, -1), range(first_root)):
                total = _joined(total, mine, way, op)
            roots.append(total)
        middle = last_root // size
        total = roots[middle]
        for order in (range(groups - 1, middle, -1), range(middle)):
            total = _joined(total, np.stack(roots, 1), order, op)
        return total

    def everywhere(base: Any, count: int, along_y: bool, op: Any = np.add) -> None:
        tiles = cores.get(base, count)
        total = reduced(tiles.swapaxes(0, 1) if along_y else tiles, op)[:, None]
        spread = np.repeat(total, side, 1)
        cores.put(base, spread.swapaxes(0, 1) if along_y else spread)

    def product(vector: Any, matrix: Any, out: Any, k: int, n: int) -> None:
        for sequence in range(batch):
            x, w = cores.get(vector + sequence * k, k), cores.get(matrix, k * n).reshape(side, side, k, n)
            total = np.zeros((side, side, n), HALF)
            for step in range(k):
                total = fused(total, w[:, :, step], x[:, :, step, None])
            cores.put(out + sequence * n, total)

    def summed(base: Any, count: int, name: str, op: Any = np.add) -> None:
        """Of each sequence, one number after the other, from 0; then over the column."""
        for sequence in range(batch):
            x = cores.get(base + sequence * count, count)
            total = np.zeros((side, side), HALF)
            for number in range(count):
                total = op(total, x[:, :, number])
            cores.put(at[name] + sequence, total[..., None])
        everywhere(at[name], batch, True, op)

    def norm(of: str, into: str, scaled: int) -> None:
        x = cores.get(at[of], batch * dim)
        cores.put(at["X_tmp"], x * x)
        summed(at["X_tmp"], dim, "local_sum")
        weights = cores.get(at["W_tile"], dim)
        for sequence in range(batch):
            cores.put(at[into] + sequence * dim, cores.get(at["X_tmp"] + sequence * dim, dim) * weights)
        for sequence in range(batch):
            mean = cores.get(at["local_sum"] + sequence, 1) / HALF(head_dim * side) + HALF(0.000001)
            part = at[into] + sequence * scaled
            cores.put(part, cores.get(part, scaled) * (HALF(1) / wide(np.sqrt, mean)))

    def rotate(base: Any) -> None:
        cos, sin = (cores.get(at[name], dim // 2) for name in ("freqs_cos", "freqs_sin"))
        for sequence in range(batch):
            index = np.arange(0, dim // 2 * 2, 2)
            x = cores.memory[cores.places(base + sequence * dim, index)]
            cores.memory[cores.places(base + sequence * dim, index)] = x * cos + x * sin

    def softmax() -> None:
        summed(at["score"], rows, "local_max", np.maximum)
        for sequence in range(batch):
            x = cores.get(at["score"] + sequence * rows, rows) - cores.get(at["local_max"] + sequence, 1)
            cores.put(at["score"] + sequence * rows, power(x))
        summed(at["score"], rows, "local_sum")
        for sequence in range(batch):
            factor = HALF(1) / cores.get(at["local_sum"] + sequence, 1)
            cores.put(at["score"] + sequence * rows, cores.get(at["score"] + sequence * rows, rows) * factor)

    norm("X_tile", "X_norm_tile", dim)
    query = at["QKV_tile"]
    for number, name in enumerate("QKV"):
        product(at["X_norm_tile"], at[f"{name}_weight_tile"], query + number * batch * dim, dim, dim)
    everywhere(query, 3 * batch * dim, True)
    rotate(query)
    rotate(query + batch * dim)
    product(query, at["XKCache_tile"], at["score"], dim, rows)
    everywhere(at["score"], batch * rows, False)
    alpha = HALF(1) / wide(np.sqrt, np.array(head_dim * side, HALF))
    cores.put(at["score"], cores.get(at["score"], batch * rows) * alpha)
    softmax()
    product(at["score"], at["XVCache_tile"], at["output_tile"], rows, dim)
    everywhere(at["output_tile"], batch * dim, True)
    product(at["output_tile"], at["O_weight_tile"], at["h1_tile"], dim, dim)
    everywhere(at["h1_tile"], batch * dim, False)
    cores.put(at["Z_tile"], cores.get(at["X_tile"], batch * dim) + cores.get(at["h1_tile"], batch * dim))
    norm("Z_tile", "z_norm_tile", rows)
    up = at["ZZ_tile"]
    for number, name in enumerate(("UP", "GATE")):
        product(at["z_norm_tile"], at[f"{name}_weight_tile"], up + number * batch * ffn, dim, ffn)
    everywhere(up, 2 * batch * ffn, True)
    x = cores.get(up, batch * dim)
    cores.put(up, x / (HALF(1) + power(-x)))
    cores.put(at["z3_tile"], cores.get(up, batch * ffn) * cores.get(up + batch * ffn, batch * ffn))
    product(at["z3_tile"], at["DOWN_weight_tile"], at["h2_tile"], ffn, dim)
    everywhere(at["h2_tile"], batch * dim, False)
    cores.put(at["Z_tile"], cores.get(at["Z_tile"], batch * dim) + cores.get(at["h2_tile"], batch * dim))


def _joined(total: Any, lines: Any, order: Any, op: Any) -> Any:
    """What a chain brings, joined to what is there."""
    come = None
    for number in order:
        come = lines[:, number] if come is None else op(come, lines[:, number])
    return total if come is None else op(total, come)


def power(x: Any) -> Any:
    """The text's exponential."""
    near = HALF(1) + x / HALF(256)
    near = near * near
    return near * near
