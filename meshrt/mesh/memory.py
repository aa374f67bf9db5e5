"""The memory of the cores: every allocation has a name, the peak is recorded, and the limit holds.

What lives is charged: an array that the runtime gives out (fresh tiles, what transfers, collectives and products bring)
from when it is made until nothing refers to it or to a view of it any more. What a program makes with NumPy alone is
charged if it says so (`keep`), and memory that is no array of its own is taken and freed by name.
"""

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from math import prod
from numbers import Integral
from typing import Any

import numpy as np

from meshrt.errors import FullError, LimitError, UsageError
from meshrt.mesh.device import Device
from meshrt.mesh.mesh import Mesh
from meshrt.options import in_short
from meshrt.records import dataclass


class Charge(weakref.ref[np.ndarray]):
    """What a live array takes at every core."""

    __slots__ = ("key", "name", "nbytes")
    key: int
    name: str
    nbytes: int


@dataclass(eq=False)
class CoreMemory:
    """What the cores of this rank's block hold, in bytes.

    Nearly all allocations are equal on all cores and are kept as one number; what differs from core to core (a cache
    that grows row by row) is kept apart.
    """

    mesh: Mesh
    device: Device
    site: str = ""  # where on the wafer, for messages
    names: dict[str, int | np.ndarray] = field(default_factory=dict)
    arrays: dict[int, Charge] = field(default_factory=dict)  # by the id of the array that owns the numbers
    common: int = 0
    extra: np.ndarray = field(init=False)  # int64 [bh, bw]
    most_extra: int = 0
    peak: int = 0

    def __post_init__(self) -> None:
        self.extra = np.zeros((self.mesh.block_height, self.mesh.block_width), np.int64)

    def keep(self, name: str, array: np.ndarray) -> np.ndarray:
        """Charge an array [bh, bw, *tile] as long as it, or any view of it, lives. LimitError where it does not fit.

        UsageError for what has not the dimensions of all cores. Returns the array. One that is charged already, or of
        which a view is, is charged only what it takes more; several may have the same name.
        """
        sides = zip(array.shape, self.extra.shape, strict=False)
        if array.ndim < 2 or any(side not in (1, cores) for side, cores in sides):  # 1 stands for all
            raise UsageError(
                f"{name!r} is an array of shape {list(array.shape)}: what cores keep is [bh, bw, *tile], with the"
                f" cores of the block first, {list(self.extra.shape)}"
            )
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        key, nbytes = id(owner), prod(array.shape[2:]) * array.itemsize
        charge = self.arrays.get(key)
        # Of a view that NumPy has stretched no more than there is.
        more = nbytes if charge is None else min(nbytes, owner.nbytes // prod(array.shape[:2])) - charge.nbytes
        if more > 0:
            self.require(name, more)
            self.common += more
            self.peak = max(self.peak, self.common + self.most_extra)
            if charge is None:
                charge = self.arrays[key] = Charge(owner, self._gone)
                charge.key, charge.name, charge.nbytes = key, name, 0
            charge.nbytes += more
        return array

    def _gone(self, charge: "weakref.ref[np.ndarray]") -> None:
        assert isinstance(charge, Charge)
        del self.arrays[charge.key]
        self.common -= charge.nbytes

    def require(self, name: str, nbytes: int) -> None:
        """LimitError where so many more bytes do not fit at a core: for what is to be refused before it is made."""
        limit = self.device.core_memory
        if limit is not None and self.common + self.most_extra + nbytes > limit:
            self.common += nbytes
            try:
                self._check(name, nbytes)
            finally:
                self.common -= nbytes

    def take(self, name: str, nbytes: int | np.ndarray) -> None:
        """Allocate nbytes at every core (an int), or so many at each ([bh, bw]). LimitError where it does not fit."""
        nbytes = self._whole(name, nbytes)
        if (least := nbytes if isinstance(nbytes, int) else int(nbytes.min())) < 0:
            raise UsageError(f"core memory of {least} bytes for {name!r}: give 0 or more")
        if name in self.names:
            raise ValueError(f"core memory already holds {name!r}; free it first, or choose another name")
        self._add(nbytes, 1)
        try:
            self._check(name, nbytes)
        except LimitError:
            self._add(nbytes, -1)
            raise
        self.names[name] = nbytes
        self.peak = max(self.peak, self.common + self.most_extra)

    def _whole(self, name: str, nbytes: Any) -> int | np.ndarray:
        """A number of bytes, or one for each core, NumPy's number as Python's. UsageError for what is none."""
        if isinstance(nbytes, Integral):
            return int(nbytes)
        each = np.asarray(nbytes)
        if each.dtype.kind not in "iu" or each.shape != self.extra.shape:
            said = in_short(nbytes) if each.ndim == 0 or each.dtype == object else f"{each.dtype} {list(each.shape)}"
            raise UsageError(
                f"core memory for {name!r} is {said}: give a whole number of bytes, or one for each core,"
                f" {list(self.extra.shape)}"
            )
        return each

    def _check(self, name: str, nbytes: int | np.ndarray) -> None:
        """LimitError where what is in use, nbytes under this name the last of it, is more than the fullest core has."""
        limit, now = self.device.core_memory, self.common + self.most_extra
        if limit is None or now <= limit:
            return
        y, x = np.unravel_index(np.argmax(self.extra), self.extra.shape)
        requested = int(nbytes if isinstance(nbytes, int) else nbytes[y, x])
        core = (self.mesh.x0 + int(x), self.mesh.y0 + int(y))
        at_core = f"core {core} of {self.site}" if self.site else f"core {core}"
        raise FullError(
            f"{at_core}: {name!r} asks for {requested} bytes, {now - requested} are in use, the limit is {limit}"
            f" (device {self.device.name}); use a larger --mesh, smaller sizes, or raise --core-memory"
            + self._most(core[1] - self.mesh.y0, core[0] - self.mesh.x0)
        )

    def _most(self, y: int, x: int) -> str:
        """What holds most of this core's memory, for a message."""
        sizes = Counter(
            {name: nbytes if isinstance(nbytes, int) else int(nbytes[y, x]) for name, nbytes in self.names.items()}
        )
        for charge in self.arrays.values():
            sizes[charge.name] += charge.nbytes
        for name, nbytes in sizes.most_common(1):
            if nbytes:
                return f" (most is held by {name!r}: {nbytes} bytes)"
        return ""

    def free(self, name: str) -> None:
        """Give back what was taken under that name."""
        self._add(self.names.pop(name), -1)

    def resize(self, name: str, nbytes: int | np.ndarray) -> None:
        """Take another amount under a name that is held. LimitError where it does not fit; nothing is changed then."""
        before = self.names.pop(name)
        self._add(before, -1)
        try:
            self.take(name, nbytes)
        except LimitError:
            self._add(before, 1)
            self.names[name] = before
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
