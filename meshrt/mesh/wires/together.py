"""Ramps for all that is under way, where a core waits for all of it at once: each gets its packets in the order of
their asking, all in a few operations on arrays of cores. It is what ramps.py finds for one transfer after the other.
"""

from typing import TYPE_CHECKING

import numpy as np

from meshrt.mesh.cores import Cores
from meshrt.mesh.mesh import RAMP
from meshrt.mesh.wires import order
from meshrt.mesh.wires.lines import Index, Positions
from meshrt.records import dataclass

if TYPE_CHECKING:
    from meshrt.mesh.wires.lane import Lane
    from meshrt.mesh.wires.replay import Arrival

ROOM = 4096  # cores: on larger blocks the arrays are large, and views of them faster
Pace = tuple[float, float]  # cycles: of the ramp, and until the tail


@dataclass(frozen=True, eq=False)
class LaneGroup:
    """Lanes that deliver together, in one layer or two with a packet for a core at most; the first layer's were started
    before the second's. Cores are numbered through the block.
    """

    layers: tuple[int, ...]  # of each lane
    times: list[Positions]  # in `asks`, of each lane's packets [lines, packets]
    asks: np.ndarray  # [layers, cores that get any]: inf where there is no packet
    cores: Index  # their numbers
    two_at: Index  # positions in `cores` of those that get two
    twice: Index  # and their numbers


def serve(block: Cores, coming: "list[Arrival]") -> bool:
    """Give the ramps to all packets of these transfers, which are all that is under way. False, and nothing is done,
    where they are no group, or some of them have been served.
    """
    group = group_of(block, coming)
    if group is None or any(arrival.served is not None for arrival in coming):
        return False
    paces = [arrival.passage.pace for arrival in coming]
    pace = dict(zip(group.layers, paces, strict=True))
    if any(pace[layer] != other for layer, other in zip(group.layers, paces, strict=True)):
        return False
    for arrival, times in zip(coming, group.times, strict=True):
        times.put(arrival.landing.time)
    if len(group.asks) == 1:
        _give(block, group.asks[0], group.cores, *pace[0])
    else:
        _give_twice(block, group, pace[0], pace[1])
    for arrival, times in zip(coming, group.times, strict=True):
        arrival.landing.time[...] = times.get()
        arrival.is_served = True
    return True


def _give_twice(block: Cores, group: LaneGroup, first_pace: Pace, second_pace: Pace) -> None:
    """The ramps of cores that get packets of both layers go to the one that asks first, then to the other.

    `first_pace`, `second_pace`: for the packets of the layers.
    """
    first, second = group.asks
    swapped, two_at = second < first, group.two_at
    if not order.some(swapped):
        _give(block, first, group.cores, *first_pace)
        late = second[two_at]
        _give(block, late, group.twice, *second_pace)
        second[two_at] = late
        return
    soon, late = np.minimum(first, second), np.maximum(first, second)[two_at]
    if first_pace == second_pace:
        _give(block, soon, group.cores, *first_pace)
        _give(block, late, group.twice, *second_pace)
    else:
        pairs = list(zip(first_pace, second_pace, strict=True))
        _give(block, soon, group.cores, *(np.where(swapped, b, a) for a, b in pairs))
        _give(block, late, group.twice, *(np.where(swapped, a, b)[two_at] for a, b in pairs))
    after = np.full_like(first, np.inf)
    after[two_at] = late
    first[...], second[...] = np.where(swapped, after, soon), np.where(swapped, soon, after)


def _give(block: Cores, times: np.ndarray, cores: Index, taking: float | np.ndarray, tail: float | np.ndarray) -> None:
    """Ramps of these cores are asked for at these times, which become those of arrival."""
    clock = block.clock
    arrays = clock.ramp_in.reshape(-1), clock.asked_at[RAMP].reshape(-1), clock.idle[RAMP].reshape(-1)
    ramps = [array[cores] for array in arrays]
    order.give(block, times, taking, *ramps)
    times += tail
    if not isinstance(cores, slice):  # else they are views
        for array, new in zip(arrays, ramps, strict=True):
            array[cores] = new


def group_of(block: Cores, coming: "list[Arrival]") -> LaneGroup | None:
    """Made once for these lanes; None where they bring a core more than two packets, or the block is large."""
    lanes = tuple(arrival.lane for arrival in coming)
    groups = lanes[0].groups
    if lanes not in groups:
        groups[lanes] = _group(block, lanes)
    group: LaneGroup | None = groups[lanes]
    return group


def _group(block: Cores, lanes: "tuple[Lane, ...]") -> LaneGroup | None:
    size = block.shape[0] * block.shape[1]
    if size > ROOM:
        return None
    core = np.arange(size).reshape(block.shape)
    cores = [lane.view.of(core)[:, lane.schedule.delivered] for lane in lanes]
    gets, layers, layer = np.zeros((2, size), bool), list[int](), 0
    for at in cores:
        if gets[layer, at].any():
            layer += 1
            if layer == 2:
                return None
        gets[layer, at] = True
        layers.append(layer)
    used = np.flatnonzero(gets[0] | gets[1])
    gets_two = (gets[0] & gets[1])[used]
    asks = np.full((layer + 1, len(used)), np.inf)
    if len(used) == size:
        times = [
            Positions(lane.view.of(asks[layer].reshape(block.shape)), lane.schedule.delivered)
            for layer, lane in zip(layers, lanes, strict=True)
        ]
    else:
        number = np.zeros(size, np.int64)
        number[used] = np.arange(len(used))
        times = [Positions(asks[layer], number[at]) for layer, at in zip(layers, cores, strict=True)]
    all_cores = slice(None)
    all_used = all_cores if len(used) == size else used
    if gets_two.all():
        return LaneGroup(tuple(layers), times, asks, all_used, all_cores, all_used)
    return LaneGroup(tuple(layers), times, asks, all_used, np.flatnonzero(gets_two), used[gets_two])
