"""The meshes that there are, each number with its source."""

from dataclasses import replace

from meshrt.mesh.device import Device

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

# Of a chunk of four 16-bit numbers: one cycle where both operands begin at multiples of 4 bytes and 4 of 8 apart, else
# two (docs/decisions/018-banks.md). Tiles begin anywhere: of the 4 x 4 pairs of such places two are free.
_FOUR_OF_EIGHT_BANKS = (1 + 7 * 2) / 8

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
    chunk_cycles_16=_FOUR_OF_EIGHT_BANKS,
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
        "chunk_cycles_16: 8 banks of 16-bit words; four numbers of each of two operands at once are one cycle where "
        "both are at multiples of 4 bytes and src0 % 8 == (src1 + 4) % 8 (Cerebras SDK documentation, language "
        "appendix, SIMD mode), else two: one of eight pairs of places that two tiles can begin at",
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
    chunk_cycles_16=None,
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
        "chunk_cycles_16: none: eight numbers of each operand are more than eight banks of 16-bit words give, so "
        "wse2's rule cannot hold here; the constants below were found with chunk_cycles for all",
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
        "macs_per_cycle, matrix_unit, clock_hz: 22.6 and 362 TFLOPS of 354 nodes at 2 GHz: 16 float32, 256 bfloat16 a "
        "node; how long the unit's sides are is assumed",
        "beta and software: not published, and nothing here: times are a lower bound",
    ),
)

IDEAL = Device(name="ideal", sources=("a hop costs one cycle, nothing else costs anything, and there are no limits",))

PRESETS = {device.name: device for device in (WSE2, WSE3, WORMHOLE, DOJO, IDEAL)}
