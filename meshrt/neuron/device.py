"""The numbers of a NeuronCore: memories, engines, DMA. Presets, each number with its source."""

from dataclasses import fields, replace

from meshrt.errors import UsageError
from meshrt.records import dataclass
from meshrt.reports.energy import Range, check_range

KIB, MIB, GIB = 2**10, 2**20, 2**30
MAY_BE_ZERO = ("dma_descriptor_seconds", "dma_transfer_seconds", "dma_start_seconds")
ENERGY = ("hbm_picojoules", "sram_picojoules", "mac_picojoules", "link_picojoules", "idle_watts")


@dataclass(frozen=True, kw_only=True)
class NeuronDevice:
    """One NeuronCore and its share of the chip. Sizes are bytes, rates per second."""

    name: str
    partitions: int = 128  # rows of SBUF and PSUM, and of the tensor engine
    hbm_bytes: int = 16 * GIB
    sbuf_partition_bytes: int = 192 * KIB
    psum_banks: int = 8  # of a partition
    psum_bank_bytes: int = 2 * KIB
    stationary_free: int = 128  # longest free axis of the stationary tile of a product
    moving_free: int = 512  # and of the moving one
    tensor_hz: float = 2.8e9
    vector_hz: float = 1.12e9
    scalar_hz: float = 1.4e9
    gpsimd_hz: float = 1.4e9
    least_cycles: int = 64  # between two instructions of an engine, however small
    gpsimd_start_cycles: int = 150  # before the GpSimd engine's work on an instruction
    float32_passes: int = 4  # times that a product of float32 tiles takes as long as one of 16-bit tiles
    dma_engines: int = 16
    dma_bytes_per_second: float = 17e9  # of one engine
    dma_descriptor_seconds: float = 1.1e-9  # that an engine is busy with a descriptor beyond its bytes
    dma_transfer_seconds: float = 0.0  # and with a transfer, beyond its descriptors
    dma_start_seconds: float = 1.3e-6  # from the last thing that a transfer waits for to its first byte; nobody is busy
    dma_transpose_rate: float = 0.5  # share of the bandwidth that is left when a load transposes
    hbm_bytes_per_second: float = 410e9
    link_bytes_per_second: float = 96e9  # to the next NeuronCore of a ring
    link_seconds: float = 2e-6  # before the first byte of a message between NeuronCores
    mesh_steps: int = 2  # such times of an exchange of all with all: between chips, and within each
    mesh_share: float = 0.5  # of the link's bandwidth that is left where chips hand on what is for others
    halving_share: float = 0.9  # and where they do so for some steps of recursive halving and doubling
    hbm_picojoules: Range | None = None  # a bit from or to HBM; of these and the next: lowest and highest
    sram_picojoules: Range | None = None  # a bit of SBUF or PSUM, read or written
    mac_picojoules: Range | None = None  # a 16-bit multiply-accumulate; one of float32 takes `float32_passes` of them
    link_picojoules: Range | None = None  # a bit to the next NeuronCore of a ring
    idle_watts: Range | None = None  # of a NeuronCore, all the time
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (int, float)) and (value < 0 or (value == 0 and field.name not in MAY_BE_ZERO)):
                least = "cannot be negative" if field.name in MAY_BE_ZERO else "has to be positive"
                raise UsageError(f"device {self.name}: {field.name} is {value}; it {least}")
            if field.name in ENERGY:
                check_range(self.name, field.name, value)

    @property
    def sbuf_bytes(self) -> int:
        return self.partitions * self.sbuf_partition_bytes

    @property
    def peak_flops(self) -> float:
        """Operations a second of the tensor engine on 16-bit tiles: one column of a moving tile a cycle."""
        return 2.0 * self.partitions * self.stationary_free * self.tensor_hz


