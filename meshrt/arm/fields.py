"""What every number of a report of Arm cores is."""

from meshrt.reports.fields import COUNTED, DECLARED, INNER, LIMIT, TIMED, TOKENS, energy, rows

FIELDS = {
    **TOKENS,
    **rows(TIMED, "meshrt/arm/soc.py, by the cores' pipes and caches and a bus that they share", {
        "critical_path.seconds": ("s", "virtual time of all stretches of work, one after the other", "virtual time"),
        "compute_seconds": ("s", "that cores worked if DRAM were no limit, of all together", "of all cores"),
        "idle_seconds": ("s", "that cores waited for the last of a stretch, of all together", "idle"),
        "flash_wait_seconds": ("s", "that all cores waited for weights from flash (--flash)", "waiting for flash"),
    }, scaled=True),
    **rows(COUNTED, "meshrt/arm/soc.py, at each stretch", {
        "flash_bytes": ("bytes", "of weights that were read from flash", "flash"),
        "stretches": ("stretches", "of work that cores began and ended together"),
        "shared_stretches": ("stretches", "of these, those of several cores, with a fork and a join"),
        "dram_bytes.read": ("bytes", "that the SLC did not have"),
        "dram_bytes.written": ("bytes", "that had to leave the SLC"),
        "dram_bytes.total": ("bytes", "both", "DRAM"),
    }, scaled=True),
    **rows(COUNTED, "meshrt/arm/core.py, at each kernel, for every micro-tile and step", {
        "instructions.total": ("instructions", "of all cores", "instructions"),
        "instructions.*": ("instructions", "of this name", "*", INNER),
        "spills.loads": ("registers", "loaded from the stack, since there were too few (--spill)", "spilled", INNER),
        "spills.stores": ("registers", "saved there"),
        "operations": ("operations", "of instructions that multiply and add, which are two", "operations"),
        "useful_operations.total": ("operations", "of products, without those of padding"),
        "useful_operations.*": ("operations", "of them, those of products with this instruction"),
        "l1_bytes": ("bytes", "that registers loaded and stored", "loaded, stored"),
    }, scaled=True),
    **rows(COUNTED, "programs/arm/products/linear.py, at each product, by the panels of its cores", {
        "products.weight_bytes": ("bytes", "of packed weights, scales and zeros, each once a product"),
        "products.numbers": ("numbers", "that products of codes take and give, each once, without padding"),
    }, scaled=True),
    **rows(COUNTED, "meshrt/arm/cache.py, at each range that a loop touches", {
        "l2_bytes": ("bytes", "that cores' L1 did not have", "from L2"),
        "slc_bytes": ("bytes", "that cores' L2 did not have, and that they wrote", "from and to the SLC"),
    }, scaled=True),
    **energy(
        memory="bits of l1_bytes, l2_bytes, slc_bytes and dram_bytes",
        compute="instructions.total",
        idle="the cores of the run, all the time",
    ),
    **rows(COUNTED, "meshrt/arm/core.py, at each kernel", {
        "registers.max": ("registers", "that a kernel held, the most", "registers", INNER),
    }),
    **rows(COUNTED, "meshrt/arm/memory.py, at every allocation", {
        "memory_bytes.max": ("bytes", "most that DRAM held: weights, cache, activations", "memory"),
    }),
    **rows(DECLARED, LIMIT, {
        "registers.limit": ("registers", "registers of a core"),
        "memory_bytes.limit": ("bytes", "DRAM of all cores"),
    }),
}  # fmt: skip
