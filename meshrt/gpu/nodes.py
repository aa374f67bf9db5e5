"""Collectives of GPUs over nodes: which way is the fastest by the links' numbers, and the transfers that it takes.

Inside a node a GPU sends over the device's link, to another node over the network, whose adapters (`node_adapters`)
the senders of a node share: one in a flat ring, which NCCL's channels let in by all adapters; one for each GPU of the
node in hierarchical rings and trees. Each level has the protocol that is the fastest for its transfers; a collective
begins with the start of the slower one. Other groups that send at the same time are not counted in.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Protocol as Shape

import numpy as np

from meshrt.errors import UsageError
from meshrt.gpu.device import LINKS, GpuDevice, Protocol
from meshrt.gpu.gpu import Gpu
from meshrt.groups.course import BETWEEN, INSIDE, CollectiveCourse, Members, seconds_of
from meshrt.groups.group import Group, hollow
from meshrt.groups.hierarchy import ALGORITHMS, Steps, collective, send
from meshrt.groups.hierarchy import all_to_all as all_to_all_steps
from meshrt.groups.pairs import HeldParts, PairTable
from meshrt.groups.rings import Link
from meshrt.ranks.control import Control
from meshrt.records import dataclass

Arrays = list[np.ndarray]

NOTHING = np.dtype("V1")  # of rows that are not here
AUTO = "auto"
WAYS = (AUTO, *ALGORITHMS)


def check_nodes(device: GpuDevice, count: int, tp: int, node_size: int | None, collectives: str) -> None:
    """UsageError for GPUs that cannot be joined so."""
    if device.link not in LINKS:
        raise UsageError(f"--link is {device.link!r}; there are {', '.join(LINKS)}")
    if collectives not in WAYS:
        raise UsageError(f"--collectives is {collectives!r}; there are {', '.join(WAYS)}")
    together = count if node_size is None else min(node_size, count)
    if device.link == "nvlink" and together > device.nvlink_gpus:
        way = "give --link pcie, or --node-size" if node_size is None else "give a smaller --node-size, or --link pcie"
        raise UsageError(f"NVLink joins {device.nvlink_gpus} GPUs of type {device.name}, not {together}: {way}")
    if node_size is None:
        if collectives != AUTO:
            raise UsageError(f"--collectives {collectives} is for several nodes: give --node-size")
        return
    if device.link == "network":
        raise UsageError("--node-size has a link inside nodes and the network between them: give --link nvlink or pcie")
    if count > node_size and count % node_size:
        raise UsageError(f"{count} GPUs do not fill nodes of {node_size}: give a --node-size that divides them")
    if count > node_size and tp % node_size and node_size % tp:
        raise UsageError(f"--tp {tp} and --node-size {node_size}: one of them has to divide the other")


class Joined(Shape):
    """GPUs that do something together, as gpus.py has them."""

    count: int
    device: GpuDevice
    control: Control
    payload: bool
    node_size: int | None
    collectives: str
    mine: list[Gpu]
    group: Group
    members: range


@dataclass(frozen=True)
class CollectiveWay:
    """How a collective goes: its transfers, over which links, what it takes before the first, and to the end."""

    steps: Steps
    links: tuple[Link, Link]
    start: float
    seconds: float


def course(
    gpus: Joined, kind: str, parts: Arrays, outs: Arrays, sizes: Sequence[int], itemsize: int, axis: int
) -> tuple[CollectiveCourse, float]:
    """A collective to be run, and what it takes before its first step. `sizes`: of a gather's parts; of a broadcast,
    its root."""
    chunks = [_chunks(gpus, kind, out, sizes, axis) for out in outs]
    if kind == "all_gather":
        copies = [
            (own[gpu.index - gpus.members.start], part)
            for gpu, own, part in zip(gpus.mine, chunks, parts, strict=True)
        ]  # fmt: skip
    else:
        copies = [*zip(outs, parts, strict=True)]
    owners = tuple(gpus.group.owner(member) for member in gpus.members)
    # Ranks without a member have no part in it: any sizes will do.
    counts = tuple(chunk.size for chunk in chunks[0]) if chunks else (0,) * gpus.count
    root = sizes[0] if kind == "broadcast" else 0
    way = _way(gpus.device, kind, gpus.collectives, _nodes(gpus, gpus.members), counts, itemsize, root, gpus.node_size)
    members = Members(owners, _nodes(gpus, gpus.members), way.links)
    group, payload = gpus.group, gpus.payload
    made = CollectiveCourse(
        gpus.control, kind, way.steps, members, chunks, copies if payload else [], payload, group.wait
    )
    return made, way.start


def all_to_all(
    gpus: Joined, parts: Sequence[Arrays], rows: PairTable, row_bytes: int
) -> tuple[CollectiveCourse, float, list[Arrays]]:  # fmt: skip
    """An all-to-all to be run, what it takes before its first step, and for each hosted GPU the bytes of all parts,
    source * count + target of them, where they are and come to."""
    count, node_numbers = gpus.count, _nodes(gpus, gpus.members)
    row = sum(array.itemsize * prod(array.shape[1:]) for array in parts[0]) if parts and gpus.payload else 1
    kind = np.dtype(f"V{row}")  # an array of these has a number for each row
    way = _way_to_all(gpus, rows, row_bytes, node_numbers)
    blank = [hollow((n,), NOTHING) for line in rows for n in line]
    held = []
    for gpu, arrays in zip(gpus.mine, parts, strict=True):
        at, room = gpu.index - gpus.members.start, [*blank]
        if gpus.payload:
            for (source, target), data in gpus.group.parcels(arrays, at, rows).items():
                assert data is not None
                room[source * count + target] = data.view(kind)
            for part in {
                part for step in way.steps for transfer in step if transfer.target == at for part in transfer.parts
            }:
                room[part] = np.empty(room[part].shape, kind)
        held.append(room)
    owners = tuple(gpus.group.owner(member) for member in gpus.members)
    members = Members(owners, node_numbers, way.links)
    made = CollectiveCourse(gpus.control, "all_to_all", way.steps, members, held, [], gpus.payload, gpus.group.wait)
    return made, way.start, held


def arrived(parts: Arrays, member: int, rows: PairTable, payload: bool) -> HeldParts:
    """Of these parts the bytes of those for a member, as a group unpacks them; nothing without payload."""
    count = len(rows) if payload else 0
    return {
        (source, member): parts[source * count + member].view(np.uint8)
        for source in range(count) if rows[source][member]
    }  # fmt: skip


def _way_to_all(gpus: Joined, rows: PairTable, row_bytes: int, node_numbers: tuple[int, ...]) -> CollectiveWay:
    """The asked one, or the one that would be over first."""
    device, size = gpus.device, gpus.count
    share = size // len({*node_numbers})
    nbytes = [row_bytes * rows[part // size][part % size] for part in range(size * size)]
    algorithms = ("ring", "hierarchical") if gpus.collectives == AUTO else (gpus.collectives,)
    adapters = min(gpus.node_size or 1, device.node_adapters) * device.network_bytes_per_second / share
    ways = []
    for algorithm in algorithms:
        steps = all_to_all_steps(algorithm, size, share, rows, device.neighbours)
        ways.append(_timed(device, steps, node_numbers, (device.link_bytes_per_second, adapters), nbytes, row_bytes))
    return min(ways, key=lambda way: way.seconds)


def passed(
    source: Joined, target: Joined, parts: Arrays, outs: Arrays, itemsize: int
) -> tuple[CollectiveCourse, float]:  # fmt: skip
    """An array of each GPU of a group, to the GPU at the same place of another one."""
    numbers = [*source.members, *target.members]
    node_numbers, device, count = _nodes(source, numbers), source.device, source.count
    array = (*parts, *outs)[0] if parts or outs else np.empty(0)
    senders = min(count, source.node_size or count)  # of a node
    adapters = device.network_bytes_per_second * min(senders, device.node_adapters) / senders
    pair = device.nvlink_pair_bytes_per_second if device.link == "nvlink" else None
    near = pair or device.link_bytes_per_second
    inside, between = (
        _fastest(protocols, rate, 1, itemsize * array.size)
        for protocols, rate in ((device.protocols, near), (device.network_protocols, adapters))
    )
    links = _link(inside, near, itemsize), _link(between, adapters, itemsize)
    owners = tuple(source.group.owner(member) for member in numbers)
    steps = send([(at, count + at) for at in range(count)])
    chunks = [[data] for data in (*parts, *outs)]
    members = Members(owners, node_numbers, links)
    made = CollectiveCourse(source.control, "send", steps, members, chunks, [], source.payload, source.group.wait)
    return made, (between if len({node_numbers[0], node_numbers[count]}) > 1 else inside).seconds


def _chunks(gpus: Joined, kind: str, out: np.ndarray, sizes: Sequence[int], axis: int) -> Arrays:
    """The parts of an array, of which each member has one."""
    if kind == "all_gather":
        return np.split(out, np.cumsum(sizes)[:-1], axis)
    if kind == "reduce_scatter":
        return np.array_split(out, gpus.count, axis)
    return np.array_split(out.reshape(-1) if gpus.payload else hollow((out.size,), out.dtype), gpus.count)


def _nodes(gpus: Joined, members: Sequence[int]) -> tuple[int, ...]:
    return tuple(member // gpus.node_size if gpus.node_size else 0 for member in members)


@lru_cache(1 << 12)
def _way(
    device: GpuDevice, kind: str, collectives: str, nodes: tuple[int, ...], counts: tuple[int, ...], itemsize: int,
    root: int, node_size: int | None,
) -> CollectiveWay:  # fmt: skip
    """The asked one, or the one that would be over first if all GPUs began at once; of equal ones the first."""
    size, several = len(nodes), len({*nodes}) > 1
    share = size // len({*nodes})
    algorithms = ALGORITHMS if collectives == AUTO else (collectives,)
    ways = []
    for algorithm in algorithms if several else ("ring",):
        steps = collective(kind, algorithm, size, share, root)
        senders = 1 if algorithm == "ring" or kind == "broadcast" else share
        network = min(node_size or 1, device.node_adapters) * device.network_bytes_per_second / senders
        rates = device.link_bytes_per_second, network
        ways.append(_timed(device, steps, nodes, rates, [itemsize * count for count in counts], itemsize))
    return min(ways, key=lambda way: way.seconds)


def least_seconds(device: GpuDevice, kind: str, collectives: str, size: int, node_size: int) -> float:
    """Of a collective of so many GPUs over full nodes, whatever it sends: its start, and its steps with the least
    latency of each level."""
    nodes, nothing = tuple(member // node_size for member in range(size)), (0,) * size
    inside, between = (
        Link(1.0, min(protocol.step_seconds for protocol in protocols))
        for protocols in (device.protocols, device.network_protocols)
    )
    members = Members(nothing, nodes, (inside, between))
    algorithms = ALGORITHMS if collectives == AUTO else (collectives,)
    start = min(protocol.seconds for protocol in device.network_protocols)
    return start + min(
        seconds_of(collective(kind, algorithm, size, node_size), members, nothing) for algorithm in algorithms
    )


def _timed(
    device: GpuDevice, steps: Steps, nodes: tuple[int, ...], rates: tuple[float, float], nbytes: Sequence[int],
    itemsize: int,
) -> CollectiveWay:  # fmt: skip
    """Steps over links of these rates, with the protocol of each level that is the fastest for its largest transfers.
    `nbytes` of each part, whose numbers have `itemsize` each."""
    chosen = []
    for level, protocols in ((INSIDE, device.protocols), (BETWEEN, device.network_protocols)):
        sent = [
            max((sum(nbytes[part] for part in transfer.parts)
                 for transfer in step if level == _level(nodes, transfer)), default=0)
            for step in steps if any(level == _level(nodes, transfer) for transfer in step)
        ]  # fmt: skip
        chosen.append((_fastest(protocols, rates[level], len(sent), max(sent, default=0)), bool(sent)))
    inside, between = (
        _link(protocol, rate, itemsize) for (protocol, _), rate in zip(chosen, rates, strict=True)
    )  # fmt: skip
    start = max((protocol.seconds for protocol, used in chosen if used), default=0.0)
    members = Members((0,) * len(nodes), nodes, (inside, between))
    return CollectiveWay(steps, members.links, start, start + seconds_of(steps, members, nbytes))


def _level(nodes: tuple[int, ...], transfer: tuple[int, int, object, bool]) -> int:
    return BETWEEN if nodes[transfer[0]] != nodes[transfer[1]] else INSIDE


def _fastest(protocols: Sequence[Protocol], rate: float, steps: int, chunk: float) -> Protocol:
    return min(
        protocols,
        key=lambda protocol: protocol.seconds + steps * (protocol.step_seconds + chunk / (protocol.share * rate)),
    )


def _link(protocol: Protocol, rate: float, itemsize: int) -> Link:
    return Link(protocol.share * rate, protocol.step_seconds, itemsize)
