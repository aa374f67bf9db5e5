"""Phases of several NeuronCores that are not alike on each, and sums of what cannot be added up."""

from typing import Any

import numpy as np
import pytest
from gpu_runs import Alone
from neuron_cores import loaded, tensor

from meshrt.errors import UsageError
from meshrt.neuron import language as nl
from meshrt.neuron.cores import Cores
from meshrt.neuron.device import find_neuron_device
from meshrt.ranks.board import Board
from meshrt.ranks.control import Control
from meshrt.reports.report import gather_report


def new_cores(count: int, payload: bool = True) -> Cores:
    return Cores(count, find_neuron_device("trn1"), Control(Alone(), Board.alone(), "test"), payload)


def report_of(cores: Cores) -> dict[str, Any]:
    report = gather_report("neuron", cores, "none", {}, {}, {"wall_seconds": 0.0})
    assert report is not None
    return report


@pytest.mark.parametrize(
    "names", [(["a"], []), ([], ["a"]), (["a"], ["b"]), (["a", "b"], ["b", "a"]), (["a", "a"], ["b", "a"])]
)
def test_each_phase_has_what_the_cores_did_in_phases_of_its_name(names: tuple[list[str], list[str]]) -> None:
    """Also of one that not all cores have, or have in another order."""
    cores, read = new_cores(2, payload=False), {"a": 0, "b": 0}
    for core, of_core in zip(cores.mine, names, strict=True):
        for at, name in enumerate(of_core):
            with core.phase(name):
                loaded(core, 128, 10 * (core.index + at + 1))
            read[name] += 128 * 4 * 10 * (core.index + at + 1)
    report = report_of(cores)
    assert {phase["name"]: phase["hbm_bytes"]["read"] for phase in report["phases"]} == {
        name: nbytes for name, nbytes in read.items() if nbytes
    }
    assert report["measured"]["hbm_bytes"]["read"] == sum(read.values())
    seconds, energy = report["measured"]["critical_path"]["seconds"], report["measured"]["energy"]
    idle = sum(find_neuron_device("trn1").idle_watts or ()) / 2
    assert energy["idle"] >= 2 * seconds * idle * (1 - 1e-9)
    if names == (["a"], ["b"]):  # at the same time: both wait for the slower one, and once
        assert energy["idle"] == pytest.approx(2 * seconds * idle)


def test_a_result_without_a_place_is_counted_at_the_end() -> None:
    cores = new_cores(1)
    nl.load(tensor(cores.mine[0], 128, 10))
    measured = report_of(cores)["measured"]
    assert measured["hbm_bytes"]["read"] == 128 * 10 * 4 and measured["sbuf_bytes"]["max"] == 128 * 10 * 4
    assert measured["engines"]["dma"]["busy_seconds"] > 0 and measured["critical_path"]["seconds"] > 0


def test_a_phase_that_comes_again_has_the_largest_sum_of_a_core() -> None:
    """Of 3 x 5 numbers of 4 bytes each of 3 cores sends 2 x 2 chunks of 20 bytes, twice."""
    cores = new_cores(3)
    for _ in range(2):
        with cores.phase("sums"):
            cores.all_reduce([tensor(core, 3, 5) for core in cores.mine])
    report = report_of(cores)
    assert report["phases"][0]["link_bytes"] == report["measured"]["link_bytes"] == {"total": 480, "max": 160}


@pytest.mark.parametrize("payload", [True, False])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda a, b: [tensor(a, 3, 5), tensor(b, 3, 4)], r"of \[3, 5\] of float32 and, on NeuronCore 1, \[3, 4\]"),
        (lambda a, _: [tensor(a, 3, 5)], "of 1 tensor: give a list of one for each of 2 NeuronCores"),
        (lambda a, b: [loaded(a, 3, 5), loaded(b, 3, 5)], "on NeuronCore 0 of what is not in its HBM: nl.store it"),
        (lambda a, _: [tensor(a, 3, 5)] * 2, "on NeuronCore 1 of what is not in its HBM"),
        (lambda *_: [np.ones((3, 5))] * 2, "on NeuronCore 0 of what is not in its HBM"),
    ],
)
def test_what_cannot_be_added_up_is_refused(payload: bool, wrong: Any, message: str) -> None:
    cores = new_cores(2, payload)
    with pytest.raises(UsageError, match=f"all_reduce {message}"):
        cores.all_reduce(wrong(*cores.mine))
