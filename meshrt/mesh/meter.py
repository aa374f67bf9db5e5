"""Counters. Each is increased where the thing happens, and nowhere else."""

from dataclasses import field
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt.mesh.look.maps import Maps
from meshrt.mesh.look.peaks import Peaks
from meshrt.records import dataclass

if TYPE_CHECKING:
    from meshrt.mesh.look.messages import Messages
    from meshrt.mesh.look.pairs import Pairs
    from meshrt.mesh.look.timeline import Timeline


@dataclass(eq=False)
class Counters:
    """What the cores and routers of this rank did.

    `links` has the bytes over every link, int64 [4, bh, bw] by port of departure, for each site that the run has been
    at: most runs stay on one mesh, but a model may go from one region of the wafer to another. `ramps`, [2, bh, bw],
    has those that left cores and that came to them. `used`, bool [bh, bw], marks the cores there that computed, or that
    software or a packet kept waiting.
    """

    links: dict[str, np.ndarray] = field(default_factory=dict)
    ramps: dict[str, np.ndarray] = field(default_factory=dict)
    used: dict[str, np.ndarray] = field(default_factory=dict)
    messages: int = 0  # packets that cores sent
    hops: int = 0  # router-to-router moves
    wafer_hops: int = 0  # the same on a wafer with defects, past which a hop of the mesh may be several
    max_hops: int = 0  # of the longest packet that was delivered here
    stages: int = 0  # times that software touched a packet
    macs: int = 0
    macs_16: int = 0  # of these, those of numbers of 16 bits or fewer
    adds: int = 0  # element-wise operations, sums of what comes in among them
    operand_bytes: int = 0  # that MACs and element-wise operations read from cores' memories and wrote to them
    rebuilt: int = 0  # numbers that cores made from codes
    out_of_order: int = 0  # heads that waited at a link for one that asked for it later (order.py)
    longest_wait: float = 0.0  # cycles, of those
    maps: dict[str, Maps] = field(default_factory=dict)  # by site, where they are wanted; so are the peaks
    pairs: dict[str, tuple["Pairs", "Pairs"]] = field(default_factory=dict)  # and these, of packets; carried (pairs.py)
    peaks: dict[str, list[Peaks]] = field(default_factory=dict)  # of each time that cores were at work

    def copy(self) -> "Counters":
        """What grows with every repetition of a stretch, as it is now."""
        return Counters(
            links={site: nbytes.copy() for site, nbytes in self.links.items()},
            ramps={site: nbytes.copy() for site, nbytes in self.ramps.items()},
            maps={site: maps.copy() for site, maps in self.maps.items()},
            pairs={site: (packets.copy(), carried.copy()) for site, (packets, carried) in self.pairs.items()},
            **{name: getattr(self, name) for name in SUMS},
        )

    def repeat(self, before: "Counters", more: int) -> None:
        """Count what has been added since `before` so many times more."""
        for name in SUMS:
            now = getattr(self, name)
            setattr(self, name, now + more * (now - getattr(before, name)))
        for sites, earlier in ((self.links, before.links), (self.ramps, before.ramps)):
            for site, nbytes in sites.items():  # of all blocks that were at work, not only this one
                nbytes += more * (nbytes - earlier.get(site, 0))
        for site, maps in self.maps.items():
            maps.repeat(before.maps.get(site), more)
        for site, both in self.pairs.items():
            for pairs, earlier_pairs in zip(both, before.pairs.get(site, (None, None)), strict=True):
                pairs.repeat(earlier_pairs, more)


SUMS = (  # of Counters: what several ranks have is added up, and grows with every repetition of a stretch
    "messages", "hops", "wafer_hops", "stages", "macs", "macs_16", "adds", "operand_bytes", "rebuilt", "out_of_order",
)  # fmt: skip
MOST = ("max_hops", "longest_wait")  # and these: what is the most anywhere, and does not grow


@dataclass(eq=False)
class HostCounters:
    """What this rank did at MPI. `sent_to` are the ranks that mesh packets went to."""

    messages: int = 0
    packets: int = 0
    bytes: int = 0
    sent_to: set[int] = field(default_factory=set)


