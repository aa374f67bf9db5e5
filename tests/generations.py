"""Generations by `llama` on the mesh inside a test: with every logit, on several ranks as on one, gone on with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measure import on_one_rank, run_report
from runs import run_program


def generated(
    comm: Any, model: Path, mesh: tuple[int, int], folder: Path, ids: Sequence[int], new: int, **options: Any
) -> tuple[Any, np.ndarray, list[int]]:
    """On one rank: the report, the logits of prefill and decode, and the ids that they are of. `folder`: for a file."""
    report = run_program(
        comm, "llama", mesh, model=str(model), prompt_ids=",".join(map(str, ids)), max_new_tokens=new, ignore_eos=True,
        logits=str(folder / "logits.npy"), **options,
    )  # fmt: skip
    return report, np.load(folder / "logits.npy"), [*ids, *report["result"]["token_ids"][:-1]]


def same_as_on_one_rank(
    comm: Any, model: Path, mesh: tuple[int, int], folder: Path, device: str = "ideal", **options: Any
) -> tuple[dict[str, Any], bytes]:
    """Asserts that the report, the host apart, and the logits are those of one rank, to the bit: both, on all ranks."""

    def run(ranks: Any) -> tuple[dict[str, Any], bytes]:
        written = folder / "logits.npy"
        report = run_report(
            ranks, "llama", mesh, device, model=str(model), ignore_eos=True, logits=str(written), **options
        )
        compared = {key: value for key, value in report.items() if key != "host"}
        return compared, ranks.bcast(written.read_bytes() if ranks.rank == 0 else None)

    result = run(comm)
    assert result == on_one_rank(comm, run)
    return result


def goes_on_from_a_state(comm: Any, model: Path, folder: Path, new: int, **options: Any) -> None:
    """Asserts that a generation that keeps states, and one that goes on from the last of them, end as one without."""
    state = {"checkpoint": str(folder / "state")}
    reports = [
        run_report(
            comm, "llama", (4, 4), model=str(model), prompt_ids="5,6,7", max_new_tokens=new, ignore_eos=True,
            **options, **more,
        )
        for more in ({}, state | {"every": 3}, state | {"resume": True})
    ]  # fmt: skip
    assert reports[2]["host"]["resumed_at_token"] == 3
    assert reports[0]["result"] == reports[1]["result"] == reports[2]["result"]
    assert reports[0]["phases"] == reports[1]["phases"] == reports[2]["phases"]
