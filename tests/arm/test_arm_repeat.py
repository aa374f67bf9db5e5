"""Layers that stand for others on Arm cores: the same counts, memory and time as all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from runs import run_on_arm

from meshrt.arm.device import find_arm_device
from meshrt.errors import UsageError

IDS: dict[str, Any] = {"layers": 4, "prompt_tokens": 4, "max_new_tokens": 3}


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.parametrize(
    "options", [{"kv_chunk": "6"}, {"attention": "concat", "kv": "int8", "device": "phone"}], ids=str
)
def test_two_layers_are_as_good_as_all(options: dict[str, Any], comm: Any) -> None:
    """Of four, none of which a cache holds; keys and values grow in decode, and their room is charged for all."""
    clusters = find_arm_device(options.get("device", "n2x8")).clusters
    caches = {
        "clusters": tuple(replace(cluster, l1_bytes=4096, l2_bytes=8192) for cluster in clusters), "slc_bytes": 16384,
    }  # fmt: skip
    whole, part = (
        run_on_arm(comm, "llama", payload=False, layers_run=run, limits=caches, **IDS | options) for run in (None, 2)
    )
    if comm.rank:
        return
    assert whole["result"].pop("layers_run") == 4 and part["result"].pop("layers_run") == 2
    for key in ("ttft_seconds", "tpot_seconds"):
        assert part["result"].pop(key) == pytest.approx(whole["result"].pop(key), rel=1e-12)
    assert part["result"] == whole["result"]
    for of_part, of_whole in zip(
        [part["measured"], *part["phases"]], [whole["measured"], *whole["phases"]], strict=True
    ):
        # the energy of what idles is of seconds, which are sums of as many as there are layers
        for key in ("critical_path", "compute_seconds", "idle_seconds", "energy"):
            assert of_part.pop(key, 0) == pytest.approx(of_whole.pop(key, 0), rel=1e-12)
        assert of_part == of_whole
    assert part["kinds"]["measured.operations"] == "extrapolated" and whole["kinds"]["measured.operations"] == "counted"


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(
    ("options", "message"),
    [({"layers_run": 2, "payload": True}, "add --payload none"), ({"layers_run": 1}, "so it has to run"),
     ({"layers_run": 2, "flash": 1}, "--flash 1 is of the last layers")], ids=str,
)  # fmt: skip
def test_what_cannot_stand_for_others(options: dict[str, Any], message: str, comm: Any) -> None:
    given = {"prompt_ids": "1,2", "max_new_tokens": 1} | {"payload": False} | options
    with pytest.raises(UsageError, match=message):
        run_on_arm(comm, "llama", **given)
