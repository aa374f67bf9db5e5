"""What NeuronCores can do at most: tensor engines, HBM, DMA and links, and the other engines as they were busy."""

from collections.abc import Mapping
from typing import Any

from meshrt.groups.halving import steps_of
from meshrt.neuron.device import NeuronDevice
from meshrt.reports.ceilings import Ceilings, Level


def _steps(cores: int, device: NeuronDevice) -> list[int]:
    """How often a sum waits for a link, each way, by the ways there are (cores.py): a ring, all to all, halving."""
    halving = steps_of(cores)
    return [cores - 1, device.mesh_steps, *([] if halving is None else [len(halving)])]


def ceilings(report: Mapping[str, Any], part: Mapping[str, Any]) -> Ceilings:
    """Of a part of a report. The peak is that of 16-bit tiles, as in `mfu`: what products of float32, transposes and
    tiles that do not fill the tensor engine take beyond it is in the time that the engine was busy.
    """
    device, cores = NeuronDevice(**report["device"]), report["mesh"][0]
    hbm, sent = part["hbm_bytes"]["total"], part["link_bytes"]
    busy = {
        "DMA" if name == "dma" else f"{name} engine": engine["busy_seconds"] / cores
        for name, engine in part["engines"].items()
    }
    steps = 2 * min(_steps(cores, device))  # of a sum: adding up, and spreading
    return Ceilings(
        "flops", part["flops"], cores * device.peak_flops,
        (
            Level(
                "HBM", "hbm_bytes.total", hbm, cores * device.hbm_bytes_per_second,
                hbm / (cores * device.hbm_bytes_per_second),
            ),
            Level(
                "links", "link_bytes.total", sent["total"], cores * device.link_bytes_per_second,
                sent["max"] / device.link_bytes_per_second,
            ),
        ),
        {**busy, "link latency": part["collectives"] * steps * device.link_seconds},
    )  # fmt: skip
