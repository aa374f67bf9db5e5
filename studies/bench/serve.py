"""`meshrt bench serve`: the ways to serve a model on tensor-parallel GPUs, on the same requests.

Those of decomposed models, and those of spreading the experts of a mixture.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from meshrt.errors import UsageError
from meshrt.gpu.device import GpuDevice
from meshrt.models.catalogue import find_model
from meshrt.models.family import read_family
from meshrt.models.matrix import Experts
from meshrt.ranks.console import Console
from meshrt.reports.report import SCHEMA
from meshrt.studies.grid import Cell, Grid, put
from meshrt.studies.sweep import RunJob, sweep


@dataclass(frozen=True)
class ServingWay:
    """A scheme, what its cache holds, whether new tokens are replayed from plans, and how experts are spread."""

    scheme: str
    kv: str
    static: bool
    experts: str = "tensor"


LAYOUTS = ("tensor", "replicated", "alltoall")  # of experts
# As DeInfer compares: its Base runs kernel by kernel, itself as graphs. A dagger marks its low-rank cache.
WAYS = {
    "dense": ServingWay("dense", "dense", True),
    "base": ServingWay("base", "dense", False),
    "base, static": ServingWay("base", "dense", True),
    "deinfer": ServingWay("deinfer", "dense", True),
    "deinfer, eager": ServingWay("deinfer", "dense", False),
    "deinfer, lowrank": ServingWay("deinfer", "lowrank", True),
    "deinfer, lowrank, eager": ServingWay("deinfer", "lowrank", False),
    "overlapped": ServingWay("overlapped", "dense", True),
    "overlapped, eager": ServingWay("overlapped", "dense", False),
    "overlapped, fused": ServingWay("overlapped", "fused", True),
    "overlapped, fused, eager": ServingWay("overlapped", "fused", False),
    **{layout: ServingWay("deinfer", "dense", False, layout) for layout in LAYOUTS},
    **{f"{layout}, static": ServingWay("deinfer", "dense", True, layout) for layout in LAYOUTS if layout != "alltoall"},
}
DEFAULT = ("dense", "base", "deinfer", "deinfer, lowrank")  # of a model without experts


def job(way: ServingWay, tp: int, device: GpuDevice, payload: bool, arguments: Mapping[str, Any]) -> RunJob:
    """The run of a way on `tp` GPUs."""
    own = {"scheme": way.scheme, "kv": way.kv, "experts": way.experts}
    return RunJob("serve", (tp, 1), device, {**arguments, **own}, payload, way.static)


def default(model: str, ratio: float | None) -> tuple[str, ...]:
    """The ways that are compared of this model if none are named: with a low-rank cache if keys and values have one."""
    family = read_family(find_model(model), quantized=True)
    layers = family.layers
    if any(isinstance(layer.mlp, Experts) for layer in layers):
        return LAYOUTS
    decomposed = ratio is not None or all(matrix.rank is not None for layer in layers for matrix in (layer.k, layer.v))
    normed = family.clip is not None or any(layer.head_norms for layer in layers)
    return DEFAULT if decomposed and not normed else DEFAULT[:-1]


def compare(
    comm: Any, console: Console, device: GpuDevice, tp: int, payload: bool, only: Sequence[str],
    arguments: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Serve the same requests in several ways, shared out to the ranks: the report, on all of them. UsageError."""
    names = tuple(dict.fromkeys(only)) or default(arguments["model"], arguments.get("ratio"))
    if wrong := [name for name in names if name not in WAYS]:
        raise UsageError(f"no way to serve {wrong[0]!r}; there are {'; '.join(WAYS)}")
    jobs = [job(WAYS[name], tp, device, payload, arguments) for name in names]
    outcomes = sweep(comm, jobs, console, "ways")
    return {
        "schema": SCHEMA,
        "program": "serve",
        "arguments": dict(arguments),
        "device": {key: value for key, value in asdict(device).items() if key != "sources"},
        "mesh": [tp, 1],
        "ways": [
            {
                "way": name,
                "static": WAYS[name].static,
                "refused": outcome.refused,
                **({} if outcome.report is None else {key: outcome.report[key] for key in ("result", "measured")}),
            }
            for name, outcome in zip(names, outcomes, strict=True)
        ],
    }


def print_comparison(report: dict[str, Any], form: str = "table") -> None:
    put(said(report), form)


def said(report: dict[str, Any]) -> Iterator[str | Grid]:
    """A column for each way."""
    ways = report["ways"]
    rows: list[list[Any]] = []

    def row(name: str, show: Callable[[dict[str, Any]], float | None], digits: int = 2) -> None:
        values = ["refused" if way["refused"] else show(way) for way in ways]
        shown = [Cell(value, f"{value:,.{digits}f}") if isinstance(value, (int, float)) else value for value in values]
        rows.append([name, *shown])

    def milliseconds(key: str, statistic: str) -> Callable[[dict[str, Any]], float | None]:
        return lambda way: None if way["result"][key] is None else way["result"][key][statistic]

    row("requests a second", lambda way: way["result"]["requests_per_second"])
    row("new tokens a second", lambda way: way["result"]["output_tokens_per_second"], 0)
    row("all tokens a second", lambda way: way["result"]["tokens_per_second"], 0)
    for key, name in (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT"), ("itl_ms", "ITL"), ("e2el_ms", "E2EL")):
        for statistic in ("mean", "p50", "p90", "p99"):
            row(f"{name}, {statistic}, ms", milliseconds(key, statistic))
    row("of all time, kernels, %", lambda way: _share(way, "compute_seconds"), 0)
    row("of all time, collectives, %", lambda way: _share(way, "collective_seconds"), 0)
    row("sent by a GPU, GiB", lambda way: way["measured"]["link_bytes"]["max"] / 2**30)
    row("memory of a GPU, GiB", lambda way: way["measured"]["memory_bytes"]["max"] / 2**30)
    row("largest batch", lambda way: way["result"]["largest_batch"], 0)
    if any("experts" in way.get("result", {}) for way in ways):
        row("tokens of GPUs, most over mean", lambda way: way["result"]["imbalance_of_gpus"] or 0)
        row("sent for experts and MLPs, GiB", lambda way: way["measured"]["mlp_link_bytes"] / 2**30)
    row("preemptions", lambda way: way["result"]["preemptions"], 0)
    arguments = report["arguments"]
    completed = next((way["result"]["completed"] for way in ways if not way["refused"]), "no")
    yield (
        f"{completed} requests to {arguments['model']} on {report['mesh'][0]} GPUs of type "
        f"{report['device']['name']} over {report['device']['link']}, virtual time"
    )
    yield Grid(["", *(way["way"] for way in ways)], rows, right=True)
    yield from (f"{way['way']}: {way['refused']}" for way in ways if way["refused"])


def _share(way: dict[str, Any], name: str) -> float:
    return float(100 * way["measured"][name] / way["measured"]["critical_path"]["seconds"])
