"""What every number of a report is: how it came about, its unit, what it contains, and where it is raised.

The one source for `kinds` in the JSON, its schema, the marks of printed tables, docs/counters.md and `meshrt explain`.
A path leads from `measured`, or from a phase, to a number; a * in it stands for any one name.
"""

from collections.abc import Mapping

from meshrt.records import dataclass

COUNTED, DECLARED, TIMED, MODELLED = "counted", "declared", "timed", "modelled"
EXTRAPOLATED, HOST = "extrapolated", "host"
KINDS = {
    COUNTED: "raised by the runtime where the thing happens",
    DECLARED: "said by the program, or by the device's numbers; nothing checks it",
    TIMED: "by the device's model, from what was counted",
    MODELLED: "what was counted, or timed, times a number of the device",
    EXTRAPOLATED: "scaled up from the part that ran (--layers-run, --steps-run)",
    HOST: "of the computers that the emulation ran on",
}


@dataclass(frozen=True)
class Field:
    """One number. `scaled`: a part of a run that stands for others multiplies it. `row`: its name in printed tables."""

    kind: str
    unit: str
    says: str
    source: str
    scaled: bool = False
    row: str = ""


def _rows(kind: str, source: str, rows: dict[str, tuple[str, ...]], scaled: bool = False) -> dict[str, Field]:
    """Fields of one kind and source: unit, contents and, if it is printed, the name of its row."""
    return {path: Field(kind, unit, says, source, scaled, *row) for path, (unit, says, *row) in rows.items()}


_LIMIT = "the device's numbers (`meshrt devices`), or the option that replaces one"
_TOKENS = _rows(DECLARED, "the program, at the phase", {"tokens": ("tokens", "that the phase worked on", "tokens")})


def _energy(**parts: str) -> dict[str, Field]:
    """Of machines whose device has joules: the sums, and the parts of the mean."""
    return _rows(MODELLED, "meshrt/energy.py, by the device's joules (docs/energy.md)", {
        "energy.low": ("J", "all that took energy, each with the lowest that its sources give"),
        "energy.mean": ("J", f"halfway between energy.low and energy.high: {', '.join(parts)}", "energy"),
        "energy.high": ("J", "all that took energy, each with the highest that its sources give"),
        **{f"energy.{part}": ("J", f"of energy.mean: {says}") for part, says in parts.items()},
    }, scaled=True)  # fmt: skip


