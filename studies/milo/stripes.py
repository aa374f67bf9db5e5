"""Table 9: how often thread blocks have to meet to add up a column of the output, by the shape of their tiles.

As MARLIN lays them (2024, https://arxiv.org/abs/2408.11743, striped partitioning): the tiles of the
weights, down one column of tiles after the other, are cut into stripes of ceil(tiles / 108) for the 108
multiprocessors. Blocks whose stripes share a column of tiles add up its result one after the other: one meeting for
each but the first.
"""

from meshrt.studies.milo.published import DEEPSEEK_SHAPES, TABLE9, TILES
from meshrt.studies.rows import PaperRow

MULTIPROCESSORS = 108


def meetings(k: int, n: int, tile_k: int, tile_n: int) -> int | None:
    """For weights [k, n]; None where the tiles do not fit in."""
    if k % tile_k or n % tile_n:
        return None
    rows, columns = k // tile_k, n // tile_n
    stripe = -(-rows * columns // MULTIPROCESSORS)
    return sum(cut % rows != 0 for cut in range(stripe, rows * columns, stripe))


def table9() -> list[PaperRow]:
    """Of each matrix as printed, and of those that DeepSeek-MoE really has."""
    rows = []
    shapes = {**TABLE9, "DeepSeek-MoE, as it is": DEEPSEEK_SHAPES}
    for model, matrices in shapes.items():
        for k, n in matrices:
            for tile_k, tile_n in TILES:
                count = meetings(k, n, tile_k, tile_n)
                note = "" if count is not None else "no whole number of tiles"
                rows.append(PaperRow("9", model, f"tiles {tile_k} x {tile_n}", f"{k} x {n}", "meetings", None, count,
                                note=note))  # fmt: skip
    return rows
