"""`meshrt bench serve`: the ways to serve a model on tensor-parallel GPUs, on the same requests.

Those of decomposed models, and those of spreading the experts of a mixture.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from meshrt.errors import UsageError
from meshrt.gpu.device import GpuDevice
from meshrt.models.catalogue import find_model
from meshrt.models.family import read_family
from meshrt.models.matrix import Experts
from meshrt.ranks.console import Console
from meshrt.report import SCHEMA
from meshrt.report import show as show_table
from meshrt.studies.sweep import Job, sweep


@dataclass(frozen=True)
class Way:
    """A scheme, what its cache holds, whether new tokens are replayed from plans, and how experts are spread."""

    scheme: str
    kv: str
    static: bool
    experts: str = "tensor"


LAYOUTS = ("tensor", "replicated", "alltoall")  # of experts
# As DeInfer compares: its Base runs kernel by kernel, itself as graphs. A dagger marks its low-rank cache.
WAYS = {
    "dense": Way("dense", "dense", True),
    "base": Way("base", "dense", False),
    "base, static": Way("base", "dense", True),
    "deinfer": Way("deinfer", "dense", True),
    "deinfer, eager": Way("deinfer", "dense", False),
    "deinfer, lowrank": Way("deinfer", "lowrank", True),
    "deinfer, lowrank, eager": Way("deinfer", "lowrank", False),
    "overlapped": Way("overlapped", "dense", True),
    "overlapped, eager": Way("overlapped", "dense", False),
    "overlapped, fused": Way("overlapped", "fused", True),
    "overlapped, fused, eager": Way("overlapped", "fused", False),
    **{layout: Way("deinfer", "dense", False, layout) for layout in LAYOUTS},
    **{f"{layout}, static": Way("deinfer", "dense", True, layout) for layout in LAYOUTS if layout != "alltoall"},
}
DEFAULT = ("dense", "base", "deinfer", "deinfer, lowrank")  # of a model without experts


def job(way: Way, tp: int, device: GpuDevice, payload: bool, arguments: Mapping[str, Any]) -> Job:
    """The run of a way on `tp` GPUs."""
    own = {"scheme": way.scheme, "kv": way.kv, "experts": way.experts}
    return Job("serve", (tp, 1), device, {**arguments, **own}, payload, way.static)


def default(model: str) -> tuple[str, ...]:
    """The ways that are compared of this model if none are named."""
    layers = read_family(find_model(model), quantized=True).layers
    return LAYOUTS if any(isinstance(layer.mlp, Experts) for layer in layers) else DEFAULT


def compare(
    comm: Any, console: Console, device: GpuDevice, tp: int, payload: bool, only: Sequence[str],
    arguments: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Serve the same requests in several ways, shared out to the ranks: the report, on all of them. UsageError."""
    names = tuple(dict.fromkeys(only)) or default(arguments["model"])
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


def print_comparison(report: dict[str, Any]) -> None:
    """A column for each way."""
    from rich.table import Table

    ways = report["ways"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", no_wrap=True)
    for way in ways:
        table.add_column(way["way"], justify="right")

    def row(name: str, show: Any) -> None:
        table.add_row(name, *("refused" if way["refused"] else show(way) for way in ways))

    def milliseconds(key: str, statistic: str) -> Any:
        return lambda way: "" if way["result"][key] is None else f"{way['result'][key][statistic]:,.2f}"

    row("requests a second", lambda way: f"{way['result']['requests_per_second']:,.2f}")
    row("new tokens a second", lambda way: f"{way['result']['output_tokens_per_second']:,.0f}")
    row("all tokens a second", lambda way: f"{way['result']['tokens_per_second']:,.0f}")
    for key, name in (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT"), ("itl_ms", "ITL"), ("e2el_ms", "E2EL")):
        for statistic in ("mean", "p50", "p90", "p99"):
            row(f"{name}, {statistic}, ms", milliseconds(key, statistic))
    row("of all time, kernels", lambda way: _share(way, "compute_seconds"))
    row("of all time, collectives", lambda way: _share(way, "collective_seconds"))
    row("sent by a GPU, GiB", lambda way: f"{way['measured']['link_bytes']['max'] / 2**30:,.2f}")
    row("memory of a GPU, GiB", lambda way: f"{way['measured']['memory_bytes']['max'] / 2**30:,.2f}")
    row("largest batch", lambda way: str(way["result"]["largest_batch"]))
    if any("experts" in way.get("result", {}) for way in ways):
        row("tokens of GPUs, most over mean", lambda way: f"{way['result']['imbalance_of_gpus'] or 0:.2f}")
        row("sent for experts and MLPs, GiB", lambda way: f"{way['measured']['mlp_link_bytes'] / 2**30:,.2f}")
    row("preemptions", lambda way: str(way["result"]["preemptions"]))
    arguments = report["arguments"]
    completed = next((way["result"]["completed"] for way in ways if not way["refused"]), "no")
    print(
        f"{completed} requests to {arguments['model']} on {report['mesh'][0]} GPUs of type "
        f"{report['device']['name']} over {report['device']['link']}, virtual time"
    )
    show_table(table)
    for way in ways:
        if way["refused"]:
            print(f"{way['way']}: {way['refused']}")


def _share(way: dict[str, Any], name: str) -> str:
    return f"{100 * way['measured'][name] / way['measured']['critical_path']['seconds']:.0f} %"
