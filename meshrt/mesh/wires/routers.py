"""The routers of a block as scouts meet them: where they are on lines, what their tables say, where a hop leads."""

import numpy as np

from meshrt.errors import RouteError
from meshrt.mesh.cores import Cores
from meshrt.mesh.mesh import EAST, NORTH, PORT_NAMES, RAMP, SOUTH, STEP, WEST
from meshrt.mesh.wires.routes import ports
from meshrt.mesh.wires.tables import Channel

AXIS_PORTS = {"x": (EAST, WEST), "y": (NORTH, SOUTH)}


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def line_indices(block: Cores, channel: Channel) -> np.ndarray:
    """The lines of this block, from 0, that the channel is installed on."""
    if channel.axis is None:
        return ints(0)
    across = "y" if channel.axis == "x" else "x"
    low, count = block.mesh.offset(across), block.mesh.block_length(across)
    return np.arange(count) if channel.lines is None else np.flatnonzero(channel.lines[low : low + count])


def _tables(block: Cores, channel: Channel, whole_block: bool) -> tuple[np.ndarray, np.ndarray]:
    """enters and leaves as [colours, positions]: those of the first line, or of all cores of the block."""
    enters, leaves = (np.asarray(masks) for masks in (block.tables.enters, block.tables.leaves))
    if whole_block or channel.axis is None:
        return enters.reshape(len(enters), -1), leaves.reshape(len(leaves), -1)
    first = line_indices(block, channel)[:1]
    if channel.axis == "x":
        return enters[:, first].reshape(len(enters), -1), leaves[:, first].reshape(len(leaves), -1)
    return enters[:, :, first].reshape(len(enters), -1), leaves[:, :, first].reshape(len(leaves), -1)


def uniform(block: Cores, channel: Channel) -> bool:
    """Do all lines of the block have the same entries for the channel's colours, along the axis only?"""
    if channel.axis is None:
        return False
    colours = sorted(set(channel.colours.tolist()))  # np.unique would import numpy.ma, 10 ms on every rank
    along = sum(1 << port for port in (*AXIS_PORTS[channel.axis], RAMP))
    for table in map(np.asarray, (block.tables.enters, block.tables.leaves)):
        part = table[colours].swapaxes(1, 2) if channel.axis == "y" else table[colours]
        part = part[:, line_indices(block, channel)]
        if (part != part[:, :1]).any() or (part & ~np.uint8(along)).any():
            return False
    return True


def own_sources(block: Cores, channel: Channel, whole_block: bool) -> tuple[np.ndarray, ...]:
    """(position, line, core in the block, colour) of the channel's sources that this rank hosts."""
    mesh = block.mesh
    if channel.axis is None:
        y, x = np.divmod(channel.sources.astype(np.int64), mesh.width)
        x, y = x - mesh.x0, y - mesh.y0
        inside = (x >= 0) & (x < mesh.block_width) & (y >= 0) & (y < mesh.block_height)
        core = y * mesh.block_width + x
        line = np.zeros(len(core), np.int64)
        return (
            channel.sources[inside].astype(np.int64),
            line[inside],
            core[inside],
            channel.colours[inside].astype(np.int64),
        )
    at = channel.sources.astype(np.int64) - mesh.offset(channel.axis)
    inside = (at >= 0) & (at < mesh.block_length(channel.axis))
    pos, at, colour = channel.sources[inside].astype(np.int64), at[inside], channel.colours[inside].astype(np.int64)
    lines = line_indices(block, channel)
    if not whole_block:
        count = len(pos) if len(lines) else 0
        return pos[:count], np.zeros(count, np.int64), at[:count], colour[:count]
    pos, at, colour = (np.tile(part, len(lines)) for part in (pos, at, colour))
    line = np.repeat(lines, inside.sum())
    core = line * mesh.block_width + at if channel.axis == "x" else at * mesh.block_width + line
    return pos, line + mesh.offset("y" if channel.axis == "x" else "x"), core, colour


def look_up(block: Cores, channel: Channel, whole_block: bool, flight: np.ndarray) -> np.ndarray:
    """The ports that each scout leaves by, from the table of the router it is at."""
    _, at, port, colour = flight
    enters, leaves = _tables(block, channel, whole_block)
    has_rule = (enters[colour, at] >> port.astype(np.uint8) & 1).astype(bool)
    if not has_rule.all():
        lost = int(np.flatnonzero(~has_rule)[0])
        rule = int(enters[colour[lost], at[lost]])
        raise RouteError(
            f"core {core_at(block, channel, whole_block, int(at[lost]))} has no rule for a packet of colour"
            f" {colour[lost]} from the {PORT_NAMES[port[lost]]}"
            + (f"; its rule takes that colour from {ports(rule)} only" if rule else "; its table lacks that colour")
        )
    return np.asarray(leaves[colour, at])


def next_core(
    block: Cores, channel: Channel, whole_block: bool, way: int, at: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(core after a hop, is it inside the block, position along the edge that is crossed where it is not)."""
    mesh = block.mesh
    if not whole_block and channel.axis is not None:
        to = at + sum(STEP[way])
        return to, (to >= 0) & (to < mesh.block_length(channel.axis)), np.zeros(len(at), np.int64)
    y, x = np.divmod(at, mesh.block_width)
    edge = y if way in (EAST, WEST) else x
    x, y = x + STEP[way][0], y + STEP[way][1]
    inside = (x >= 0) & (x < mesh.block_width) & (y >= 0) & (y < mesh.block_height)
    return y * mesh.block_width + x, inside, edge


def edge_core(block: Cores, channel: Channel, whole_block: bool, port: int, edge: np.ndarray) -> np.ndarray:
    """The cores behind that edge of the block at which packets come in."""
    width, height = block.mesh.block_width, block.mesh.block_height
    if not whole_block and channel.axis is not None:
        last = block.mesh.block_length(channel.axis) - 1
        return np.full(len(edge), last if port in (EAST, SOUTH) else 0)
    if port in (EAST, WEST):
        return np.asarray(edge * width + (width - 1 if port == EAST else 0))
    return np.asarray(edge + (width * (height - 1) if port == SOUTH else 0))


def core_at(block: Cores, channel: Channel, whole_block: bool, at: int) -> tuple[int, int]:
    """(x, y) on the mesh of a core of a trace."""
    mesh = block.mesh
    if whole_block or channel.axis is None:
        y, x = divmod(at, mesh.block_width)
    else:
        line = int(line_indices(block, channel)[0])
        x, y = (at, line) if channel.axis == "x" else (line, at)
    return mesh.x0 + x, mesh.y0 + y
