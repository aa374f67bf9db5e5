"""One core in the run: its memory, clock, tasks, operations under way, and the wavelets that wait for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from meshrt.csl import origin
from meshrt.csl.costs import COSTS
from meshrt.csl.language.image import Image
from meshrt.csl.machine.banks import RULED
from meshrt.csl.machine.blocks import NEVER
from meshrt.csl.machine.pending import PendingOperation, advance
from meshrt.csl.machine.tasks import Task, candidates, given
from meshrt.csl.machine.trains import NO_CHAIN, CausalChain, Train, available, insert, take, waiting
from meshrt.csl.machine.vectors import Fab, Fifo, FifoName

SIMPLE = ("i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4")


class WaferCore:
    """The names that the functions' Python uses: t, o, dsrs, m_*, x, y, activate, block, unblock.

    Times are in cycles. What has two arguments, a time and one more, is an event: the wafer calls it at that time.
    """

    m_uint16: Any  # its memory as words; there is one for each of SIMPLE

    def __init__(self, wafer: Any, image: Image, x: int, y: int, memory: Any, number: int):
        self.wafer, self.image, self.x, self.y = wafer, image, x, y
        self.number, self.sequence = number, 0  # which core, and how many events it has caused
        self.memory = memory
        self.nbytes = image.limit
        self.views: dict[Any, Any] = {}  # by NumPy's type and its names
        for kind in SIMPLE:
            view = memory.view(kind)
            for name in (kind, view.dtype.type, view.dtype.name):
                self.views[name] = view
            setattr(self, f"m_{view.dtype.name}", view)
        self.o = list(image.objects)
        self.dsrs = dict(image.dsrs)
        self.fifos = [Fifo(fifo.capacity, fifo.nbytes, fifo.activate_push, fifo.activate_pop) for fifo in image.fifos]
        self.t = 0.0
        self.chain = NO_CHAIN  # what `t` comes from
        self.waited = 0.0  # cycles of `t` in which it had nothing to do
        self.blocked = set(image.blocked)
        self.ready: dict[int, float] = dict.fromkeys(image.active, 0.0)
        self.causes: dict[int, tuple[float, CausalChain]] = {}  # task -> what last let it run, and when
        self.arrived: dict[int, deque[Train]] = {}
        # colour, core and colour there -> when there, how many
        self.flying: dict[tuple[int, int, int], deque[tuple[float, int]]] = {}
        self.sent: dict[int, float] = {}  # colour -> until when its queue is busy
        self.pending: list[PendingOperation] = []
        self.running: Task | None = None
        self.scheduled = False
        self.open = True  # the host's next command may come
        self.commands: deque[tuple[Any, tuple[Any, ...]]] = deque()
        self.operations = self.taken = self.tasks_run = self.conflicts = 0
        self.banked = image.arch in RULED  # where vectors lie decides what they take
        self.counted_from = 0.0  # where the program's time counter begins
        self.drawn: int | None = None  # the last random number
        self.mapping = False  # within @map
        self.trace: dict[str, list[Any]] = {}
        # colour -> number of the task that its data activates
        self.data: dict[int, int] = {}
        for number, kind in image.kinds.items():
            if kind == "data":
                color = number if image.arch == "wse2" else image.inputs.get(number, number)
                self.data[color] = number

    # What programs do

    def activate(self, number: int) -> None:
        """A task is to run; once, however often it is activated before."""
        self.ready.setdefault(int(number), self.t)
        self.wake(self.t)

    def block(self, number: int) -> None:
        """A task does not run until it is unblocked, activated or not."""
        self.blocked.add(int(number))

    def unblock(self, number: int) -> None:
        """It runs again, if it is activated or its data have come."""
        self.blocked.discard(int(number))
        self.wake(self.t)

    # Tasks

    def wake(self, time: float) -> None:
        """Look for something to do, at that time or when the core is free."""
        if self.running is None and not self.scheduled:
            self.scheduled = True
            self.wafer.at(max(time, self.t), self.run, None)

    def reads(self, pending: PendingOperation, color: int, control: bool = False) -> bool:
        """Does an operation take wavelets of a colour? `control`: and end with a control wavelet?"""
        return any(
            isinstance(source, Fab)
            and self.input_color(source) == color
            and (not control or source.on_control is not None)
            for source in pending.sources
        )

    def run(self, time: float, _: Any) -> None:
        """Event: the core is free and runs the task that may run first; the next command where none may."""
        self.scheduled = False
        if self.running is not None:
            return
        runnable = candidates(self)
        now = max(time, self.t)
        due = [task for task in runnable if task[0] <= now]
        if not due:
            if self.open and self.commands:
                self.next_command(time)
            elif runnable:
                self.scheduled = True
                self.wafer.at(min(runnable)[0], self.run, None)
            return
        _, number, color = due[0] if len(due) == 1 else self.wafer.pick(sorted(due, key=lambda task: task[:2]))
        cause, chain = self.causes.pop(number, (0.0, NO_CHAIN))
        before = self.t
        self.waited += now - before
        self.t = now + COSTS.task
        self.tasks_run += 1
        name, python, dtypes = self.wafer.task(self.image, number)
        arguments: list[Any] = []
        if color is None:
            del self.ready[number]
        else:
            raw, arrival, _, begins, _ = self.take(color, 1)
            if arrival > cause:
                cause, chain = arrival, begins
            self.note(color)
            arguments = given(raw, dtypes)
        if cause > before:
            self.chain = chain
        self.go(Task(name, python(self, *arguments)))

    def next_command(self, time: float) -> None:
        """Run what the host has called next. Others wait until it lets them."""
        function, arguments = self.commands.popleft()
        self.open = False
        self.waited += max(time, self.t) - self.t
        self.t = max(time, self.t)
        self.go(Task(function.__name__, function(self, *arguments)))

    def go(self, task: Task) -> None:
        """Run a task until it waits or ends."""
        self.running = task
        try:
            waited = next(task.generator)
        except StopIteration:
            self.running = None
            self.wake(self.t)
            return
        except (IndexError, ArithmeticError, RecursionError) as error:
            raise origin.failed_at(self, error) from error
        task.waits = waited
        if waited.over:
            self.wafer.at(waited.time, self.resume, waited)

    def resume(self, time: float, pending: PendingOperation) -> None:
        """Event: the operation that the running task waits for is over."""
        task = self.running
        if task is None or task.waits is not pending:
            return
        self.take_over(pending)
        task.waits = None
        self.go(task)

    def take_over(self, pending: PendingOperation) -> None:
        """The core has waited for an operation."""
        if pending.time > self.t:
            self.waited += max(0.0, pending.time - self.t - pending.moves)
            self.t, self.chain = pending.time, pending.chain

    # Operations

    def advance(self, pending: PendingOperation) -> None:
        """Go on with an operation as far as data and room allow."""
        while not pending.over and advance(self, pending):
            pass
        if not pending.over:
            self.meet_control(pending)

    def meet_control(self, pending: PendingOperation) -> None:
        """A control wavelet ends an operation that says so."""
        for source in pending.sources:
            if isinstance(source, Fab) and source.on_control is not None:
                trains = self.arrived.get(self.input_color(source))
                if trains and trains[0].control:
                    number = source.on_control[1]
                    _, _, final, _, ends = self.take(self.input_color(source), 1)
                    if final > pending.time:
                        pending.time, pending.chain = final, ends
                    if number is not None:
                        self.wafer.at(pending.time, self.effect, (number, None, pending.chain))
                    self.finish(pending)
                    self.note(self.input_color(source))

    def poll(self, time: float, _: Any) -> None:
        """Event: something has come or room was made: go on with what waits."""
        moved = True
        while moved:
            moved = False
            for pending in list(self.pending):
                before = pending.done
                self.advance(pending)
                moved = moved or pending.done != before
        self.wake(time)

    def finish(self, pending: PendingOperation) -> None:
        """An operation is over: what follows from that is an event at the time at which it ends."""
        pending.over = True
        self.pending.remove(pending)
        options = pending.options
        if pending.waits and self.running is not None and self.running.waits is pending:
            self.wafer.at(pending.time, self.resume, pending)
        self.wafer.at(pending.time, self.effect, (options.activate, options.unblock, pending.chain))
        if pending.then is not None:
            self.wafer.at(pending.time, self.follow, pending)

    def follow(self, time: float, pending: PendingOperation) -> None:
        """Event: a library goes on."""
        pending.then(time, pending.chain)

    def effect(self, time: float, marks: tuple[int | None, int | None, CausalChain]) -> None:
        """Event: (task to activate, task to unblock, what that comes from); None: no such task."""
        activate, unblock, chain = marks
        if activate is not None and activate not in self.ready:
            self.ready[activate] = time
            self.causes[activate] = time, chain
        if unblock is not None and unblock in self.blocked:
            self.blocked.discard(unblock)
            self.causes[unblock] = time, chain
        if activate is not None or unblock is not None:
            self.wake(time)

    # Wavelets

    def input_color(self, dsd: Fab) -> int:
        """The colour of the wavelets that an operation takes: its queue's, or its own. CslError."""
        return self._color(dsd, "input", self.image.inputs)

    def output_color(self, dsd: Fab) -> int:
        """Of those that it sends."""
        return self._color(dsd, "output", self.image.outputs)

    def _color(self, dsd: Fab, way: str, of_queues: Mapping[int, Any]) -> int:
        if dsd.queue is not None and dsd.queue in of_queues:
            return int(of_queues[dsd.queue])
        if dsd.color is None:
            raise origin.failed(self, f"{way} queue {dsd.queue} has no colour: @initialize_queue gives it one")
        return dsd.color

    def available(self, color: int) -> int:
        """Data that have come, or are on their way, before a control wavelet."""
        return available(self.arrived.get(color, ()))

    def take(self, color: int, count: int) -> tuple[Any, float, float, CausalChain, CausalChain]:
        """The next wavelets: raw, when the first and the last of them are there, and what these come from."""
        self.taken += count
        return take(self.arrived[color], count)

    def note(self, color: int) -> None:
        """Write down what room there is now; who waits for more goes on when that is known there."""
        reads = sum(pending.total - pending.done for pending in self.pending if self.reads(pending, color))
        free = reads - waiting(self.arrived.get(color, ()))
        room, now = self.wafer.room_at(self, color), self.wafer.now
        if free != room.free[-1][1]:
            time, grows = max(now, self.t), free > room.free[-1][1]
            for core, then in room.note(now, free, time):
                self.wafer.look_again(core, then, self.number)
            block = self.wafer.block
            for rank in block.readers.get((self.number, color), ()) if block else ():
                block.post(rank, ("room", self.number, color, now, free, time), time if grows else NEVER)

    def in_flight(self, to: tuple[int, int, int], now: float, later: float) -> int:
        """Wavelets sent, of which this core cannot know that they are there."""
        trains = self.flying.get(to)
        if not trains:
            return 0
        while trains and trains[0][0] + later <= now:
            trains.popleft()
        return sum(count for _, count in trains)

    def deliver(self, color: int, train: Train, by: WaferCore | None = None) -> None:
        """Wavelets are under way to this core; `by` has sent them on."""
        self.wafer.at(train.head, self.come, (color, train), by)

    def come(self, time: float, arrival: tuple[int, Train]) -> None:
        """Event: the first wavelet of a train is there."""
        color, train = arrival
        insert(self.arrived.setdefault(color, deque()), train)
        self.note(color)
        self.poll(time, None)

    # FIFOs

    def push(self, name: FifoName, data: Any, time: float, chain: CausalChain) -> None:
        """Put numbers into a FIFO; the first into an empty one may activate a task."""
        fifo = self.fifos[name.index]
        fifo.push(data, time, chain)
        if fifo.activate_push is not None and fifo.was_empty:
            self.wafer.at(time, self.effect, (fifo.activate_push, None, chain))
        fifo.was_empty = False
        self.wafer.at(time, self.poll, None)

    def pop(self, name: FifoName, count: int, time: float) -> tuple[Any, float, CausalChain]:
        """Take numbers out: they, when the last is there, and what that comes from. Room may activate a task."""
        fifo = self.fifos[name.index]
        data, final, chain = fifo.pop(count, time)
        if fifo.activate_pop is not None and fifo.was_full:
            self.wafer.at(final, self.effect, (fifo.activate_pop, None, chain))
        fifo.was_full = False
        self.wafer.at(final, self.poll, None)
        return data, final, chain
