"""Hot and cold: what a prompt's way to its experts and back puts on every link, and between every two rows of cores.

Bytes over links are those that the fabric counted in these parts of a layer. A pair is a row of cores that tokens leave
and one that they go to, of all columns together: bytes of the pieces that were moved from one to the other, without
what else came by or filled packets up.
"""

from typing import Any, Literal

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.mesh import PORT_NAMES, Mesh
from meshrt.records import dataclass

TrafficPart = Literal["dispatch", "combine"]
Most = tuple[int, int, int, int]  # bytes of a link or a pair, and which it is


@dataclass(frozen=True, eq=False)
class Heat:
    """Of one layer, by part: bytes over every link of this rank's cores, int64 [4, bh, bw] by port of departure, and
    between all rows of the mesh, int64 [H, H], from and to.
    """

    links: dict[TrafficPart, np.ndarray]
    pairs: dict[TrafficPart, np.ndarray]


def no_heat(block: Block) -> Heat:
    height = block.mesh.height
    parts: tuple[TrafficPart, ...] = ("dispatch", "combine")
    return Heat(
        {part: np.zeros((4, *block.shape), np.int64) for part in parts},
        {part: np.zeros((height, height), np.int64) for part in parts},
    )


def told(block: Block, heat: Heat) -> dict[str, Any]:
    """The hottest and the coldest, as a report has them. All ranks call it together, and find the same."""
    return {
        part: {"links": _of_links(block, links), "pairs": _of_pairs(heat.pairs[part])}
        for part, links in heat.links.items()
    }


def _of_links(block: Block, links: np.ndarray) -> dict[str, Any]:
    mesh = block.mesh
    total, used, hot, cold = block.control.allreduce(_own(mesh, links), _of_all)
    count = 2 * ((mesh.width - 1) * mesh.height + mesh.width * (mesh.height - 1))

    def named(end: Most) -> dict[str, Any]:
        nbytes, port, y, x = end
        return {"bytes": abs(nbytes), "core": [x, y], "port": PORT_NAMES[port]}

    return _summary(total, used, count, hot and named(hot), cold and named(cold))


def _of_pairs(pairs: np.ndarray) -> dict[str, Any]:
    between = pairs.copy()
    np.fill_diagonal(between, 0)  # what stays on a row's cores
    ends = _ends(between[None], 0, 0)

    def named(end: Most) -> dict[str, Any]:
        nbytes, _, source, to = end
        return {"bytes": abs(nbytes), "from_row": source, "to_row": to}

    size = len(pairs) * (len(pairs) - 1)
    hot, cold = ends or (None, None)
    used = int(np.count_nonzero(between))
    return _summary(int(between.sum()), used, size, hot and named(hot), cold and named(cold))


def _own(mesh: Mesh, links: np.ndarray) -> tuple[int, int, Most | None, Most | None]:
    """Of this rank's links: bytes, how many carried any, the hottest and the coldest of these."""
    hot, cold = _ends(links, mesh.y0, mesh.x0) or (None, None)
    return int(links.sum()), int(np.count_nonzero(links)), hot, cold


def _ends(nbytes: np.ndarray, y0: int, x0: int) -> tuple[Most, Most] | None:
    """The first of those with most bytes, which are negative here, and of those with fewest but any."""
    number, y, x = np.nonzero(nbytes)
    if not len(number):
        return None
    carried = nbytes[number, y, x]
    hot, cold = (
        (sign * int(carried[at]), int(number[at]), y0 + int(y[at]), x0 + int(x[at]))
        for sign, at in ((-1, carried.argmax()), (1, carried.argmin()))
    )
    return hot, cold


def _of_all(parts: list[tuple[int, int, Most | None, Most | None]]) -> tuple[int, int, Most | None, Most | None]:
    totals, used, *ends = zip(*parts, strict=True)
    hot, cold = (min((end for end in side if end is not None), default=None) for side in ends)
    return sum(totals), sum(used), hot, cold


def _summary(total: int, used: int, count: int, hot: Any, cold: Any) -> dict[str, Any]:
    """Of so many links or pairs, of which `used` carried anything."""
    mean = total / count if count else 0.0
    return {
        "hottest": hot, "coldest": cold, "mean_bytes": mean, "unused": count - used,
        "imbalance": hot["bytes"] / mean if hot else None,
    }  # fmt: skip
