"""`meshrt reproduce deinfer`: the paper's tables and figures, published beside emulated, and why they differ.

By shape, in virtual time, on presets whose numbers have sources of their own (`meshrt devices`); none is fitted.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from time import perf_counter
from typing import Any

from meshrt import __version__
from meshrt.ranks.console import Console
from meshrt.reports.report import SCHEMA
from meshrt.studies.deinfer.figures import FIGURES, LoadPoint, claims_of, orders
from meshrt.studies.deinfer.tables import TABLES
from meshrt.studies.files import write_csv
from meshrt.studies.grid import Cell, Grid, put
from meshrt.studies.rows import Finding, PaperRow
from meshrt.studies.store import RunStore

NAMES = (*TABLES, *FIGURES)

_PEAK = (
    "Kernels take what was measured of an A100's (`meshrt validate`), but for attention, of which no measurement is at "
    "hand: it reaches the same shares of peak operations and bandwidth. Of an engine 5 ms between steps and 20 us a "
    "launch are taken, as reported of vLLM; which version the paper has is not said."
)
_PCIE = (
    "Without NVLink, 20 GB/s a link as others measured on the A100s of one socket. From Table 5's own times and bytes "
    "at a batch of 512, the paper's node had some 7 to 9 GB/s in Base's reduce-sums, and twice that in DeInfer's. What "
    "it is at other rates: `meshrt bench serve --link pcie --link-rate 10e9`."
)
_OVERLAPPED = (
    "DeInfer runs with collectives beside kernels and a low-rank cache that one kernel rebuilds (`--scheme overlapped "
    "--kv fused`), of which section 4.2 says that it does so, not how."
)
_REPLICATED = (
    "Section 4.1 keeps the up-projections of O and down whole on every GPU. By shape that is more to compute and to "
    "read than Base's share, the more GPUs there are: at 40 % on 8 GPUs 1.8 times the operations. The paper's "
    "Table 5 reports less compute instead, and does not say what offsets it."
)
_SHARE = (
    "l = 60 % of the shorter side keeps 84 % of the parameters, and a square matrix then takes 1.2 times its "
    "operations: the undecomposed model is faster in virtual time than either scheme at this ratio."
)
WHY: dict[str, tuple[str, ...]] = {
    "1": (
        "Base is measured as printed. DeInfer's printed total counts 2h once, where its own rows have it twice.",
        "Its rows charge 2h for a reduce-sum and l_down for an all-gather. Section 4.1 has the reduce-sum in the "
        "low-rank space, 2 l_o and 2 l_down, and no gather of l_down: that is what is built and measured.",
    ),
    "3": (_PEAK, _PCIE, _OVERLAPPED, _SHARE),
    "4": (_PEAK, _PCIE, _OVERLAPPED, _REPLICATED, _SHARE),
    "5": (
        "The paper does not say at which batch this was profiled; a decoding step of section 5.2's batch is taken.",
        _PEAK,
        _PCIE,
        _OVERLAPPED,
        _REPLICATED,
    ),
    "6": (
        _PEAK,
        _PCIE,
        "A launch costs the host 20 us here, and at most of these batches the device is busy longer than that: graphs "
        "save nothing there, and cost up to 3 %, for their sizes are rounded up. That they save 3 to 66 % in the paper "
        "says that the engine's own work for a kernel cost it more, or could not hide.",
        "LLaMA-65B's cache in the low-rank space: one kernel rebuilds the keys and values of all sequences, another "
        "reads them from memory. What would keep them on the chip section 4.2 does not say.",
    ),
    "figure5": (_PEAK, _PCIE, _OVERLAPPED, _REPLICATED),
    "figure6": (_PEAK, _PCIE, _OVERLAPPED, _REPLICATED),
    "figure7": (
        "Base's reduce-sums are of the full width at every ratio; what it gains is in its products alone.",
        "With NVLink Base gains from 2 to 4 GPUs and no more from 4 to 8, as in the paper's own Table 5: 3.28, 2.42, "
        "2.49 ms a layer. Without, DeInfer does the same: Table 5 has 2.79, 2.19, 2.07 ms. Each of n GPUs of a ring "
        "sends (n-1)/n of the bytes: communication grows with n, whatever the scheme, while the work is shared out.",
        _PCIE,
        _REPLICATED,
    ),
}


def reproduce(
    comm: Any, console: Console, names: Sequence[str], store: RunStore,
    show: Callable[[dict[str, Any], str], object] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Emulate what these tables and figures describe, shared out to the ranks: the report, on all of them.

    `show(report so far, name)` is called on rank 0 as soon as a table or figure is done.
    """
    start = perf_counter()
    rows: list[PaperRow] = []
    points: dict[str, list[LoadPoint]] = {}
    claims: list[Finding] = []

    def report() -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "paper": "deinfer",
            "rows": [row.json() for row in rows],
            "points": {name: [asdict(point) for point in line] for name, line in points.items()},
            "claims": [claim.json() for claim in claims],
            "why": {name: list(WHY[name]) for name in names},
            "host": {"ranks": comm.size, "wall_seconds": perf_counter() - start, "version": __version__},
        }

    for name in names:
        if name in TABLES:
            table_rows = store.made(comm, console, title(name), start, partial(TABLES[name], store.emulate))
            rows += table_rows
            claims += orders(name, table_rows) if name != "1" else []
        else:
            points[name] = store.made(comm, console, title(name), start, partial(FIGURES[name], store.emulate))
            claims += claims_of(name, points[name])
        if show is not None and comm.rank == 0:
            show(report(), name)
    return report()


