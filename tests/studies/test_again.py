"""The command line on a page of a report: the options of the machine, and what no report has."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import meshrt
from meshrt.gpu.presets import GPU_PRESETS
from meshrt.mesh.presets import PRESETS
from meshrt.studies.again import again, untold

GPU = {"program": "lowrank", "payload": False, "layers": 1, "max_new_tokens": 2, "model": "llama-tiny"}
ARM = {"program": "linear", "on": "arm", "m": 2, "k": 64, "n": 8}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({**GPU, "tp": 2, "link": "pcie", "link_rate": 1e10, "static": True}, "--tp 2 --static --link pcie --link-"),
        ({**GPU, "tp": 1, "framework": "vllm", "gpu_memory": 10**9}, "--tp 1 --gpu-memory 1000000000 --framework vllm"),
        ({**GPU, "tp": 2, "node_size": 1, "collectives": "ring"}, "--tp 2 --pp 1 --dp 1 --node-size 1 --collectives"),
        ({**ARM, "device": "phone", "dram": 10**9, "registers": 16}, "--dram 1000000000 --registers 16 --device phone"),
        ({**ARM, "registers": 9, "tile": "8x8", "spill": True}, "--cores 8 --spill --registers 9 --device n2x8"),
        ({"program": "xuv", "m": 128, "k": 128, "n": 128, "sbuf_bytes": 99_999}, "--cores 1 --sbuf-bytes 99999"),
        ({"program": "shift", "mesh": "2x2", "core_memory": 40_000}, "--mesh 2x2 --core-memory 40000 --device wse2"),
    ],
)  # fmt: skip
def test_options_of_the_machine_are_told(options: dict[str, Any], words: str) -> None:
    report = meshrt.run(options.pop("program"), **options).data
    assert words in again(report)
    assert len([*untold(report)]) == 1


def test_what_the_report_does_not_know_is_told_as_that(tmp_path: Path) -> None:
    """A file of the user's own, a device of one's own or with numbers that no option changes, dead cores."""
    own = tmp_path / "mine.py"
    own.write_text("MESH = (2, 2)\ndef run(block, *, size: int = 3):\n    return {}\n")
    report = meshrt.run(own, device=replace(PRESETS["wse2"], name="my wafer"), defects="0", spares="1x1").data
    assert again(report).startswith("meshrt run FILE.py --size 3 --mesh 2x2 ") and "--device FILE.toml" in again(report)
    _, *told_of = untold(report)
    for words, sentence in zip(("of mine.", "of my wafer.", "--defects"), told_of, strict=True):
        assert words in sentence
    report = meshrt.run("shift", mesh="2x2", steps=1, device=replace(PRESETS["wse2"], alpha=2.0)).data
    assert [*untold(report)][1] == "No option changes what else is not wse2's own: alpha."
    report = meshrt.run(device=replace(GPU_PRESETS["a800"], name="mine"), **GPU).data
    assert "--device" not in again(report) and "mine, is a script's own" in [*untold(report)][1]
