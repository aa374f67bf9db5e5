"""`meshrt tune xuv`: blocks for products with a decomposed matrix, proposed by NeuronMM's eqs. 10 and 11, then run."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import ceil
from time import perf_counter
from typing import Any

from meshrt import __version__
from meshrt.errors import LimitError
from meshrt.neuron.device import MIB, NeuronDevice
from meshrt.neuron.language import DTYPES
from meshrt.programs.neuron.plan import KernelName, Product, Proposal, balance, least_rows, propose
from meshrt.ranks.console import Console
from meshrt.reports.report import SCHEMA
from meshrt.studies.grid import Cell, Grid, put
from meshrt.studies.sweep import Outcome, RunJob, sweep
from meshrt.studies.waferllm.printed import table


def tune(
    comm: Any, console: Console, device: NeuronDevice, *, kernel: KernelName, m: int, k: int, r: int, n: int,
    dtype: str, sums: str, cores: int, top: int,
) -> dict[str, Any]:  # fmt: skip
    """Emulate the first `top` proposals by shape, shared out to the ranks: the report, on all of them. UsageError.

    Over several NeuronCores each has its part of the m rows. All outside `host` is the same on any number of ranks.
    """
    start = perf_counter()
    tile = DTYPES[dtype]
    work = Product(ceil(m / cores), k, r, n, kernel, tile, tile if sums == "tile" else DTYPES["float32"])
    arguments = {"kernel": kernel, "m": m, "k": k, "r": r, "n": n, "dtype": dtype, "sums": sums}
    proposals = propose(work, device)
    tried = proposals[:top]
    jobs = [RunJob("xuv", (cores, 1), device, arguments | options_of(proposal)) for proposal in tried]
    outcomes = sweep(comm, jobs, console, "blocks")
    candidates = [candidate(proposal, outcome) for proposal, outcome in zip(tried, outcomes, strict=True)]
    best = min(
        (entry for entry in candidates if entry["seconds"] is not None),
        key=lambda entry: entry["seconds"],
        default=None,
    )
    for entry in candidates:
        entry["fastest"] = entry is best
    return {
        "schema": SCHEMA,
        "version": __version__,
        "program": "xuv",
        "arguments": arguments,
        "cores": cores,
        "device": {key: value for key, value in asdict(device).items() if key != "sources"},
        "balance": balance(device, tile),
        "least_block_m": least_rows(work, device),
        "proposals": len(proposals),
        "candidates": candidates,
        "choice": None if best is None else best["options"],
        "host": {"ranks": comm.size, "wall_seconds": perf_counter() - start},
    }


def options_of(proposal: Proposal) -> dict[str, int]:
    """Blocks as options of the program."""
    return {f"block_{axis}": size for axis, size in asdict(proposal.blocks).items()}


def candidate(proposal: Proposal, outcome: Outcome) -> dict[str, Any]:
    """What the formulas say of blocks beside what their run measured; None where the machine refused it."""
    facts: dict[str, Any] = {
        "options": options_of(proposal),
        "intensity": {"equation_10": proposal.intensity, "measured": None},
        "sbuf_bytes": {"equation_11": proposal.sbuf_bytes, "measured": None},
        "spill_bytes": None,
        "seconds": None,
        "mfu": None,
        "refused": outcome.refused,
    }
    if outcome.report is None:
        return facts
    measured = outcome.report["measured"]
    facts["intensity"]["measured"] = measured["flops"] / measured["hbm_bytes"]["total"]
    facts["sbuf_bytes"]["measured"] = measured["sbuf_bytes"]["max"]
    return facts | {
        "spill_bytes": measured["spill_bytes"],
        "seconds": measured["critical_path"]["seconds"],
        "mfu": measured["mfu"],
    }


def check_found(report: dict[str, Any]) -> None:
    """LimitError where the machine refused all candidates."""
    if report["choice"] is None:
        raise LimitError(
            f"none of {len(report['candidates'])} proposed blocks can run on {report['device']['name']}; the last: "
            f"{report['candidates'][-1]['refused']}"
        )


def print_answer(report: dict[str, Any], form: str = "table") -> None:
    put(said(report), form)


def said(report: dict[str, Any]) -> Iterator[str | Grid]:
    """All candidates in a table, and the command that runs the fastest."""
    arguments, device, least = report["arguments"], report["device"], report["least_block_m"]
    sizes = " x ".join(str(arguments[axis]) for axis in "mkrn")
    sums = arguments["dtype"] if arguments["sums"] == "tile" else arguments["sums"]
    cores = f"{report['cores']} NeuronCore{'s' if report['cores'] > 1 else ''} of {device['name']}"
    yield (f"{arguments['kernel']}, M x K x r x N = {sizes}, {arguments['dtype']}, sums in {sums}, on {cores}")
    reach = "no B_M reaches that by eq. 10" if least is None else f"which B_M = {least} reaches by eq. 10"
    yield (f"balance: {report['balance']:.1f} flops a byte, {reach}")
    notes = list(dict.fromkeys(entry["refused"] for entry in report["candidates"] if entry["refused"]))
    heading = (
        f"{len(report['candidates'])} of {report['proposals']} proposals: flops a byte by eq. 10 and as run, MiB of "
        f"SBUF (of {device['partitions'] * device['sbuf_partition_bytes'] // MIB}) by eq. 11\nand as run, MiB spilled"
    )
    columns = ("block-m/k/r/n", "eq. 10", "run", "eq. 11", "run", "spill", "ms", "MFU %", "verdict")
    yield from table(heading, columns, [_line(entry, notes) for entry in report["candidates"]])
    yield from (f"  [{number}] {note}" for number, note in enumerate(notes, 1))
    if report["choice"] is not None:
        options = {**arguments, **report["choice"], "device": device["name"], "cores": report["cores"]}
        flags = (f"--{name.replace('_', '-')} {value}" for name, value in options.items())
        yield " ".join(("meshrt run xuv", *flags, "--payload none"))


def _line(entry: dict[str, Any], notes: Sequence[str]) -> tuple[Any, ...]:
    blocks = "/".join(str(value) for value in entry["options"].values())
    intensity, sbuf = entry["intensity"], entry["sbuf_bytes"]
    by_formula = _digits(intensity["equation_10"]), _digits(sbuf["equation_11"] / MIB)
    if entry["seconds"] is None:
        verdict = f"refused [{notes.index(entry['refused']) + 1}]"
        return (blocks, by_formula[0], None, by_formula[1], None, None, None, None, verdict)
    return (
        blocks, by_formula[0], _digits(intensity["measured"]), by_formula[1], _digits(sbuf["measured"] / MIB),
        _digits(sum(entry["spill_bytes"].values()) / MIB, 0), _digits(1e3 * entry["seconds"], 3),
        _digits(100 * entry["mfu"]), "fastest" if entry["fastest"] else "",
    )  # fmt: skip


def _digits(value: float, digits: int = 1) -> Cell:
    return Cell(value, f"{value:.{digits}f}")
