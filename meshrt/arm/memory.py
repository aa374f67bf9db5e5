"""DRAM: buffers by name, the budget, the peak."""

from dataclasses import field

from meshrt.arm.device import ArmDevice
from meshrt.errors import FullError
from meshrt.records import dataclass


@dataclass
class Dram:
    """Buffers of all cores. What is not used any more is given back; a name is of one buffer at a time."""

    device: ArmDevice
    sizes: dict[str, int] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)  # each buffer has one of its own
    used: int = 0
    peak: int = 0
    made: int = 0
    at_peak: dict[str, int] | None = None  # sizes; None: it is full as never before

    def take(self, name: str, nbytes: int) -> int:
        """The number of a new buffer. FullError where it does not fit; nothing is changed then."""
        assert name not in self.sizes, name
        if self.used + nbytes > self.device.dram_bytes:
            raise FullError(
                f"DRAM: {name!r} asks for {nbytes} bytes, {self.used} are in use, the limit is"
                f" {self.device.dram_bytes} (device {self.device.name}); use fewer bits a weight (--bits), a shorter"
                " prompt, or --dram"
            )
        self.sizes[name], self.numbers[name] = nbytes, self.made
        self.used += nbytes
        if self.used > self.peak:
            self.peak, self.at_peak = self.used, None
        self.made += 1
        return self.numbers[name]

    def give_back(self, name: str) -> int:
        """The number of the buffer that is no more."""
        if self.at_peak is None:
            self.at_peak = dict(self.sizes)
        self.used -= self.sizes.pop(name)
        return self.numbers.pop(name)

    @property
    def fullest(self) -> dict[str, int]:
        """The buffers that were there when most was in use."""
        return self.sizes if self.at_peak is None else self.at_peak
