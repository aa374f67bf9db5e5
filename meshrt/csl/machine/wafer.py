"""All cores and routers of a program: events in the order of virtual time, wavelets on their way."""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrt.csl import origin
from meshrt.csl.costs import COSTS
from meshrt.csl.errors import CslError, Deadlock, NoRoute
from meshrt.csl.host.exported import argument
from meshrt.csl.language.expressions import type_of_node
from meshrt.csl.language.functions import function
from meshrt.csl.language.image import CORE_BYTES, Image
from meshrt.csl.language.scope import Scope
from meshrt.csl.language.types import dtype
from meshrt.csl.language.values import FunctionRef
from meshrt.csl.machine import commands
from meshrt.csl.machine.blocks import NEVER, Far, WaferBlock, turns
from meshrt.csl.machine.compiled import machine_of
from meshrt.csl.machine.core import WaferCore
from meshrt.csl.machine.filters import Counter
from meshrt.csl.machine.paths import WaveletPath, walk
from meshrt.csl.machine.pending import PendingOperation
from meshrt.csl.machine.room import START, WaveletRoom
from meshrt.csl.machine.router import ACROSS, RAMP, STEPS, RouterEntry, check_switch, route
from meshrt.csl.machine.stuck import TOLD, deadlock, told
from meshrt.csl.machine.trains import NO_CHAIN, CausalChain, Train
from meshrt.errors import nearest


@dataclass(slots=True, eq=False)
class WaferCounters:
    wavelets: int = 0
    hops: int = 0
    most_hops: int = 0
    events: int = 0


