"""What GPUs can do at most: their tensor cores, memory and links, launches and the latency of collectives."""

from collections.abc import Mapping
from typing import Any

from meshrt.ceilings import Ceilings, Level
from meshrt.gpu.device import GpuDevice, Protocol


def ceilings(report: Mapping[str, Any], part: Mapping[str, Any]) -> Ceilings:
    """Of a part of a report.

    The host launches all that is in no graph, one after the other; of a static run only the graphs are known to be
    launched. A collective takes what its fastest protocol takes for no bytes.
    """
    gpus = report["mesh"][0]
    device = GpuDevice(**{name: _number(name, value) for name, value in report["device"].items()})
    traffic, sent = part["memory_traffic"], part["link_bytes"]
    calls = {kind: counted["calls"] for kind, counted in part["collectives"].items()}
    launched = 0 if report["static"] else part["launches"] + sum(calls.values())
    return Ceilings(
        "flops", part["flops"], gpus * device.flops,
        (
            Level(
                "memory", "memory_traffic.total", traffic["total"], gpus * device.memory_bytes_per_second,
                traffic["max"] / device.memory_bytes_per_second,
            ),
            Level(
                "links", "link_bytes.total", sent["total"], gpus * device.link_bytes_per_second,
                sent["max"] / device.link_bytes_per_second,
            ),
        ),
        {
            "launches": launched * device.launch_seconds + part["graph_launches"] * device.graph_launch_seconds,
            "kernels' gaps": (part["launches"] + sum(calls.values())) * device.kernel_seconds,
            "collectives' latency": sum(n * _latency(device, kind, gpus) for kind, n in calls.items()),
        },
    )  # fmt: skip


def _number(name: str, value: Any) -> Any:
    """Of a device, as it has it."""
    return tuple(Protocol(**entry) for entry in value) if name.endswith("_protocols") else value


def _latency(device: GpuDevice, kind: str, gpus: int) -> float:
    """Seconds of a collective of that kind that has nothing to send; in all_to_all, empty parts take no step."""
    steps = {"reduce_sum": 2 * (gpus - 1), "all_gather": gpus - 1}.get(kind, 0)
    protocol = device.protocol(steps, 0.0)
    return protocol.seconds + steps * protocol.step_seconds
