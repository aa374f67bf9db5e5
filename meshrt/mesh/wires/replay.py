"""Replaying a schedule: headers of packets meet links, tick by tick, and ride to other ranks.

Whether a link goes to the head that asks first is looked after by order.py, and made sure of by heads.py where packets
of one transfer meet; the ramps at the ends are given out when cores wait (ramps.py).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from meshrt.mesh.cores import Cores
from meshrt.mesh.wires import order
from meshrt.mesh.wires.glide import glide
from meshrt.mesh.wires.heads import Passage, Waiting
from meshrt.mesh.wires.lane import KEPT, Landing, Lane, MessageBuffer, Run, RunTick, glide_for, new_landing
from meshrt.mesh.wires.strides import strides_of

Look = Callable[[Lane, np.ndarray], None]  # told of a lane, and when its packets asked for the ramps of their cores


class Arrival:
    """What a lane delivers in a transfer: times, and on demand the paths."""

    __slots__ = ("block", "has_path", "is_served", "landing", "lane", "number", "over", "passage", "sent", "served")

    def __init__(self, block: Cores, lane: Lane, landing: Landing, passage: Passage) -> None:
        self.block, self.lane, self.landing, self.passage = block, lane, landing, passage
        self.is_served = not passage.taking  # are the ramps given out, at all cores?
        self.served: np.ndarray | None = None  # or at these, bool as landing.time; None: at no core
        self.has_path = False
        self.sent = -1  # the number of its transfer, in a run that is traced
        self.number = -1  # and in one whose messages are to be written
        self.over = False  # all cores have waited for it

    def end(self) -> None:
        """Nobody waits for it any more."""
        self.over = True
        self.block.clock.under_way.pop(id(self), None)
        put_back(self.block, self.lane, self.landing)

    def take_path(self) -> None:
        """Copy the paths of the packets from where they were when those left, and add their hops."""
        if self.has_path:
            return
        self.has_path = True
        if self.block.core is not None:
            self.block.core.replay(strides_of(self.block, self.lane).paths, self.landing.address, 0.0, 0.0, False)
            return
        for target, (source, hops) in zip(self.landing.paths, self.lane.paths, strict=True):
            if target.view is None:
                target.put(source.get() + hops)
            else:
                np.add(source.get(), hops, out=target.view)


def put_back(block: Cores, lane: Lane, landing: Landing) -> None:
    """Nobody looks at what landed any more."""
    if landing.memory.nbytes <= KEPT:
        lane.spare.append(landing)
    else:
        block.clock.give_back(landing.memory)


def can_be_at_once(block: Cores) -> bool:
    """Is nothing under way to these cores?"""
    clock = block.clock
    return not (clock.coming or clock.under_way or clock.heads) and block.core is not None


def replay(
    block: Cores, lane: Lane, own: np.ndarray | None, passage: Passage, at_once: bool = False, look: Look | None = None
) -> tuple[Arrival | None, list[Any]]:
    """Move the packets of a lane: (what is delivered and when, requests of messages sent).

    `own` are the tiles [lines, length, *tile] that messages take along, None without payloads. What a packet lands with
    is when it asks for the ramp that it is delivered by. Where heads have to wait (heads.py) only tiles are moved.
    `at_once`: cores wait for it here and now, and nothing is under way to them; there is no arrival then, and `look` is
    told when they have waited.
    """
    schedule, waiting = lane.schedule, passage.waiting
    pending: list[Any] = []
    landing = lane.spare.pop() if lane.spare else new_landing(block, lane)
    starts = []
    if block.core is not None and waiting is None:
        _replay_compiled(block, lane, own, passage, landing, pending, at_once, look)
    else:
        ahead = glide_for(block, lane)
        put_down = iter(landing.ends)
        for run in lane.runs:
            _leave(run, passage.busy)
            if waiting is not None:
                starts.append((range(lane.view.count)[run.lines], run.time.copy()))
            elif ahead is not None and glide(block, ahead, passage.busy, passage.watch, landing.time):
                break
            for tick in run.ticks:
                if waiting is None:
                    _move(block, run, tick, passage)
                for message in tick.sends:
                    _load(lane, message)
                _exchange(block, lane, tick, own, pending)
                for message in tick.recvs:
                    message.slots.put(message.time)
                for time in tick.ends:
                    next(put_down)[...] = time
                for slots, number in tick.odd_ends:
                    landing.time[run.lines][:, number] = run.time[:, slots]
    if waiting is not None:
        waiting.append(Waiting(block.clock.started, len(waiting), lane, starts, passage.busy, landing))
    if at_once or not schedule.count:
        if waiting is None:
            put_back(block, lane, landing)
        return None, pending
    arrival = Arrival(block, lane, landing, passage)
    if not arrival.is_served:
        block.clock.coming.append(arrival)
    if lane.received:  # what they bring is overwritten in the next replay
        arrival.take_path()
    else:
        block.clock.under_way[id(arrival)] = arrival.take_path
    return arrival, pending


def _leave(run: Run, busy: float) -> None:
    """Packets leave their cores by the ramp."""
    for time, cores, free in run.own:
        if busy:
            np.maximum(cores, free, out=time)
            np.add(time, busy, out=free)
        else:
            time[...] = cores
    for slots, at in run.odd_own:
        start = run.cores[:, at]
        if busy:
            start = np.maximum(start, run.ramp_out[:, at])
            run.ramp_out[:, at] = start + busy
        run.time[:, slots] = start


def _move(block: Cores, run: Run, tick: RunTick, passage: Passage) -> None:
    """Packets move by a hop: each leaves a router when the link is free, and keeps it busy."""
    busy, watch, alpha = passage.busy, passage.watch, block.device.alpha
    for parents, copies in tick.branches:
        run.time[:, copies] = run.time[:, parents]
    if busy:
        for time, free, asked_at, idle in tick.moves:
            if watch:
                order.give(block, time, busy, free, asked_at, idle)
            else:
                np.maximum(time, free, out=time)
                np.add(time, busy, out=free)
    for time in tick.under_way:
        np.add(time, alpha, out=time)
    for slots, links, asked_at, idle, at in tick.odd_moves:
        start = run.time[:, slots]
        if busy and watch:
            chosen_links = links[:, at], asked_at[:, at], idle[:, at]
            order.give(block, start, busy, *chosen_links)
            links[:, at], asked_at[:, at], idle[:, at] = chosen_links
        elif busy:
            start = np.maximum(start, links[:, at])
            links[:, at] = start + busy
        run.time[:, slots] = start + alpha
    for slots, late in tick.detours:
        run.time[:, slots] += late


def _replay_compiled(
    block: Cores, lane: Lane, own: np.ndarray | None, passage: Passage, landing: Landing, pending: list[Any],
    at_once: bool, look: Look | None,
) -> None:  # fmt: skip
    """The same by the compiled core, which does all of `_leave`, `_move` and `_load` until the next message.

    `at_once` it goes on from the last message to when all cores have waited, but for who looks at what comes between.
    """
    move, address = block.core.replay, landing.address
    pace = passage.busy, block.device.alpha, passage.watch, passage.taking, passage.tail
    strides = lane.strides[0] if lane.strides else strides_of(block, lane)
    for steps, tick in strides.at_once if at_once and look is None else strides.stretches:
        if steps and (counted := move(steps, address, *pace)):
            order.count(block, *counted)
        if tick is not None:
            _exchange(block, lane, tick, own, pending)
    if at_once and look is not None and lane.schedule.count:
        asked_at = landing.time.flatten()
        if counted := move(strides.waits, address, *pace):
            order.count(block, *counted)
        look(lane, asked_at)


def _exchange(block: Cores, lane: Lane, tick: RunTick, own: np.ndarray | None, pending: list[Any]) -> None:
    """The messages of a tick, whose headers are loaded. Requests of those that are sent are appended."""
    tag = lane.schedule.tag
    for message in tick.sends:
        if own is not None:
            for part in message.parts:
                tiles = own if part.message < 0 else lane.received[part.message].tiles
                message.tiles[:, part.to] = tiles[:, part.source]
        pending.append(block.comm.Isend(message.spec, message.rank, tag))
        block.ring(message.rank)
    for message in tick.recvs:
        request = block.comm.Irecv(message.spec, message.rank, tag)
        block.wait(request, message.rank, message.spec[0].nbytes, block.watch, message.note)


def _load(lane: Lane, message: MessageBuffer) -> None:
    """Fill the headers of a message, with the paths of the sources."""
    message.time[...] = message.slots.get()
    for target, source in message.paths:
        target.put(source.get())