MESH = {
    **_TOKENS,
    **_rows(COUNTED, "meshrt/mesh/wires/fabric.py and meshrt/mesh/exchange/, at each transfer", {
        "messages": ("packets", "packets that cores sent, each to one core or, by multicast, to many", "messages"),
        "hops": ("hops", "router-to-router moves of all packets", "hops"),
        "link_bytes.total": ("bytes", "bytes over all links: a tile counts once for each link that it crosses"),
        "link_bytes.max": ("bytes", "bytes over the link, in one direction, that carried most", "busiest link"),
        "ramp_bytes.total": ("bytes", "bytes that left cores by their ramps, and that came to them, of all cores"),
        "ramp_bytes.max": ("bytes", "bytes over the ramp, in one direction, that carried most"),
        "wafer.hops": ("hops", "hops on a wafer with defects: one of the mesh may be several", "hops on the wafer"),
        "wafer.link_bytes.total": ("bytes", "link_bytes.total on the links of that wafer"),
        "wafer.link_bytes.max": ("bytes", "link_bytes.max on the links of that wafer", "busiest of the wafer"),
    }, scaled=True),
    **_rows(COUNTED, "meshrt/mesh/wires/fabric.py and meshrt/mesh/exchange/, at each delivery", {
        "max_hops": ("hops", "hops of the longest packet that was delivered", "longest packet"),
    }),
    **_rows(DECLARED, "the program or the collective whose software it is, by `stage` of meshrt/mesh/wires/fabric.py", {
        "stages": ("stages", "times that software at a core touched a packet: relay or add", "stages"),
    }, scaled=True),
    **_rows(COUNTED, "meshrt/mesh/computing.py: `matmul` from the shapes of tiles; `work` from what the program says", {
        "macs": ("MACs", "multiply-accumulates of all cores, those with padding included", "MACs"),
        "macs_16": ("MACs", "of these, those of tiles with numbers of 16 bits or fewer"),
    }, scaled=True),
    **_rows(COUNTED, "meshrt/mesh/computing.py: `elementwise`, `vectors`; meshrt/mesh/wires/fabric.py, `stage`", {
        "adds": ("operations", "element-wise operations of all cores: also sums of what comes in"),
        "operand_bytes": (
            "bytes", "that macs and adds read from cores' memories and wrote to them, three operands each; a matrix"
            " unit's: operands of its passes, and results",
        ),
    }, scaled=True),
    **_rows(COUNTED, "meshrt/mesh/computing.py, `rebuild`, at each slice of a tile of codes", {
        "rebuilt": ("numbers", "numbers that cores made from codes of quantized matrices", "rebuilt"),
    }, scaled=True),
    **_rows(TIMED, "meshrt/mesh/clock.py, by the device's alpha, beta, widths and rates", {
        "critical_path.cycles": ("cycles", "virtual time until the last core is done", "path cycles"),
        "critical_path.seconds": ("s", "the same by the device's clock"),
        "critical_path.hops": ("hops", "hops on the chain of events that the last core had to wait for", "path hops"),
        "critical_path.stages": ("stages", "stages on that chain"),
    }, scaled=True),
    **_energy(
        links="bits over links, as often as each is crossed (on a wafer with defects, there)",
        memory="bits of operand_bytes, and of ramp_bytes, which leave memories and come to them",
        compute="macs, macs_16, adds",
        idle="the cores of the mesh, all the time",
    ),
    **_rows(COUNTED, "meshrt/mesh/wires/order.py, at each link that a head waited for", {
        "out_of_order.packets": ("packets", "heads that waited at a link for one that asked later", "out of order"),
    }, scaled=True),
    **_rows(TIMED, "meshrt/mesh/wires/order.py, by the clock", {
        "out_of_order.longest_wait": ("cycles", "the longest of these waits"),
    }),
    **_rows(COUNTED, "meshrt/mesh/wires/tables.py, at every write", {
        "route_entries.max": ("entries", "most entries that one router's table held", "entries"),
    }),
    **_rows(COUNTED, "meshrt/mesh/memory.py, at every allocation", {
        "memory_bytes.max": (
            "bytes", "most that one core held: tiles and all that transfers, collectives and products return, as long"
            " as it lives; temporaries of element-wise NumPy expressions are not in it", "memory",
        ),
    }),
    **_rows(COUNTED, "meshrt/mesh/block.py, `settle`, of the blocks that were at work", {
        "cores": ("cores", "of the largest mesh that was at work; of several regions one works at a time"),
    }),
    **_rows(COUNTED, "meshrt/mesh/clock.py, where the time of a core went on", {
        "cores_used": ("cores", "cores that computed, or that software or a packet kept waiting, in the part that ran"),
    }),
    **_rows(DECLARED, _LIMIT, {
        "route_entries.limit": ("entries", "entries that a router's table has room for; null: no limit"),
        "memory_bytes.limit": ("bytes", "memory of a core; null: no limit"),
    }),
}  # fmt: skip

NEURON = {
    **_TOKENS,
    **_rows(TIMED, "meshrt/neuron/timeline.py, by the clocks of the engines and the rates of HBM, DMA and links", {
        "critical_path.cycles": ("cycles", "virtual time of the slowest core, in cycles of the tensor engine"),
        "critical_path.seconds": ("s", "virtual time of the slowest core", "virtual time"),
        "mfu": ("1", "flops over what the tensor engines could do in that time, 0 to 1", "MFU"),
        "engines.*.busy_seconds": ("s", "time that the engine worked, of all cores together"),
        "engines.*.active": ("1", "that time over the time of the cores, 0 to 1", "* engine"),
    }),
    **_rows(COUNTED, "meshrt/neuron/engines.py at each transfer, meshrt/neuron/cores.py at each collective", {
        "hbm_bytes.read": ("bytes", "bytes read from HBM by all cores, in the dtype of the tensor", "HBM read"),
        "hbm_bytes.written": ("bytes", "bytes written to HBM by all cores", "HBM written"),
        "hbm_bytes.total": ("bytes", "both"),
        "spill_bytes.saved": ("bytes", "of hbm_bytes.written: tiles that SBUF had no room for", "of that spilled"),
        "spill_bytes.reloaded": ("bytes", "of hbm_bytes.read: such tiles, when they were needed again"),
    }),
    **_rows(COUNTED, "meshrt/neuron/isa.py, at each instruction", {
        "macs": ("MACs", "multiply-accumulates of all tensor engines but those of transposes"),
        "flops": ("operations", "twice macs", "operations"),
        "transpose_flops": ("operations", "the same of products that only transpose", "to transpose"),
        "mac_passes": ("MACs", "all of these, as often as the tensor engine does them: float32 in several passes"),
        "operand_bytes": ("bytes", "that instructions read in SBUF and PSUM, and wrote there"),
        "engines.*.instructions": ("instructions", "instructions of the engine on all cores; for dma, transfers"),
    }),
    **_energy(
        links="bits to the next cores of the ring",
        memory="bits of hbm_bytes in HBM and, as DMA moves them, in SBUF; those of operand_bytes",
        compute="mac_passes",
        idle="the cores, all the time",
    ),
    **_rows(COUNTED, "meshrt/neuron/memory.py, at every allocation", {
        "sbuf_bytes.max": ("bytes", "most that one core's SBUF held: its fullest partition, for all of them", "SBUF"),
        "psum_bytes.max": ("bytes", "the same of PSUM", "PSUM"),
        "memory_bytes.max": ("bytes", "most that one core's HBM held", "HBM"),
    }),
    **_rows(COUNTED, "meshrt/ranks/rings.py, by the steps of a ring", {
        "link_bytes.total": ("bytes", "bytes that all cores sent to the next core of the ring", "between cores"),
        "link_bytes.max": ("bytes", "bytes that one core sent, the most"),
        "collectives": ("calls", "collectives that a core took part in"),
    }),
    **_rows(DECLARED, _LIMIT, {
        "sbuf_bytes.limit": ("bytes", "SBUF of a core"),
        "psum_bytes.limit": ("bytes", "PSUM of a core"),
        "memory_bytes.limit": ("bytes", "HBM of a core"),
    }),
}  # fmt: skip

