"""When each core held most, and under which names: `CoreMemory` where somebody wants to look at it."""

from collections import Counter
from dataclasses import field

import numpy as np

from meshrt.mesh.memory import CoreMemory
from meshrt.records import dataclass

NamedBytes = tuple[tuple[str, int], ...]  # names and their bytes, of what is equal at all cores


@dataclass(frozen=True, eq=False)
class Peaks:
    """The most that each core held in a stretch of the run, int64 [bh, bw], and what it held when it first did.

    `moment` numbers what was the same at all cores then (`moments`); `apart` are names whose bytes are not the same at
    all cores. `entries`: the most entries of each router's table.
    """

    most: np.ndarray
    moment: np.ndarray
    entries: np.ndarray
    moments: dict[NamedBytes, int] = field(default_factory=dict)
    apart: dict[str, np.ndarray] = field(default_factory=dict)

    def names(self, core: tuple[int, int]) -> dict[str, int]:
        """The bytes by name of core (y, x) at its peak, most first."""
        held = Counter(dict([*self.moments][self.moment[core]]) if self.moments else {})
        for name, nbytes in self.apart.items():
            held[name] += int(nbytes[core])
        return {name: nbytes for name, nbytes in sorted(held.items(), key=lambda item: (-item[1], item[0])) if nbytes}


def new_peaks(entries: np.ndarray) -> Peaks:
    """Nothing held so far, with as many entries as there are now."""
    shape = entries.shape
    return Peaks(np.zeros(shape, np.int64), np.zeros(shape, np.int32), entries.astype(np.int64))


@dataclass(eq=False)
class NamedMemory(CoreMemory):
    """What differs from core to core stays as it is for long: for so long all cores hold most at the same moment.

    `high` is the most that was common to all cores in such a stretch, and `held` its names; they are entered in `peaks`
    when it ends.
    """

    peaks: Peaks | None = None
    high: int = -1  # nothing yet
    held: NamedBytes = ()

    def watch(self, peaks: Peaks) -> None:
        """Enter what comes from now on, and what is held now, in these."""
        self.peaks, self.high = peaks, -1
        self._rise()

    def keep(self, name: str, array: np.ndarray) -> np.ndarray:
        kept = super().keep(name, array)
        self._rise()
        return kept

    def take(self, name: str, nbytes: int | np.ndarray) -> None:
        super().take(name, nbytes)
        self._rise()

    def free(self, name: str) -> None:
        self.enter()
        super().free(name)

    def resize(self, name: str, nbytes: int | np.ndarray) -> None:
        self.enter()
        super().resize(name, nbytes)

    def _rise(self) -> None:
        if self.common > self.high:
            held = Counter({name: nbytes for name, nbytes in self.names.items() if isinstance(nbytes, int)})
            for charge in self.arrays.values():
                held[charge.name] += charge.nbytes
            self.high, self.held = self.common, tuple(sorted(held.items()))

    def _add(self, nbytes: int | np.ndarray, sign: int) -> None:
        if not isinstance(nbytes, int):
            self.enter()
        super()._add(nbytes, sign)

    def enter(self) -> None:
        """The stretch ends."""
        if self.peaks is None or self.high < 0:
            return
        peaks, now = self.peaks, self.extra + self.high
        self.high = -1
        rose = now > peaks.most
        if not rose.any():
            return
        peaks.most[rose] = now[rose]
        peaks.moment[rose] = peaks.moments.setdefault(self.held, len(peaks.moments))
        apart = {name: nbytes for name, nbytes in self.names.items() if not isinstance(nbytes, int)}
        for name in apart.keys() - peaks.apart.keys():
            peaks.apart[name] = np.zeros_like(peaks.most)
        for name, at_peak in peaks.apart.items():
            at_peak[rose] = apart[name][rose] if name in apart else 0
