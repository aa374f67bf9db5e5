"""The GPUs that there are, each number with its source."""

from dataclasses import replace
from typing import Any

from meshrt.errors import UsageError
from meshrt.gpu.device import NVLINK, GpuDevice, Protocol
from meshrt.gpu.frameworks import FRAMEWORKS

GIB, MIB = 2**30, 2**20

_ASSUMED = (
    "nvlink_protocols, pcie_protocols: what NCCL itself assumes of its protocols in rings of one node, and by which it "
    "chooses, in src/graph/tuning.cc; LL128 is for NVLink only",
    "pcie_bytes_per_second: an all-reduce of A100s of one socket over PCIe 4.0 x16, as reported in NVIDIA/nccl-tests "
    "issue 178: 20 GB/s of bus bandwidth, of the 32 GB/s of the slot; NCCL assumes the same there (src/graph/topo.cc: "
    "24 GB/s, five sixths of them between GPUs), and 10 GB/s between sockets of the paper's Xeons (topo.h), which is "
    "not in this number",
)
_MEASURED = (
    "nvlink_protocols, pcie_protocols: NCCL's (src/graph/tuning.cc; of LL128 nothing was seen), but for LL's steps, "
    "Simple and the shares, and pcie_bytes_per_second: found on rows of Vidur's all-reduces that are for fitting "
    "(`meshrt validate`, docs/validation.md) by studies/validate/allreducefit.py",
)
_COMMON = (
    "network_bytes_per_second, network_protocols: found by studies/validate/allreducefit.py on those rows of Vidur's "
    "all-reduces between nodes of A100s that are for fitting; "
    "node_gpus, node_adapters: 8 in a DGX A100, four of whose adapters those runs got the bandwidth of",
    "memory_share, flops_share, sm_rate, sm_l2_bytes_per_second, sm_memory_bytes_per_second, product_seconds, "
    "split_seconds, kernel_seconds, start_seconds: found on rows of public measurements that are for fitting "
    "(`meshrt validate`, docs/validation.md) by studies/validate/gpufit.py",
    "launch_seconds, step_seconds: a framework's (--framework, else the first): "
    + "; ".join(
        f"{name} {1e6 * framework.launch_seconds:g} us and {1e3 * framework.step_seconds:g} ms, {framework.source}"
        for name, framework in FRAMEWORKS.items()
    ),
    "graph_launch_seconds: an assumption; NVIDIA's 'Constant Time Launch for Straight-Line CUDA Graphs' "
    "(developer.nvidia.com) has a few microseconds for a graph, whatever its length",
    "nvlink_pair_bytes_per_second: none, since switches or a bridge join NVLink",
)

_LINK_ENERGY = (
    "link_picojoules: 5.5 for a bit over one serial link (NVIDIA's comparison with NVLink-C2C, 1.3), two with a switch"
)
_IDLE_ENERGY = (
    "idle_watts: 13 to 37 % of the board's power: an A100 SXM4 shows 52 W of 400 before a program is there, and up to "
    "147 W with one that does nothing (a report of 2026); a context alone adds 26 to 50 W (arXiv 2605.23918)"
)
_MAC_ENERGY = (
    "mac_picojoules: multiplication and addition of 16 bits in 7 nm (Ten Lessons From Three Generations Shaped "
    "Google's TPUv4i, ISCA 2021, Table 2); at most all of the board's power at its peak rate: "
)
_HBM_ENERGY = (
    "memory_picojoules: HBM2, 3.9 (Fine-Grained DRAM, MICRO 2017), HBM, 7 (AMD white paper WP485); HBM2E is 6.0 "
    "(Micron); caches and wires of the GPU are not in it"
)
_ENERGY = (_HBM_ENERGY, _MAC_ENERGY + "400 W", _LINK_ENERGY, _IDLE_ENERGY)