class Wafer:
    def __init__(self, program: Any, seed: int | None = None, comm: Any = None):
        """`comm`: of several ranks this has the cores of its block."""
        self.program = program
        self.heap: list[tuple[float, int, int, int, int, Any, Any]] = []
        self.sequence = 0
        self.now = 0.0
        self.floor = START  # nothing happens before what happens now
        self.random = None if seed is None else random.Random(seed)
        self.counters = WaferCounters()
        self.routes: dict[tuple[int, int, int], RouterEntry] = {}
        self.paths: dict[tuple[int, int, int], WaveletPath] = {}
        self.rooms: dict[tuple[int, int], WaveletRoom] = {}
        self.blocked_on: dict[tuple[int, int, int], list[Any]] = {}
        self.to_host: dict[tuple[int, int, int], list[Any]] = {}
        for key, config in program.routes.items():
            self.routes[key] = route(config, program.route_locations[key])
        self.tasks: dict[tuple[int, int], Any] = {}
        tiles = sorted(program.tiles.items())
        for (x, y), image in tiles:
            for color, config, location in image.colors:
                entry = config if isinstance(config, RouterEntry) else route(config, location)
                self.routes[x, y, color] = (
                    RouterEntry(list(entry.positions), location=location, exact=True) if entry is config else entry
                )
        for (_, _, color), entry in self.routes.items():
            check_switch(color, entry, program.arch)
        self.cores: dict[tuple[int, int], WaferCore] = {}
        self.coded: dict[tuple[int, int], Any] = {}  # and those of other ranks
        self.numbered: dict[int, WaferCore] = {}
        self.block = None
        if comm is not None and comm.size > 1:
            self.block = WaferBlock(comm, program.size, turns(self) or seed is not None)
        mine = [self.block is None or self.block.owner(x, y) == self.block.comm.rank for (x, y), _ in tiles]
        memory = self.memory = np.zeros((sum(mine), CORE_BYTES), np.uint8)
        for number, ((x, y), image) in enumerate(tiles):
            if self.block is not None and not mine[number]:
                self.coded[x, y] = Far(number, x, y, self.block.owner(x, y), self.block.post)
                continue
            row = memory[len(self.cores)]
            row[: image.used] = image.memory[: image.used]
            core = self.cores[x, y] = self.coded[x, y] = self.numbered[number] = WaferCore(
                self, image, x, y, row, number
            )
            core.wake(0.0)
        if self.block is not None and self.block.apart:
            self.block.find_readers(self)
        self.machine = machine_of(self)
        if self.block is not None and not self.block.agree(self.machine is not None):
            self.machine = None

    # Time

    def at(self, time: float, do: Any, argument: Any, by: WaferCore | None = None) -> None:
        """A core does something at a time. Of equal times the order is that of cores, then of who caused it."""
        core = do.__self__
        by = core if by is None else by
        by.sequence += 1
        self.sequence += 1
        heapq.heappush(
            self.heap, (max(time, self.floor), core.number, by.number, by.sequence, self.sequence, do, argument)
        )

    def look_again(self, core: WaferCore, time: float, by: int) -> None:
        """Room was made at another core."""
        self.sequence += 1
        heapq.heappush(self.heap, (max(time, self.floor), core.number, by, 0, self.sequence, core.poll, None))

    def settle(self) -> None:
        """Go on until nothing happens any more."""
        for room in self.rooms.values():
            room.forget()
        for core in self.cores.values():
            core.flying.clear()
            core.causes.clear()
        if self.machine is not None and (self.heap or self.block) and not self.machine.settle(self):
            self.machine = None  # Python goes on
        if self.block is None or not self.block.apart:
            self._window(NEVER)
        else:
            while (until := self.block.meet(self)) < NEVER:
                self._window(until)
        self.floor = START

    def _window(self, until: float) -> None:
        """All events before a time."""
        heap = self.heap
        with np.errstate(all="ignore"):
            while heap and heap[0][0] < until:
                time, _, _, _, _, do, argument = heapq.heappop(heap)
                self.now = self.floor = time
                self.counters.events += 1
                do(time, argument)

    def arrives(self, number: int, color: int, by: int, order: int, train: Train) -> None:
        """Wavelets that another rank has sent."""
        self.sequence += 1
        come = self.numbered[number].come
        heapq.heappush(self.heap, (train.head, number, by, order, self.sequence, come, (color, train)))

    def hears(self, number: int, color: int, now: float, free: int, time: float) -> None:
        """What room there is at a core of another rank."""
        for core, then in self.rooms.setdefault((number, color), WaveletRoom()).note(now, free, time):
            self.look_again(core, then, number)

    def pick(self, due: list[Any]) -> Any:
        """Which of several ready tasks: the longest ready, of these the lowest number; any where a seed says so."""
        return due[0] if self.random is None else self.random.choice(due)

    def task(self, image: Image, number: int) -> Any:
        """Name, Python and parameters' types of a task."""
        key = (id(image), number)
        if key not in self.tasks:
            ref = image.tasks.get(number)
            if ref is None:
                raise CslError(f"task {number} is activated and no task has that number")
            python = function(ref, image, [])
            scope = Scope(ref.module)
            kinds = [dtype(type_of_node(kind, scope)) for _, kind, _ in ref.node.parameters]
            self.tasks[key] = (ref.node.name, image.space[python], kinds)
        return self.tasks[key]

    # Wavelets

    def path(self, x: int, y: int, color: int) -> WaveletPath:
        """Walk the routers' entries from a core's ramp. NoRoute."""
        key = (x, y, color)
        path = self.paths.get(key)
        if path is None:
            path = self.paths[key] = walk(self.routes, self.coded, self.program.size, x, y, color)
        return path

    def room(self, core: WaferCore, color: int, pending: PendingOperation, count: int) -> int:
        """How many wavelets the way and the queues at its ends take now; if none, who has to be told."""
        if color in core.image.to_host and (core.x, core.y, color) not in self.routes:
            return count
        path = self._path_of(core, color)
        if path.held is not None:
            self.blocked_on.setdefault(path.held, []).append(core)
            return 0
        for end, hops, end_color in path.cores:
            room, later = self.room_at(end, end_color), hops * COSTS.hop
            waits = 0 if self.routes[end.x, end.y, end_color].exact else COSTS.queue + 2 * hops
            free = waits + room.known(self.now, later) - core.in_flight((color, end.number, end_color), self.now, later)
            if free <= 0:
                again = room.wait(core, self.now, later)
                if again is not None:
                    self.look_again(core, again, end.number)
            count = min(count, free)
        return max(0, count)

    def room_at(self, core: WaferCore | Far, color: int) -> WaveletRoom:
        key = (core.number, color)
        if key not in self.rooms:
            self.rooms[key] = WaveletRoom()
        return self.rooms[key]

    def _path_of(self, core: WaferCore, color: int) -> WaveletPath:
        try:
            return self.path(core.x, core.y, color)
        except NoRoute as error:
            raise NoRoute(
                f"{error} (sent by core ({core.x}, {core.y}), {origin.location(core, origin.where())})"
            ) from None

    def send(
        self, core: WaferCore, color: int, data: Any, head: float, gap: float, control: bool, chain: CausalChain
    ) -> None:
        """Wavelets from a core's ramp to where its routers say; `chain` is what they come from."""
        count = len(data)
        self.counters.wavelets += count
        head = max(head, core.sent.get(color, 0.0), self.now)
        core.sent[color] = head + gap * count
        if color in core.image.to_host and (core.x, core.y, color) not in self.routes:
            self.to_host.setdefault((core.x, core.y, color), []).append((head, data))
            return
        path = self._path_of(core, color)
        self.counters.hops += count * max(0, len(path.routers) - 1)
        self.counters.most_hops = max(self.counters.most_hops, path.hops)
        if control:
            for at in range(count):
                self._control(core, color, data[at : at + 1], head + gap * at, chain)
            return
        for end, hops, end_color in path.cores:
            kept, entry = data, self.routes[end.x, end.y, end_color]
            if entry.filter is not None:
                kept = data[[entry.filter.passes(int(wavelet)) for wavelet in data]]
            if len(kept):
                came = CausalChain(chain.hops + hops, chain.stages + 1)
                train = Train(head + COSTS.ramp + hops * COSTS.hop, gap, kept, False, came)
                core.flying.setdefault((color, end.number, end_color), deque()).append((train.head, len(kept)))
                end.deliver(end_color, train, core)

    def _control(self, core: WaferCore, color: int, data: Any, head: float, chain: CausalChain) -> None:
        """A control wavelet: it goes by the positions as they are, and turns the switches it has passed."""
        self._path_of(core, color)
        ahead = [(core.x, core.y, RAMP, 0, color, int(data[0]))]
        turned: list[tuple[tuple[int, int, int], str, float]] = []
        while ahead:
            x, y, _, hops, color, raw = ahead.pop(0)
            entry = self.routes[x, y, color]
            command, silent = commands.first(raw)
            onward = raw
            if entry.pops(command):
                onward = commands.pop(raw)
            for out in sorted(entry.tx):
                if out != RAMP:
                    dx, dy = STEPS[out]
                    swaps = (entry.swap_x and dx) or (entry.swap_y and dy)
                    ahead.append((x + dx, y + dy, ACROSS[out], hops + 1, color ^ 1 if swaps else color, onward))
                elif not silent and (entry.filter is None or entry.filter.passes(raw, control=True)):
                    word = np.array([raw], np.uint32)
                    came = CausalChain(chain.hops + hops, chain.stages + 1)
                    train = Train(head + COSTS.ramp + hops * COSTS.hop, 0.0, word, True, came)
                    self.coded[x, y].deliver(color, train, core)
            turned.append(((x, y, color), command, head + hops * COSTS.hop))
        for key, command, time in turned:
            if command == "TEARDOWN":
                self._tear_down(key, time)
            else:
                self._turn(key, command, time)

    def _tear_down(self, key: tuple[int, int, int], time: float) -> None:
        """A router takes nothing more of a colour until its tile says so; the tile's handler of that colour runs."""
        x, y, color = key
        entry, core = self.routes[key], self.cores[x, y]
        if color not in core.image.teardown:
            raise CslError(f"{entry.location}: a teardown comes to router ({x}, {y}), whose tile has no handler for"
                           f" colour {color}: @set_teardown_handler gives it one")  # fmt: skip
        entry.torn = True
        self._forget(key)
        self.at(time, core.effect, (core.image.teardown[color], None, NO_CHAIN))

    def rewrite(self, core: WaferCore, change: str, color: Any, *arguments: Any) -> None:
        """A tile changes the entry of its own router. CslError."""
        key = (core.x, core.y, int(color))
        if key not in self.routes and change != "reset":
            raise origin.failed(core, f"colour {int(color)} has no routes here: reset_routes gives it some")
        entry = self.routes.setdefault(
            key, RouterEntry([(frozenset(), frozenset())], location=origin.location(core, origin.where()))
        )
        entry.changes = True
        try:
            getattr(entry, change)(*arguments)
        except ValueError as error:
            raise origin.failed(core, f"colour {int(color)}: {error}") from None
        self._forget(key)

    def refilter(self, core: WaferCore, field: str, number: Any, value: Any) -> None:
        """A tile sets a counter filter of its own router, which has its colour's number. CslError."""
        entry = self.routes.get((core.x, core.y, int(number)))
        if entry is None or not isinstance(entry.filter, Counter):
            raise origin.failed(core, f"colour {int(number)} has no counter filter here")
        setattr(entry.filter, field, int(value))

    def set_route(self, core: WaferCore, color: int, rx: frozenset[int], tx: frozenset[int]) -> None:
        """A library writes the first position of its core's entry."""
        key = (core.x, core.y, color)
        self.routes[key].positions[0] = (rx, tx)
        self._forget(key)

    def turn(self, core: WaferCore, color: int, command: str, time: float) -> None:
        self._turn((core.x, core.y, color), command, time)

    def _turn(self, key: tuple[int, int, int], command: str, time: float) -> None:
        entry = self.routes.get(key)
        if entry is not None and entry.turn(command):
            self._forget(key)

    def _forget(self, key: tuple[int, int, int]) -> None:
        """A router has changed: paths of its colour are walked anew, and who waited for it looks again."""
        for path_key in [path for path in self.paths if path[2] == key[2]]:
            del self.paths[path_key]
        for core in self.blocked_on.pop(key, []):
            self.at(self.now, core.poll, None)

    # The host's side

    def launch(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Call an exported function on all cores that have it. CslError."""
        images = {id(image): image for image in self.program.tiles.values()}.values()
        names = {
            key
            for image in images
            for key, exported in image.exports.items()
            if isinstance(exported.value, FunctionRef)
        }
        if name not in names:
            hint = nearest(name, sorted(names), f"there are {', '.join(sorted(names)) or 'none'}")
            raise CslError(f"no core exports a function {name!r}: {hint}")
        for core in self.cores.values():
            exported = core.image.exports.get(name)
            if exported is None or not isinstance(exported.value, FunctionRef):
                continue
            ref = exported.value
            python = function(ref, core.image, [])
            scope = Scope(ref.module)
            kinds = [type_of_node(kind, scope) for _, kind, _ in ref.node.parameters]
            if len(kinds) != len(arguments):
                raise CslError(f"{name} takes {len(kinds)} arguments, the host gives {len(arguments)}")
            given = tuple(argument(name, value, kind) for value, kind in zip(arguments, kinds, strict=True))
            core.commands.append((core.image.space[python], given))
            core.wake(core.t)

    def idle(self) -> None:
        """Settle; all cores are then ready for the host's next command. Deadlock."""
        self.settle()
        stuck = [core for core in self.cores.values() if not core.open or core.commands]
        counted = [(len(stuck), [(core.number, told(core)) for core in stuck[:TOLD]])]
        if self.block is not None:
            counted = self.block.comm.allgather(counted[0])
        count = sum(number for number, _ in counted)
        if count:
            lines = [line for _, line in sorted(numbered for _, part in counted for numbered in part)]
            raise Deadlock(deadlock(count, len(self.coded), lines))