GPU = {
    **_TOKENS,
    **_rows(TIMED, "meshrt/gpu/gpu.py and gpus.py, by the device's rates, launches and protocols", {
        "critical_path.seconds": ("s", "virtual time until the last GPU is done", "virtual time"),
        "mfu": ("1", "flops over what the GPUs could do in that time, 0 to 1"),
        "compute_seconds": ("s", "time that kernels took on one GPU, the most", "of that kernels"),
        "collective_seconds": ("s", "time of collectives on one GPU, with waiting", "of that collectives"),
    }, scaled=True),
    **_rows(COUNTED, "meshrt/gpu/gpu.py, at each launch", {
        "launches": ("kernels", "kernels that one GPU ran, those of graphs included, the most", "launches"),
    }, scaled=True),
    **_rows(COUNTED, "meshrt/gpu/gpu.py, at each launch of a graph", {
        "graph_launches": ("graphs", "recorded graphs that one GPU launched, the most", "of graphs"),
    }),
    **_rows(DECLARED, "the kernel, from the shapes of its operands, at each launch", {
        "flops": ("operations", "operations of all GPUs' kernels", "operations"),
        "memory_traffic.total": ("bytes", "bytes that kernels read and wrote, in the model's dtype", "memory traffic"),
        "memory_traffic.max": ("bytes", "the same of one GPU, the most"),
        "attention_heads": ("heads", "tokens times query heads, as attention computed them", "attention heads"),
        "dequantized_bytes": ("bytes", "of matrices that kernels rebuilt from codes, in the model's dtype"),
        "expert_rows": ("rows", "that experts' kernels computed on, a token counting for each of its experts there"),
        "expert_padding": ("rows", "of expert_rows: room that no token had (--capacity)"),
        "cache_runs": ("copies", "stretches of the low-rank cache that were copied together"),
        "cache_blocks": ("blocks", "blocks of the low-rank cache that were copied"),
    }, scaled=True),
    **_rows(COUNTED, "meshrt/ranks/rings.py, by the steps of a ring", {
        "collectives.*.calls": ("calls", "collectives of this kind that a GPU took part in"),
        "collectives.*.bytes.total": ("bytes", "bytes that all GPUs sent in them, in the model's dtype"),
        "collectives.*.bytes.max": ("bytes", "bytes that one GPU sent in them, the most", "*, sent by a GPU"),
        "link_bytes.total": ("bytes", "bytes that all GPUs sent, by all collectives"),
        "link_bytes.max": ("bytes", "bytes that one GPU sent, the most"),
        "attention_link_bytes": ("bytes", "of link_bytes.total: what attention sent"),
        "mlp_link_bytes": ("bytes", "of link_bytes.total: what the MLP sent"),
    }, scaled=True),
    **_energy(
        links="bits that GPUs sent each other",
        memory="bits of memory_traffic; caches are not counted",
        compute="half of flops, as 16-bit multiply-accumulates",
        idle="the GPUs, all the time",
    ),
    **_rows(COUNTED, "programs/gpu/dispatch.py and experts.py, by the experts that tokens took", {
        "dispatched_bytes": ("bytes", "tokens, choices and shares on their way to other GPUs' experts, sent once"),
        "combined_bytes": ("bytes", "what experts made of them on its way back, sent once"),
        "dropped_tokens": ("tokens", "that an expert had no room for (--capacity), each counted for each such expert"),
    }, scaled=True),
    **_rows(COUNTED, "meshrt/ranks/pairs.py, at every part", {
        "all_to_all_parts": ("parts", "of all_to_all that GPUs sent, those that were handed on included"),
    }, scaled=True),
    **_rows(COUNTED, "meshrt/gpu/memory.py, at every allocation", {
        "memory_bytes.max": (
            "bytes", "most that one GPU held, in the model's dtype: weights, cache, workspace, buffers of plans; what a"
            " kernel needs for itself is not in it", "memory",
        ),
        "memory_bytes.of_the_fullest.*": ("bytes", "what that GPU held at the end, by name"),
    }, scaled=True),
    **_rows(DECLARED, _LIMIT, {"memory_bytes.limit": ("bytes", "memory of a GPU")}),
}  # fmt: skip

