"""Replaying a schedule: headers of packets meet links and ramps, tick by tick, and ride to other ranks."""

from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt.lane import Buffer, Landing, Lane, Run, RunStep, new_landing

if TYPE_CHECKING:
    from meshrt.block import Block

KEPT = 64 * 1024  # bytes of headers that a lane keeps to itself, with views of them; more is shared by all lanes


class Arrival:
    """What a lane delivers in a transfer: times, and on demand the paths."""

    __slots__ = ("has_path", "landing", "lane", "over")

    def __init__(self, lane: Lane, landing: Landing) -> None:
        self.lane, self.landing = lane, landing
        self.has_path = False
        self.over = False  # all cores have waited for it

    def end(self, block: "Block") -> None:
        """Nobody waits for it any more."""
        self.over = True
        block.clock.under_way.pop(id(self), None)
        if self.landing.memory.nbytes <= KEPT:
            self.lane.spare.append(self.landing)
        else:
            block.clock.give_back(self.landing.memory)

    def take_path(self) -> None:
        """Copy the paths of the packets from where they were when those left, and add their hops."""
        if self.has_path:
            return
        self.has_path = True
        for there, (source, hops) in zip(self.landing.paths, self.lane.paths, strict=True):
            if there.view is None:
                there.put(source.get() + hops)
            else:
                np.add(source.get(), hops, out=there.view)


def replay(
    block: "Block", lane: Lane, own: np.ndarray | None, busy: float, taking: float, stream: bool
) -> tuple[Arrival | None, list[Any]]:
    """Move the packets of a lane: (what is delivered and when, requests of messages sent).

    `own` are the tiles [lines, length, *tile] that messages take along, None without payloads. A packet keeps links
    busy for `busy` cycles and the ramp that delivers it for `taking`; with `stream` it arrives with its head.
    """
    plan, alpha = lane.plan, block.device.alpha
    pending: list[Any] = []
    landing = lane.spare.pop() if lane.spare else new_landing(block, lane)
    put_down = iter(landing.ends)
    for run in lane.runs:
        _leave(run, busy)
        for step in run.steps:
            _move(run, step, busy, alpha)
            for message in step.sends:
                _load(lane, message, own)
                pending.append(block.comm.Isend(message.spec, message.rank, plan.tag))
            for message in step.recvs:
                block.watch.waiting(message.rank, message.note)
                block.wait(block.comm.Irecv(message.spec, message.rank, plan.tag))
                block.watch.moving()
                message.slots.put(message.time)
            for time, free in step.ends:
                there = next(put_down)
                if taking:
                    np.maximum(time, free, out=there)
                    np.add(there, taking, out=free)
                    if not stream:
                        np.add(there, busy, out=there)
                else:
                    there[...] = time
            if step.odd_ends:
                _arrive(run, step, landing.time[run.lines], busy, taking, stream)
    if not plan.count:
        lane.spare.append(landing)
        return None, pending
    arrival = Arrival(lane, landing)
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


def _move(run: Run, step: RunStep, busy: float, alpha: float) -> None:
    """Packets move by a hop: each leaves a router when the link is free, and keeps it busy."""
    for parents, copies in step.branches:
        run.time[:, copies] = run.time[:, parents]
    if busy:
        for time, free in step.moves:
            np.maximum(time, free, out=time)
            np.add(time, busy, out=free)
    for time in step.under_way:
        np.add(time, alpha, out=time)
    for slots, links, at in step.odd_moves:
        start = run.time[:, slots]
        if busy:
            start = np.maximum(start, links[:, at])
            links[:, at] = start + busy
        run.time[:, slots] = start + alpha
    for slots, late in step.detours:
        run.time[:, slots] += late


def _load(lane: Lane, message: Buffer, own: np.ndarray | None) -> None:
    """Fill a message: headers with the paths of the sources, and tiles."""
    message.time[...] = message.slots.get()
    for there, source in message.paths:
        there.put(source.get())
    if own is not None:
        for part in message.parts:
            tiles = own if part.message < 0 else lane.received[part.message].tiles
            message.tiles[:, part.to] = tiles[:, part.source]


def _arrive(run: Run, step: RunStep, landing: np.ndarray, busy: float, taking: float, stream: bool) -> None:
    """Packets for cores that are not evenly spaced are delivered by the ramps."""
    for slots, at, number in step.odd_ends:
        start = run.time[:, slots]
        if taking:
            start = np.maximum(start, run.ramp_in[:, at])
            run.ramp_in[:, at] = start + taking
        landing[:, number] = start if stream else start + busy
