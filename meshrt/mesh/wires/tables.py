"""The routers' tables: colour -> (ports in, ports out), bounded, and how routes get their colours."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any, Protocol

import numpy as np

from meshrt.errors import LimitError, RouteError, UsageError
from meshrt.mesh.device import COLOURS, Device
from meshrt.mesh.mesh import Mesh
from meshrt.mesh.wires.masks import Masks, grown, new_masks, set_entries
from meshrt.mesh.wires.routes import LinePattern, Route, along_lines, over_mesh, path_entries
from meshrt.records import dataclass

AT_ONCE = 64 * 1024  # entries that are written together: their positions take twenty times their memory
LEFT = -1  # the epoch of a channel whose routes are no longer installed


@dataclass(eq=False)
class Tables:
    """The tables of this rank's routers, and the book of colours in use on the whole mesh.

    Every rank makes the same installations in the same order, so every rank's book is the same and colours agree
    without a message. A packet never looks into the book: it is moved by the tables of the routers that it meets.
    """

    mesh: Mesh
    device: Device
    enters: Masks = field(init=False)  # [colours, bh, bw]: ports that a packet may come in by
    leaves: Masks = field(init=False)  # and those that it leaves by
    book: np.ndarray = field(init=False)  # bool [colours, H, W]
    entries: np.ndarray = field(init=False)  # int32 [bh, bw], entries in use now
    peak: int = 0  # most entries that any router of the block has held
    most: np.ndarray | None = None  # int64 [bh, bw], of each router, where somebody wants to look at it
    installs: int = 0  # route sets so far; numbers them
    epoch: int = 0  # grows when an entry is changed by hand, and with all later changes: older schedules are not valid

    def __post_init__(self) -> None:
        mesh, colours = self.mesh, self.device.route_entries or 8
        shape = colours, mesh.block_height, mesh.block_width
        self.enters, self.leaves = new_masks(shape), new_masks(shape)
        self.book = np.zeros((colours, mesh.height, mesh.width), bool)
        self.entries = np.zeros((mesh.block_height, mesh.block_width), np.int32)

    @property
    def limit(self) -> int:
        return COLOURS if self.device.route_entries is None else self.device.route_entries


@dataclass(frozen=True, eq=False)
class Channel:
    """Installed routes of one pattern: on every line of an axis (or of those in `lines`), or, without an axis, paths.

    `sources` are positions along the line (flat core numbers y * W + x for paths), each with its route's colour.
    """

    axis: str | None
    length: int
    lines: np.ndarray | None  # bool [lines of the axis]; None: all of them
    sources: np.ndarray  # int32 [routes]
    colours: np.ndarray  # uint8 [routes]
    number: int  # the same on every rank
    links: np.ndarray  # bool [5, length]: does a route leave the router at that position by that port? The ramp too
    longest: int  # routers on the longest route, as it was installed
    cache: dict[Any, Any] = field(default_factory=dict)  # compiled schedules


class HasTables(Protocol):
    """A block of cores, to those who know of its tables alone."""

    @property
    def tables(self) -> Tables: ...


@contextmanager
def installed(
    block: HasTables,
    axis: str | None,
    routes: Sequence[Route] | Sequence[Sequence[tuple[int, int]]] | LinePattern,
    *more: Any,
    lines: np.ndarray | None = None,
) -> Iterator[Channel]:
    """Routes along every line of the axis, or those in `lines` (bool), in the block's tables until `with` is left.

    `routes` is a pattern, with what it takes besides a line's length: `installed(block, "x", chain, -1)`; or `Route`s;
    or, with no axis, paths over the mesh, which may turn: each is the (x, y) of all cores on its way.

    Routes that share no router share a colour. LimitError where a table would be over its limit, UsageError for what is
    no line of the mesh, or lies beside it.
    """
    tables, mesh = block.tables, block.tables.mesh
    if axis is None:
        paths = over_mesh(mesh, routes, more, lines)
        sources = [y * mesh.width + x for (x, y), *_ in paths]
        parts = [path_entries(path, mesh.width) for path in paths]
    else:
        on_lines = along_lines(mesh, axis, routes, more, lines)
        sources, parts = [route.source for route in on_lines], [route.entries(axis) for route in on_lines]
    with _install(tables, axis, sources, parts, lines) as channel:
        yield channel


Entries = tuple[np.ndarray, np.ndarray, np.ndarray]


@contextmanager
def _install(
    tables: Tables, axis: str | None, sources: list[int], parts: list[Entries], lines: np.ndarray | None
) -> Iterator[Channel]:
    mesh = tables.mesh
    length = mesh.width * mesh.height if axis is None else mesh.length(axis)
    colours = choose_colours(tables, axis, lines, [at for at, _, _ in parts])
    while len(tables.book) <= max(colours, default=-1):  # only a device without a limit gets here
        for name in ("enters", "leaves"):
            setattr(tables, name, grown(getattr(tables, name)))
        tables.book = np.concatenate([tables.book, np.zeros_like(tables.book)])
    written = [(colour, *part) for colour, part in zip(colours, parts, strict=True)]
    _write(tables, axis, lines, written, install=True)
    tables.installs += 1
    channel = Channel(
        axis, length, lines, np.array(sources, np.int32), np.array(colours, np.uint8), tables.installs,
        _links(parts, length), max((len(at) for at, _, _ in parts), default=0),
    )  # fmt: skip
    try:
        yield channel
    finally:
        channel.cache.clear()
        channel.cache["epoch"] = LEFT
        _write(tables, axis, lines, written, install=False)


def _links(parts: list[Entries], length: int) -> np.ndarray:
    """The ports, bool [5, length], by which these routes leave routers."""
    masks = np.zeros(length, np.uint8)
    for at, _, leaves in parts:
        masks[at] |= leaves
    return np.asarray(masks >> np.arange(5, dtype=np.uint8)[:, None] & 1, bool)


def is_left(channel: Channel) -> bool:
    """Are the channel's routes in the tables no longer?"""
    return channel.cache.get("epoch") == LEFT