A100 = GpuDevice(
    name="a100",
    memory_bytes=80 * GIB,
    memory_bytes_per_second=2039e9,
    memory_share=0.862,
    flops=312e12,
    flops_share=0.783,
    sms=108,
    hertz=1.41e9,
    sm_rate=1.0,
    sm_l2_bytes_per_second=34.1e9,
    sm_memory_bytes_per_second=32.0e9,
    l2_bytes=40 * MIB,
    product_seconds=3.15e-6,
    split_seconds=2.22e-6,
    link="nvlink",
    nvlink_bytes_per_second=240e9,
    nvlink_gpus=8,
    nvlink_protocols=(
        Protocol("LL", 6.6e-6, 1.13e-6, 0.4),
        Protocol("Simple", 17.4e-6, 5.81e-6, 0.695),
    ),
    pcie_bytes_per_second=23.9e9,
    pcie_protocols=(Protocol("LL", 6.6e-6, 1.0e-6, 0.5), Protocol("Simple", 8.4e-6, 8.12e-6, 1)),
    memory_picojoules=(3.9, 7.0),
    mac_picojoules=(0.5, 2.56),
    link_picojoules=(5.5, 11.0),
    idle_watts=(52.0, 147.0),
    sources=(
        "memory_bytes, memory_bytes_per_second, flops: A100 SXM4 80 GB, 80 GB of HBM2e at 2,039 GB/s, 312 TFLOPS in "
        "FP16 and BF16 without sparsity (NVIDIA A100 datasheet)",
        "sms, hertz, l2_bytes: 108 SMs at 1,410 MHz boost, 40 MB (NVIDIA A100 whitepaper); sm_rate: by definition",
        "nvlink_bytes_per_second, nvlink_gpus: 12 links (600 GB/s in both directions, datasheet) of 25 GB/s, of which "
        "a ring gets 20 each, says NCCL (SM80_NVLINK_BW in src/graph/topo.h); 208 and 233 were measured "
        "(NVIDIA/nccl-tests issues 178 and 175). NVSwitches join eight of them (DGX A100)",
        *_ENERGY,
        *_MEASURED,
        *_COMMON,
    ),
)

A100_40G = replace(
    A100,
    name="a100-40g",
    memory_bytes=40 * GIB,
    memory_bytes_per_second=1555e9,
    sources=(
        "memory_bytes, memory_bytes_per_second, flops: A100 SXM4 40 GB, 40 GB of HBM2 at 1,555 GB/s, 312 TFLOPS "
        "(NVIDIA A100 datasheet); the rest is as of 80 GB",
        *A100.sources[1:],
    ),
)

A800 = replace(
    A100,
    name="a800",
    nvlink_bytes_per_second=160e9,
    pcie_bytes_per_second=20e9,
    sources=(
        *A100.sources[:2],
        *_ENERGY,
        "nvlink_bytes_per_second, nvlink_gpus: 8 links (400 GB/s in both directions, NVIDIA, November 2022) of 25 "
        "GB/s, of which a ring gets 20, says NCCL (SM80_NVLINK_BW in src/graph/topo.h); all else of an A800 SXM4 80 GB "
        "is an A100's",
        *_MEASURED,
        *_ASSUMED[1:],
        *_COMMON,
    ),
)

A6000 = GpuDevice(
    name="a6000",
    memory_bytes=48 * GIB,
    memory_bytes_per_second=768e9,
    memory_share=0.953,
    flops=154.8e12,
    flops_share=0.702,
    sms=84,
    hertz=1.8e9,
    sm_rate=0.979,
    sm_l2_bytes_per_second=40.5e9,
    sm_memory_bytes_per_second=35.3e9,
    l2_bytes=6 * MIB,
    product_seconds=3.04e-6,
    split_seconds=0.357e-6,
    link="pcie",
    nvlink_bytes_per_second=48e9,
    nvlink_gpus=2,
    memory_picojoules=(7.5, 14.0),
    mac_picojoules=(0.5, 3.88),
    link_picojoules=(5.5, 11.0),
    idle_watts=(39.0, 111.0),
    sources=(
        "memory_bytes, memory_bytes_per_second: RTX A6000, 48 GB of GDDR6 at 768 GB/s (NVIDIA RTX A6000 datasheet)",
        "flops, sms, hertz, l2_bytes: 154.8 TFLOPS in FP16 and BF16 without sparsity (309.7 with), 84 SMs at 1,800 "
        "MHz boost, 6 MB (Ampere GA102 whitepaper)",
        "sm_memory_bytes_per_second, split_seconds, sm_rate: found on the rows of an A40, which has the same chip",
        "nvlink_bytes_per_second, nvlink_gpus: a bridge joins two cards by 4 links (112.5 GB/s in both directions, "
        "datasheet), of which a ring gets 12 GB/s each, says NCCL (SM86_NVLINK_BW)",
        "memory_picojoules: GDDR6, 7.5 (Micron), GDDR5, 14 (Fine-Grained DRAM, MICRO 2017)",
        _MAC_ENERGY + "300 W (A40: of the same chip)",
        _LINK_ENERGY,
        _IDLE_ENERGY,
        *_ASSUMED,
        *_COMMON,
    ),
)

