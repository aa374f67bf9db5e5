"""Ladder as the paper's own tables suggest that it ran on a WSE-2 (waferllm, Tables 3 and 4): inferred, not predicted.

How Ladder was ported is not published. In its tables a layer of W weights on P x P cores takes 1.42 W + 8,200 P^2
cycles in prefill, and about 4/3 W / P + 4,000 P in decode, whatever the model is. Near that comes

    products    every operand of a step is asked for, and handed over, by eight relays over whole lines, one after the
                other: of two operands, a request along either axis and a reply along either axis. Each is core by core,
                and a task at every core sends it on (inferred.py); one of them has the tile
    sums        four such relays: the partial sums are asked for and come to the first core, each core adding its own;
                the result is asked for and comes back
    decode      a core loads each of its weights from where it lies, and waits for it: a word there and back over a
                third of a line, the mean way between two cores of it, a hop and a word at every core

Eight, four and a third are guesses at what shared memory over a mesh could mean; only what a task costs is from
elsewhere. So that this agrees with the tables proves nothing. Numbers move as in t10.py, a ring of tiles.
"""

from collections.abc import Callable
from functools import partial
from math import prod

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.exchange.exchange import Crossbar
from meshrt.mesh.repeat import repeated
from meshrt.mesh.wires import fabric, software
from meshrt.programs.mesh.baselines import inferred, t10
from meshrt.programs.mesh.baselines.groups import Groups, whole_line


def load(block: Block, bar: Crossbar, groups: Groups, moving: list[tuple[str, np.ndarray]]) -> None:
    """Every tile goes to the place before its own on its ring, the first to the last: one operand after the other."""
    for axis, tiles in moving:
        other = "y" if axis == "x" else "x"
        for way, back in ((axis, True), (other, True), (other, False)):
            relay(block, bar, groups, way, block.empty("request", (1,), np.float32), back)
        inferred.shift(block, bar, groups, [(axis, tiles)])


def relay(
    block: Block, bar: Crossbar, groups: Groups, axis: str, tiles: np.ndarray, back: bool,
    combine: Callable[..., np.ndarray] | None = None,
) -> None:  # fmt: skip
    """What the first core of every line has is handed over the whole line, in place; `back`, from the last core.

    All lines begin at once. A task at every core takes all of it in, combines it with its own if so asked, and sends
    it on.
    """
    block.meet()
    line = groups if axis == "x" else whole_line(block, axis)
    places, channel = inferred.places_of(block, line, axis), inferred.hops_along(bar, axis)[back]
    numbers, last = prod(tiles.shape[2:]), line.width - 1
    order = range(last, 0, -1) if back else range(last)
    for place in order:
        fabric.transfer(block, channel, tiles, tiles, positions=places == place, combine=combine)
        to = places == (place - 1 if back else place + 1)
        # What it combines is counted; the task's time is below.
        software.stage(block, channel, 0 if combine is None else numbers, to, stream=True, itemsize=tiles.itemsize)
        software.run(block, channel, inferred.TASK - block.device.beta + numbers, to)


def allreduce(
    block: Block, bar: Crossbar, axis: str, tiles: np.ndarray, combine: Callable[..., np.ndarray] = np.add,
    groups: Groups | None = None,
) -> np.ndarray:  # fmt: skip
    """All cores of a line, or of a group, get the combination of their tiles [bh, bw, *tile], the same to the bit."""
    groups = groups or whole_line(block, axis)
    width = groups.width if axis == "x" else block.mesh.height
    total = block.memory.keep("sum", tiles.copy())
    if width == 1:
        return total
    block.clock.software(block.device.collective_cycles)
    request = block.empty("request", (1,), np.float32)
    with block.memory.hold("incoming partial sum", total[0, 0].nbytes):
        for message, back, how in ((request, False, None), (total, True, combine), (request, True, None)):
            relay(block, bar, groups, axis, message, back, how)
    relay(block, bar, groups, axis, total, False)
    return total


def load_weights(block: Block, bar: Crossbar, weights: np.ndarray) -> None:
    """Every core loads as many weights as it has of these tiles, one after the other, each from a core of its row.

    All loads are alike: two are run, and the second is counted for the others, with payloads as well. What comes is no
    number that anybody uses: a core has its weights.
    """
    loads = prod(weights.shape[2:])
    if block.mesh.width == 1 or not loads:
        return
    word = block.empty("weight", (1,), np.float32)
    load_one(block, bar, word)
    if loads > 1:
        with repeated(block, loads - 1):
            load_one(block, bar, word)


def load_one(block: Block, bar: Crossbar, word: np.ndarray) -> None:
    """A request to a core a third of a line away, and what it answers, core by core."""
    ahead, back = inferred.hops_along(bar, "x")
    at, width = np.arange(block.mesh.width), block.mesh.width
    for channel, sends in ((back, at > 0), (ahead, at < width - 1)):
        for _ in range(-(-width // 3)):
            fabric.transfer(block, channel, word, word, positions=sends)


# C = A B and A B^T, as in t10.py, but for how tiles move.
gemm, gemm_t = partial(t10.gemm, move=load), partial(t10.gemm_t, move=load)
