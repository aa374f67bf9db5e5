"""Every message of a run on a mesh with what it waited for, for simulators of networks (`--goal`, `--chakra`).

A core is a member of the group; what it did is a chain: it computes, waits for a packet, goes on. A packet leaves
when the chain has come to where it is sent, behind the one sent before, and the chain does not wait for it. A packet
for many is a message to each; one that software sends on is a message of each leg; an exchange's, one of each hop. That
all cores meet where a phase begins has no message and is left out.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from itertools import zip_longest
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.groups.operations import CALC, RECEIVE, SEND, Operation, chakra, goal
from meshrt.mesh.clock import AGAIN, TIME, Clock
from meshrt.mesh.device import Device
from meshrt.mesh.exchange.itinerary import Itinerary
from meshrt.mesh.exchange.legs import REQUEST_BYTES, Legs, Transfer, ways
from meshrt.mesh.look.pairs import numbers, senders_and_receivers
from meshrt.mesh.mesh import Mesh
from meshrt.ranks.control import Control
from meshrt.ranks.files import write_file
from meshrt.records import dataclass

if TYPE_CHECKING:
    from meshrt.mesh.wires.lines import View
    from meshrt.mesh.wires.schedule import Schedule

EXCHANGE = "exchange"
MOST = 1 << 25  # cores times transfers of a run
WORK = ("computes", "relays or adds a packet", "runs software on packets")
MANY = 1 << 14  # members of whom each has a Chakra file


@dataclass(eq=False)
class Messages:
    """Of a run: where they are to be written, and what is noted of the cores that have moved anything.

    Those of one mesh: a run on several meshes of a wafer has no one group whose members these cores were.
    """

    goal_path: str | None
    chakra_path: str | None
    noted: "BlockMessages | None" = None

    def watch(self, mesh: Mesh, clock: Clock) -> None:
        """Look at the block of this clock."""
        noted, before = BlockMessages(self, mesh, clock), clock.seen

        def seen(name: str, *more: Any, **named: Any) -> None:
            noted.note(name)
            if before is not None:
                before(name, *more, **named)

        clock.seen, clock.messages = seen, noted
        if self.noted is None:
            self.noted = noted

    @property
    def options(self) -> str:
        """Those that asked for messages, for what is said of them."""
        named = (("--goal", self.goal_path), ("--chakra", self.chakra_path))
        return " and ".join(option for option, path in named if path is not None)


@dataclass(eq=False)
class BlockMessages:
    """What the cores of one block did, in order.

    `done` has (what, more): CALC, cycles of each core; SEND, a transfer with senders and receivers here; RECEIVE, which
    of these wait; an exchange's transfers.
    """

    messages: Messages
    mesh: Mesh
    clock: Clock
    done: list[tuple[str, Any]] = field(default_factory=list)
    count: int = 0  # transfers so far, the same on all ranks
    last: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.last = self.clock.state[TIME].copy()

    def note(self, name: str) -> None:
        """Clocks may have gone on, and this is why. UsageError where a part of the run stands for others."""
        if name.endswith(AGAIN):
            raise UsageError(
                f"{self.messages.options}: every message is written, and a part of this run stands for others; leave"
                " --layers-run, --steps-run and their like away, or run with numbers (--payload full)"
            )
        now = self.clock.state[TIME]
        if name in WORK:
            cycles = now - self.last
            if self.done and self.done[-1][0] == CALC:
                self.done[-1][1][...] += cycles
            else:
                self.done.append((CALC, cycles))
        self.last = now.copy()

    def send(self, schedule: "Schedule", views: "Sequence[View]", nbytes: int) -> int:
        """A transfer: its number. UsageError where the run has too many, or other cores moved something before."""
        self._counts()
        pairs = [senders_and_receivers(self.mesh, schedule, view) for view in views] if schedule.count else []
        senders, receivers = (
            np.concatenate([np.zeros(0, int), *(pair[at].ravel() for pair in pairs)]) for at in (0, 1)
        )
        self.done.append((SEND, (self.count, senders, receivers, nbytes)))
        return self.count

    def wait(self, number: int, lane: Any, chosen: np.ndarray | None = None) -> None:
        """Receivers of a `Lane` wait for its packets: all, or those (bool [packets])."""
        receivers = lane.view.of(numbers(self.mesh))[:, lane.schedule.delivered]
        self.done.append((RECEIVE, (number, receivers if chosen is None else receivers[:, chosen])))

    def exchange(self, transfers: Sequence[Transfer]) -> None:
        """Transfers between any cores, all at once. UsageError as `send`."""
        self._counts()
        parts = [
            (
                transfer.axis,
                np.asarray(transfer.owners),
                transfer.asks,
                int(np.prod(transfer.tiles.shape[2:])) * transfer.tiles.itemsize,
            )
            for transfer in transfers
        ]
        self.done.append((EXCHANGE, (self.count, parts)))

    def _counts(self) -> None:
        whole = self.messages
        if whole.noted is not self:
            if whole.noted is not None and whole.noted.count:
                raise UsageError(
                    f"{whole.options}: this run goes on on another mesh of the wafer, and the messages of one are"
                    " written; leave --regions, --decode-mesh and their like away"
                )
            whole.noted = self
        self.count += 1
        if self.count * self.mesh.width * self.mesh.height > MOST:
            raise UsageError(
                f"{whole.options}: {self.count} transfers on {self.mesh.width} x {self.mesh.height} cores are more than"
                f" {MOST} in all; take a shorter run or a smaller --mesh"
            )


def write_messages(messages: Messages, control: Control, device: Device) -> None:
    """Gather what all cores did, and write it. All ranks call it; rank 0 writes."""
    assert messages.noted is not None  # the run's first block
    shares = control.gather((messages.noted.mesh, messages.noted.done))
    if shares is None:
        return
    members = operations(shares, device)
    if messages.goal_path is not None:
        write_file("--goal", messages.goal_path, partial(_write, map(str.encode, goal(members))))
    if messages.chakra_path is not None:
        for member, its in enumerate(members):
            write_file("--chakra", f"{messages.chakra_path}.{member}.et", partial(_write, chakra(member, its)))


def _write(pieces: Iterable[bytes], stream: IO[bytes]) -> None:
    stream.writelines(pieces)


def operations(shares: Sequence[tuple[Mesh, Sequence[tuple[str, Any]]]], device: Device) -> list[list[Operation]]:
    """What each core did, y * W + x, from what all ranks have noted."""
    mesh = shares[0][0]
    to: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))  # by transfer and sender
    sender_of: dict[tuple[int, int], int] = {}  # by transfer and receiver
    for _, done in shares:
        for kind, more in done:
            if kind == SEND:
                number, senders, receivers, _ = more
                for sender, receiver in zip(senders.tolist(), receivers.tolist(), strict=True):
                    to[number][sender].append(receiver)
                    sender_of[number, receiver] = sender
    chains = [_Chain(1e9 / device.clock_hz) for _ in range(mesh.width * mesh.height)]
    waits: dict[tuple[int, int], int] = {}  # bytes of packets that nobody has waited for, by transfer and receiver
    tags: dict[int, int] = {}  # the first of each transfer
    tag = 0
    exchanges: dict[int, Mapping[int, Sequence[Callable[[_Chain], None]]]] = {}
    for kind, more in shares[0][1]:
        if kind in (SEND, EXCHANGE):
            tags[more[0]] = tag
            tag += 1
        if kind == EXCHANGE:
            exchanges[more[0]], rounds = _hops(mesh, more[1], device, tag - 1)
            tag += rounds
    for block, done in shares:
        cores = numbers(block).ravel().tolist()
        inside = set(cores)
        for kind, more in done:
            if kind == CALC:
                for core, cycles in zip(cores, more.ravel().tolist(), strict=True):
                    chains[core].pending += cycles
            elif kind == SEND:
                number, _, receivers, nbytes = more
                for sender in sorted(to[number].keys() & inside):
                    for receiver in sorted(to[number][sender]):
                        chains[sender].send(receiver, nbytes, tags[number])
                waits.update(((number, receiver), nbytes) for receiver in receivers.tolist())
            elif kind == RECEIVE:
                number, receivers = more
                for receiver in receivers.ravel().tolist():
                    nbytes = waits.pop((number, receiver), None)
                    if nbytes is not None:
                        chains[receiver].receive(sender_of[number, receiver], nbytes, tags[number])
            else:
                for core, doing in exchanges[more[0]].items():
                    for do in doing if core in inside else ():
                        do(chains[core])
    for (number, receiver), nbytes in sorted(waits.items()):
        chains[receiver].done.append(Operation(RECEIVE, nbytes, sender_of[number, receiver], tags[number]))
    for chain in chains:
        chain.compute()
    return [chain.done for chain in chains]


class _Chain:
    """What one core does: `at` is the operation that it has come to, and `sent` the last packet that left it."""

    def __init__(self, nanoseconds: float) -> None:
        self.done: list[Operation] = []
        self.at = self.sent = -1
        self.pending = self.spent = 0.0  # cycles of work that is not entered yet; all
        self.told, self.nanoseconds = 0, nanoseconds

    def compute(self) -> None:
        """Enter the work. What is rounded off is made up for later."""
        self.spent, self.pending = self.spent + self.pending, 0.0
        whole = round(self.spent * self.nanoseconds) - self.told
        if whole > 0:
            self.told += whole
            self._go_on(Operation(CALC, whole, requires=self.at))

    def receive(self, sender: int, nbytes: int, tag: int) -> None:
        self.compute()
        self._go_on(Operation(RECEIVE, nbytes, sender, tag, self.at))

    def send(self, receiver: int, nbytes: int, tag: int) -> None:
        self.compute()
        self.done.append(Operation(SEND, nbytes, receiver, tag, self.at, self.sent))
        self.sent = len(self.done) - 1

    def _go_on(self, operation: Operation) -> None:
        self.at = len(self.done)
        self.done.append(operation)


@dataclass(frozen=True, eq=False)
class HoppingTransfer:
    """A transfer of an exchange on a `grid` of cores: the whole mesh, or along an axis one line, and all `lines` do the
    same. `came`: by line and packet the last hop so far, (core that it came from, bytes, tag).
    """

    mesh: Mesh
    axis: str | None
    grid: tuple[int, int]
    lines: int
    legs: Legs
    nbytes: int
    came: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)

    def core(self, at: int, line: int) -> int:
        """The number of a core of the grid on a line of the mesh."""
        if self.axis == "x":
            return line * self.mesh.width + at
        return at * self.mesh.width + line if self.axis == "y" else at

    def seats(self, turn: Any) -> list[int]:
        """Of the packets that hop in a round, in the order in which they do."""
        nowhere = self.grid[0] * self.grid[1]
        hop = [seat for seat in range(len(turn.before)) if turn.before[seat] != nowhere]
        return [seat for span in turn.spans for seat in hop if span.start <= seat < span.stop]


def _hopping(mesh: Mesh, axis: str | None, owners: np.ndarray, asks: bool, nbytes: int) -> HoppingTransfer:
    grid = {"x": (mesh.width, 1), "y": (1, mesh.height)}.get(axis or "", (mesh.width, mesh.height))
    lines = {"x": mesh.height, "y": mesh.width}.get(axis or "", 1)
    return HoppingTransfer(mesh, axis, grid, lines, ways(*grid, owners, asks), nbytes)


def _hops(
    mesh: Mesh, parts: Sequence[Any], device: Device, tag: int
) -> tuple[Mapping[int, Sequence[Callable[[_Chain], None]]], int]:
    """What each core does in an exchange, and how many tags that takes from this one on: one a round and transfer."""
    doing: dict[int, list[Callable[[_Chain], None]]] = defaultdict(list)
    transfers = [_hopping(mesh, *part) for part in parts]
    rounds = 0
    for turns in zip_longest(*(Itinerary(*transfer.grid, transfer.legs) for transfer in transfers)):
        moved = []  # taken over when all have hopped: a packet hops once in a round
        for transfer, turn in zip(transfers, turns, strict=True):
            rounds += 1
            for seat in () if turn is None else transfer.seats(turn):
                leg = int(turn.legs[seat])
                packet = int(transfer.legs.packets[leg])
                nbytes = transfer.nbytes if transfer.legs.tiles[leg] else REQUEST_BYTES
                for line in range(transfer.lines):
                    core, then = (transfer.core(int(at[seat]), line) for at in (turn.before, turn.after))
                    if (line, packet) in transfer.came:
                        doing[core].append(_handing(transfer.came[line, packet], device.beta))
                    doing[core].append(_sending(then, nbytes, tag + rounds))
                    moved.append((transfer, (line, packet), (core, nbytes, tag + rounds)))
        for transfer, key, hop in moved:
            transfer.came[key] = hop
    for transfer in transfers:
        for (line, packet), hop in transfer.came.items():
            doing[transfer.core(packet, line)].append(_handing(hop, 0.0))
    return doing, rounds


def _handing(hop: tuple[int, int, int], beta: float) -> Callable[[_Chain], None]:
    """A packet is in, and software of so many cycles looks at it."""

    def do(chain: _Chain) -> None:
        chain.receive(*hop)
        chain.pending += beta

    return do


def _sending(receiver: int, nbytes: int, tag: int) -> Callable[[_Chain], None]:
    return lambda chain: chain.send(receiver, nbytes, tag)
