"""What GPUs can do at most: their tensor cores, memory and links, launches and the latency of collectives."""

from collections.abc import Mapping
from typing import Any

from meshrt.gpu.device import GpuDevice, Protocol
from meshrt.gpu.nodes import least_seconds
from meshrt.reports.ceilings import Ceilings, Level


def ceilings(report: Mapping[str, Any], part: Mapping[str, Any]) -> Ceilings:
    """Of a part of a report.

    The host launches all that is in no graph, one after the other; of a static run only the graphs are known to be
    launched. A collective takes what its fastest protocol takes for no bytes.
    """
    gpus = report["mesh"][0]
    device = GpuDevice(**{name: _number(name, value) for name, value in report["device"].items()})
    traffic = part["memory_traffic"]
    calls = {kind: counted["calls"] for kind, counted in part["collectives"].items()}
    launched = 0 if report["static"] else part["launches"] + sum(calls.values())
    return Ceilings(
        "flops", part["flops"], gpus * device.flops,
        (
            Level(
                "memory", "memory_traffic.total", traffic["total"], gpus * device.memory_bytes_per_second,
                traffic["max"] / device.memory_bytes_per_second,
            ),
            *_links(device, report, part),
        ),
        {
            "launches": launched * device.launch_seconds + part["graph_launches"] * device.graph_launch_seconds,
            "kernels' gaps": (part["launches"] + sum(calls.values())) * device.kernel_seconds,
            "collectives' latency": sum(n * _latency(device, kind, report) for kind, n in calls.items()),
        },
    )  # fmt: skip


def _links(device: GpuDevice, report: Mapping[str, Any], part: Mapping[str, Any]) -> list[Level]:
    """What GPUs sent each other: inside nodes, and, where there are several, by the adapters of a node, which are one
    GPU's where no other sends."""
    gpus, rate = report["mesh"][0], device.link_bytes_per_second
    if "inter_node_bytes" not in part:
        sent = part["link_bytes"]
        return [Level("links", "link_bytes.total", sent["total"], gpus * rate, sent["max"] / rate)]
    size = report["groups"]["node_size"]
    near, far = part["intra_node_bytes"], part["inter_node_bytes"]
    adapters = min(size, device.node_adapters) * device.network_bytes_per_second
    return [
        Level("links", "intra_node_bytes.total", near["total"], gpus * rate, near["max"] / rate),
        Level("network", "inter_node_bytes.total", far["total"], -(-gpus // size) * adapters, far["max"] / adapters),
    ]


def _number(name: str, value: Any) -> Any:
    """Of a device, as it has it."""
    return tuple(Protocol(**entry) for entry in value) if name.endswith("_protocols") else value


def _latency(device: GpuDevice, kind: str, report: Mapping[str, Any]) -> float:
    """Seconds of a tensor-parallel group's collective of that kind that has nothing to send; in all_to_all, empty parts
    take no step."""
    groups = report.get("groups") or {"tp": report["mesh"][0], "node_size": None}
    members = int(groups["tp"])
    node_size = int(groups["node_size"] or members)
    if members > node_size and kind in ("reduce_sum", "all_gather"):
        return least_seconds(device, kind, groups["collectives"], members, node_size)
    steps = {"reduce_sum": 2 * (members - 1), "all_gather": members - 1}.get(kind, 0)
    protocol = device.protocol(steps, 0.0)
    return protocol.seconds + steps * protocol.step_seconds
