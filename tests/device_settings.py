"""Every number of a device, and every option of a machine: as tests/settings.py has those of programs."""

from __future__ import annotations

from typing import Any

from settings import APPEARS, FALLS, GROWS, OTHER, STOPS, VANISHES, Row, becomes, plus, times

# Numbers of devices: of wse2, trn1 and a800. The run is a program's BASE with the row's.
GEMM, GEMV, KVCACHE, PUBLISHED = "gemm mesh", "gemv mesh", "kvcache mesh", "published mesh"
WAFER = "llama mesh"
XUV, LLAMA, GPU = "xuv neuron", "llama neuron", "lowrank gpu"
LINEAR, ON_ARM = "linear arm", "llama arm"
SECONDS, CYCLES = "measured.critical_path.seconds", "measured.critical_path.cycles"
PCIE, NETWORK = {"@link": "pcie"}, {"@link": "network"}
WIDE: dict[str, Any] = {
    "model": "llama3-70b",
    "layers_run": 1,
    "prompt_ids": None,
    "prompt_tokens": 64,
    "max_new_tokens": 1,
}
DEVICES: dict[str, list[tuple[str, Row]]] = {
    "wse2": [
        (GEMM, Row("width", 5, "measured.critical_path.seconds", STOPS)),
        (GEMM, Row("height", 5, "measured.critical_path.seconds", STOPS)),
        (KVCACHE, Row("core_memory", 2 * 48 * 1024, "result.tokens", GROWS, {"tokens": None, "until_full": True})),
        (GEMM, Row("route_entries", 3, "measured.critical_path.seconds", STOPS)),
        (GEMV, Row("alpha", 2.0, CYCLES, plus(30), {"allreduce": "pipeline"}, "15 hops there and back")),
        (GEMV, Row("beta", 6.0, CYCLES, plus(15), {"allreduce": "pipeline"}, "15 cores add")),
        (GEMM, Row("link_bytes_per_cycle", 0.25, CYCLES, GROWS)),
        (GEMM, Row("macs_per_cycle", 0.5, CYCLES, plus(36 * 6), None, "6 steps of 2 x 3 instructions, 4 long")),
        (GEMM, Row("macs_per_cycle_16", 0.5, CYCLES, plus(36 * 9.375), {"dtype": "bfloat16"}, "12 cycles for 2.625")),
        (GEMM, Row("matrix_unit", (8, 16, 16), CYCLES, FALLS, {"dtype": "bfloat16"}, "2 cycles for 6 instructions")),
        (GEMM, Row("matrix_passes", 5, CYCLES, GROWS, {"dtype": "bfloat16", "@device": "wormhole"})),
        (PUBLISHED, Row("adds_per_cycle", 0.25, CYCLES, GROWS, {"dtype": "float32"})),
        (PUBLISHED, Row("adds_per_cycle_16", 0.25, CYCLES, GROWS)),
        (GEMM, Row("chunk_cycles", 2.0, CYCLES, plus(36 * 4 / 2), None, "36 instructions of 4 chunks")),
        (GEMM, Row("call_cycles", 2.0, CYCLES, plus(36), None, "36 instructions")),
        (GEMM, Row("loop_cycles", 40.0, CYCLES, plus(18 * 2), None, "6 steps of 3 loops")),
        (GEMM, Row("step_cycles", 84.5, CYCLES, plus(5), None, "5 steps, and a product without a shift")),
        (GEMM, Row("shift_cycles", 77.0, CYCLES, plus(6), None, "3 shifts of A and 3 of B")),
        (GEMM, Row("product_cycles", 85.5, CYCLES, plus(1))),
        (GEMV, Row("collective_cycles", 104.5, CYCLES, plus(1))),
        (WAFER, Row("division_cycles", 70.0, CYCLES, GROWS)),
        (WAFER, Row("root_cycles", 60.0, CYCLES, GROWS)),
        (WAFER, Row("exponential_cycles", 20.0, CYCLES, GROWS)),
        (GEMV, Row("die_rows", 4.0, CYCLES, plus(6 * 17.5), {"allreduce": "pipeline", "@device": "wse3"},
                   "three edges, there and back")),
        (GEMV, Row("die_cycles", 18.5, CYCLES, plus(2), {"@mesh": (1, 170), "allreduce": "pipeline", "@device": "wse3"},
                   "one edge, there and back")),
        (GEMV, Row("stream_adds", False, CYCLES, GROWS)),
        (GEMV, Row("clock_hz", 2.2e9, SECONDS, times(0.5))),
    ],
    "trn1": [
        (XUV, Row("partitions", 64, "measured.critical_path.seconds", STOPS)),
        (XUV, Row("hbm_bytes", 300_000, "measured.critical_path.seconds", STOPS)),
        (XUV, Row("sbuf_partition_bytes", 6000, "measured.spill_bytes.saved", GROWS)),
        (XUV, Row("psum_banks", 1, "measured.critical_path.seconds", STOPS, {"kernel": "naive"})),
        (XUV, Row("psum_bank_bytes", 512, "measured.critical_path.seconds", STOPS)),
        (XUV, Row("stationary_free", 64, "measured.critical_path.seconds", STOPS)),
        (XUV, Row("moving_free", 128, "measured.critical_path.seconds", STOPS)),
        (XUV, Row("tensor_hz", 1.4e9, "measured.engines.tensor.busy_seconds", times(2))),
        (XUV, Row("vector_hz", 0.56e9, "measured.engines.vector.busy_seconds", times(2))),
        (XUV, Row("scalar_hz", 0.7e9, "measured.engines.scalar.busy_seconds", times(2))),
        (LLAMA, Row("gpsimd_hz", 0.7e9, "measured.engines.gpsimd.busy_seconds", times(2))),
        (LLAMA, Row("least_cycles", 128, SECONDS, GROWS)),
        (LLAMA, Row("gpsimd_start_cycles", 300, SECONDS, GROWS)),
        (XUV, Row("float32_passes", 8, "measured.engines.tensor.busy_seconds", times(2), {"dtype": "float32"})),
        (XUV, Row("dma_engines", 8, SECONDS, GROWS)),
        (XUV, Row("dma_bytes_per_second", 13.6e9, SECONDS, GROWS)),
        (XUV, Row("dma_transfer_seconds", 422e-9, SECONDS, GROWS)),
        (XUV, Row("dma_transpose_rate", 0.25, SECONDS, GROWS)),
        (XUV, Row("hbm_bytes_per_second", 205e9, SECONDS, GROWS)),
        (LLAMA, Row("link_bytes_per_second", 48e9, SECONDS, GROWS, {"@cores": 2})),
        (LLAMA, Row("link_seconds", 4e-6, SECONDS, plus(48 * 2e-6), {"@cores": 2},
                    "3 passes, 4 layers, 2 sums, 2 steps")),
    ],
    "n2x8": [
        (LINEAR, Row("clusters", "slower", "measured.compute_seconds", times(2), None, "half of the clock rate")),
        (LINEAR, Row("isa", ("dotprod",), "measured.instructions.smmla", VANISHES)),
        (LINEAR, Row("registers", 24, SECONDS, STOPS)),
        (LINEAR, Row("slc_bytes", 8192, "measured.dram_bytes.written", GROWS)),
        (LINEAR, Row("bus_bytes_per_second", 1e9, SECONDS, GROWS)),
        (LINEAR, Row("dram_bytes", 10_000, SECONDS, STOPS)),
        (ON_ARM, Row("flash_bytes_per_second", 0.5e9, "measured.flash_wait_seconds", GROWS, {"flash": 3})),
        (LINEAR, Row("fork_join_seconds", 10e-6, SECONDS, plus(2 * 5e-6), None, "rows, then panels")),
    ],
    "a800": [
        (GPU, Row("memory_bytes", 400_000, "measured.critical_path.seconds", STOPS)),
        (GPU, Row("memory_bytes_per_second", 1e9, "measured.compute_seconds", GROWS)),
        (GPU, Row("memory_share", 0.0005, "measured.compute_seconds", GROWS)),
        (GPU, Row("flops", 312e9, "measured.compute_seconds", GROWS)),
        (GPU, Row("flops_share", 0.0005, "measured.compute_seconds", GROWS)),
        (GPU, Row("sms", 1, "measured.compute_seconds", GROWS)),
        (GPU, Row("hertz", 0.7e9, "measured.compute_seconds", GROWS)),
        (GPU, Row("sm_rate", 0.01, "measured.compute_seconds", GROWS)),
        (GPU, Row("sm_l2_bytes_per_second", 1e9, "measured.compute_seconds", GROWS)),
        (GPU, Row("sm_memory_bytes_per_second", 1e9, "measured.compute_seconds", GROWS)),
        (GPU, Row("l2_bytes", 1, "measured.compute_seconds", GROWS, None, "a norm reads twice")),
        (GPU, Row("product_seconds", 6e-6, "measured.compute_seconds", GROWS)),
        (GPU, Row("split_seconds", 1e-12, "measured.compute_seconds", FALLS, WIDE, "8192 is worth being cut")),
        (GPU, Row("link", "pcie", "measured.collective_seconds", GROWS, WIDE)),
        (GPU, Row("nvlink_bytes_per_second", 80e9, "measured.collective_seconds", GROWS)),
        (GPU, Row("nvlink_gpus", 1, "measured.critical_path.seconds", STOPS)),
        (GPU, Row("nvlink_protocols", "slower", "measured.collective_seconds", GROWS)),
        (GPU, Row("pcie_bytes_per_second", 10e9, "measured.collective_seconds", GROWS, PCIE)),
        (GPU, Row("pcie_protocols", "slower", "measured.collective_seconds", GROWS, PCIE)),
        (GPU, Row("launch_seconds", 10e-6, SECONDS, GROWS)),
        ("serve gpu", Row("step_seconds", 1e-3, SECONDS, plus(3e-3), None, "a prompt, two more tokens")),
        (GPU, Row("graph_launch_seconds", 20e-6, SECONDS, plus(2 * 10e-6), {"@static": True}, "2 tokens")),
        (GPU, Row("kernel_seconds", 2e-6, SECONDS, GROWS, {"@static": True})),
        (GPU, Row("start_seconds", 4e-6, "measured.compute_seconds", GROWS)),
        (GPU, Row("network_bytes_per_second", 1e9, "measured.collective_seconds", GROWS, NETWORK)),
        (GPU, Row("network_protocols", "slower", "measured.collective_seconds", GROWS, NETWORK)),
        (GPU, Row("node_gpus", 1, "measured.collective_seconds", GROWS, NETWORK)),
        (GPU, Row("node_adapters", 1, "measured.collective_seconds", GROWS, NETWORK)),
    ],
}  # fmt: skip
NO_EFFECT = {"name": "what reports and messages call it", "sources": "where the numbers are from"}

