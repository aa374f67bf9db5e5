"""What a transfer of a channel is here: its schedule, and views of the lines it runs on. Made at the first use of these
sources and lines, then from the channel's cache.
"""

import numpy as np

from meshrt.mesh.clock import STAGES, TIME
from meshrt.mesh.cores import Cores
from meshrt.mesh.wires import steps
from meshrt.mesh.wires.compiling import compile_schedule
from meshrt.mesh.wires.lines import Index, Positions, View, as_index
from meshrt.mesh.wires.routers import line_indices
from meshrt.mesh.wires.schedule import Schedule
from meshrt.mesh.wires.scouts import scouted
from meshrt.mesh.wires.tables import Channel, check_installed
from meshrt.records import dataclass


def scheduled(
    block: Cores, channel: Channel, positions: np.ndarray | None, lines: np.ndarray | None
) -> tuple[Schedule, tuple[View, ...]]:
    """The schedule and the views it applies to: from the channel's cache, or made now if tables were changed since."""
    cache = channel.cache
    if cache.get("epoch") != block.tables.epoch:
        scouted(block, channel)
    chosen = None if positions is None else positions.tobytes()
    within = None if lines is None else lines.tobytes()
    entry = cache.get((chosen, within))
    if entry is None:
        trace = cache["trace"]
        name = (chosen, within if trace.whole_block else None, Schedule)
        if name not in cache:
            cache[name] = compile_schedule(block, channel, trace, positions, lines)
        entry = cache[chosen, within] = cache[name], _views(block, channel, lines, trace.whole_block)
    return entry


def is_crossed(block: Cores, channel: Channel) -> bool:
    """May packets of other channels come to the routers of these paths? All ranks find the same."""
    if channel.axis is not None:
        return False
    book = block.tables.book
    return bool(book.reshape(len(book), -1)[:, channel.links.any(axis=0)].sum(axis=0).max(initial=0) > 1)


@dataclass(frozen=True, eq=False)
class ChosenCores:
    """Some cores of a channel's lines: their state, and how many they are here."""

    views: tuple[View, ...]
    at: Index  # in each of them
    states: list[Positions]
    count: int
    table: bytes  # for the compiled core: that they spend time
    addresses: steps.Addresses  # which the table has

    def spend(self, block: Cores, cycles: float, stages: int) -> None:
        """They are busy for so many cycles, in so many stages of software."""
        if block.core is not None:
            block.core.replay(self.table, 0, cycles, float(stages), False)
            return
        for cores in self.states:
            state = cores.get()
            state[TIME] += cycles
            if stages:
                state[STAGES] += stages
            cores.put(state)


def chosen_cores(block: Cores, channel: Channel, positions: np.ndarray, lines: np.ndarray | None) -> ChosenCores:
    """The cores at these positions of the channel's lines."""
    key = ("cores", positions.tobytes(), None if lines is None else lines.tobytes())
    chosen: ChosenCores | None = channel.cache.get(key)
    if chosen is None:
        views, at = chosen_lines(block, channel, positions, lines)
        index = as_index(at)
        states, addresses = [view.of(block.clock.state, 1) for view in views], steps.Addresses(block.core)
        table = (
            b""
            if block.core is None
            else addresses.table(
                steps.Step(steps.SPEND, [(state[TIME], index), (state[STAGES], index)]) for state in states
            )
        )
        count = len(at) * sum(view.count for view in views)
        chosen = ChosenCores(views, index, [Positions(state, index) for state in states], count, table, addresses)
        channel.cache[key] = chosen
    return chosen


def check_chosen(
    block: Cores, channel: Channel, positions: np.ndarray | None, lines: np.ndarray | None, needed: str = ""
) -> None:
    """In one's own program: UsageError where positions or lines are none of the channel's, or there is none needed."""
    if block.audit is not None:
        across = 1 if channel.axis is None else block.mesh.length("y" if channel.axis == "x" else "x")
        block.audit.chooses({"positions": (positions, channel.length), "lines": (lines, across)}, needed)


def chosen_lines(
    block: Cores, channel: Channel, positions: np.ndarray, lines: np.ndarray | None
) -> tuple[tuple[View, ...], np.ndarray]:
    """The views in which these positions of the channel's lines are here, and where in them."""
    check_installed(channel)
    mesh, axis = block.mesh, channel.axis
    if axis is None:  # cores y * W + x of the mesh
        rows, columns = slice(mesh.y0, mesh.y0 + mesh.block_height), slice(mesh.x0, mesh.x0 + mesh.block_width)
        at = np.flatnonzero(positions.reshape(mesh.height, mesh.width)[rows, columns])
    else:
        at = np.flatnonzero(positions[mesh.offset(axis) : mesh.offset(axis) + mesh.block_length(axis)])
    return _views(block, channel, lines, axis is None) if len(at) else (), at


def _views(block: Cores, channel: Channel, lines: np.ndarray | None, whole_block: bool) -> tuple[View, ...]:
    """Views of the block's arrays that show the chosen lines: one for every run of evenly spaced ones."""
    if whole_block or channel.axis is None:
        return (View(None, slice(None), 1, block.mesh.block_width * block.mesh.block_height),)
    chosen = line_indices(block, channel)
    if lines is not None:
        low = block.mesh.offset("y" if channel.axis == "x" else "x")
        chosen = chosen[lines[chosen + low]]
    length, views = block.mesh.block_length(channel.axis), []
    while len(chosen):
        gap = int(chosen[1] - chosen[0]) if len(chosen) > 1 else 1
        even = np.diff(chosen) == gap
        count = len(chosen) if even.all() else int(np.argmin(even)) + 1
        run = as_index(chosen[:count])
        assert isinstance(run, slice)
        views.append(View(channel.axis, run, count, length))
        chosen = chosen[count:]
    return tuple(views)