ARM = {
    **_TOKENS,
    **_rows(TIMED, "meshrt/arm/soc.py, by the cores' pipes and caches and a bus that they share", {
        "critical_path.seconds": ("s", "virtual time of all stretches of work, one after the other", "virtual time"),
        "compute_seconds": ("s", "that cores worked if DRAM were no limit, of all together", "of all cores"),
        "idle_seconds": ("s", "that cores waited for the last of a stretch, of all together", "idle"),
        "flash_wait_seconds": ("s", "that all cores waited for weights from flash (--flash)", "waiting for flash"),
    }, scaled=True),
    **_rows(COUNTED, "meshrt/arm/soc.py, at each stretch", {
        "flash_bytes": ("bytes", "of weights that were read from flash", "flash"),
        "stretches": ("stretches", "of work that cores began and ended together"),
        "shared_stretches": ("stretches", "of these, those of several cores, with a fork and a join"),
        "dram_bytes.read": ("bytes", "that the SLC did not have"),
        "dram_bytes.written": ("bytes", "that had to leave the SLC"),
        "dram_bytes.total": ("bytes", "both", "DRAM"),
    }, scaled=True),
    **_rows(COUNTED, "meshrt/arm/core.py, at each kernel, for every micro-tile and step", {
        "instructions.total": ("instructions", "of all cores", "instructions"),
        "instructions.*": ("instructions", "of this name", "*"),
        "spills.loads": ("registers", "loaded from the stack, since there were too few (--spill)", "spilled"),
        "spills.stores": ("registers", "saved there"),
        "operations": ("operations", "of instructions that multiply and add, which are two", "operations"),
        "useful_operations.total": ("operations", "of products, without those of padding"),
        "useful_operations.*": ("operations", "of them, those of products with this instruction"),
        "l1_bytes": ("bytes", "that registers loaded and stored", "loaded, stored"),
    }, scaled=True),
    **_rows(COUNTED, "programs/arm/linear.py, at each product, by the panels of its cores", {
        "products.weight_bytes": ("bytes", "of packed weights, scales and zeros, each once a product"),
        "products.numbers": ("numbers", "that products of codes take and give, each once, without padding"),
    }, scaled=True),
    **_rows(COUNTED, "meshrt/arm/cache.py, at each range that a loop touches", {
        "l2_bytes": ("bytes", "that cores' L1 did not have", "from L2"),
        "slc_bytes": ("bytes", "that cores' L2 did not have, and that they wrote", "from and to the SLC"),
    }, scaled=True),
    **_energy(
        memory="bits of l1_bytes, l2_bytes, slc_bytes and dram_bytes",
        compute="instructions.total",
        idle="the cores of the run, all the time",
    ),
    **_rows(COUNTED, "meshrt/arm/core.py, at each kernel", {
        "registers.max": ("registers", "that a kernel held, the most", "registers"),
    }),
    **_rows(COUNTED, "meshrt/arm/memory.py, at every allocation", {
        "memory_bytes.max": ("bytes", "most that DRAM held: weights, cache, activations", "memory"),
    }),
    **_rows(DECLARED, _LIMIT, {
        "registers.limit": ("registers", "registers of a core"),
        "memory_bytes.limit": ("bytes", "DRAM of all cores"),
    }),
}  # fmt: skip
OWN_TALLY = Field(DECLARED, "1", "a tally of the program's own, of all GPUs", "the kernel that asks for it", True)

MACHINES: Mapping[str, Mapping[str, Field]] = {"mesh": MESH, "neuron": NEURON, "gpu": GPU, "arm": ARM}
