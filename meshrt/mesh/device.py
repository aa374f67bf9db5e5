"""The numbers of a machine: what its cores, routers and links can do."""

from dataclasses import fields
from math import ceil

from meshrt.errors import UsageError
from meshrt.records import dataclass
from meshrt.reports.energy import Range, check_range

VECTOR_OPERANDS = 3  # of an operation of a vector instruction, in memory: two are read, one is written
COLOURS = 256  # what the one-byte colour of a header can tell apart
POSITIVE = (
    "width", "height", "core_memory", "route_entries", "link_bytes_per_cycle", "macs_per_cycle", "macs_per_cycle_16",
    "adds_per_cycle", "adds_per_cycle_16", "matrix_passes", "die_rows", "clock_hz",
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
    chunk_cycles_16: float | None = None  # the same of 16-bit numbers, with `chunk_cycles`; None: as of 32-bit ones
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
        if self.route_entries is not None and self.route_entries > COLOURS:
            raise UsageError(f"device {self.name}: route_entries is {self.route_entries}; it is at most {COLOURS}")

    def busy_cycles(self, nbytes: int) -> float:
        """Cycles for which a packet of nbytes keeps a link busy."""
        return 0.0 if self.link_bytes_per_cycle is None else float(-(-nbytes // self.link_bytes_per_cycle))

    def compute_cycles(self, operations: float, itemsize: int = 4, operands: int = 2) -> float:
        """Cycles of one element-wise operation on so many numbers of `itemsize` bytes; none at all cost nothing.

        Banks are in each other's way only where two or more operands are vectors that are read.
        """
        rate = self.adds_rate(itemsize)
        if rate is None or not operations:
            return self.call_cycles if operations else 0.0
        return self.call_cycles + self._chunks(operations, rate, itemsize, operands)

    def vector_cycles(self, length: int, calls: int, itemsize: int = 4, operands: int = 2) -> float:
        """Cycles of so many vector instructions at a core on `length` numbers, as wide as multiply-accumulates."""
        rate = _of_width(itemsize, self.macs_per_cycle, self.macs_per_cycle_16)
        return calls * (self.call_cycles + (0.0 if rate is None else self._chunks(length, rate, itemsize, operands)))

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

    def _chunks(self, length: float, width: float, itemsize: int, operands: int = 2) -> float:
        """Cycles for a vector of so many numbers of that many bytes, `width` at once.

        Memory is read a whole width at a time, and nothing is known of where a vector begins: n numbers touch
        1 + (n - 1) / width of these chunks in the mean. What a chunk takes contains what its banks do, in the mean.
        Where vectors lie in step, a last chunk that is filled by half takes as long as any.
        """
        if self.chunk_cycles is None:
            return float(ceil(length / width))
        cycles = _of_width(itemsize, self.chunk_cycles, self.chunk_cycles_16) if operands > 1 else 1.0
        assert cycles is not None
        return cycles * (length / width + max(0.0, 1 - 1 / width))


def _of_width(itemsize: int, full: float | None, half: float | None) -> float | None:
    return half if itemsize == 2 and half is not None else full
