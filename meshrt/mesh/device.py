"""The numbers of a machine: what its cores, routers and links can do. Presets, each number with its source."""

from dataclasses import dataclass, fields, replace
from math import ceil

from meshrt.errors import UsageError


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
    macs_per_cycle: float | None = None  # multiply-accumulates, or element-wise operations, of one core
    macs_per_cycle_16: float | None = None  # the same of 16-bit numbers; None: as many as of 32-bit ones
    call_cycles: float = 0.0  # fixed cost of one vector instruction
    stream_adds: bool = False  # a core that reduces adds word by word, and sends on while the packet comes in
    clock_hz: float = 1e9
    sources: tuple[str, ...] = ()  # where the numbers are from

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (int, float)) and value < 0:
                raise UsageError(f"device {self.name}: {field.name} is {value}; it cannot be negative")

    def busy_cycles(self, nbytes: int) -> float:
        """Cycles for which a packet of nbytes keeps a link busy."""
        return 0.0 if self.link_bytes_per_cycle is None else float(-(-nbytes // self.link_bytes_per_cycle))

    def compute_cycles(self, operations: float) -> float:
        """Cycles of one vector operation with so many multiply-accumulates at a core; none at all cost nothing."""
        if not operations:
            return 0.0
        return self.call_cycles + (0.0 if self.macs_per_cycle is None else operations / self.macs_per_cycle)

    def vector_cycles(self, length: int, calls: int, itemsize: int = 4) -> float:
        """Cycles of so many vector instructions at a core, each on `length` numbers of `itemsize` bytes.

        An instruction takes whole cycles: a last one that fills the width by half takes as long as any.
        """
        rate = self.macs_per_cycle
        if itemsize == 2 and self.macs_per_cycle_16 is not None:
            rate = self.macs_per_cycle_16
        return calls * (self.call_cycles + (0.0 if rate is None else float(ceil(length / rate))))


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
    call_cycles=1.0,
    stream_adds=True,
    clock_hz=1.1e9,
    sources=(
        "width, height: usable fabric of a WSE-2, Cerebras csl-examples, single-tile-matvec (--dims 750,994)",
        "core_memory, clock_hz, link_bytes_per_cycle, macs_per_cycle, alpha: WaferLLM, section 7, experiment setup "
        "(48 KB SRAM, 1.1 GHz, one 32-bit message a cycle to a neighbour, one 32-bit multiply-accumulate a cycle)",
        "route_entries: the 5-bit colour gives 32 routes, of which the SDK leaves about 24 to a program",
        "beta: 2 T_R + 1 with a ramp latency T_R of 2 cycles, Near-Optimal Wafer-Scale Reduce, HPDC 2024",
        "stream_adds: chains and trees of Near-Optimal Wafer-Scale Reduce, HPDC 2024, pass on each word as it is added",
        "clock_hz: also that of the published WaferLLM programs, whose times are measured cycles / 1.1 GHz",
        "macs_per_cycle_16: a 64-bit datapath with 4 FP16 multiply-accumulates, Cerebras at Hot Chips 34, 2022",
        "call_cycles: the cycle of issue; an fmacs of 14 numbers takes 15 cycles in instruction logs of Cerebras' "
        "simulator (Wang-oss-tech/csl-experiments, SUMMA in float32). Loops around instructions are software's and not "
        "in it: 43 cycles more an instruction in that program, so computing time is a lower bound",
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
    sources=(
        "width, height: fabric of a WSE-3, --fabric-dims of the Cerebras SDK's documentation",
        "alpha, beta: twice those of wse2 in measured reductions (docs/validation.md)",
        "macs_per_cycle_16: SIMD of 8 numbers, Cerebras SDK documentation, language appendix, SIMD mode",
        "all else: as wse2",
    ),
)

IDEAL = Device(name="ideal", sources=("a hop costs one cycle, nothing else costs anything, and there are no limits",))

PRESETS = {device.name: device for device in (WSE2, WSE3, IDEAL)}


def find_device(name: str | Device, **overrides: int | None) -> Device:
    """A preset by its name, or a device itself, with numbers replaced, but for those of None. UsageError."""
    if isinstance(name, Device):
        device = name
    elif name in PRESETS:
        device = PRESETS[name]
    else:
        raise UsageError(f"no device {name!r}; there are {', '.join(PRESETS)}")
    return replace(device, **{key: value for key, value in overrides.items() if value is not None})  # type: ignore[arg-type]
