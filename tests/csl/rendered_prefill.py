"""Prefill of MeshInfra/WaferLLM (WSE-2) in NumPy: the same steps on arrays of all cores, faults and all.

Nothing of the published text is here; names of variables are its names. Memory is rendered flat, with variables where
the interpreter has put them, as the text reads and writes past the ends of some. Wrong in the text, and so here:
norms multiply column i of a tile by the factor of row i; the second takes its sum of squares from what the scores have
left; the largest score is never below 0; rotations are of half as many rows as a tile has, the others are what lies
behind; silu is (1 + exp(-x)) / x; the sum of input and attention is never made, so the result is what is added to zero.
"""

from typing import Any

import numpy as np

from tests.csl.rendered_cores import HALF, Cores, fused, wide


def ring(cores: int) -> Any:
    """From which core of a line each gets: 0, 2, 4, .. and back by the odd ones, an even number of them."""
    order = [*range(0, cores, 2), *range(cores - 1, 0, -2)]
    source = np.zeros(cores, int)
    source[order] = np.roll(order, 1)
    return source


def prefill(cores: Cores, dim: int, rows: int, ffn: int) -> None:
    """One layer. Per core: `dim` columns, `rows` tokens, `ffn` columns of the wide part."""
    at = cores.where
    side = len(cores.memory)
    root = side // 2
    y = np.arange(side)[:, None] + np.zeros((1, side), int)
    source = ring(side)
    back = np.argsort(source)
    turns = np.where(y % 2 == 0, y // 2, (y + 1) // 2)  # alignments that a row takes

    def along_x(send: Any, receive: Any, count: int, reverse: Any) -> None:
        count = count // 4 * 4
        tiles = cores.get(send, count)
        cores.put(receive, np.where(reverse[..., None], tiles[:, back], tiles[:, source]))

    def along_y(send: Any, receive: Any, count: int) -> None:
        cores.put(receive, cores.get(send, count // 4 * 4)[source])

    def align(send: Any, receive: Any, count: int) -> tuple[Any, Any]:
        left = turns.copy()
        for _ in range(root):
            swaps = left >= 0
            left = left - swaps
            send, receive = np.where(swaps, receive, send), np.where(swaps, send, receive)
            along_x(send, receive, count, y % 2 == 0)
        return np.where(left != 0, receive, send), np.where(left != 0, send, receive)

    def product(left: Any, right: Any, out: Any, m: int, k: int, n: int) -> None:
        """out += left right, tiles by columns on the left, by rows on the right; each step is rounded."""
        a, b = cores.get(left, m * k).reshape(side, side, k, 1, m), cores.get(right, k * n).reshape(side, side, k, n, 1)
        total = cores.get(out, m * n).reshape(side, side, n, m)
        for step in range(k):
            total = fused(total, a[:, :, step], b[:, :, step])
        cores.put(out, total.reshape(side, side, -1))

    def clear(name: str, count: int) -> None:
        cores.put(at[name], np.zeros((side, side, count), HALF))

    def multiply(left: tuple[str, str], right: tuple[str, str], out: str, k: int, n: int, aligned: bool) -> None:
        clear(out, rows * n)
        (send, receive), (right_send, right_receive) = (tuple(at[name] for name in pair) for pair in (left, right))
        if not aligned:
            send, receive = align(send, receive, rows * k)
        for _ in range(side):
            send, receive, right_send, right_receive = receive, send, right_receive, right_send
            along_x(send, receive, rows * k, np.zeros_like(y, bool))
            along_y(right_send, right_receive, k * n)
            product(send, right_send, at[out], rows, k, n)

    def reduce(tiles: Any, op: Any) -> tuple[Any, Any]:
        """Chains to the middle of each row: what comes there from the left and from the right."""
        sums = []
        for line in (range(root), range(side - 1, root, -1)):
            total = None
            for x in line:
                total = tiles[:, x] if total is None else op(total, tiles[:, x])
            sums.append(total)
        return sums[0], sums[1]

    def everywhere(name: str, op: Any, right_first: bool) -> None:
        mine = cores.get(at[name], rows)
        from_left, from_right = reduce(mine, op)
        first, second = (from_right, from_left) if right_first else (from_left, from_right)
        total = op(second, op(first, mine[:, root]))
        cores.put(at[name], np.repeat(total[:, None], side, 1))

    def columns(name: Any, count: int) -> Any:
        return cores.get(name, count * rows).reshape(side, side, count, rows)

    def norm(of: str, squares: Any, into: str) -> None:
        total = np.zeros((side, side, rows), HALF)
        for column in range(dim):
            total = total + columns(squares, dim)[:, :, column]
        cores.put(at["local_sum"], total)
        everywhere("local_sum", np.add, True)
        total = cores.get(at["local_sum"], rows)
        mean = total / HALF(dim * side) + HALF(0.000001)
        cores.put(at["local_sum"], HALF(1) / wide(np.sqrt, mean))
        weights, factors = cores.get(at["W_tile"], dim), cores.get(at["local_sum"], dim)
        scaled = columns(at[of], dim) * weights[..., None]
        cores.put(at[into], (scaled * factors[..., None]).reshape(side, side, -1))

    def square(name: str) -> None:
        x = cores.get(at[name], rows * dim)
        cores.put(at["seqLen_dim_tmp"], x * x)

    def rotate(name: str) -> None:
        pairs = dim // 2
        for pair in range(pairs):
            even, odd = at[name] + 2 * pair * rows, at[name] + (2 * pair + 1) * rows
            cos, sin = (cores.get(at[of] + pair, 1) for of in ("freqs_cos", "freqs_sin"))
            for number, (base, factor) in enumerate(((odd, cos), (even, sin), (even, cos), (odd, sin)), 1):
                cores.put(at[f"X_tmp_{number}"], cores.get(base, pairs) * factor)
            part = [cores.get(at[f"X_tmp_{number}"], rows) for number in range(1, 5)]
            cores.put(even, part[0] - part[1])
            part = [cores.get(at[f"X_tmp_{number}"], rows) for number in range(1, 5)]
            cores.put(odd, part[2] + part[3])

    def scores() -> None:
        clear("seqLen_seqLen_tmp", rows * rows)
        send, receive = at["seqLen_dim_tmp"], at["XK_tile"]
        offset = np.where(y == 0, 0, np.where(y % 2 == 0, side - y // 2, (y + 1) // 2))[:, 0]
        for step in range(side):
            send, receive = receive, send
            along_y(send, receive, rows * dim)
            product(at["XQ_tile"], send, at["seqLen_seqLen_tmp"], rows, dim, rows)
            tiles = cores.get(at["seqLen_seqLen_tmp"], rows * rows)
            for row in range(side):
                turn = (offset[row] + step) % side
                to = 0 if turn == 0 else 2 * turn - 1 if turn <= root else 2 * (side - turn)
                total = tiles[row, to]
                for line in (range(side - 1, to, -1), range(to)):  # from the right, then from the left
                    come = None
                    for x in line:
                        come = tiles[row, x] if come is None else come + tiles[row, x]
                    if come is not None:
                        total = total + come
                base = at["score"][row, to]
                cores.memory[row, to, base : base + rows * rows] = total
            clear("seqLen_seqLen_tmp", rows * rows)
        cores.put(at["local_max"], np.zeros((side, side, rows), HALF))

    def softmax() -> None:
        alpha = HALF(1) / wide(np.sqrt, np.array(dim * side, HALF))
        score = columns(at["score"], rows) * alpha
        cores.put(at["local_max"], np.maximum(score.max(2), HALF(0)))
        everywhere("local_max", np.maximum, False)
        score = score - cores.get(at["local_max"], rows)[:, :, None]
        power = wide(np.exp, score)
        cores.put(at["seqLen_seqLen_tmp"], power.reshape(side, side, -1))
        total = np.zeros((side, side, rows), HALF)
        for column in range(rows):
            total = total + power[:, :, column]
        cores.put(at["local_sum"], total)
        everywhere("local_sum", np.add, True)
        cores.put(at["local_sum"], HALF(1) / cores.get(at["local_sum"], rows))
        score = power * cores.get(at["local_sum"], rows)[:, :, None]
        cores.put(at["score"], score.reshape(side, side, -1))

    def gate() -> None:
        x = cores.get(at["z2_tile"], rows * ffn)
        cores.put(at["z2_tile"], (HALF(1) + wide(np.exp, -x)) / x)
        cores.put(at["z3_tile"], cores.get(at["z1_tile"], rows * ffn) * cores.get(at["z2_tile"], rows * ffn))

    with np.errstate(all="ignore"):
        square("X_tile")
        norm("X_tile", at["seqLen_dim_tmp"], "X_norm_tile")
        for number, of in enumerate("QKV"):
            weights = ("dim_dim_tmp", f"{of}_weight_tile")
            multiply(("seqLen_dim_tmp", "X_norm_tile"), weights, f"X{of}_tile", dim, dim, number > 0)
        rotate("XQ_tile")
        rotate("XK_tile")
        scores()
        softmax()
        multiply(("seqLen_seqLen_tmp", "score"), ("seqLen_dim_tmp", "XV_tile"), "output_tile", rows, dim, False)
        multiply(("seqLen_dim_tmp", "output_tile"), ("dim_dim_tmp", "O_weight_tile"), "h1_tile", dim, dim, False)
        square("Z_tile")
        norm("Z_tile", at["seqLen_seqLen_tmp"], "Z_norm_tile")
        wide_tiles = ("seqLen_dim_tmp", "Z_norm_tile")
        multiply(wide_tiles, ("dim_ffnDim_tmp", "UP_weight_tile"), "z1_tile", dim, ffn, False)
        multiply(wide_tiles, ("dim_ffnDim_tmp", "GATE_weight_tile"), "z2_tile", dim, ffn, True)
        gate()
        multiply(("seqLen_ffnDim_tmp", "z3_tile"), ("dim_ffnDim_tmp", "DOWN_weight_tile"), "h2_tile", ffn, dim, False)
        cores.put(at["Z_tile"], cores.get(at["Z_tile"], rows * dim) + cores.get(at["h2_tile"], rows * dim))
