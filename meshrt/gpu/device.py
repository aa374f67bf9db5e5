"""The numbers of a GPU and of what connects it to others. Presets, each number with its source."""

from dataclasses import dataclass, fields, replace
from typing import Any

from meshrt.errors import UsageError

GIB = 2**30


@dataclass(frozen=True)
class Protocol:
    """A way to send round a ring: what a collective and each of its steps take beside the bytes, in seconds, and the
    share of the link's bandwidth that its bytes get."""

    name: str
    seconds: float
    step_seconds: float
    share: float


# NCCL's, in the same words: small messages carry their own flags, which costs bandwidth and saves waiting.
NVLINK = (
    Protocol("LL", 6.6e-6, 0.6e-6, 0.5), Protocol("LL128", 14.0e-6, 1.9e-6, 0.92), Protocol("Simple", 8.4e-6, 3.4e-6, 1)
)  # fmt: skip
PCIE = (Protocol("LL", 6.6e-6, 1.0e-6, 0.5), Protocol("Simple", 8.4e-6, 5.7e-6, 1))

LEAST, MOST = 1e-15, 1e18  # of any number of a device: times that are made of them stay finite


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
    nvlink_protocols: tuple[Protocol, ...] = NVLINK
    pcie_bytes_per_second: float = 20e9
    pcie_protocols: tuple[Protocol, ...] = PCIE
    launch_seconds: float = 5e-6  # that the host is busy with a kernel's launch
    graph_launch_seconds: float = 10e-6  # the same for a graph of kernels
    kernel_seconds: float = 1e-6  # between a kernel and the next one on the device
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not LEAST <= value <= MOST:
                raise UsageError(f"device {self.name}: {field.name} is {value}; it is {LEAST:g} to {MOST:g}")

    @property
    def link_bytes_per_second(self) -> float:
        return self.nvlink_bytes_per_second if self.link == "nvlink" else self.pcie_bytes_per_second

    @property
    def neighbours(self) -> bool:
        """Do links join each GPU to the next alone? NVLink, through its switches, joins all."""
        return self.link != "nvlink"

    def protocol(self, steps: int, chunk: float) -> Protocol:
        """The one that is the fastest for a collective of so many steps with chunks of so many bytes; NCCL decides so
        too, before it sends anything."""
        protocols = self.nvlink_protocols if self.link == "nvlink" else self.pcie_protocols
        rate = self.link_bytes_per_second
        return min(
            protocols,
            key=lambda protocol: protocol.seconds + steps * (protocol.step_seconds + chunk / (protocol.share * rate)),
        )


_COMMON = (
    "nvlink_protocols, pcie_protocols: what NCCL itself assumes of its protocols in rings of one node, and by which it "
    "chooses, in src/graph/tuning.cc; LL128 is for NVLink only",
    "pcie_bytes_per_second: an all-reduce of A100s of one socket over PCIe 4.0 x16, as reported in NVIDIA/nccl-tests "
    "issue 178: 20 GB/s of bus bandwidth, of the 32 GB/s of the slot; NCCL assumes the same there (src/graph/topo.cc: "
    "24 GB/s, five sixths of them between GPUs), and 10 GB/s between sockets of the paper's Xeons (topo.h), which is "
    "not in this number",
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
    nvlink_bytes_per_second=160e9,
    nvlink_gpus=8,
    sources=(
        "memory_bytes, memory_bytes_per_second, flops: A800 SXM4 80 GB, the A100's: 80 GB of HBM2e at 2,039 GB/s, "
        "312 TFLOPS in FP16 and BF16 without sparsity (NVIDIA A100 datasheet)",
        "nvlink_bytes_per_second: 8 links (400 GB/s in both directions, NVIDIA, November 2022) of 25 GB/s, of which "
        "a ring gets 20, says NCCL (SM80_NVLINK_BW in src/graph/topo.h); on A100s with 12 links, where that makes 240, "
        "208 and 233 were measured (NVIDIA/nccl-tests issues 178 and 175)",
        *_COMMON,
    ),
)

A6000 = GpuDevice(
    name="a6000",
    memory_bytes=48 * GIB,
    memory_bytes_per_second=768e9,
    flops=154.8e12,
    link="pcie",
    nvlink_bytes_per_second=48e9,
    nvlink_gpus=2,
    sources=(
        "memory_bytes, memory_bytes_per_second: RTX A6000, 48 GB of GDDR6 at 768 GB/s (NVIDIA RTX A6000 datasheet)",
        "flops: 154.8 TFLOPS in FP16 and BF16 without sparsity (Ampere GA102 whitepaper; 309.7 with)",
        "nvlink_bytes_per_second, nvlink_gpus: a bridge joins two cards by 4 links (112.5 GB/s in both directions, "
        "datasheet), of which a ring gets 12 GB/s each, says NCCL (SM86_NVLINK_BW)",
        *_COMMON,
    ),
)

A100_40G = GpuDevice(
    name="a100-40g",
    memory_bytes=40 * GIB,
    memory_bytes_per_second=1555e9,
    flops=312e12,
    link="nvlink",
    nvlink_bytes_per_second=240e9,
    nvlink_gpus=8,
    sources=(
        "memory_bytes, memory_bytes_per_second, flops: A100 SXM4 40 GB, 40 GB of HBM2 at 1,555 GB/s, 312 TFLOPS in "
        "FP16 and BF16 without sparsity (NVIDIA A100 datasheet; A100 whitepaper)",
        "nvlink_bytes_per_second, nvlink_gpus: 12 links (600 GB/s in both directions, datasheet) of 25 GB/s, of which "
        "a ring gets 20 each, says NCCL (SM80_NVLINK_BW in src/graph/topo.h); 208 and 233 were measured "
        "(NVIDIA/nccl-tests issues 178 and 175). NVSwitches join eight of them (DGX A100)",
        *_COMMON,
    ),
)

GPU_PRESETS = {device.name: device for device in (A800, A6000, A100_40G)}
LINKS = ("nvlink", "pcie")


def find_gpu(name: str | GpuDevice, link_rate: float | None = None, **overrides: Any) -> GpuDevice:
    """A preset by its name, or a device itself, with numbers replaced, but for those of None. UsageError.

    `link_rate`: bytes a second of the link that is in use.
    """
    if not isinstance(name, GpuDevice) and name not in GPU_PRESETS:
        raise UsageError(f"no GPU {name!r}; there are {', '.join(GPU_PRESETS)}")
    preset = name if isinstance(name, GpuDevice) else GPU_PRESETS[name]
    device = replace(preset, **{key: value for key, value in overrides.items() if value is not None})
    if link_rate is None:
        return device
    if device.link == "nvlink":
        return replace(device, nvlink_bytes_per_second=link_rate)
    return replace(device, pcie_bytes_per_second=link_rate)
