"""Which way wavelets go: the routers' entries, walked from a core's ramp."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshrt.csl.errors import NoRoute
from meshrt.csl.machine.router import ACROSS, NAMES, RAMP, STEPS, RouterEntry


@dataclass(frozen=True, slots=True)
class WaveletPath:
    """Where wavelets of one core and colour go: cores, hops to each, colours there; routers on the way."""

    cores: tuple[tuple[Any, int, int], ...]  # core, hops, colour
    routers: tuple[tuple[int, int, int], ...]
    hops: int
    held: tuple[int, int, int] | None  # a router whose switch is turned away: wait for it


def walk(
    routes: Mapping[tuple[int, int, int], RouterEntry], coded: Mapping[tuple[int, int], Any], size: tuple[int, int],
    x: int, y: int, color: int,
) -> WaveletPath:  # fmt: skip
    """From core (x, y) on, in a rectangle of that size whose `coded` cores have code. NoRoute."""
    cores: list[tuple[Any, int, int]] = []
    routers: list[tuple[int, int, int]] = []
    ahead = [(x, y, RAMP, 0, color)]
    seen: set[tuple[int, int, int, int]] = set()
    most = 0
    while ahead:
        x, y, port, hops, color = ahead.pop(0)
        most = max(most, hops)
        entry = routes.get((x, y, color))
        if entry is None:
            raise NoRoute(
                f"router ({x}, {y}) has no rule for colour {color}, on which a wavelet comes in by {NAMES[port]}"
            )
        if port not in entry.rx or entry.torn:
            if entry.changes or any(port in rx for rx, _ in entry.positions):
                return WaveletPath((), (), 0, (x, y, color))
            takes = ", ".join(NAMES[side] for side in sorted(entry.rx)) or "none"
            raise NoRoute(
                f"{entry.location}: router ({x}, {y}) takes colour {color} from {takes},"
                f" a wavelet comes in by {NAMES[port]}"
            )
        if (x, y, port, color) in seen:
            raise NoRoute(f"{entry.location}: colour {color} goes round and round through router ({x}, {y})")
        seen.add((x, y, port, color))
        routers.append((x, y, color))
        for out in sorted(entry.tx):
            if out == RAMP:
                cores.append((coded.get((x, y)), hops, color))
                if cores[-1][0] is None:
                    raise NoRoute(f"{entry.location}: colour {color} goes to core ({x}, {y}), which has no code")
                continue
            dx, dy = STEPS[out]
            if not (0 <= x + dx < size[0] and 0 <= y + dy < size[1]):
                raise NoRoute(
                    f"{entry.location}: colour {color} leaves the rectangle at ({x}, {y}) to the {NAMES[out]}"
                )
            next_color = color ^ 1 if (entry.swap_x and dx) or (entry.swap_y and dy) else color
            ahead.append((x + dx, y + dy, ACROSS[out], hops + 1, next_color))
    return WaveletPath(tuple(cores), tuple(routers), most, None)
