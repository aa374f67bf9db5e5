"""What every number of a report of GPUs is."""

from meshrt.reports.fields import COUNTED, DECLARED, INNER, LIMIT, TIMED, TOKENS, Field, energy, rows

FIELDS = {
    **TOKENS,
    **rows(TIMED, "meshrt/gpu/gpu.py and gpus.py, by the device's rates, launches and protocols", {
        "critical_path.seconds": ("s", "virtual time until the last GPU is done", "virtual time"),
        "mfu": ("1", "flops over what the GPUs could do in that time, 0 to 1"),
        "compute_seconds": ("s", "time that kernels took on one GPU, the most", "of that kernels"),
        "collective_seconds": ("s", "time of collectives on one GPU, with waiting", "of that collectives"),
        "hidden_seconds": ("s", "of these, in which the GPU's kernels went on (--scheme overlapped)", "beside kernels"),
    }, scaled=True),
    **rows(TIMED, "meshrt/gpu/gpus.py, where a GPU waits for what another group sends, or for all to be done", {
        "bubble_seconds.total": ("s", "time that all GPUs waited for other groups (--pp, --dp): bubbles", "bubbles"),
        "bubble_seconds.max": ("s", "the same of one GPU, the most"),
    }, scaled=True),
    **rows(COUNTED, "meshrt/gpu/gpu.py, at each launch", {
        "launches": ("kernels", "kernels that one GPU ran, those of graphs included, the most", "launches"),
    }, scaled=True),
    **rows(COUNTED, "meshrt/gpu/gpu.py, at each launch of a graph", {
        "graph_launches": ("graphs", "recorded graphs that one GPU launched, the most", "of graphs", INNER),
    }),
    **rows(DECLARED, "the kernel, from the shapes of its operands, at each launch", {
        "flops": ("operations", "operations of all GPUs' kernels", "operations"),
        "memory_traffic.total": ("bytes", "bytes that kernels read and wrote, in the model's dtype", "memory traffic"),
        "memory_traffic.max": ("bytes", "the same of one GPU, the most"),
        "attention_heads": ("heads", "tokens times query heads, as attention computed them", "attention heads", INNER),
        "dequantized_bytes": ("bytes", "of matrices that kernels rebuilt from codes, in the model's dtype"),
        "expert_rows": ("rows", "that experts' kernels computed on, a token counting for each of its experts there"),
        "expert_padding": ("rows", "of expert_rows: room that no token had (--capacity)"),
        "cache_runs": ("copies", "stretches of the low-rank cache that were copied together"),
        "swapped_bytes": ("bytes", "cache of preempted requests that went to the host's memory, or came back"),
        "cache_blocks": ("blocks", "blocks of the low-rank cache that were copied"),
    }, scaled=True),
    **rows(COUNTED, "meshrt/groups/rings.py and course.py, by the steps of a collective", {
        "collectives.*.calls": ("calls", "collectives of this kind that a GPU took part in"),
        "collectives.*.bytes.total": ("bytes", "bytes that all GPUs sent in them, in the model's dtype"),
        "collectives.*.bytes.max": ("bytes", "bytes that one GPU sent in them, the most", "*, sent by a GPU"),
        "link_bytes.total": ("bytes", "bytes that all GPUs sent, by all collectives"),
        "link_bytes.max": ("bytes", "bytes that one GPU sent, the most"),
        "intra_node_bytes.total": ("bytes", "of link_bytes.total: over links inside nodes (--node-size)", "in nodes"),
        "intra_node_bytes.max": ("bytes", "the same that one GPU sent, the most"),
        "inter_node_bytes.total": ("bytes", "of link_bytes.total: over the network between nodes", "between nodes"),
        "inter_node_bytes.max": ("bytes", "the same that one GPU sent, the most"),
        "attention_link_bytes": ("bytes", "of link_bytes.total: what attention sent"),
        "mlp_link_bytes": ("bytes", "of link_bytes.total: what the MLP sent"),
    }, scaled=True),
    **energy(
        links="bits that GPUs sent each other",
        memory="bits of memory_traffic; caches are not counted",
        compute="half of flops, as 16-bit multiply-accumulates",
        idle="the GPUs, all the time",
    ),
    **rows(COUNTED, "programs/gpu/experts/dispatch.py and products.py, by the experts that tokens took", {
        "dispatched_bytes": ("bytes", "tokens, choices and shares on their way to other GPUs' experts, sent once"),
        "combined_bytes": ("bytes", "what experts made of them on its way back, sent once"),
        "dropped_tokens": ("tokens", "that an expert had no room for (--capacity), each counted for each such expert"),
    }, scaled=True),
    **rows(COUNTED, "meshrt/groups/pairs.py, at every part", {
        "all_to_all_parts": ("parts", "of all_to_all that GPUs sent, those that were handed on included"),
    }, scaled=True),
    **rows(COUNTED, "meshrt/gpu/memory.py, at every allocation", {
        "memory_bytes.max": (
            "bytes", "most that one GPU held, in the model's dtype: weights, cache, workspace, buffers of plans; what a"
            " kernel needs for itself is not in it", "memory",
        ),
        "memory_bytes.of_the_fullest.*": ("bytes", "what that GPU held at the end, by name"),
    }, scaled=True),
    **rows(DECLARED, LIMIT, {"memory_bytes.limit": ("bytes", "memory of a GPU")}),
}  # fmt: skip
OWN_TALLY = Field(DECLARED, "1", "a tally of the program's own, of all GPUs", "the kernel that asks for it", True)