def title(name: str) -> str:
    return f"Figure {name.removeprefix('figure')}" if name in FIGURES else f"Table {name}"


def write_files(report: dict[str, Any], csv: str | None) -> list[str]:
    """Rows, points and claims as files in this folder: their paths."""
    points = [point for line in report["points"].values() for point in line]
    written = []
    for name, lines in (("tables", report["rows"]), ("points", points), ("claims", report["claims"])):
        if csv and lines:
            written.append(f"{csv}/{name}.csv")
            write_csv(written[-1], lines)
    return written


def print_reproduction(report: dict[str, Any], form: str = "table") -> None:
    put(said(report), form)


def print_part(report: dict[str, Any], name: str, form: str = "table") -> None:
    put(part(report, name), form)


def said(report: dict[str, Any]) -> Iterator[str | Grid]:
    """One table for each of the paper's, the figures' points, the claims, and why they differ."""
    for name in report["why"]:
        yield from part(report, name)
    yield from summary(report)


def part(report: dict[str, Any], name: str) -> Iterator[str | Grid]:
    """One table or figure, and why published and emulated differ."""
    from meshrt.studies.waferllm.printed import compared, number, table, why

    if name in report["points"]:
        lines = [
            (
                point["subject"], point["link"], point["system"], point["tp"],
                Cell(point["ratio"], f"{point['ratio']:.0%}"), number(point["tokens_per_second"]),
            )
            for point in report["points"][name]
        ]  # fmt: skip
        yield from table(title(name), ("of", "link", "system", "GPUs", "ratio", "tokens/s"), lines)
    else:
        yield from compared(title(name), [row for row in report["rows"] if row["table"] == name])
    yield from why(report["why"][name])


def summary(report: dict[str, Any]) -> Iterator[str | Grid]:
    """What the paper says, and what was found."""
    from meshrt.studies.waferllm.printed import table

    holds = {True: "yes", False: "no", None: ""}
    claims = [(claim["where"], claim["says"], claim["found"], holds[claim["holds"]]) for claim in report["claims"]]
    if claims:
        yield from table("What the paper says, and what was found", ("where", "says", "emulated", "holds"), claims)
