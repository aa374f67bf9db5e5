"""Who sent how much to whom (`--maps`): for two cores, or two squares of cores, the packets and their bytes.

Two ways to count. `Pairs` of packets: from the core whose ramp a packet left to each core that took it in; one that
software sends on is a packet of each leg. Of an exchange (meshrt/mesh/exchange/), whose packets software hands on at
every core, also `carried`: from the core that had a tile to the one that got it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt.mesh.mesh import STEP
from meshrt.records import dataclass

if TYPE_CHECKING:
    from meshrt.mesh.exchange.legs import Transfer
    from meshrt.mesh.look.maps import Maps
    from meshrt.mesh.mesh import Mesh
    from meshrt.mesh.wires.lines import View
    from meshrt.mesh.wires.schedule import Schedule

SQUARES = 4096  # of a mesh: cores, or of more cores squares of them, the smallest that do


@dataclass(eq=False)
class Pairs:
    """Of a mesh of width x height cores: `keys` are sender * squares + receiver, rising, of those that have anything.

    `counts`, int64 [2, pairs]: bytes, packets. A square is `side` x `side` cores; they are numbered y first.
    """

    width: int
    height: int
    keys: np.ndarray
    counts: np.ndarray

    @property
    def side(self) -> int:
        return side_of(self.width, self.height)

    @property
    def columns(self) -> int:
        return -(-self.width // self.side)

    @property
    def squares(self) -> int:
        return self.columns * -(-self.height // self.side)

    def copy(self) -> "Pairs":
        return Pairs(self.width, self.height, self.keys, self.counts)  # neither is ever written to

    def keys_of(self, senders: np.ndarray, receivers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The keys of pairs of cores y * W + x, int arrays of one shape, and how often each is there."""
        sender, receiver = (self._square(cores) for cores in (senders, receivers))
        keys, (_, often) = _summed((sender * self.squares + receiver).ravel(), np.ones((2, senders.size), np.int64))
        return keys, often

    def add(self, parts: "Sequence[tuple[np.ndarray, np.ndarray | int, int]]") -> None:
        """So many more packets, each of so many bytes, of pairs with these keys."""
        keys = [self.keys, *(keys for keys, *_ in parts)]
        packets = [np.broadcast_to(often, part_keys.shape) for part_keys, often, _ in parts]
        sizes = [often * nbytes for often, (*_, nbytes) in zip(packets, parts, strict=True)]
        counts = [self.counts, *(np.stack(both) for both in zip(sizes, packets, strict=True))]
        self.keys, self.counts = _summed(np.concatenate(keys), np.concatenate(counts, axis=1))

    def repeat(self, before: "Pairs | None", more: int) -> None:
        """Count what has been added since `before` so many times more."""
        counts = (1 + more) * self.counts
        if before is not None:
            counts[:, np.searchsorted(self.keys, before.keys)] -= more * before.counts
        self.counts = counts

    def table(self) -> np.ndarray:
        """int64 [pairs, 4]: sender, receiver, bytes, packets."""
        return np.stack([*np.divmod(self.keys, self.squares), *self.counts], axis=1)

    def _square(self, cores: np.ndarray) -> np.ndarray:
        y, x = np.divmod(cores, self.width)
        return np.asarray(y // self.side * self.columns + x // self.side, np.int64)


def side_of(width: int, height: int) -> int:
    """Of the squares that a mesh of so many cores is cut into, so that there are SQUARES at most."""
    side = 1
    while -(-width // side) * -(-height // side) > SQUARES:
        side += 1
    return side


def new_pairs(mesh: "Mesh") -> Pairs:
    """Nobody has sent anything."""
    return Pairs(mesh.width, mesh.height, np.zeros(0, np.int64), np.zeros((2, 0), np.int64))


def merged(mesh: "Mesh", parts: "Sequence[Pairs]") -> Pairs:
    """Those of several ranks, or segments, as one."""
    every = [new_pairs(mesh), *parts]
    keys, counts = (
        np.concatenate([part.keys for part in every]),
        np.concatenate([part.counts for part in every], axis=1),
    )
    return Pairs(mesh.width, mesh.height, *_summed(keys, counts))


def _summed(keys: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each key once, rising, with the sums of its columns."""
    if not len(keys):
        return keys, counts
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    return keys[first], np.add.reduceat(counts[:, order], first, axis=1)


def of_schedule(pairs: Pairs, mesh: "Mesh", schedule: "Schedule", view: "View") -> tuple[np.ndarray, np.ndarray]:
    """`keys_of` all that a transfer brings to cores of this block, on the lines of a view."""
    key = view, Pairs
    entry: Any = schedule.cache.get(key)
    if entry is None:
        entry = schedule.cache[key] = pairs.keys_of(*senders_and_receivers(mesh, schedule, view))
    return entry  # type: ignore[no-any-return]  # kept under this key alone


def senders_and_receivers(mesh: "Mesh", schedule: "Schedule", view: "View") -> tuple[np.ndarray, np.ndarray]:
    """The cores y * W + x of the mesh, int [lines, packets], that packets for this block are from and for."""
    assert schedule.origins is not None
    receivers = view.of(numbers(mesh))[:, schedule.delivered]
    along = schedule.origins[None]
    if view.axis == "x":
        return receivers // mesh.width * mesh.width + along, receivers
    return (along * mesh.width + receivers % mesh.width if view.axis == "y" else along), receivers


def numbers(mesh: "Mesh") -> np.ndarray:
    """The cores of this block, int [bh, bw]: y * W + x each."""
    rows = np.arange(mesh.y0, mesh.y0 + mesh.block_height)[:, None] * mesh.width
    return np.asarray(rows + np.arange(mesh.x0, mesh.x0 + mesh.block_width))


def handed_on(pairs: Pairs, mesh: "Mesh", maps: "Maps") -> Pairs:
    """And the packets that software of exchanges handed to the next core."""
    keys, counts = [pairs.keys], [pairs.counts]
    cores = numbers(mesh)
    for port, (dx, dy) in enumerate(STEP):
        y, x = np.nonzero(maps.handed[port])
        squares = [pairs._square(number) for number in (cores[y, x], cores[y, x] + dy * mesh.width + dx)]
        keys.append(squares[0] * pairs.squares + squares[1])
        counts.append(np.stack([maps.handed_bytes[port, y, x], maps.handed[port, y, x]]))
    return Pairs(pairs.width, pairs.height, *_summed(np.concatenate(keys), np.concatenate(counts, axis=1)))


def carried(pairs: Pairs, mesh: "Mesh", transfer: "Transfer", tile_bytes: int, request_bytes: int) -> None:
    """A transfer of an exchange, for the readers of this block: tiles, and what was asked for them."""
    cores, owners = numbers(mesh), np.asarray(transfer.owners)
    if transfer.axis is None:
        owner = owners[cores]
    elif transfer.axis == "x":
        owner = cores // mesh.width * mesh.width + owners[cores % mesh.width]
    else:
        owner = owners[cores // mesh.width] * mesh.width + cores % mesh.width
    moves = owner != cores
    parts = [(*pairs.keys_of(owner[moves], cores[moves]), tile_bytes)]
    if transfer.asks:
        parts.append((*pairs.keys_of(cores[moves], owner[moves]), request_bytes))
    pairs.add(parts)
