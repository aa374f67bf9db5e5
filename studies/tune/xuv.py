"""`meshrt tune xuv`: blocks for products with a decomposed matrix, proposed by NeuronMM's eqs. 10 and 11, then run."""

from collections.abc import Sequence
from dataclasses import asdict
from math import ceil
from time import perf_counter
from typing import Any

from meshrt import __version__
from meshrt.errors import LimitError
from meshrt.neuron.device import MIB, NeuronDevice
from meshrt.neuron.language import DTYPES
from meshrt.programs.neuron.plan import Kernel, Plan, Product, balance, least_rows, propose
from meshrt.ranks.console import Console
from meshrt.report import SCHEMA
from meshrt.studies.sweep import Job, Outcome, sweep
from meshrt.studies.waferllm.printed import print_lines


def tune(
    comm: Any, console: Console, device: NeuronDevice, *, kernel: Kernel, m: int, k: int, r: int, n: int, dtype: str,
    sums: str, cores: int, top: int,
) -> dict[str, Any]:  # fmt: skip
    """Emulate the first `top` proposals by shape, shared out to the ranks: the report, on all of them. UsageError.

    Over several NeuronCores each has its part of the m rows. All outside `host` is the same on any number of ranks.
    """
    start = perf_counter()
    tile = DTYPES[dtype]
    work = Product(ceil(m / cores), k, r, n, kernel, tile, tile if sums == "tile" else DTYPES["float32"])
    given = {"kernel": kernel, "m": m, "k": k, "r": r, "n": n, "dtype": dtype, "sums": sums}
    plans = propose(work, device)
    tried = plans[:top]
    jobs = [Job("xuv", (cores, 1), device, given | options_of(plan)) for plan in tried]
    outcomes = sweep(comm, jobs, console, "blocks")
    found = [candidate(plan, outcome) for plan, outcome in zip(tried, outcomes, strict=True)]
    best = min((one for one in found if one["seconds"] is not None), key=lambda one: one["seconds"], default=None)
    for one in found:
        one["fastest"] = one is best
    return {
        "schema": SCHEMA,
        "version": __version__,
        "program": "xuv",
        "arguments": given,
        "cores": cores,
        "device": {key: value for key, value in asdict(device).items() if key != "sources"},
        "balance": balance(device, tile),
        "least_block_m": least_rows(work, device),
        "proposals": len(plans),
        "candidates": found,
        "choice": None if best is None else best["options"],
        "host": {"ranks": comm.size, "wall_seconds": perf_counter() - start},
    }


def options_of(plan: Plan) -> dict[str, int]:
    """Blocks as options of the program."""
    return {f"block_{axis}": size for axis, size in asdict(plan.blocks).items()}


def candidate(plan: Plan, outcome: Outcome) -> dict[str, Any]:
    """What the formulas say of blocks beside what their run measured; None where the machine refused it."""
    told: dict[str, Any] = {
        "options": options_of(plan),
        "intensity": {"equation_10": plan.intensity, "measured": None},
        "sbuf_bytes": {"equation_11": plan.sbuf_bytes, "measured": None},
        "spill_bytes": None,
        "seconds": None,
        "mfu": None,
        "refused": outcome.refused,
    }
    if outcome.report is None:
        return told
    measured = outcome.report["measured"]
    told["intensity"]["measured"] = measured["flops"] / measured["hbm_bytes"]["total"]
    told["sbuf_bytes"]["measured"] = measured["sbuf_bytes"]["max"]
    return told | {
        "spill_bytes": measured["spill_bytes"],
        "seconds": measured["critical_path"]["seconds"],
        "mfu": measured["mfu"],
    }


def check_found(told: dict[str, Any]) -> None:
    """LimitError where the machine refused all candidates."""
    if told["choice"] is None:
        raise LimitError(
            f"none of {len(told['candidates'])} proposed blocks can run on {told['device']['name']}; the last: "
            f"{told['candidates'][-1]['refused']}"
        )


def print_answer(told: dict[str, Any]) -> None:
    """All candidates in a table, and the command that runs the fastest."""
    given, device, least = told["arguments"], told["device"], told["least_block_m"]
    sizes = " x ".join(str(given[axis]) for axis in "mkrn")
    sums = given["dtype"] if given["sums"] == "tile" else given["sums"]
    cores = f"{told['cores']} NeuronCore{'s' if told['cores'] > 1 else ''} of {device['name']}"
    print(f"{given['kernel']}, M x K x r x N = {sizes}, {given['dtype']}, sums in {sums}, on {cores}")
    reach = "no B_M reaches that by eq. 10" if least is None else f"which B_M = {least} reaches by eq. 10"
    print(f"balance: {told['balance']:.1f} flops a byte, {reach}")
    notes = list(dict.fromkeys(one["refused"] for one in told["candidates"] if one["refused"]))
    heading = (
        f"{len(told['candidates'])} of {told['proposals']} proposals: flops a byte by eq. 10 and as run, MiB of SBUF "
        f"(of {device['partitions'] * device['sbuf_partition_bytes'] // MIB}) by eq. 11\nand as run, MiB spilled"
    )
    columns = ("block-m/k/r/n", "eq. 10", "run", "eq. 11", "run", "spill", "ms", "MFU %", "")
    print_lines(heading, columns, [_line(one, notes) for one in told["candidates"]])
    for number, note in enumerate(notes, 1):
        print(f"  [{number}] {note}")
    if told["choice"] is not None:
        options = {**given, **told["choice"], "device": device["name"], "cores": told["cores"]}
        flags = (f"--{name.replace('_', '-')} {value}" for name, value in options.items())
        print("meshrt run xuv", *flags, "--payload none")


def _line(one: dict[str, Any], notes: Sequence[str]) -> tuple[str, ...]:
    blocks = "/".join(str(value) for value in one["options"].values())
    intensity, sbuf = one["intensity"], one["sbuf_bytes"]
    formulas = f"{intensity['equation_10']:.1f}", f"{sbuf['equation_11'] / MIB:.1f}"
    if one["seconds"] is None:
        return (blocks, formulas[0], "", formulas[1], "", "", "", "", f"refused [{notes.index(one['refused']) + 1}]")
    return (
        blocks, formulas[0], f"{intensity['measured']:.1f}", formulas[1], f"{sbuf['measured'] / MIB:.1f}",
        f"{sum(one['spill_bytes'].values()) / MIB:.0f}", f"{1e3 * one['seconds']:.3f}", f"{100 * one['mfu']:.1f}",
        "fastest" if one["fastest"] else "",
    )  # fmt: skip