# Options of `meshrt run` that a machine has, whatever the program: what they were without the change, and the rows.
HOW: dict[str, dict[str, Any]] = {
    "mesh": {"mesh": "8x8", "device": "wse2", "core_memory": None, "route_entries": None, "defects": None,
             "spares": None, "defects_seed": None, "maps": None,
             "trace": None, "trace_cores": None},
    "neuron": {"cores": None, "device": "trn1", "trace": None, "sbuf_bytes": None},
    "arm": {"cores": None, "device": "n2x8", "dram": None, "registers": None, "spill": False, "trace": None},
    "gpu": {"tp": 4, "device": "a800", "link": None, "link_rate": None, "framework": None,
            "gpu_memory": None, "static": False, "trace": None},
}  # fmt: skip
SHARED = {"payload": "none", "json_path": "{run}/report.json", "quiet": True}
ON = {"mesh": GEMV, "neuron": XUV, "gpu": GPU, "arm": LINEAR}  # the program that is run
DEFECTS = {"defects": "0.01"}
MACHINES: dict[str, list[Row]] = {
    "mesh": [
        Row("mesh", "8x4", "measured.hops", FALLS),
        Row("device", "ideal", CYCLES, FALLS, None, "there computing costs nothing"),
        Row("core_memory", 50, CYCLES, STOPS),
        Row("route_entries", 2, CYCLES, STOPS),
        Row("defects", "0.01", "wafer", APPEARS),
        Row("spares", "5x5", "wafer.size", becomes([9, 9], [13, 13]), DEFECTS),
        Row("defects_seed", 1, "measured.wafer.hops", OTHER, DEFECTS),
        Row("maps", "{run}/maps.npz", "file {run}/maps.npz", APPEARS),
        Row("trace", "{run}/trace.json", "file {run}/trace.json", APPEARS),
        Row("trace_cores", "9,9", CYCLES, STOPS, {"trace": "{run}/trace.json"}, "8 x 8 cores"),
    ],
    "neuron": [
        Row("cores", 2, "mesh", becomes([1, 1], [2, 1])),
        Row("device", "trn2", "measured.engines.tensor.busy_seconds", times(2.8 / 2.4), None, "2.4 for 2.8 GHz"),
        Row("trace", "{run}/trace.json", "file {run}/trace.json", APPEARS),
        Row("sbuf_bytes", 6000, "measured.spill_bytes.saved", GROWS),
    ],
    "arm": [
        Row("cores", 2, "mesh", becomes([8, 1], [2, 1])),
        Row("device", "phone", "measured.idle_seconds", GROWS, None, "cores of three kinds"),
        Row("dram", 10_000, SECONDS, STOPS),
        Row("registers", 24, SECONDS, STOPS),
        Row("spill", False, SECONDS, STOPS, {"registers": 24, "spill": True}),
        Row("trace", "{run}/trace.json", "file {run}/trace.json", APPEARS),
    ],
    "gpu": [
        Row("tp", 2, "measured.link_bytes.total", FALLS),
        Row("device", "a6000", "device.flops", FALLS, {"link": "pcie"}),
        Row("link", "pcie", "measured.collective_seconds", OTHER, None, "small messages are as fast"),
        Row("link_rate", 10e9, "measured.collective_seconds", GROWS),
        Row("framework", "vllm", SECONDS, GROWS),
        Row("gpu_memory", 200_000, SECONDS, STOPS),
        Row("static", True, "measured.graph_launches", becomes(0, 2), None, "one for each new token"),
        Row("trace", "{run}/trace.json", "file {run}/trace.json", APPEARS),
    ],
}
PAYLOAD = Row("payload", "none", "result.max_abs_error", VANISHES, {"payload": "full"})
