"""The numbers of a system on a chip: clusters of cores, caches, the bus. Presets, each number with its source."""

from dataclasses import fields, replace
from typing import Any

from meshrt.errors import UsageError
from meshrt.records import dataclass
from meshrt.reports.energy import Range, check_range

KIB, MIB, GIB = 2**10, 2**20, 2**30
ENERGY = (
    "instruction_picojoules", "l1_picojoules", "l2_picojoules", "slc_picojoules", "dram_picojoules", "idle_watts",
)  # fmt: skip
LEAST, MOST = 1e-15, 1e18  # of any number of a device: times that are made of them stay finite


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Cores of one kind. Caches are a core's own, in bytes; rates are a core's."""

    name: str
    cores: int
    hz: float
    simd_pipes: int  # of 128 bits: SIMD instructions a cycle
    loads: int  # of registers, a cycle
    stores: int
    l1_bytes: int
    l2_bytes: int
    l2_bytes_per_cycle: float  # from L2 to L1
    slc_bytes_per_cycle: float  # from the SLC to L2, and back
    bytes_per_second: float  # that one core can draw from DRAM


@dataclass(frozen=True, kw_only=True)
class ArmDevice:
    """Cores that share a bus and a memory. Sizes are bytes, rates per second, times seconds."""

    name: str
    clusters: tuple[Cluster, ...]  # the fastest first
    isa: tuple[str, ...]  # of EXTENSIONS: what it has beside Neon
    registers: int = 32  # of 128 bits
    slc_bytes: int  # the last cache before DRAM, of all cores
    bus_bytes_per_second: float  # to and from DRAM, of all cores
    dram_bytes: int
    flash_bytes_per_second: float  # from flash to DRAM
    fork_join_seconds: float  # that a stretch which several cores share takes beside its work
    instruction_picojoules: Range | None = None  # an instruction, what it computes with it; lowest and highest, too:
    l1_picojoules: Range | None = None  # a bit between registers and L1
    l2_picojoules: Range | None = None  # a bit between L1 and L2
    slc_picojoules: Range | None = None  # a bit between L2 and the SLC
    dram_picojoules: Range | None = None  # a bit between the SLC and DRAM
    idle_watts: Range | None = None  # of one core, all the time
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        parts: tuple[ArmDevice | Cluster, ...] = (self, *self.clusters)
        for part in parts:
            for field in fields(part):
                value = getattr(part, field.name)
                if isinstance(value, int | float) and not LEAST <= value <= MOST:
                    raise UsageError(f"device {self.name}: {field.name} is {value}; it is {LEAST:g} to {MOST:g}")
                if field.name in ENERGY:
                    check_range(self.name, field.name, value)
        if not self.clusters:
            raise UsageError(f"device {self.name} has no clusters; a system on a chip has one at least")

    @property
    def cores(self) -> tuple[Cluster, ...]:
        """The cluster of each core, in the order of the cores."""
        return tuple(cluster for cluster in self.clusters for _ in range(cluster.cores))

    def peak(self, operations: int, cores: int | None = None) -> float:
        """Operations a second of the first `cores` (None: of all), with SIMD instructions of so many each."""
        return sum(operations * core.simd_pipes * core.hz for core in self.cores[:cores])


_ENERGY = (
    "instruction_picojoules: 70 at most, of a simple core in 45 nm (Computing's Energy Problem, ISSCC 2014); at least "
    "a seventh, an assumption",
    "l1_picojoules, l2_picojoules, slc_picojoules: 64 bits of 32 KB (8.5 pJ in 7 nm, 20 in 45) and of 1 MB (14, 100), "
    "for more as for 1 MB (Ten Lessons From Three Generations Shaped Google's TPUv4i, ISCA 2021, Table 2)",
)

EXTENSIONS = ("fp16", "dotprod", "i8mm")

_N2 = Cluster(
    name="Neoverse N2", cores=8, hz=2.75e9, simd_pipes=2, loads=3, stores=2, l1_bytes=64 * KIB, l2_bytes=MIB,
    l2_bytes_per_cycle=32.0, slc_bytes_per_cycle=16.0, bytes_per_second=25e9,
)  # fmt: skip

_REGISTERS = "registers: V0 to V31, of 128 bits (Arm Architecture Reference Manual, A-profile)"

N2X8 = ArmDevice(
    name="n2x8",
    clusters=(_N2,),
    isa=EXTENSIONS,
    slc_bytes=4 * MIB,
    bus_bytes_per_second=99.274e9,
    dram_bytes=32 * GIB,
    flash_bytes_per_second=1e9,
    fork_join_seconds=5e-6,
    instruction_picojoules=(10.0, 70.0),
    l1_picojoules=(0.133, 0.313),
    l2_picojoules=(0.219, 1.56),
    slc_picojoules=(0.219, 1.56),
    dram_picojoules=(20.3, 40.6),
    idle_watts=(0.25, 0.92),
    sources=(
        "clusters (cores, hz, simd_pipes), isa: the machine of the W4A8 paper, section V.A: 352 GFLOP/s of fmla are 8 "
        "cores x 2.75 GHz x 2 pipes x 4 lanes x 2, and its 2784 of smmla 98.9 % of the 2816 that follow (its sdot is "
        "printed as 2784 as well, where these cores have 1408); that they are Neoverse N2 cores, as of a Yitian 710, "
        "is inferred",
        "bus_bytes_per_second: the same section, STREAM",
        _REGISTERS,
        "clusters (l1_bytes, l2_bytes): of the choices that Arm gives for the Neoverse N2, the largest; slc_bytes: 64 "
        "MiB for 128 cores of a Yitian 710, so 4 for 8 of them",
        "assumed: loads, stores, l2_bytes_per_cycle, slc_bytes_per_cycle, bytes_per_second of a core, dram_bytes, "
        "flash_bytes_per_second, fork_join_seconds",
        *_ENERGY,
        "dram_picojoules: 1.3 to 2.6 nJ for 64 bits (Computing's Energy Problem, ISSCC 2014); idle_watts: an "
        "assumption, 13 to 47 % of 250 W / 128 cores of a Yitian 710, as on other machines",
    ),
)

PHONE = ArmDevice(
    name="phone",
    clusters=(
        Cluster(
            name="Cortex-X3", cores=1, hz=3.05e9, simd_pipes=4, loads=3, stores=2, l1_bytes=64 * KIB, l2_bytes=MIB,
            l2_bytes_per_cycle=32.0, slc_bytes_per_cycle=16.0, bytes_per_second=30e9,
        ),
        Cluster(
            name="Cortex-A715", cores=3, hz=2.85e9, simd_pipes=2, loads=3, stores=2, l1_bytes=64 * KIB,
            l2_bytes=512 * KIB, l2_bytes_per_cycle=32.0, slc_bytes_per_cycle=16.0, bytes_per_second=20e9,
        ),
        Cluster(
            name="Cortex-A510", cores=4, hz=1.8e9, simd_pipes=1, loads=2, stores=1, l1_bytes=32 * KIB,
            l2_bytes=256 * KIB, l2_bytes_per_cycle=16.0, slc_bytes_per_cycle=8.0, bytes_per_second=8e9,
        ),
    ),
    isa=EXTENSIONS,
    slc_bytes=8 * MIB,
    bus_bytes_per_second=68.264e9,
    dram_bytes=12 * GIB,
    flash_bytes_per_second=4.2e9,
    fork_join_seconds=10e-6,
    sources=(
        "clusters (name, cores, hz): MediaTek Dimensity 9200 (product page, November 2022): one Cortex-X3 at 3.05 GHz, "
        "three Cortex-A715 at 2.85, four Cortex-A510 at 1.8",
        "bus_bytes_per_second: the same page, LPDDR5X at 8533 Mbit/s a pin; four channels of 16 pins are 68.264 GB/s",
        "flash_bytes_per_second: UFS 4.0 on that page; sequential reads of 4,200 MB/s (Samsung, May 2022)",
        "isa: Armv9.0 cores have all three (Arm Architecture Reference Manual, FEAT_FP16, FEAT_DotProd, FEAT_I8MM)",
        _REGISTERS,
        "assumed: simd_pipes, loads, stores, l1_bytes, l2_bytes, l2_bytes_per_cycle, slc_bytes_per_cycle, "
        "bytes_per_second of a core, slc_bytes, dram_bytes, fork_join_seconds",
    ),
)  # fmt: skip

ARM_PRESETS = {device.name: device for device in (N2X8, PHONE)}


def find_arm_device(name: str | ArmDevice, **overrides: Any) -> ArmDevice:
    """A preset by its name, or a device itself, with numbers replaced, but for those of None. UsageError."""
    if not isinstance(name, ArmDevice) and name not in ARM_PRESETS:
        raise UsageError(f"no system on a chip {name!r}; there are {', '.join(ARM_PRESETS)}")
    device = name if isinstance(name, ArmDevice) else ARM_PRESETS[name]
    return replace(device, **{key: value for key, value in overrides.items() if value is not None})