def check_installed(channel: Channel) -> None:
    """RouteError where the channel's routes are in the tables no longer."""
    if is_left(channel):
        raise RouteError(
            f"route set {channel.number} along {channel.axis or 'paths'} is used after its `with` block was left: its"
            " entries are gone; transfer inside the block, or install it again"
        )


def choose_colours(tables: Tables, axis: str | None, lines: np.ndarray | None, spans: list[np.ndarray]) -> list[int]:
    """The lowest colour for each route that is free at all its routers, from the low end of the line on.

    On an empty table that takes as many colours as routes meet at one router, the fewest possible. LimitError.
    """
    busy = _busy(tables, axis, lines)
    used = busy.sum(axis=0)
    for at in spans:
        used[at] += 1
    colours = [0] * len(spans)
    for index in sorted(range(len(spans)), key=lambda index: int(spans[index].min())):
        at = spans[index]
        free = np.flatnonzero(~busy[:, at].any(axis=1))
        if len(free):
            colour = int(free[0])
        elif len(busy) < tables.limit and tables.device.route_entries is None:
            colour = len(busy)
            busy = np.concatenate([busy, np.zeros_like(busy)])
        else:
            raise _table_full(tables, axis, lines, at, used)
        busy[colour, at] = True
        colours[index] = colour
    return colours


def _busy(tables: Tables, axis: str | None, lines: np.ndarray | None) -> np.ndarray:
    """bool [colours, positions]: which colours are taken on any of the lines."""
    book = tables.book
    if axis is None:
        return book.reshape(len(book), -1).copy()
    across = 1 if axis == "x" else 2
    chosen: np.ndarray = book if lines is None else book.compress(lines, axis=across)
    return np.asarray(chosen.any(axis=across))


