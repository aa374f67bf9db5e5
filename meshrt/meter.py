"""Counters. Each is increased where the thing happens, and nowhere else."""

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from meshrt.mesh import Mesh


@dataclass
class Counters:
    """What the cores and routers of this rank's block did; link_bytes is int64 [4, bh, bw], by port of departure."""

    link_bytes: np.ndarray
    messages: int = 0  # packets that cores sent
    hops: int = 0  # router-to-router moves
    max_hops: int = 0  # of the longest packet that was delivered here
    stages: int = 0  # times that software touched a packet
    macs: int = 0


@dataclass
class HostCounters:
    """What this rank did at MPI. `sent_to` are the ranks that mesh packets went to."""

    messages: int = 0
    packets: int = 0
    bytes: int = 0
    sent_to: set[int] = field(default_factory=set)


@dataclass
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
    tokens: int | None = None


def new_counters(mesh: Mesh) -> Counters:
    return Counters(np.zeros((4, mesh.block_height, mesh.block_width), np.int64))


def merge(segments: list[Segment], mesh: Mesh) -> Segment:
    """Several segments, one after the other, as one."""
    counters = new_counters(mesh)
    for segment in segments:
        part = segment.counters
        counters.link_bytes += part.link_bytes
        counters.messages += part.messages
        counters.hops += part.hops
        counters.max_hops = max(counters.max_hops, part.max_hops)
        counters.stages += part.stages
        counters.macs += part.macs
    return Segment(
        "",
        counters,
        entries=max(segment.entries for segment in segments),
        memory=max(segment.memory for segment in segments),
        begin=segments[0].begin,
        end=segments[-1].end,
    )


def summary(segment: Segment) -> dict[str, Any]:
    """One rank's share of a segment as plain numbers: what `report.combine` adds up over the ranks."""
    counters = segment.counters
    begin, end = segment.begin, segment.end
    return {
        "messages": counters.messages,
        "hops": counters.hops,
        "max_hops": counters.max_hops,
        "stages": counters.stages,
        "path": (end[0] - begin[0], end[1] - begin[1], end[2] - begin[2]),
        "link_bytes": (int(counters.link_bytes.sum()), int(counters.link_bytes.max())),
        "entries": segment.entries,
        "memory": segment.memory,
        "macs": counters.macs,
    }
