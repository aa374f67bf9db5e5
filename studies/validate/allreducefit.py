"""python -m meshrt.studies.validate.allreducefit: finds the constants of links and of systems' hosts, and prints them.

On rows for fitting alone, as gpufit.py does, with the time that protocols give a ring in place of a run of one.
What NCCL itself assumes (device.py) is kept where nothing below replaces it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from meshrt.gpu.device import Protocol
from meshrt.studies.validate.gpuallreduce import ALLREDUCE, SYSTEMS, MeasuredSystem, device_of
from meshrt.studies.validate.gpufit import Found, off, search
from meshrt.studies.validate.rows import DATA, MeasuredRow, read_rows


def _other(protocols: tuple[Protocol, ...], name: str, **numbers: Any) -> tuple[Protocol, ...]:
    return tuple(replace(protocol, **numbers) if protocol.name == name else protocol for protocol in protocols)


def systems(constants: Found) -> dict[str, MeasuredSystem]:
    """The systems with these numbers; each GPU's, and those of the network, are shared."""
    changed = {}
    for name, system in SYSTEMS.items():
        gpu, device = name.split("_")[0], system.device
        nvlink = _other(
            device.nvlink_protocols, "Simple", step_seconds=constants[f"{name} step"],
            share=min(1.0, constants[f"{name} share"]),
            **({"seconds": constants[f"{name} Simple"]} if device.nvlink_gpus > 2 else {}),
        )  # fmt: skip
        nvlink = _other(nvlink, "LL", step_seconds=constants["LL step"], share=constants["LL share"])
        network = _other(
            device.network_protocols, "LL", seconds=constants["network LL"], step_seconds=constants["network LL step"],
            share=constants["network LL share"],
        )  # fmt: skip
        network = _other(network, "Simple", seconds=constants["network"], step_seconds=constants["network step"])
        device = replace(
            device, nvlink_protocols=nvlink, network_protocols=network,
            pcie_bytes_per_second=constants[f"{gpu} pcie"], network_bytes_per_second=constants["network rate"],
            pcie_protocols=_other(device.pcie_protocols, "Simple", step_seconds=constants[f"{gpu} pcie step"]),
        )  # fmt: skip
        changed[name] = MeasuredSystem(
            device, {count: constants[f"{name} {count} late"] for count in system.late_seconds}
        )
    return changed


def ring_seconds(system: MeasuredSystem, row: MeasuredRow) -> float:
    """What gpuallreduce.emulated reads off a clock."""
    gpus, nbytes = row.sizes["gpus"], row.sizes["bytes"]
    device = device_of(system, gpus, row.sizes["gpus_per_node"])
    steps, chunk = 2 * (gpus - 1), nbytes / gpus
    protocol = device.protocol(steps, chunk)
    step = protocol.step_seconds + chunk / (protocol.share * device.link_bytes_per_second)
    seconds: float = device.kernel_seconds + protocol.seconds + steps * step
    return max(seconds, system.late(gpus))


def loss_on(rows: list[MeasuredRow]) -> Callable[[Found], float]:
    times = 1e-6 * np.array([row.measured for row in rows])

    def loss(constants: Found) -> float:
        of = systems(constants)
        return float(off(np.array([ring_seconds(of[row.sizes["system"]], row) for row in rows]), times).mean())

    return loss


def main(steps: int = 4000) -> None:
    rows = [row for row in read_rows(DATA / ALLREDUCE.file, [ALLREDUCE]) if row.use == "fit"]
    a100 = SYSTEMS["a100_dgx"].device
    low, _ = a100.nvlink_protocols
    start = {
        "LL step": low.step_seconds, "LL share": low.share,
        "network rate": a100.network_bytes_per_second,
    }  # fmt: skip
    for protocol in a100.network_protocols:
        name = "network" if protocol.name == "Simple" else "network LL"
        start |= {name: protocol.seconds, f"{name} step": protocol.step_seconds}
    start["network LL share"] = a100.network_protocols[0].share
    for name, system in SYSTEMS.items():
        gpu, device = name.split("_")[0], system.device
        simple = device.nvlink_protocols[-1]
        start |= {
            f"{name} step": simple.step_seconds, f"{name} share": simple.share,
            f"{gpu} pcie": device.pcie_bytes_per_second, f"{gpu} pcie step": device.pcie_protocols[-1].step_seconds,
        }  # fmt: skip
        if device.nvlink_gpus > 2:  # of two, a collective's seconds and those of its two steps are not told apart
            start[f"{name} Simple"] = simple.seconds
        start |= {f"{name} {count} late": late for count, late in system.late_seconds.items()}
    for name, number in search(start, loss_on(rows), steps).items():
        print(f"{name:30} {number:.4g}")


if __name__ == "__main__":
    main()
