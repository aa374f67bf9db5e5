"""What the results of meshrt's programs are, as `meshrt explain` tells them: the keys of `result` in a report.

Those that are inner are printed with `run --verbose` alone; the JSON has all. A * stands for any characters.
"""

from collections.abc import Collection

from meshrt.reports.fields import DECLARED, INNER, Field, rows


def known(source: str, **results: tuple[object, ...]) -> dict[str, Field]:
    """Results of one file: unit and contents; INNER behind them of one that is."""
    return rows(DECLARED, source, {key: (unit, says, "", *inner) for key, (unit, says, *inner) in results.items()})


RESULTS: dict[str, Field] = {
    **known(
        "programs/feeding.py, gemm.py, gemv.py, xuv.py, linear.py, allreduce.py, by NumPy in float64",
        max_abs_error=("1", "the largest difference of a number from the same computed in float64"),
        max_rel_error=("1", "the same over the largest number of the right result"),
        outputs=("", "of a graph: names and shapes of what it gives"),
        operators=("operators", "of a graph"),
    ),
    **known(
        "programs/generation/generate.py",
        prompt_ids=("tokens", "of the prompt"),
        token_ids=("tokens", "of the answer"),
        text=("", "the answer in words"),
        stopped=("", "why it ended: max-new-tokens, or the model's end of text"),
        requests=("", "of several prompts: what is told of each"),
    ),
    **known(
        "programs/llama.py, programs/mesh/",
        head_groups=("groups", "of attention heads, each on columns of its own (--head-groups)", INNER),
        decode_cores=("cores", "width and height of the mesh that decodes (--decode-mesh)"),
        decode_regions=("regions", "of the mesh that hold the layers in decode (--decode-regions)", INNER),
        layers=("layers", "of the model that was run", INNER),
        layers_run=("layers", "of these, those that ran; others are counted as the last of them (--layers-run)", INNER),
        layer_cycles=("cycles", "by shape: of one layer in prefill, and for one token in decode"),
        quantized=("", "of matrices in a few bits: the form, and the bytes of codes"),
        layers_in_codes=("", "bytes of the fullest core that layers in a few bits take, and those shared out evenly"),
    ),
    **known(
        "programs/*/engine.py, by the clocks of the devices",
        ttft_seconds=("s", "time to the first token: all of the prompt"),
        tpot_seconds=("s", "time for each token after it, the mean"),
        itl_seconds=("s", "the same of each request"),
        multiplied_out=("", "matrices in factors that were multiplied, as the kernels take whole ones"),
        padded_heads=(
            "heads",
            "query heads of zeros beside the model's own, so that all cores have as many",
        ),
    ),
    **known(
        "programs/gpu/",
        scheme=("", "how matrices are cut and summed (--scheme)", INNER),
        kv=("", "what the cache holds (--kv); on Arm cores its bytes, held and copied", INNER),
        kv_blocks=("blocks", "of the cache that there was room for", INNER),
        block_size=("tokens", "in a block of the cache", INNER),
        plans=("plans", "of kernels that were recorded and replayed (--static)", INNER),
        layers_of_stages=("layers", "of each stage of a pipeline (--pp)"),
        micro_batches=("batches", "that a pipeline's stages work on at a time", INNER),
        preemptions=("times", "that a request gave way to others"),
        largest_batch=("requests", "that ran together, the most", INNER),
        tokens_computed=("tokens", "that went through the model", INNER),
        tokens_hit=("tokens", "that the cache had from other requests (--prefix-caching)"),
        tokens_discarded=("tokens", "whose cache was given up by preemption"),
        host_memory=("bytes", "of caches that gave way, the most at a time, and the limit (--preemption swap)"),
        priorities=("", "times of the requests of each priority"),
        lock_step=("1", "share of requests whose first token came in one step with others' (docs/serving.md)"),
        wait_growth=("1", "seconds that a request waits longer for each second that it comes later"),
        warnings=("", "what to think of before these times are believed"),
    ),
    **known(
        "programs/gpu/serving/load.py",
        completed=("requests", "that were served to the end"),
        seconds=("s", "from the first request to the last token"),
        prompt_tokens=("tokens", "of all prompts"),
        output_tokens=("tokens", "of all answers"),
        requests_per_second=("1/s", "completed over seconds"),
        output_tokens_per_second=("1/s", "output_tokens over seconds"),
        tokens_per_second=("1/s", "prompt_tokens and output_tokens over seconds"),
        ttft_ms=("ms", "time to the first token of a request: mean and percentiles"),
        tpot_ms=("ms", "time per token after the first: mean and percentiles"),
        itl_ms=("ms", "time between two tokens: mean and percentiles"),
        e2el_ms=("ms", "time from a request to its last token: mean and percentiles"),
    ),
    **known(
        "programs/gpu/serving/metrics.py, the names and definitions of vLLM's `bench serve`",
        duration=("s", "from the first request to the last token"),
        failed=("requests", "that were not served"),
        total_input_tokens=("tokens", "of all prompts"),
        total_output_tokens=("tokens", "of all answers"),
        request_throughput=("1/s", "requests over duration"),
        request_goodput=("1/s", "requests that kept to --goodput, over duration"),
        output_throughput=("1/s", "total_output_tokens over duration"),
        total_token_throughput=("1/s", "tokens of prompts and answers over duration"),
        max_output_tokens_per_s=("tokens", "most that came in one second"),
        max_concurrent_requests=("requests", "most that were open at once"),
    ),
    **rows(
        DECLARED,
        "programs/gpu/serving/metrics.py, the names and definitions of vLLM's `bench serve`",
        {
            "*_ttft_ms": ("ms", "time to the first token: mean, median, deviation, percentiles of requests"),
            "*_tpot_ms": ("ms", "time per token after the first, of requests"),
            "*_itl_ms": ("ms", "time between two tokens"),
            "*_e2el_ms": ("ms", "time to the last token, of requests"),
        },
    ),
    **known(
        "programs/mesh/experts/mixture.py, programs/gpu/experts/mixing.py, programs/arm/load.py",
        experts=("", "of a mixture: where they are, tokens of each, imbalance, traffic (docs/moe.md)"),
        imbalance_of_experts=("1", "tokens of the expert that has most, over the mean; the mean of the layers"),
        imbalance_of_gpus=("1", "the same of GPUs and the experts that they have"),
    ),
    **known(
        "programs/arm/",
        unit=("", "the instruction that multiplies (--unit)", INNER),
        tile=("", "rows x columns whose sums are in registers (--tile)", INNER),
    ),
    **known(
        "programs/kvcache.py",
        policy=("", "how tokens are shared out over the rows (--policy)", INNER),
        tokens=("tokens", "that are in the cache"),
        rows=("tokens", "of each row, from north to south"),
        fullest_row=("tokens", "of the row that has most"),
        emptiest_row=("tokens", "of the row that has fewest"),
        most_uneven=("tokens", "by which these two were apart, the most at any time"),
        tokens_moved=("tokens", "that went from one row to the next"),
        tokens_over_mean=("1", "tokens of the fullest row over the mean"),
        work_over_mean=("1", "what attention waits for, over what it takes where all rows are as full"),
        busiest_row_over_mean=("1", "tokens that the busiest row has looked at, over the mean"),
        refused=("", "why no more fitted (--until-full)"),
        bytes_per_token=("bytes", "of a core, for each token", INNER),
        columns=("columns", "of cores that share the heads", INNER),
        memory_over_mean=("1", "memory of the fullest row over the mean"),
        in_order=("", "are tokens from north to south in their order?"),
        every_token_once=("", "is each token there, and in one place?"),
    ),
    **known(
        "programs/gemv.py, shift.py, dispatch.py, published.py",
        groups=("cores", "in the groups of each phase of the allreduce"),
        steps=("steps", "that tiles went round"),
        in_place=("", "did every tile, or token, come to where it belongs?"),
        fullest=("tokens", "of the expert that has most"),
        mean=("tokens", "of an expert, the mean"),
        cycles_mean=("cycles", "of a run as WaferLLM's kernels time themselves (docs/waferllm.md)"),
    ),
}


def inner() -> Collection[str]:
    """The results that take some knowledge of the machine to be of use."""
    return {key for key, field in RESULTS.items() if field.inner}
