"""Options of a program in groups: `meshrt run PROGRAM --help`."""

from __future__ import annotations

# A group's title -> the options that it has, in whatever program or machine. Others of a program's own are FIRST's,
# others of its machine MACHINE's.
FIRST, MACHINE = "Problem", "Machine"
SECTIONS: dict[str, str] = {
    FIRST: "model",
    "Prompt and answer": """prompt prompts prompt_ids prompt_tokens context max_new_tokens ignore_eos temperature top_k
        top_p""",
    "Load": """requests trace_file skip_long rate burstiness ramp_up_strategy ramp_up_start_rps ramp_up_end_rps
        max_concurrency num_warmups random_range_ratio random_prefix_len output_tokens priorities goodput
        percentile_metrics metric_percentiles""",
    "How it is computed": """algorithm system scheme kernel dtype kv policy phases decode_phases allreduce allreduces
        head_groups reduce segment lockstep pattern axis multiply split flash kv_chunk attention unit tile layout signed
        order as_published block_m block_k block_r block_n sums transpose out_transposed unfused""",
    "Where it runs": "regions decode_mesh decode_regions tuned mesh cores tp static",
    "Cache and batches": """block_size kv_blocks max_batch max_prefill_tokens chunked_prefill prefix_caching
        preemption""",
    "Experts": "experts expert_grid dispatch capacity drop router experts_run routing routing_seed place top",
    "Fewer bits, lower rank": """ratio block bits group symmetric ranks compensator_bits compensators compensator_memory
        activations head_bits stored""",
    "A part for the whole": "layers layers_run steps_run layers_only payload",
    MACHINE: "",
    "Output": """json_path html form expect quiet all_rows text logits maps trace trace_cores checkpoint every resume
        search tolerance help""",
}
OF = {name: title for title, names in SECTIONS.items() for name in names.split()}


def section(name: str, own: bool) -> str:
    """The title above an option, of a program's own or not."""
    return OF.get(name, FIRST if own else MACHINE)
