"""What every number of a report of a mesh is."""

from meshrt.reports.fields import COUNTED, DECLARED, INNER, LIMIT, TIMED, TOKENS, energy, rows

FIELDS = {
    **TOKENS,
    **rows(COUNTED, "meshrt/mesh/wires/fabric.py and meshrt/mesh/exchange/, at each transfer", {
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
    **rows(COUNTED, "meshrt/mesh/wires/fabric.py and meshrt/mesh/exchange/, at each delivery", {
        "max_hops": ("hops", "hops of the longest packet that was delivered", "longest packet"),
    }),
    **rows(DECLARED, "the program or collective whose software it is, by `stage` of meshrt/mesh/wires/software.py", {
        "stages": ("stages", "times that software at a core touched a packet: relay or add", "stages"),
    }, scaled=True),
    **rows(COUNTED, "meshrt/mesh/computing.py: `matmul` from the shapes of tiles; `work` from what the program says", {
        "macs": ("MACs", "multiply-accumulates of all cores, those with padding included", "MACs"),
        "macs_16": ("MACs", "of these, those of tiles with numbers of 16 bits or fewer"),
    }, scaled=True),
    **rows(COUNTED, "meshrt/mesh/computing.py: `elementwise`, `vectors`; meshrt/mesh/wires/software.py, `stage`", {
        "adds": ("operations", "element-wise operations of all cores: also sums of what comes in"),
        "operand_bytes": (
            "bytes", "that macs and adds read from cores' memories and wrote to them: of macs three operands each, of"
            " adds those that are vectors and a result; a matrix unit's: operands of its passes, and results",
        ),
    }, scaled=True),
    **rows(COUNTED, "meshrt/mesh/computing.py, `rebuild`, at each slice of a tile of codes", {
        "rebuilt": ("numbers", "numbers that cores made from codes of quantized matrices", "rebuilt", INNER),
    }, scaled=True),
    **rows(TIMED, "meshrt/mesh/clock.py, by the device's alpha, beta, widths and rates", {
        "critical_path.cycles": ("cycles", "virtual time until the last core is done", "path cycles"),
        "critical_path.seconds": ("s", "the same by the device's clock"),
        "critical_path.hops": ("hops", "hops on the chain of events that the last core had to wait for", "path hops"),
        "critical_path.stages": ("stages", "stages on that chain"),
    }, scaled=True),
    **energy(
        links="bits over links, as often as each is crossed (on a wafer with defects, there)",
        memory="bits of operand_bytes, and of ramp_bytes, which leave memories and come to them",
        compute="macs, macs_16, adds",
        idle="the cores of the mesh, all the time",
    ),
    **rows(COUNTED, "meshrt/mesh/wires/order.py, at each link that a head waited for", {
        "out_of_order.packets": ("packets", "heads that waited at a link for one that asked later", "out of order"),
    }, scaled=True),
    **rows(TIMED, "meshrt/mesh/wires/order.py, by the clock", {
        "out_of_order.longest_wait": ("cycles", "the longest of these waits"),
    }),
    **rows(COUNTED, "meshrt/mesh/wires/tables.py, at every write", {
        "route_entries.max": ("entries", "most entries that one router's table held", "entries"),
    }),
    **rows(COUNTED, "meshrt/mesh/memory.py, at every allocation", {
        "memory_bytes.max": (
            "bytes", "most that one core held: tiles and all that transfers, collectives and products return, as long"
            " as it lives; temporaries of element-wise NumPy expressions are not in it", "memory",
        ),
    }),
    **rows(COUNTED, "meshrt/mesh/block.py, `settle`, of the blocks that were at work", {
        "cores": ("cores", "of the largest mesh that was at work; of several regions one works at a time"),
    }),
    **rows(COUNTED, "meshrt/mesh/clock.py, where the time of a core went on", {
        "cores_used": ("cores", "cores that computed, or that software or a packet kept waiting, in the part that ran"),
    }),
    **rows(DECLARED, LIMIT, {
        "route_entries.limit": ("entries", "entries that a router's table has room for; null: no limit"),
        "memory_bytes.limit": ("bytes", "memory of a core; null: no limit"),
    }),
}  # fmt: skip
