"""Uniform stretches of a run, measured once and counted many times: the layers of a model, the steps of a loop.

A whole wafer cannot be emulated step by step in reasonable time where all steps are alike. What is counted for the
others is what was measured on one of them; whoever uses this says so in the report.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import fsum
from typing import TYPE_CHECKING

import numpy as np

from meshrt.mesh.clock import AGAIN, HOPS, STAGES, TIME, Clock
from meshrt.mesh.wires import ramps, tally

if TYPE_CHECKING:
    from meshrt.mesh.block import Block


@contextmanager
def repeated(block: "Block", times: int, since: tuple[np.ndarray, float] | None = None) -> Iterator[None]:
    """Run what is in the `with` once and count it `times` times, 1 or more: counters, link bytes and virtual time.

    The clocks of all cores that had work go on by what the last core of the mesh took, (times - 1) times more, and so
    does the path that led there. That is exact where a repetition leaves the clocks as it found them but for one shift
    of all, as equal steps do once the first few are over: run those before. `host` counts what was really done. No
    phase may begin or end inside. All ranks call it together.

    `since`: the clocks' state at an earlier moment, and how many repetitions lie between that and the end of this. The
    clocks then go on to where the mean over all cores is by so many of what they took in the mean: for steps in which
    cores are the last in turns, and of which the first ones ran only to bring the clocks to where they would be.
    """
    if times < 1:
        raise ValueError(f"a stretch is repeated once or more often, not {times} times")
    if times == 1 or not block.timed:
        yield
        return
    _settle(block)
    counters, clock, more = block.counters, block.clock, times - 1
    counted, taken, met = counters.copy(), [(until, until.copy()) for until in _taken(clock)], clock.met
    began, begin = clock.state.copy(), block.control.allreduce(clock.last(), max)
    yield
    if block.counters is not counters:
        raise ValueError("a phase began or ended in a repeated stretch; repeat inside of phases")
    block.ledger.segments[-1].sampled = True
    _settle(block)
    counters.repeat(counted, more)
    clock.path_changes()
    if since is None:
        busy, end = clock.state[TIME] != began[TIME], block.control.allreduce(clock.last(), max)
        on = [more * (end[part] - begin[part]) for part in (TIME, HOPS, STAGES)]
    else:
        moment, repetitions = since
        busy = clock.state[TIME] != moment[TIME]
        once, all_so_far = (_means(block, clock.state - then) for then in (began, moment))
        time, *path = (repetitions * each - so_far for each, so_far in zip(once, all_so_far, strict=True))
        on = [max(0.0, time), *(float(max(0, round(part))) for part in path)]
    for until, was in taken:
        until[until != was] += on[TIME]
    if clock.met != met:
        clock.met += on[TIME]
    for part in (TIME, HOPS, STAGES):
        clock.state[part][busy] += on[part]
    if clock.seen is not None:
        clock.seen(f"{more} {AGAIN}", landed=int(on[HOPS]))


def _settle(block: "Block") -> None:
    """What was put off is counted."""
    tally.settle(block)
    ramps.settle(block)


def _taken(clock: Clock) -> tuple[np.ndarray, ...]:
    """Moments until when links and ramps are taken, and those that say in which order they were."""
    return clock.link_free, clock.ramp_in, clock.ramp_out, clock.asked_at, clock.idle


def _means(block: "Block", took: np.ndarray) -> list[float]:
    """Over the cores of all ranks of [parts, bh, bw], the same however these share them out."""

    def means(ranks: list[list[list[float]]]) -> list[float]:
        cores = sum(len(rank[TIME]) for rank in ranks)
        return [fsum(number for rank in ranks for number in rank[part]) / cores for part in range(len(took))]

    averages: list[float] = block.control.allreduce(took.reshape(len(took), -1).tolist(), means)
    return averages


def sampled(block: "Block", steps: int, sample: int | None) -> Iterator[int]:
    """The steps of a loop of equal ones, 0 to steps - 1; with a sample and without payloads, only the first of them.

    The last of the sample is then counted for all that are left out. With payloads every step runs: numbers need it.
    ValueError where the sample is not 1 or more.
    """
    if sample is not None and sample < 1:
        raise ValueError(f"a sample has one step or more, not {sample}")
    if sample is None or block.payload or sample >= steps:
        yield from range(steps)
        return
    yield from range(sample - 1)
    with repeated(block, steps - sample + 1):
        yield sample - 1


def spread(block: "Block", steps: int, sample: int | None) -> Iterator[int]:
    """As `sampled`, for steps whose cost changes little by little: the sample lies evenly over the loop.

    Two steps in the middle of each of so many stretches run, the first to bring the clocks to where such a step finds
    them, and the second is counted for all others of its stretch.
    """
    if sample is not None and sample < 1:
        raise ValueError(f"a sample has one step or more, not {sample}")
    if sample is None or block.payload or 2 * sample >= steps:
        yield from range(steps)
        return
    for part in range(sample):
        low, high = steps * part // sample, steps * (part + 1) // sample
        middle = (low + high) // 2
        yield middle - 1
        with repeated(block, high - low - 1):
            yield middle


def drifting(block: "Block", steps: int, sample: int | None, period: int) -> Iterator[int]:
    """As `spread`, for steps that are alike only after a `period` of them, and in which cores are the last in turns.

    Of each stretch one to two periods run, and then one more in its middle, which is counted for all others. Where the
    sample goes on from one stretch to the next, clocks go to where such steps find them at once, which they would have
    done little by little: a stretch takes as long as so many of its last period, by the mean over the cores.
    """
    if sample is not None and sample < 1:
        raise ValueError(f"a sample has one step or more, not {sample}")
    if sample is None or block.payload or 5 * period * sample > steps:
        yield from range(steps)
        return
    for part in range(sample):
        low, high = steps * part // sample, steps * (part + 1) // sample
        before, first = period + (high - low) % period, (low + high - period) // 2
        state = block.clock.state.copy()
        yield from range(first - before, first)
        with repeated(block, (high - low - before) // period, (state, (high - low) / period)):
            yield from range(first, first + period)