@dataclass(eq=False)
class Segment:
    """One stretch of the run, a phase if it has a name: counters, peaks, and the critical path at its two ends."""

    name: str
    counters: Counters
    entries: int = 0
    memory: int = 0
    begin: tuple[float, int, int] = (0.0, 0, 0)
    end: tuple[float, int, int] = (0.0, 0, 0)
    wall_begin: float = field(default_factory=perf_counter)
    wall_seconds: float = 0.0
    cpu_begin: float = field(default_factory=process_time)
    cpu_seconds: float = 0.0  # of this rank's processor time
    tokens: int | None = None
    sampled: bool = False  # a part of it stood for others


@dataclass(eq=False)
class Ledger:
    """What a run has counted so far. Blocks of one run share it, also those on meshes of different sizes."""

    counters: Counters = field(default_factory=Counters)  # of the segment that is running
    segments: list[Segment] = field(default_factory=list)
    cut: Segment | None = None  # the last but one, if an exception has ended it; its end is this rank's so far
    host: HostCounters = field(default_factory=HostCounters)
    wafers: dict[str, "Links"] = field(default_factory=dict)  # by site, where the wafer has defects
    notes: dict[str, Any] = field(default_factory=dict)  # what a program measured of the host; rank 0's are reported
    at_work: dict[int, Any] = field(default_factory=dict)  # blocks that have yet to enter counts of theirs, by id
    maps_path: str | None = None  # of a file for what each core and link did
    timeline: "Timeline | None" = None  # of some cores, if somebody wants to look at it
    messages: "Messages | None" = None  # all of them, if they are to be written


@dataclass(frozen=True, eq=False)
class Links:
    """The links out of this rank's cores as links of the wafer: link at[i] of the mesh, among others, is to[i]."""

    size: int  # links of the wafer
    at: np.ndarray
    to: np.ndarray

    def on_wafer(self, link_bytes: np.ndarray) -> np.ndarray:
        """Bytes over the links of the mesh [4, bh, bw] -> over those of the wafer, int64 [size]."""
        wafer_bytes = np.zeros(self.size, np.int64)
        np.add.at(wafer_bytes, self.to, link_bytes.reshape(-1)[self.at])
        return wafer_bytes


def merge(segments: list[Segment]) -> Segment:
    """Several segments, one after the other, as one."""
    counters = Counters()
    for segment in segments:
        part = segment.counters
        for site, link_bytes in part.links.items():
            counters.links[site] = counters.links.get(site, 0) + link_bytes
        for site, ramp_bytes in part.ramps.items():
            counters.ramps[site] = counters.ramps.get(site, 0) + ramp_bytes
        for site, used in part.used.items():
            counters.used[site] = counters.used.get(site, False) | used
        for name in SUMS:
            setattr(counters, name, getattr(counters, name) + getattr(part, name))
        for name in MOST:
            setattr(counters, name, max(getattr(counters, name), getattr(part, name)))
    return Segment(
        "",
        counters,
        entries=max(segment.entries for segment in segments),
        memory=max(segment.memory for segment in segments),
        begin=segments[0].begin,
        end=segments[-1].end,
        sampled=any(segment.sampled for segment in segments),
    )


def summary(segment: Segment, wafers: dict[str, Links]) -> dict[str, Any]:
    """One rank's share of a segment as plain numbers: what `report.combine` adds up over the ranks."""
    counters = segment.counters
    begin, end = segment.begin, segment.end
    return {
        "messages": counters.messages,
        "hops": counters.hops,
        "wafer_hops": counters.wafer_hops,
        "wafer_links": {
            site: links.on_wafer(counters.links[site]) if site in counters.links else np.zeros(links.size, np.int64)
            for site, links in wafers.items()
        },
        "max_hops": counters.max_hops,
        "stages": counters.stages,
        "path": (end[0] - begin[0], end[1] - begin[1], end[2] - begin[2]),
        "link_bytes": _total_and_most(counters.links),
        "ramp_bytes": _total_and_most(counters.ramps),
        "entries": segment.entries,
        "memory": segment.memory,
        "macs": counters.macs,
        "macs_16": counters.macs_16,
        "adds": counters.adds,
        "operand_bytes": counters.operand_bytes,
        "rebuilt": counters.rebuilt,
        "out_of_order": (counters.out_of_order, counters.longest_wait),
        "used": sum(int(used.sum()) for used in counters.used.values()),
        "cores": {site: used.size for site, used in counters.used.items()},
    }


def _total_and_most(sites: dict[str, np.ndarray]) -> tuple[int, int]:
    """All bytes of these arrays, and the most in one place."""
    return sum(int(part.sum()) for part in sites.values()), max((int(part.max()) for part in sites.values()), default=0)