def _table_full(
    tables: Tables, axis: str | None, lines: np.ndarray | None, at: np.ndarray, used: np.ndarray
) -> LimitError:
    worst = int(at[np.argmax(used[at])])
    line = 0 if lines is None else int(np.argmax(lines))
    core = divmod(worst, tables.mesh.width)[::-1] if axis is None else (worst, line) if axis == "x" else (line, worst)
    return LimitError(
        f"core {core} needs {max(int(used[worst]), tables.limit + 1)} route entries, the limit is {tables.limit}"
        f" (device {tables.device.name}): free routes that are no longer used, broadcast in shorter"
        " segments, or raise --route-entries"
    )


def _write(
    tables: Tables,
    axis: str | None,
    lines: np.ndarray | None,
    routes: list[tuple[int, np.ndarray, np.ndarray, np.ndarray]],
    *,
    install: bool,
) -> None:
    """Write (or clear) the routes' entries in this block's routers and in the book."""
    if not routes:
        return
    if tables.epoch:  # some were changed by hand, and these may lie where the book has none
        tables.epoch += 1
    mesh = tables.mesh
    colour = np.concatenate([np.full(len(at), colour, np.uint8) for colour, at, _, _ in routes])
    at, enters, leaves = (np.concatenate([route[part] for route in routes]) for part in (1, 2, 3))
    if axis is None:
        y, x = np.divmod(at, mesh.width)
        _enter(tables, (colour, y, x), enters, leaves, install)
    else:
        across = np.arange(mesh.height if axis == "x" else mesh.width)
        across = (across if lines is None else across[lines])[:, None]
        lines_at_once = max(1, AT_ONCE // max(1, len(at)))
        for first in range(0, len(across), lines_at_once):
            part = across[first : first + lines_at_once]
            x, y = (at[None], part) if axis == "x" else (part, at[None])
            x, y, *entries = np.broadcast_arrays(x, y, colour, enters, leaves)
            _enter(tables, (entries[0], y, x), entries[1], entries[2], install)
    tables.peak = max(tables.peak, int(tables.entries.max()))
    if tables.most is not None:
        np.maximum(tables.most, tables.entries, out=tables.most)


def _enter(
    tables: Tables, at: tuple[np.ndarray, np.ndarray, np.ndarray], enters: np.ndarray, leaves: np.ndarray, install: bool
) -> None:
    """Write the entries (ports in, ports out) at (colours, y, x) of the mesh, or clear them."""
    mesh, (colour, y, x) = tables.mesh, at
    tables.book[at] = install
    x, y = x - mesh.x0, y - mesh.y0
    inside = (x >= 0) & (x < mesh.block_width) & (y >= 0) & (y < mesh.block_height)
    _, y, x = index = colour[inside], y[inside], x[inside]
    changed = (tables.enters[index] == 0) == install
    set_entries(
        (tables.enters, tables.leaves), index, enters[inside] if install else 0, leaves[inside] if install else 0
    )
    flat = (y * mesh.block_width + x)[changed]  # a tenth of the time that two indices take
    np.add.at(tables.entries.reshape(-1), flat, np.int32(1 if install else -1))


def overwrite(tables: Tables, core: tuple[int, int], colour: int, enters: int, leaves: int) -> None:
    """Change one entry of one router by hand (0, 0 deletes it). Call it on all ranks: its owner does it. UsageError.

    The book is left alone: nobody but the packets that pass the router can notice.
    """
    mesh = tables.mesh
    if not (0 <= core[0] < mesh.width and 0 <= core[1] < mesh.height and 0 <= colour < len(tables.enters)):
        raise UsageError(
            f"colour {colour} of core {core}: the mesh has {mesh.width} x {mesh.height} cores,"
            f" and their tables colours 0 to {len(tables.enters) - 1}"
        )
    tables.epoch += 1
    x, y = core[0] - mesh.x0, core[1] - mesh.y0
    if 0 <= x < mesh.block_width and 0 <= y < mesh.block_height:
        tables.entries[y, x] += bool(enters) - bool(tables.enters[colour, y, x])
        set_entries((tables.enters, tables.leaves), (colour, y, x), enters, leaves)