_GUIDE = "Trainium/Inferentia2 Architecture Guide for NKI (AWS Neuron SDK documentation)"
_GUIDE2 = "Trainium2 Architecture Guide for NKI (AWS Neuron SDK documentation)"
_COMMON = (
    "stationary_free, moving_free, psum_banks, psum_bank_bytes: " + _GUIDE + ", Tensor Engine and PSUM",
    "least_cycles: MM_INIT_LATENCY of the tensor engine, 64 cycles; float32_passes: 4; same guide; MIN_II of the other "
    "engines, about 64 cycles (NKI API reference, nki.isa)",
    "gpsimd_start_cycles: GPSIMD_START of NKI's instruction set, about 150 cycles (NKI API reference, nki.isa)",
    "dma_engines, dma_bytes_per_second: the tables by generation of Introduction to DMA with NKI and of the Guideline "
    "to Avoid Under-Utilizing DMA Bandwidth (AWS Neuron SDK documentation): 17 GB/s an engine on trn1, 23 on trn2; the "
    "text of the former has 27.2 for both, in theory, which is not taken: what is measured there on a trn2 is 23",
    "dma_descriptor_seconds, dma_transfer_seconds: the two profiles of that page, on a trn2: 32 KiB in 4 descriptors "
    "take an engine 1416 ns, 2 KiB in 8 descriptors 97 ns, which is 23.2 GB/s and 1.1 ns a descriptor; at 23 GB/s "
    "nothing is left for the transfer",
    "dma_start_seconds: about 1300 ns from semaphore to start (the Guideline)",
    "link_seconds: 1 to 2 us a hop of a ring, Intra-node Collective Communications (AWS Neuron SDK documentation)",
    "mesh_steps: the same page, Mesh ReduceScatter and AllGather; mesh_share: chips of a 4 x 4 torus are two links "
    "apart in the mean",
    "halving_share: the same page has it ahead of a ring with half of the hops up to 56 MB on 64 cores of a trn2: 24 "
    "us of steps, not 124, for 0.9 of the bandwidth; ahead of Mesh it is then from 1.2 MB on (1 MB there)",
    "AWS publishes no power of a NeuronCore. hbm_picojoules: HBM2, 3.9 (Fine-Grained DRAM, MICRO 2017), HBM, 7 (AMD "
    "white paper WP485). sram_picojoules: 8.5 pJ for 64 bits of 32 KB, 14 of 1 MB, in 7 nm (Ten Lessons From Three "
    "Generations Shaped Google's TPUv4i, ISCA 2021, Table 2). mac_picojoules: multiplication and addition of 16 bits "
    "there, and in 45 nm (Computing's Energy Problem, ISSCC 2014). link_picojoules: one or two serial links of 5.5 "
    "(NVIDIA's comparison with NVLink-C2C). idle_watts: an assumption, up to half of a TPU v4, which has two cores "
    "(90 W, Google Cloud TPU documentation)",
)

TRN1 = NeuronDevice(
    name="trn1",
    hbm_picojoules=(3.9, 7.0),
    sram_picojoules=(0.133, 0.219),
    mac_picojoules=(0.5, 1.5),
    link_picojoules=(5.5, 11.0),
    idle_watts=(0.0, 45.0),
    sources=(
        "hbm_bytes, sbuf, psum: NeuronMM, section 2.2: 16 GB, 24 MB and 2 MB for a NeuronCore; partitions, "
        "sbuf_partition_bytes: 128, and so 192 KiB each, the guide below",
        "tensor_hz, vector_hz, scalar_hz, gpsimd_hz: " + _GUIDE + ", engine table; peak 92 TFLOPS there",
        "hbm_bytes_per_second: 820 GB/s for the two NeuronCores of a chip, same guide",
        "dma_transpose_rate: NeuronMM, section 4.2.2, says that transposing lowers the bandwidth, not by how much; a "
        "half is an assumption",
        "link_bytes_per_second: 768 GB/s of NeuronLink-v2 for a chip (Amazon EC2 Trn1 product page): 4 links, two ways",
        *_COMMON,
    ),
)

TRN2 = replace(
    TRN1,
    name="trn2",
    hbm_bytes=12 * GIB,
    sbuf_partition_bytes=224 * KIB,
    tensor_hz=2.4e9,
    vector_hz=0.96e9,
    scalar_hz=1.2e9,
    gpsimd_hz=1.2e9,
    dma_bytes_per_second=23e9,
    dma_transpose_rate=0.9,
    hbm_bytes_per_second=375e9,
    link_bytes_per_second=128e9,
    sources=(
        "hbm_bytes, hbm_bytes_per_second: 96 GiB and 3 TB/s for the eight NeuronCores of a chip, " + _GUIDE2,
        "partitions, sbuf_partition_bytes: 28 MiB = 128 x 224 KiB, same guide",
        "tensor_hz, vector_hz, scalar_hz, gpsimd_hz: engine table there; peak 79 TFLOPS in BF16",
        "dma_transpose_rate: there, DMA transpose, up to 90 % of the throughput of a copy from HBM to SBUF",
        "link_bytes_per_second: 1 TB/s of NeuronLink-v3 for a chip (Amazon EC2 Trn2 product page): 4 links, two ways",
        *_COMMON,
    ),
)

NEURON_PRESETS = {device.name: device for device in (TRN1, TRN2)}


def find_neuron_device(name: str | NeuronDevice, **overrides: int | float | None) -> NeuronDevice:
    """A preset by its name, or a device itself, with numbers replaced, but for those of None. UsageError."""
    if isinstance(name, NeuronDevice):
        device = name
    elif name in NEURON_PRESETS:
        device = NEURON_PRESETS[name]
    else:
        raise UsageError(f"no NeuronCore {name!r}; there are {', '.join(NEURON_PRESETS)}")
    return replace(device, **{key: value for key, value in overrides.items() if value is not None})  # type: ignore[arg-type]  # by name
