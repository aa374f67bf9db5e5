"""Joules of NeuronCores, GPUs and Arm cores: their counters times their device's numbers, by phase, on any ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from gpu_runs import new_gpus, run_gpus
from runs import run_on_arm, run_on_cores

from meshrt.arm.device import ENERGY as ARM_ENERGY
from meshrt.arm.device import N2X8
from meshrt.errors import UsageError
from meshrt.gpu.device import ENERGY as GPU_ENERGY
from meshrt.gpu.presets import A800
from meshrt.neuron.device import ENERGY as NEURON_ENERGY
from meshrt.neuron.device import TRN1
from meshrt.reports.energy import account

IDS = {"prompt_ids": "1,2,3,4,5", "max_new_tokens": 3, "ignore_eos": True}


def by_hand(report: Mapping[str, Any], part: Mapping[str, Any], at: int) -> float:
    """Joules of a part of a report with all lowest (0) or highest (1) numbers."""
    device, count = report["device"], report["mesh"][0]

    def price(name: str) -> float:
        return float(device[name][at])

    joules = price("idle_watts") * count * part["critical_path"]["seconds"]
    match report["machine"]:
        case "neuron":
            hbm, on_chip = part["hbm_bytes"]["total"], part["operand_bytes"]
            picojoules = 8 * hbm * price("hbm_picojoules") + 8 * (hbm + on_chip) * price("sram_picojoules")
            picojoules += part["mac_passes"] * price("mac_picojoules")
            picojoules += 8 * part["link_bytes"]["total"] * price("link_picojoules")
        case "gpu":
            picojoules = 8 * part["memory_traffic"]["total"] * price("memory_picojoules")
            picojoules += part["flops"] / 2 * price("mac_picojoules")
            picojoules += 8 * part["link_bytes"]["total"] * price("link_picojoules")
        case _:
            levels = {"l1": part["l1_bytes"], "l2": part["l2_bytes"], "slc": part["slc_bytes"]}
            levels["dram"] = part["dram_bytes"]["total"]
            picojoules = sum(8 * nbytes * price(f"{level}_picojoules") for level, nbytes in levels.items())
            picojoules += part["instructions"]["total"] * price("instruction_picojoules")
    return joules + 1e-12 * picojoules


def adds_up(report: Mapping[str, Any], outside: bool = False) -> None:
    """Each part by hand, and the phases to the run, to the bit; or, `outside` of them something was done, too."""
    whole = report["measured"]["energy"]
    for part in (report["measured"], *report["phases"]):
        for name, at in (("low", 0), ("high", 1)):
            assert part["energy"][name] == pytest.approx(by_hand(report, part, at), rel=1e-9)
        assert 0 < part["energy"]["low"] <= part["energy"]["mean"] <= part["energy"]["high"]
        assert part["energy"]["mean"] == pytest.approx((part["energy"]["low"] + part["energy"]["high"]) / 2, rel=1e-12)
    for key, joules in whole.items():
        in_phases = sum(phase["energy"][key] for phase in report["phases"])
        assert joules > in_phases if outside and key not in ("links", "compute") else joules == in_phases


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.parametrize("machine", ["neuron", "arm"])
@pytest.mark.parametrize("payload", [True, False])
def test_the_phases_of_a_model_add_up_to_its_joules(machine: str, payload: bool, comm: Any) -> None:
    run = run_on_cores if machine == "neuron" else run_on_arm
    report = comm.bcast(run(comm, "llama", 3 if machine == "arm" else 2, payload=payload, **IDS))
    adds_up(report, outside=machine == "neuron")  # its identity, to transpose with, is made before the first phase


@pytest.mark.parametrize(("name", "options"), [("lowrank", IDS), ("llama", IDS)])
@pytest.mark.parametrize("tp", [1, 4])
def test_those_of_gpus_do(name: str, options: Any, tp: int) -> None:
    adds_up(run_gpus(new_gpus(tp), "llama-tiny", name, **options))


@pytest.mark.mpi(ranks=[1])
def test_float32_passes_the_tensor_engine_four_times(comm: Any) -> None:
    sizes = {"m": 128, "k": 128, "r": 64, "n": 512, "kernel": "sequential"}
    half, full = (run_on_cores(comm, "xuv", 1, dtype=dtype, **sizes)["measured"] for dtype in ("bfloat16", "float32"))
    for report, passes in ((half, 1), (full, TRN1.float32_passes)):
        assert report["mac_passes"] == passes * (report["macs"] + report["transpose_flops"] // 2) > 0
    assert full["energy"]["compute"] == 4 * half["energy"]["compute"]


@pytest.mark.mpi(ranks=[1])
def test_a_copy_in_sbuf_reads_and_writes_each_number(comm: Any) -> None:
    from meshrt.neuron import isa
    from meshrt.neuron.allocate import ndarray, par_dim
    from meshrt.neuron.core import NeuronCore

    core = NeuronCore(TRN1)
    tile = ndarray((par_dim(5), 7), "bfloat16", buffer=core.sbuf)
    isa.memset(tile, 1.0)
    assert core.counts["operand_bytes"] == 5 * 7 * 2
    out = ndarray((par_dim(5), 7), "float32", buffer=core.sbuf)
    out[...] = isa.tensor_copy(tile)
    core.settle()
    assert core.counts["operand_bytes"] == 5 * 7 * (2 + 2 + 4)


@pytest.mark.mpi(ranks=[1])
def test_a_device_without_joules_has_no_energy(comm: Any) -> None:
    assert "energy" not in run_on_arm(comm, "linear", 2, device="phone", m=3, k=40, n=9)["measured"]
    gpus = new_gpus(1)
    gpus.device = replace(A800, **dict.fromkeys(GPU_ENERGY))
    assert "energy" not in run_gpus(gpus, "llama-tiny", "llama", **IDS)["measured"]


@pytest.mark.parametrize(
    ("device", "name"),
    [(preset, name) for preset, names in ((A800, GPU_ENERGY), (TRN1, NEURON_ENERGY), (N2X8, ARM_ENERGY))
     for name in names], ids=str,
)  # fmt: skip
def test_joules_that_are_no_range_are_refused(device: Any, name: str) -> None:
    assert getattr(device, name) is not None
    with pytest.raises(UsageError, match=f"device {device.name}: {name} is .*the lowest and the highest"):
        replace(device, **{name: (2.0, 1.0)})


def test_what_no_phase_has_is_in_the_run_alone() -> None:
    """And where phases have all of it, rounded clocks leave nothing over."""

    def loads(counts: Mapping[str, float]) -> dict[str, Any]:
        return {"moved": [(counts["bits"], (1.0, 3.0))], "idle": [(counts["seconds"], (0.0, 1.0))]}

    phases = [{"bits": 3, "seconds": 0.1, "devices": 1}, {"bits": 4, "seconds": 0.2, "devices": 1}]
    accounts = account({"bits": 9, "seconds": 0.5, "devices": 1}, phases, loads)
    assert accounts is not None and accounts[0]["moved"] == 18 and [joules["moved"] for joules in accounts[1]] == [6, 8]
    assert accounts[0]["idle"] == pytest.approx(0.25)
    closed = account({"bits": 7, "seconds": 0.3, "devices": 1}, phases, loads)  # 0.1 + 0.2 is more than 0.3
    assert closed is not None and closed[0]["idle"] == sum(joules["idle"] for joules in closed[1])
