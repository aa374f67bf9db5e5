"""The numbers of a GPU and of what connects it to others. Presets, each number with its source."""

from dataclasses import dataclass, fields, replace
from typing import Any

from meshrt.errors import UsageError

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class GpuDevice:
    """A GPU in a node. Sizes are bytes, rates per second, times seconds. Of links, one direction."""

    name: str
    memory_bytes: int
    memory_bytes_per_second: float
    flops: float  # of the tensor cores, on dense 16-bit matrices
    link: str  # "nvlink" or "pcie": which of the following is in use
    nvlink_bytes_per_second: float
    nvlink_gpus: int  # that NVLink can join
    nvlink_seconds: float = 3.4e-6  # of a ring's step, before its first byte
    pcie_bytes_per_second: float = 20e9
    pcie_seconds: float = 5.7e-6
    collective_seconds: float = 8.4e-6  # of a collective, beyond those of its steps
    launch_seconds: float = 5e-6  # that the host is busy with a kernel's launch
    graph_launch_seconds: float = 10e-6  # the same for a graph of kernels
    kernel_seconds: float = 1e-6  # between a kernel and the next one on the device
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and value <= 0:
                raise UsageError(f"device {self.name}: {field.name} is {value}; it has to be positive")

    @property
    def link_bytes_per_second(self) -> float:
        return self.nvlink_bytes_per_second if self.link == "nvlink" else self.pcie_bytes_per_second

    @property
    def link_seconds(self) -> float:
        return self.nvlink_seconds if self.link == "nvlink" else self.pcie_seconds


_COMMON = (
    "nvlink_seconds, pcie_seconds, collective_seconds: what NCCL itself assumes of rings (Ring, Simple) in "
    "src/graph/tuning.cc: 3.4 us and 5.7 us a step, 8.4 us a collective",
    "pcie_bytes_per_second: an all-reduce of A100s of one node over PCIe 4.0 x16, as reported in NVIDIA/nccl-tests "
    "issue 178: 20 GB/s of bus bandwidth, of the 32 GB/s of the slot",
    "launch_seconds: 4 to 6 us, as measured in 'From Launch Overhead to CUDA Graph' (susun-blog.com, pegainfer 3); "
    "graph_launch_seconds, kernel_seconds: assumptions; NVIDIA's 'Constant Time Launch for Straight-Line CUDA Graphs' "
    "(developer.nvidia.com) has a few microseconds for a graph, whatever its length",
)

A800 = GpuDevice(
    name="a800",
    memory_bytes=80 * GIB,
    memory_bytes_per_second=2039e9,
    flops=312e12,
    link="nvlink",
    nvlink_bytes_per_second=200e9,
    nvlink_gpus=8,
    sources=(
        "memory_bytes, memory_bytes_per_second, flops: A800 SXM4 80 GB, the A100's: 80 GB of HBM2e at 2,039 GB/s, "
        "312 TFLOPS in FP16 and BF16 without sparsity (NVIDIA A100 datasheet)",
        "nvlink_bytes_per_second: 400 GB/s in both directions, the A100's 600 cut down (NVIDIA, November 2022)",
        *_COMMON,
    ),
)

A6000 = GpuDevice(
    name="a6000",
    memory_bytes=48 * GIB,
    memory_bytes_per_second=768e9,
    flops=154.8e12,
    link="pcie",
    nvlink_bytes_per_second=56.25e9,
    nvlink_gpus=2,
    sources=(
        "memory_bytes, memory_bytes_per_second: RTX A6000, 48 GB of GDDR6 at 768 GB/s (NVIDIA RTX A6000 datasheet)",
        "flops: 154.8 TFLOPS in FP16 and BF16 without sparsity (Ampere GA102 whitepaper; 309.7 with)",
        "nvlink_bytes_per_second, nvlink_gpus: a bridge joins two cards, 112.5 GB/s in both directions (datasheet)",
        *_COMMON,
    ),
)

GPU_PRESETS = {device.name: device for device in (A800, A6000)}
LINKS = ("nvlink", "pcie")


def find_gpu(name: str, **overrides: Any) -> GpuDevice:
    """The preset of that name with some numbers replaced; an override of None keeps the preset's. UsageError."""
    if name not in GPU_PRESETS:
        raise UsageError(f"no GPU {name!r}; there are {', '.join(GPU_PRESETS)}")
    return replace(GPU_PRESETS[name], **{key: value for key, value in overrides.items() if value is not None})
