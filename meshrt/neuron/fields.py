"""What every number of a report of NeuronCores is."""

from meshrt.reports.fields import COUNTED, DECLARED, INNER, LIMIT, TIMED, TOKENS, energy, rows

FIELDS = {
    **TOKENS,
    **rows(TIMED, "meshrt/neuron/timeline.py, by the clocks of the engines and the rates of HBM, DMA and links", {
        "critical_path.cycles": ("cycles", "virtual time of the slowest core, in cycles of the tensor engine"),
        "critical_path.seconds": ("s", "virtual time of the slowest core", "virtual time"),
        "mfu": ("1", "flops over what the tensor engines could do in that time, 0 to 1", "MFU"),
        "engines.*.busy_seconds": ("s", "time that the engine worked, of all cores together"),
        "engines.*.active": ("1", "that time over the time of the cores, 0 to 1", "* engine"),
    }),
    **rows(COUNTED, "meshrt/neuron/engines.py at each transfer, meshrt/neuron/cores.py at each collective", {
        "hbm_bytes.read": ("bytes", "bytes read from HBM by all cores, in the dtype of the tensor", "HBM read"),
        "hbm_bytes.written": ("bytes", "bytes written to HBM by all cores", "HBM written"),
        "hbm_bytes.total": ("bytes", "both"),
        "dma_descriptors": (
            "descriptors", "descriptors of all DMA transfers: one for each partition of SBUF that is filled or emptied"
        ),
        "spill_bytes.saved": ("bytes", "of hbm_bytes.written: tiles that SBUF had no room for", "of that spilled"),
        "spill_bytes.reloaded": ("bytes", "of hbm_bytes.read: such tiles, when they were needed again"),
    }),
    **rows(COUNTED, "meshrt/neuron/isa.py, at each instruction", {
        "macs": ("MACs", "multiply-accumulates of all tensor engines but those of transposes"),
        "flops": ("operations", "twice macs", "operations"),
        "transpose_flops": ("operations", "the same of products that only transpose", "to transpose", INNER),
        "mac_passes": ("MACs", "all of these, as often as the tensor engine does them: float32 in several passes"),
        "operand_bytes": ("bytes", "that instructions read in SBUF and PSUM, and wrote there"),
        "engines.*.instructions": ("instructions", "instructions of the engine on all cores; for dma, transfers"),
    }),
    **energy(
        links="bits to the next cores of the ring",
        memory="bits of hbm_bytes in HBM and, as DMA moves them, in SBUF; those of operand_bytes",
        compute="mac_passes",
        idle="the cores, all the time",
    ),
    **rows(COUNTED, "meshrt/neuron/memory.py, at every allocation", {
        "sbuf_bytes.max": ("bytes", "most that one core's SBUF held: its fullest partition, for all of them", "SBUF"),
        "psum_bytes.max": ("bytes", "the same of PSUM", "PSUM"),
        "memory_bytes.max": ("bytes", "most that one core's HBM held", "HBM"),
    }),
    **rows(COUNTED, "meshrt/groups/rings.py, by the steps of a ring", {
        "link_bytes.total": ("bytes", "bytes that all cores sent to the next core of the ring", "between cores"),
        "link_bytes.max": ("bytes", "bytes that one core sent, the most"),
        "collectives": ("calls", "collectives that a core took part in"),
    }),
    **rows(DECLARED, LIMIT, {
        "sbuf_bytes.limit": ("bytes", "SBUF of a core"),
        "psum_bytes.limit": ("bytes", "PSUM of a core"),
        "memory_bytes.limit": ("bytes", "HBM of a core"),
    }),
}  # fmt: skip
