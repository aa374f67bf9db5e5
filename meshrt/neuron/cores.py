"""The NeuronCores of a run, shared out over the ranks."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import ceil

from meshrt.console import Console
from meshrt.control import Control
from meshrt.errors import UsageError
from meshrt.neuron.core import NeuronCore
from meshrt.neuron.device import NeuronDevice


@dataclass
class Cores:
    """`count` NeuronCores, of which this rank hosts `mine`; a program works on those, one after the other.

    Which rank hosts a core changes nothing but the host's time. `control` is for sharing inputs and results and is not
    counted.
    """

    count: int
    device: NeuronDevice
    control: Control
    payload: bool = True
    console: Console = field(default_factory=Console)
    mine: list[NeuronCore] = field(default_factory=list)

    @contextmanager
    def phase(self, name: str, tokens: int | None = None) -> Iterator[None]:
        """Count what the hosted cores do inside by name."""
        with ExitStack() as stack:
            for core in self.mine:
                stack.enter_context(core.phase(name, tokens))
            yield

    def share(self, index: int, size: int, unit: int = 1) -> slice:
        """The part of 0..size that core `index` works on: whole units, as even as they go."""
        units = ceil(size / unit)
        return slice(
            *(min(units * at // self.count * unit, size) for at in (index, index + 1)),
        )


def make_cores(count: int, device: NeuronDevice, control: Control, rank: int, payload: bool) -> Cores:
    """`count` cores over the ranks of `control`, each rank with as many as the next or one more. UsageError."""
    ranks = control.size
    if count < 1:
        raise UsageError(f"--cores is {count}; a run has one NeuronCore at least")
    if ranks > count:
        raise UsageError(f"{ranks} ranks for {count} NeuronCores: start {count} ranks at most, or give --cores {ranks}")
    first, last = (count * at // ranks for at in (rank, rank + 1))
    mine = [NeuronCore(device, index, payload) for index in range(first, last)]
    return Cores(count, device, control, payload, mine=mine)
