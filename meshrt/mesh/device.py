"""The numbers of a machine: what its cores, routers and links can do. Presets, each number with its source."""

from dataclasses import fields, replace
from math import ceil

from meshrt.energy import Range, check_range
from meshrt.errors import UsageError
from meshrt.records import dataclass

VECTOR_OPERANDS = 3  # of an operation of a vector instruction, in memory: two are read, one is written
POSITIVE = (
    "width", "height", "link_bytes_per_cycle", "macs_per_cycle", "macs_per_cycle_16", "adds_per_cycle",
    "adds_per_cycle_16", "matrix_passes", "die_rows", "clock_hz",
)  # fmt: skip
ENERGY = (
    "hop_picojoules", "memory_picojoules", "mac_picojoules", "mac_picojoules_16", "add_picojoules", "idle_watts",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Device:
    """One machine. A limit of None is no limit; a rate of None costs no time.

    Times are cycles, sizes bytes. alpha and beta are the paper's (waferllm, section 3.1): what a hop costs, and what
    it costs when software at a core touches a packet.
    """

    name: str
    width: int | None = None  # largest mesh, cores
    height: int | None = None
    core_memory: int | None = None  # bytes a core can hold
    route_entries: int | None = None  # entries of one router's table, all axes together
    alpha: float = 1.0  # cycles a hop
    beta: float = 0.0  # cycles a stage
    link_bytes_per_cycle: float | None = None  # width of a router-to-router link
    macs_per_cycle: float | None = None  # multiply-accumulates of one core: as wide as one SIMD instruction is
    macs_per_cycle_16: float | None = None  # the same of 16-bit numbers; None: as many as of 32-bit ones
    matrix_unit: tuple[int, int, int] | None = None  # rows, depth and columns of a 16-bit product that it does at once
    matrix_passes: int = 1  # cycles that it takes for that
    adds_per_cycle: float | None = None  # other element-wise operations; None: as many as multiply-accumulates
    adds_per_cycle_16: float | None = None  # the same of 16-bit numbers; None: as many as of 32-bit ones
    chunk_cycles: float | None = None  # of a whole SIMD width, vectors lying anywhere; None: 1, and they lie in step
    call_cycles: float = 0.0  # fixed cost of one vector instruction
    loop_cycles: float = 0.0  # software of a product's outer loop, an iteration
    step_cycles: float = 0.0  # software of a step that computes while tiles are exchanged
    shift_cycles: float = 0.0  # software of a shift that cores wait for
    collective_cycles: float = 0.0  # software of an allreduce, once
    product_cycles: float = 0.0  # software of a distributed product, once
    division_cycles: float = 0.0  # scalar code: of one division
    root_cycles: float = 0.0  # of a square root
    exponential_cycles: float = 0.0  # of an exponential
    die_rows: float | None = None  # rows of cores on a die; None: no dies
    die_cycles: float = 0.0  # cycles that a hop to the next die's rows takes longer
    stream_adds: bool = False  # a core that reduces adds word by word, and sends on while the packet comes in
    clock_hz: float = 1e9
    hop_picojoules: Range | None = None  # a bit over a link, with the router; of these and the next: lowest and highest
    memory_picojoules: Range | None = None  # a bit of a core's memory, read or written
    mac_picojoules: Range | None = None  # a multiply-accumulate of 32-bit numbers
    mac_picojoules_16: Range | None = None  # the same of 16-bit numbers
    add_picojoules: Range | None = None  # any other operation on a number
    idle_watts: Range | None = None  # of a core, all the time
    sources: tuple[str, ...] = ()  # where the numbers are from

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (int, float)) and value < 0:
                raise UsageError(f"device {self.name}: {field.name} is {value}; it cannot be negative")
            if value == 0 and field.name in POSITIVE:
                raise UsageError(f"device {self.name}: {field.name} is 0; nothing would ever be done")
            if field.name in ENERGY:
                check_range(self.name, field.name, value)

    def busy_cycles(self, nbytes: int) -> float:
        """Cycles for which a packet of nbytes keeps a link busy."""
        return 0.0 if self.link_bytes_per_cycle is None else float(-(-nbytes // self.link_bytes_per_cycle))

    def compute_cycles(self, operations: float, itemsize: int = 4) -> float:
        """Cycles of one element-wise operation on so many numbers of `itemsize` bytes; none at all cost nothing."""
        rate = self.adds_rate(itemsize)
        return self.call_cycles + (0.0 if rate is None else self._chunks(operations, rate)) if operations else 0.0

    def vector_cycles(self, length: int, calls: int, itemsize: int = 4) -> float:
        """Cycles of so many vector instructions at a core, each multiply-accumulates on `length` numbers.

        An instruction takes whole cycles: a last one that fills the width by half takes as long as any.
        """
        rate = _of_width(itemsize, self.macs_per_cycle, self.macs_per_cycle_16)
        cycles = 0.0 if rate is None else self._chunks(length, rate)
        return calls * (self.call_cycles + (cycles if self.chunk_cycles is not None else float(ceil(cycles))))

    def matmul_cycles(self, m: int, k: int, n: int, itemsize: int, down: bool = False) -> float:
        """Cycles of one product of tiles, m x k and k x n.

        By a matrix unit, where numbers are of 16 bits and there is one. Else vector instructions for each k: along the
        longer side of the result, one for each number of the shorter; or `down` its columns, whatever is longer.
        Those of one k are a `@map` (a loop in one instruction), which a loop over k sets up each time; where each k
        has but one, a single `@map` does all.
        """
        if itemsize == 2 and self.matrix_unit is not None:
            rows, depth, columns = self.matrix_unit
            return self.call_cycles + self.matrix_passes * ceil(m / rows) * ceil(k / depth) * ceil(n / columns)
        length, calls = (m, n) if down else (max(m, n), min(m, n))
        loops = k if down or calls > 1 else 1
        return self.vector_cycles(length, k * calls, itemsize) + loops * self.loop_cycles

    def operand_bytes(self, m: int, k: int, n: int, itemsize: int) -> int:
        """Bytes that a product of tiles reads from a core's memory and writes to it.

        A matrix unit reads both operands of each of its passes, and adds up by itself; else the operands of each
        multiply-accumulate of a vector instruction are in memory (one factor of it in a register).
        """
        if itemsize == 2 and self.matrix_unit is not None:
            rows, depth, columns = self.matrix_unit
            passes = ceil(m / rows) * ceil(k / depth) * ceil(n / columns)
            return itemsize * (passes * depth * (rows + columns) + m * n)
        return VECTOR_OPERANDS * itemsize * m * k * n

    def adds_rate(self, itemsize: int) -> float | None:
        """Element-wise operations a cycle on numbers of that many bytes."""
        if self.adds_per_cycle is None:
            return self.macs_per_cycle
        return _of_width(itemsize, self.adds_per_cycle, self.adds_per_cycle_16)

    def _chunks(self, length: float, width: float) -> float:
        """Cycles for a vector of so many numbers, `width` at once.

        Memory is read a whole width at a time, and nothing is known of where a vector begins: n numbers touch
        1 + (n - 1) / width of these chunks in the mean. What a chunk takes contains what its banks do, in the mean.
        """
        if self.chunk_cycles is None:
            return length / width
        return self.chunk_cycles * (length / width + max(0.0, 1 - 1 / width))


def _of_width(itemsize: int, full: float | None, half: float | None) -> float | None:
    return half if itemsize == 2 and half is not None else full


_SOFTWARE = (
    "loop_cycles, step_cycles, product_cycles, collective_cycles: least squares over rows of WaferLLM's kernels on "
    "a real WSE-3 that are marked fit, python -m meshrt.studies.validate.fit (docs/validation.md)",
    "shift_cycles: MeshGEMM in the WSE-3 simulator with the product left out, once and twice in it, solved for a step "
    "that only aligns (a public fork of WaferLLM with simulator runs)",
    "division_cycles, root_cycles: routines without an instruction of their own; their code (__divhf3 168 bytes, rsqrt "
    "148 bytes: 42 and 37 instructions) and a call, counted, not timed; exponential_cycles: a polynomial, counted",
    "call_cycles: a scalar instruction issues it, about a cycle (Cerebras csl-experiments, performance_model.py)",
    "chunk_cycles: 1, or 2 where operands' banks are in each other's way (5,130 or 10,254 cycles for 5,124 numbers "
    "in a public log of the WSE-2 simulator, SpMM_Cerebras; the rule: Cerebras SDK documentation, SIMD mode); the mean "
    "of both, as the kernels' tiles begin anywhere",
)

_ENERGY = (
    "hop_picojoules: tenths of a picojoule a bit over the wafer (WaferLLM, Table 1); at most what a core's peak power "
    "leaves for its router's five ports of 32 bits, all busy in each cycle",
    "memory_picojoules: 7.5 pJ for 64 bits of 8 KB in 7 nm (Ten Lessons From Three Generations Shaped Google's TPUv4i, "
    "ISCA 2021, Table 2); at most what the core's peak power leaves for three operands of four multiply-accumulates",
    "mac_picojoules, mac_picojoules_16, add_picojoules: multiplication and addition in 7 nm (the same table), at most "
    "in 45 nm (Computing's Energy Problem, ISSCC 2014); of 16 bits at least and 32 at most for other operations",
    "peak power: 30 mW a core of a WSE-2 (Cerebras at Hot Chips 34), 27 pJ a cycle",
    "idle_watts: not published; an assumption: 13 to 47 % of the peak power, an A100's share (52 of 400 W) and a TPU "
    "v4's (90 of 192 W, measured, Google Cloud TPU documentation)",
)

WSE2 = Device(
    name="wse2",
    width=750,
    height=994,
    core_memory=48 * 1024,
    route_entries=24,
    alpha=1.0,
    beta=5.0,
    link_bytes_per_cycle=4.0,
    macs_per_cycle=1.0,
    macs_per_cycle_16=4.0,
    adds_per_cycle=2.0,
    adds_per_cycle_16=4.0,
    chunk_cycles=1.5,
    call_cycles=1.0,
    loop_cycles=38.0,
    step_cycles=83.5,
    shift_cycles=76.0,
    collective_cycles=103.5,
    product_cycles=84.5,
    division_cycles=60.0,
    root_cycles=50.0,
    exponential_cycles=16.0,
    stream_adds=True,
    clock_hz=1.1e9,
    hop_picojoules=(0.1, 0.17),
    memory_picojoules=(0.117, 0.13),
    mac_picojoules=(1.69, 4.6),
    mac_picojoules_16=(0.5, 1.5),
    add_picojoules=(0.16, 0.9),
    idle_watts=(0.004, 0.014),
    sources=(
        "width, height: usable fabric of a WSE-2, Cerebras csl-examples, single-tile-matvec (--dims 750,994)",
        "core_memory, clock_hz, link_bytes_per_cycle, macs_per_cycle, alpha: WaferLLM, section 7, experiment setup "
        "(48 KB SRAM, 1.1 GHz, one 32-bit message a cycle to a neighbour, one 32-bit multiply-accumulate a cycle)",
        "route_entries: the 5-bit colour gives 32 routes, of which the SDK leaves about 24 to a program",
        "beta: 2 T_R + 1 with a ramp latency T_R of 2 cycles, Near-Optimal Wafer-Scale Reduce, HPDC 2024",
        "stream_adds: chains and trees of Near-Optimal Wafer-Scale Reduce, HPDC 2024, pass on each word as it is added",
        "clock_hz: also that of the published WaferLLM programs, whose times are measured cycles / 1.1 GHz",
        "macs_per_cycle_16, adds_per_cycle, adds_per_cycle_16: Cerebras SDK documentation, language appendix, SIMD "
        "mode (@fmach, @faddh and the like 4, @fadds 2, @fmacs none)",
        *_SOFTWARE,
        *_ENERGY,
        "software costs what it does on a WSE-3: one stencil program takes the same time in the simulators of both, "
        "16,678 and 16,696 cycles, 42,663 and 42,772",
    ),
)

WSE3 = replace(
    WSE2,
    name="wse3",
    width=762,
    height=1172,
    alpha=2.0,
    beta=10.0,
    macs_per_cycle_16=8.0,
    adds_per_cycle_16=8.0,
    die_rows=1172 / 7,
    die_cycles=17.5,
    hop_picojoules=(0.05, 0.17),
    memory_picojoules=(0.058, 0.13),
    mac_picojoules=(0.84, 4.6),
    mac_picojoules_16=(0.25, 1.5),
    add_picojoules=(0.08, 0.9),
    sources=(
        "width, height: fabric of a WSE-3, --fabric-dims of the Cerebras SDK's documentation",
        "core_memory, route_entries, link_bytes_per_cycle, macs_per_cycle, adds_per_cycle, stream_adds: as wse2",
        "clock_hz: by which the published times of WaferLLM's kernels were made from cycles; the machine's is lower",
        "macs_per_cycle_16, adds_per_cycle_16: Cerebras SDK documentation, language appendix, SIMD mode (8 on WSE-3)",
        "alpha, beta, die_cycles: the least squares below, over MeshGEMV's rows; alpha and beta come out as twice "
        "those of wse2",
        "die_rows: inferred: MeshGEMV's time goes up in a step where the way to its root crosses a multiple of 1172 / 7"
        " rows, the height of one of seven dies; no such steps were seen along x",
        *_SOFTWARE,
        "hop_picojoules and the like: half of wse2's at least, as a WSE-3 does twice the work at the same power "
        "(Cerebras, March 2024); at most wse2's",
        *_ENERGY,
    ),
)

WORMHOLE = Device(
    name="wormhole",
    width=8,
    height=10,
    core_memory=1464 * 1024,
    alpha=9.0,
    beta=10.0,
    link_bytes_per_cycle=32.0,
    macs_per_cycle=32.0,
    matrix_unit=(8, 16, 16),
    matrix_passes=2,
    adds_per_cycle=32.0,
    adds_per_cycle_16=128.0,
    clock_hz=1e9,
    sources=(
        "of a Tenstorrent Wormhole; its network is a torus, of which this is the mesh without the wires round it",
        "alpha, link_bytes_per_cycle: 9 cycles from router to router, a flit of 32 bytes a cycle (Tenstorrent, "
        "tt-isa-documentation, WormholeB0/NoC, performance)",
        "beta: core to router and router to core, about 5 cycles each (the same page); software is not in it",
        "width, height, core_memory: 80 Tensix tiles in 8 columns and 10 rows, of which products have 64 to 80, "
        "with 1,464 KiB each (tt-isa-documentation, WormholeB0)",
        "matrix_unit, matrix_passes: 8 x 16 times 16 x 16 in a cycle, shorter ones in as many; bfloat16 takes two "
        "(tt-metal, tech_reports/matrix_engine, HiFi2)",
        "adds_per_cycle_16: 8 x 16 numbers a cycle (the same page)",
        "macs_per_cycle, adds_per_cycle: 32 lanes of the vector unit, which alone has float32",
        "route_entries: packets carry their destination, so routers have no table that could be full",
        "clock_hz: 1.0 GHz (tt-isa-documentation)",
    ),
)

DOJO = Device(
    name="dojo",
    width=18,
    height=20,
    core_memory=1280 * 1024,
    alpha=1.0,
    link_bytes_per_cycle=64.0,
    macs_per_cycle=16.0,
    matrix_unit=(8, 4, 8),
    clock_hz=2e9,
    sources=(
        "of a Tesla D1, from its presentations at AI Day 2021 and Hot Chips 34",
        "width, height: 354 nodes, which are 18 columns and 20 rows but for six nodes",
        "core_memory: 1.25 MB of SRAM a node",
        "alpha, link_bytes_per_cycle: a hop a cycle, and one packet of 64 bytes a cycle in and out of a node",
        "macs_per_cycle, matrix_unit: 22.6 and 362 TFLOPS of 354 nodes at 2 GHz: 16 float32, 256 bfloat16 a node; "
        "how long the unit's sides are is assumed",
        "beta and software: not published, and nothing here: times are a lower bound",
    ),
)

IDEAL = Device(name="ideal", sources=("a hop costs one cycle, nothing else costs anything, and there are no limits",))

PRESETS = {device.name: device for device in (WSE2, WSE3, WORMHOLE, DOJO, IDEAL)}
