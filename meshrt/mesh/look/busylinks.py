"""What each chosen link of a trace did when, in the order of time, from what all ranks saw (linktrace.py)."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshrt.mesh.device import Device
from meshrt.mesh.look.linktrace import MeshLink
from meshrt.mesh.mesh import PORT_NAMES, STEP
from meshrt.reports.trace import Numbers

if TYPE_CHECKING:
    from meshrt.mesh.exchange.retrace import Journal


class LinkTrack(NamedTuple):
    """What a link did, in the order of time: names, cycles of begin and end, and JSON that follows in the arguments."""

    site: str
    name: str
    names: list[str]
    begins: np.ndarray
    ends: np.ndarray
    more: list[str]


def link_tracks(
    shares: Sequence[Mapping[str, Any]], journals: "Mapping[tuple[int, int], Journal]", device: Device, end: float,
    numbers: Numbers,
) -> Iterator[LinkTrack]:  # fmt: skip
    """All chosen links.

    `journals` are the exchanges, by number of the block and of the transfer. What is missing of a link's bytes, as the
    counters have them, is one interval at its end.
    """
    totals: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)  # by site, width, and link: core * 5 + port
    for share in shares:
        link_bytes = totals[share["site"], share["width"]]
        for (core, port), nbytes in share["bytes"].items():
            link_bytes[core * 5 + port] = max(link_bytes.get(core * 5 + port, 0), nbytes)
    crossings: dict[tuple[str, int], list[_Crossings]] = defaultdict(list)
    for number in sorted({share["number"] for share in shares}):
        mine = [share for share in shares if share["number"] == number]
        site, width = mine[0]["site"], mine[0]["width"]
        chosen = {link for share in mine for link in share["chosen"]}
        sends = {sent: facts for share in mine for sent, facts in share["sends"].items()}
        crossings[site, width].append(
            _of_transfers([share["columns"] for share in mine], sends, width, chosen, numbers)
        )
        for (block, _), journal in journals.items():
            hops = [hop for hop in journal.hops if (hop.source, hop.port) in chosen]
            if block == number and hops and device.busy_cycles(1):
                begins, lasts = np.array([[hop.left, hop.busy] for hop in hops], float).T
                more = [f', "bytes": {hop.nbytes}, "from": {_xy(hop.source, width)}, "waited": {wait!r}'
                        for hop in hops for wait in (float(hop.left - hop.ready),)]  # fmt: skip
                links, nbytes = np.array([[hop.source * 5 + hop.port, hop.nbytes] for hop in hops]).T
                crossings[site, width].append(
                    _Crossings(links, begins, begins + lasts, nbytes, ["exchange"] * len(hops), more)
                )
    for (site, width), link_bytes in sorted(totals.items()):
        parts = crossings[site, width]
        links, begins, ends, sizes = (np.concatenate([part[at] for part in parts]) for at in range(4))
        names, texts = ([text for part in parts for text in part[at]] for at in (4, 5))
        order = np.lexsort([ends, begins, links])
        in_order = links[order]
        for link, total in sorted(link_bytes.items()):
            low, high = np.searchsorted(in_order, [link, link + 1])
            at = order[low:high]
            its = [names[row] for row in at.tolist()], begins[at], ends[at], [texts[row] for row in at.tolist()]
            x, y = _xy(link // 5, width)
            track = LinkTrack(site, f"link ({x}, {y}) {PORT_NAMES[link % 5]}", *its)
            rest = total - int(sizes[at].sum())
            if rest:
                begin = track.ends[-1] if len(at) else 0.0
                track = LinkTrack(
                    site, track.name, [*track.names, "not kept"], np.append(track.begins, begin),
                    np.append(track.ends, end), [*track.more, f', "bytes": {rest}'],
                )  # fmt: skip
            yield track


class _Crossings(NamedTuple):
    """Intervals of links: core * 5 + port, begin, end, bytes, what, JSON that follows in the arguments."""

    links: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    nbytes: np.ndarray
    names: list[str]
    more: list[str]


def _of_transfers(
    parts: Sequence[Sequence[np.ndarray]], sends: Mapping[int, tuple[str, int, float]], width: int,
    chosen: set[MeshLink], numbers: Numbers,
) -> _Crossings:  # fmt: skip
    """What crossed those links, of what all ranks have seen, and when it asked: when it was there from where it was."""
    columns = [np.concatenate(column) for column in zip(*filter(None, parts), strict=True)]
    if not columns or not len(columns[0]):
        return _Crossings(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0, np.int64), [], [])
    sent, core, port, origin, hop, begin, after, asked_at = columns
    steps = np.array([dx + dy * width for dx, dy in STEP] + [0])
    apart = 2 + int(max(core.max(), *(core for core, _ in chosen)) + abs(steps).max())
    packet = np.unique(sent * apart + origin + 1, return_inverse=True)[1]
    from_hop = (packet * (2 + int(hop.max())) + hop) * apart  # a packet has been at a core once
    reached, wanted = from_hop + core + steps[port], from_hop - apart + core
    order = np.argsort(reached, kind="stable")
    mine = np.flatnonzero(np.isin(core * 5 + port, [core * 5 + port for core, port in chosen]))
    at = order[np.searchsorted(reached[order], wanted[mine]).clip(max=len(order) - 1)]
    asked_at = np.where(
        np.isnan(asked_at[mine]), np.where(reached[at] == wanted[mine], after[at], np.nan), asked_at[mine]
    )
    links, begin, facts = (core * 5 + port)[mine], begin[mine], [sends[number] for number in sent[mine].tolist()]
    names, nbytes, lasts = map(list, zip(*facts, strict=True)) if facts else ([], [], [])
    froms = {origin: f', "from": {_xy(origin, width)}' for origin in np.unique(origin[mine]).tolist()}
    waited = numbers.column(np.maximum(0.0, begin - asked_at))
    more = [
        f', "bytes": {size}{froms[sender]}, "waited": {wait}' if wait != "nan" else f', "bytes": {size}{froms[sender]}'
        for size, sender, wait in zip(nbytes, origin[mine].tolist(), waited, strict=True)
    ]
    return _Crossings(links, begin, begin + np.array(lasts, float), np.array(nbytes, np.int64), names, more)


def _xy(core: int, width: int) -> list[int]:
    return [core % width, core // width]