A40 = replace(
    A6000,
    name="a40",
    memory_bytes_per_second=696e9,
    memory_share=0.8185,
    flops=149.7e12,
    flops_share=0.802,
    hertz=1.74e9,
    sm_l2_bytes_per_second=21.7e9,
    product_seconds=2.92e-6,
    sources=(
        "memory_bytes, memory_bytes_per_second, flops: A40, 48 GB of GDDR6 with ECC at 696 GB/s, 149.7 TFLOPS in FP16 "
        "and BF16 without sparsity (NVIDIA A40 datasheet); sms, hertz, l2_bytes: the A6000's chip at 1,740 MHz boost",
        *A6000.sources[2:],
    ),
)

H100 = GpuDevice(
    name="h100",
    memory_bytes=80 * GIB,
    memory_bytes_per_second=3350e9,
    memory_share=0.9245,
    flops=989.4e12,
    flops_share=0.756,
    sms=132,
    hertz=1.83e9,
    sm_rate=1.188,
    sm_l2_bytes_per_second=88.5e9,
    sm_memory_bytes_per_second=48.8e9,
    l2_bytes=50 * MIB,
    product_seconds=3.68e-6,
    split_seconds=1.65e-6,
    link="nvlink",
    nvlink_bytes_per_second=370e9,
    nvlink_gpus=8,
    nvlink_protocols=(
        Protocol("LL", 6.6e-6, 1.13e-6, 0.4),
        Protocol("Simple", 8.4e-6, 3.13e-6, 0.8045),
    ),
    memory_picojoules=(3.4, 7.0),
    mac_picojoules=(0.25, 1.41),
    link_picojoules=(5.5, 11.0),
    idle_watts=(91.0, 259.0),
    pcie_bytes_per_second=49.0e9,
    pcie_protocols=(Protocol("LL", 6.6e-6, 1.0e-6, 0.5), Protocol("Simple", 8.4e-6, 6.55e-6, 1)),
    sources=(
        "memory_bytes, memory_bytes_per_second, flops: H100 SXM5, 80 GB of HBM3 at 3,350 GB/s, 989.4 TFLOPS in FP16 "
        "and BF16 without sparsity (NVIDIA H100 datasheet)",
        "sms, hertz, l2_bytes: 132 SMs, 50 MB, and the clock rate that the tensor cores' peak is given for, 1,830 MHz "
        "(NVIDIA H100 whitepaper)",
        "nvlink_bytes_per_second, nvlink_gpus: 18 links (900 GB/s in both directions, datasheet) of 25 GB/s, of which "
        "a ring gets 20.6 each, says NCCL (SM90_NVLINK_BW in src/graph/topo.h)",
        "memory_picojoules: HBM3, 3.4 (Micron, MCHPC 2019), HBM, 7 (AMD white paper WP485)",
        _MAC_ENERGY + "700 W; at least half of that in 7 nm, an assumption for a finer process",
        _LINK_ENERGY,
        _IDLE_ENERGY,
        *_MEASURED,
        *_COMMON,
    ),
)

H200 = replace(
    H100,
    name="h200",
    memory_bytes=141 * 10**9,
    memory_bytes_per_second=4800e9,
    sources=(
        "memory_bytes, memory_bytes_per_second, flops: H200 SXM, 141 GB of HBM3e at 4.8 TB/s (NVIDIA H200 datasheet), "
        "with an H100's 1,979 TFLOPS in FP16 and BF16 with sparsity, 989 without, and 900 GB/s of NVLink",
        "all other numbers are an H100's, which has the same chip; nothing that was found on measurements is an H200's",
        *H100.sources[1:],
    ),
)

