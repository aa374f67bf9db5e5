"""The memory of the cores: every allocation has a name, the peak is recorded, and the limit holds."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from meshrt.device import Device
from meshrt.errors import LimitError
from meshrt.mesh import Mesh


@dataclass
class Memory:
    """What the cores of this rank's block hold, in bytes.

    Nearly all allocations are equal on all cores and are kept as one number; what differs from core to core (a cache
    that grows row by row) is kept apart.
    """

    mesh: Mesh
    device: Device
    place: str = ""  # where on the wafer, for messages
    names: dict[str, int | np.ndarray] = field(default_factory=dict)
    common: int = 0
    extra: np.ndarray = field(init=False)  # int64 [bh, bw]
    most_extra: int = 0
    peak: int = 0

    def __post_init__(self) -> None:
        self.extra = np.zeros((self.mesh.block_height, self.mesh.block_width), np.int64)

    def take(self, name: str, nbytes: int | np.ndarray) -> None:
        """Allocate nbytes at every core (an int), or so many at each ([bh, bw]). LimitError where it does not fit."""
        if name in self.names:
            raise ValueError(f"core memory already holds {name!r}; free it first, or choose another name")
        self._add(nbytes, 1)
        limit, now = self.device.core_memory, self.common + self.most_extra
        if limit is not None and now > limit:
            y, x = np.unravel_index(np.argmax(self.extra), self.extra.shape)
            asked = int(nbytes if isinstance(nbytes, int) else nbytes[y, x])
            core = (self.mesh.x0 + int(x), self.mesh.y0 + int(y))
            self._add(nbytes, -1)
            where = f"core {core} of {self.place}" if self.place else f"core {core}"
            raise LimitError(
                f"{where}: {name!r} asks for {asked} bytes, {now - asked} are in use, the limit is {limit}"
                f" (device {self.device.name}); use a larger --mesh, smaller sizes, or raise --core-memory"
            )
        self.names[name] = nbytes
        self.peak = max(self.peak, now)

    def free(self, name: str) -> None:
        """Give back what was taken under that name."""
        self._add(self.names.pop(name), -1)

    def resize(self, name: str, nbytes: int | np.ndarray) -> None:
        """Take another amount under a name that is held. LimitError where it does not fit; nothing is changed then."""
        held = self.names.pop(name)
        self._add(held, -1)
        try:
            self.take(name, nbytes)
        except LimitError:
            self._add(held, 1)
            self.names[name] = held
            raise

    def _add(self, nbytes: int | np.ndarray, sign: int) -> None:
        if isinstance(nbytes, int):
            self.common += sign * nbytes
        else:
            self.extra += sign * nbytes
            self.most_extra = int(self.extra.max())

    @contextmanager
    def hold(self, name: str, nbytes: int | np.ndarray) -> Iterator[None]:
        """Take for the length of a `with` block."""
        self.take(name, nbytes)
        try:
            yield
        finally:
            self.free(name)
