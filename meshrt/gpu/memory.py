"""A GPU's memory: every allocation has a name, the peak is recorded, and the limit holds."""

from dataclasses import field

from meshrt.errors import FullError
from meshrt.gpu.device import GpuDevice
from meshrt.records import dataclass


@dataclass
class Budget:
    """Bytes in use on one GPU, by name. A name may be taken again: it then holds the sum."""

    device: GpuDevice
    index: int  # of the GPU, for messages
    names: dict[str, int] = field(default_factory=dict)
    used: int = 0
    peak: int = 0
    at_peak: dict[str, int] | None = None  # by name; None: it is full as never before

    @property
    def limit(self) -> int:
        return self.device.memory_bytes

    def take(self, name: str, nbytes: int) -> None:
        """Raises FullError where it does not fit; nothing is changed then."""
        if self.used + nbytes > self.limit:
            raise FullError(
                f"GPU {self.index}: {name!r} asks for {nbytes} bytes, {self.used} are in use, the limit is "
                f"{self.limit} (device {self.device.name}); use more GPUs (--tp), a smaller batch, --gpu-memory, or"
                " fewer bits a weight (meshrt quantize; by shape --bits 3)"
            )
        self.names[name] = self.names.get(name, 0) + nbytes
        self.used += nbytes
        if self.used > self.peak:
            self.peak, self.at_peak = self.used, None

    def pass_through(self, name: str, nbytes: int) -> None:
        """So much was taken under that name, and given back. LimitError."""
        self.take(name, nbytes)
        self.give_back(name, nbytes)

    def give_back(self, name: str, nbytes: int) -> None:
        """Free some of what was taken under that name."""
        if self.at_peak is None:
            self.at_peak = dict(self.names)
        self.names[name] -= nbytes
        self.used -= nbytes

    @property
    def fullest(self) -> dict[str, int]:
        """What was in use, by name, when most was."""
        return self.names if self.at_peak is None else self.at_peak