MI300X = GpuDevice(
    name="mi300x",
    memory_bytes=192 * GIB,
    memory_bytes_per_second=5300e9,
    memory_share=0.81,
    flops=1307.4e12,
    flops_share=0.45,
    sms=304,
    hertz=2.1e9,
    sm_rate=1.0,
    sm_l2_bytes_per_second=113e9,
    sm_memory_bytes_per_second=48.8e9,
    l2_bytes=32 * MIB,
    product_seconds=3.68e-6,
    split_seconds=1.65e-6,
    link="nvlink",
    nvlink_bytes_per_second=448e9,
    nvlink_pair_bytes_per_second=64e9,
    nvlink_gpus=8,
    nvlink_protocols=(NVLINK[0], NVLINK[2]),
    pcie_bytes_per_second=49.0e9,
    memory_picojoules=(3.4, 7.0),
    mac_picojoules=(0.25, 1.15),
    link_picojoules=(5.5, 11.0),
    idle_watts=(98.0, 278.0),
    sources=(
        "memory_bytes, memory_bytes_per_second, flops, sms, hertz: MI300X, 192 GB of HBM3 at 5.3 TB/s, 1,307.4 TFLOPS "
        "in FP16 and BF16 without sparsity, 304 compute units at 2,100 MHz (AMD Instinct MI300X data sheet)",
        "nvlink_bytes_per_second, nvlink_pair_bytes_per_second, nvlink_gpus: Infinity Fabric, not NVLink: each pair of "
        "the 8 GPUs of a platform has a link of 64 GB/s in one direction (128 in both, data sheet), so that rings of n "
        "GPUs get n - 1 of them, 448 GB/s of eight",
        "l2_bytes: 4 MB for each of 8 dies (ROCm documentation, AMD GPU specifications); the 256 MB behind them are "
        "not modelled. sm_l2_bytes_per_second: 2,048 bytes a cycle for the 38 units of a die (AMD CDNA 3 white paper)",
        "memory_share, flops_share: 81 and 45 % of the peaks, as reported of a study of October 2025 by aiweekly.co; "
        "not found by us on measurements",
        "sm_rate, sm_memory_bytes_per_second, product_seconds, split_seconds, kernel_seconds, start_seconds, "
        "pcie_bytes_per_second, and what a launch takes: assumptions, an A100's and an H100's; no AMD GPU is among the "
        "rows that constants were found on",
        "nvlink_protocols, pcie_protocols: NCCL's assumptions of its own (src/graph/tuning.cc); RCCL is made from it",
        "memory_picojoules: HBM3, 3.4 (Micron, MCHPC 2019), HBM, 7 (AMD white paper WP485)",
        _MAC_ENERGY + "750 W; at least half of that in 7 nm, an assumption for a finer process",
        "link_picojoules: NVLink's, an assumption; idle_watts: 13 to 37 % of the board's power, an A100's shares",
        _COMMON[0],
        *_COMMON[2:4],
    ),
)

GPU_PRESETS = {device.name: device for device in (A800, A6000, A100_40G, A100, A40, H100, H200, MI300X)}


def find_gpu(
    name: str | GpuDevice, link_rate: float | None = None, framework: str | None = None, **overrides: Any
) -> GpuDevice:
    """A preset by its name, or a device itself, with numbers replaced, but for those of None. UsageError.

    `link_rate`: bytes a second of the link that is in use.
    """
    if not isinstance(name, GpuDevice) and name not in GPU_PRESETS:
        raise UsageError(f"no GPU {name!r}; there are {', '.join(GPU_PRESETS)}")
    preset = name if isinstance(name, GpuDevice) else GPU_PRESETS[name]
    if framework is not None:
        of = FRAMEWORKS[framework]
        preset = replace(preset, launch_seconds=of.launch_seconds, step_seconds=of.step_seconds)
    device = replace(preset, **{key: value for key, value in overrides.items() if value is not None})
    if link_rate is None:
        return device
    rate: dict[str, Any] = {f"{device.link}_bytes_per_second": link_rate}
    if device.link == "nvlink":
        rate["nvlink_pair_bytes_per_second"] = None
    return replace(device, **rate)
