"""A generation that goes on from a state on disk ends as one that was never interrupted, on any number of ranks."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kept import Stopped, changes, outside_host, rewrite, stop_after
from measure import meet
from mpi4py import MPI
from random_models import BASE, random_checkpoint

from meshrt.emulate import emulate
from meshrt.errors import LimitError, UsageError
from meshrt.mesh.defects import make_wafer
from meshrt.mesh.devicefile import find_device
from meshrt.program import load_program
from meshrt.programs.generation import generate as loop
from meshrt.ranks.board import Board

NEW = 7  # tokens of a generation; states are kept after the 1st, 2nd, 4th and 6th
SAMPLED = {"temperature": 0.9, "top_k": 40, "seed": 5}
CASES: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {
    "sampled": ((4, 4), SAMPLED | {"layers": 1}),
    "not square": ((6, 3), {"kv": "concat"}),
    "roundrobin": ((4, 4), {"kv": "roundrobin", "allreduces": "published"}),
    "bfloat16": ((4, 4), {"dtype": "bfloat16", "phases": 3}),
    "regions": ((4, 4), {"regions": 2}),
    "other cores": ((4, 4), {"decode_mesh": "3x2", "decode_regions": 2, **SAMPLED}),
    "wider cores": ((4, 4), {"decode_mesh": "8x4"}),
    "t10": ((4, 4), {"system": "t10"}),
    "ladder": ((4, 4), {"system": "ladder"}),
    "shapes": ((4, 4), {"payload": False, "layers_run": 1, "decode_mesh": "8x4"}),
    "context": ((4, 4), {"payload": False, "context": 50}),
    "defects": ((4, 4), {"defects": "0.02"}),
}


def generate(
    comm: Any, mesh: tuple[int, int], device: str = "ideal", limits: Any = None, defects: str | None = None,
    payload: bool = True, **options: Any,
) -> Any:  # fmt: skip
    """The report of a short generation at rank 0, None elsewhere."""
    given: dict[str, Any] = {"prompt_ids": "5,9,7,30,2,11", "max_new_tokens": NEW, "ignore_eos": True, "layers": 2}
    given |= {"every": 2} if "checkpoint" in options else {}
    if "context" in options:
        del given["prompt_ids"]
    return emulate(
        comm, Board.alone(), load_program("llama"), given | options, mesh=mesh, payload=payload,
        device=find_device(device, **(limits or {})), wafer=defects and partial(make_wafer, defects, "2x2", 0),
    )  # fmt: skip


@pytest.mark.mpi(ranks=[4])
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", CASES)
def test_goes_on_as_if_nothing_had_happened(
    comm: MPI.Intracomm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    mesh, options = CASES[name]
    folder = Path(comm.bcast(str(tmp_path)))
    logits = folder / "logits.npy"
    options = options | ({} if options.get("payload") is False else {"logits": str(logits)})
    whole = generate(comm, mesh, **options)
    rows = logits.read_bytes() if comm.rank == 0 and "logits" in options else b""
    ranks_of = {"sampled": (1, 2, 3, 4)}.get(name, (2, 1))
    # States are written by as many ranks as go on from the one before: by 4, 1, ..; the last run goes to the end.
    state = str(folder / "state")
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_after(patch, 2)
        generate(comm, mesh, checkpoint=state, **options)
    for at, ranks in enumerate(ranks_of):
        few = comm.Split(comm.rank < ranks)
        if comm.rank < ranks:
            if at == 0:
                with monkeypatch.context() as patch, pytest.raises(Stopped):
                    stop_after(patch, 1)
                    generate(few, mesh, checkpoint=state, resume=True, **options)
            logits.unlink(missing_ok=True)
            report = generate(few, mesh, checkpoint=state, resume=True, **options | {"every": NEW})  # keeps no more
            if comm.rank == 0:
                assert report["host"]["resumed_at_token"] == 4
                assert outside_host(report) == outside_host(whole)
                assert not rows or logits.read_bytes() == rows
        meet(comm)
        few.Free()


def kept_state(comm: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, states: int = 1, **options: Any) -> str:
    state = str(folder / "state")
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_after(patch, states)
        generate(comm, (2, 2), checkpoint=state, **options)
    return state


@pytest.mark.mpi(ranks=[1])
def test_only_the_same_run_goes_on(comm: MPI.Intracomm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = kept_state(comm, tmp_path, monkeypatch)
    others: list[tuple[Mapping[str, Any], str]] = [
        ({"kv": "concat"}, "with --kv shift, and this run has concat"),
        ({"temperature": 0.5}, "with --temperature 0.0, and this run has 0.5"),
        ({"layers": 1}, "with another model"),
        ({"prompt_ids": "5,9,7,30,2,12"}, "with another prompt"),
        ({"payload": False}, "with --payload full, and this run has none"),
        ({"logits": str(tmp_path / "x.npy")}, "with --logits False, and this run has True"),
        ({"device": "wse2"}, "with device's name ideal, and this run has wse2"),
        ({"limits": {"core_memory": 10**6}}, "with device's core_memory None, and this run has 1000000"),
    ]
    for options, message in others:
        with pytest.raises(UsageError, match=r"^--resume: what .*/state holds was begun ") as error:
            generate(comm, (2, 2), checkpoint=state, resume=True, **options)
        assert message in str(error.value)
    with pytest.raises(UsageError, match=r"with --mesh \[2, 2\], and this run has \[4, 2\]"):
        generate(comm, (4, 2), checkpoint=state, resume=True)
    generate(comm, (2, 2), checkpoint=state, resume=True, every=NEW)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CASES)
def test_goes_on_to_more_tokens_as_if_they_had_been_asked_for(comm: MPI.Intracomm, tmp_path: Path, name: str) -> None:
    """From a run that came to its end: to the report of one that never stopped there."""
    mesh, options = CASES[name]
    state = str(tmp_path / "state")
    generate(comm, mesh, checkpoint=state, **options)
    more = options | {"max_new_tokens": 19}
    report = generate(comm, mesh, checkpoint=state, resume=True, **more)
    assert report["host"]["resumed_at_token"] == 6
    assert len(report["result"]["token_ids"]) == 19
    assert outside_host(report) == outside_host(generate(comm, mesh, **more))


@pytest.mark.mpi(ranks=[1])
def test_a_state_with_all_the_tokens_is_told(
    comm: MPI.Intracomm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = kept_state(comm, tmp_path, monkeypatch, 2)
    with pytest.raises(UsageError, match=r"has 2 new tokens already, and --max-new-tokens is 2: ask for more"):
        generate(comm, (2, 2), checkpoint=state, resume=True, max_new_tokens=2)
    few = generate(comm, (2, 2), checkpoint=state, resume=True, max_new_tokens=3, every=NEW)
    assert outside_host(few) == outside_host(generate(comm, (2, 2), max_new_tokens=3))


@pytest.mark.mpi(ranks=[1])
def test_model_is_known_by_its_numbers_and_not_by_its_folder(
    comm: MPI.Intracomm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, same, other = (
        str(random_checkpoint(BASE, tmp_path / name, seed)) for name, seed in (("one", 1), ("same", 1), ("other", 2))
    )
    state = kept_state(comm, tmp_path, monkeypatch, model=begun)
    with pytest.raises(UsageError, match="was begun with another model: give what it was begun with"):
        generate(comm, (2, 2), checkpoint=state, resume=True, model=other)
    report = generate(comm, (2, 2), checkpoint=state, resume=True, model=same)
    assert report["result"] == generate(comm, (2, 2), model=begun)["result"]


@pytest.mark.mpi(ranks=[2])
def test_a_state_is_never_lost_to_another_run(
    comm: MPI.Intracomm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(comm.bcast(str(tmp_path)))
    state = kept_state(comm, folder, monkeypatch)
    comm.Barrier()
    before = {path.name: path.read_bytes() for path in Path(state).iterdir()}
    with pytest.raises(UsageError, match="holds a checkpoint already: go on from it with --resume"):
        generate(comm, (2, 2), checkpoint=state)
    assert {path.name: path.read_bytes() for path in Path(state).iterdir()} == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "--every is 0; it starts at 1"),
        ({"every": 5}, "--every is 5 and no state is kept: name a folder for it with --checkpoint"),
        ({"checkpoint": ""}, "--checkpoint '' names no folder"),
        ({"checkpoint": "a\0b"}, r"--checkpoint 'a\\x00b' is no name of a folder: a zero byte, or half of a char"),
        (
            {"checkpoint": "{}/no/folder"},
            "--checkpoint .*/no/folder cannot be made a folder: No such file or directory",
        ),
        ({"checkpoint": "{}/file"}, "--checkpoint .*/file cannot be made a folder: File exists"),
        ({"resume": True}, "--resume goes on from the state in a folder: name it with --checkpoint"),
    ],
)
@pytest.mark.mpi(ranks=[1])
def test_what_cannot_be_a_state(comm: MPI.Intracomm, tmp_path: Path, options: Any, message: str) -> None:
    (tmp_path / "file").touch()
    given = {name: value.format(tmp_path) if isinstance(value, str) else value for name, value in options.items()}
    with pytest.raises(UsageError, match=message):
        generate(comm, (2, 2), **given)


@pytest.mark.mpi(ranks=[1])
def test_a_state_is_kept_when_it_is_due(comm: MPI.Intracomm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers: list[int] = []
    save = loop.save
    monkeypatch.setattr(loop, "save", lambda *given: (numbers.append(len(given[-1].new)), save(*given)))
    generate(comm, (2, 2), checkpoint=str(tmp_path / "state"), every=3)
    assert numbers == [1, 3, 6]  # with the prompt done, then every 3; the 7th token is the last


@pytest.mark.mpi(ranks=[2])
def test_resume_with_nothing_there_starts_at_the_beginning(comm: MPI.Intracomm, tmp_path: Path) -> None:
    """So that a batch job has one command, however often it is started."""
    state = str(Path(comm.bcast(str(tmp_path)), "state"))
    first = generate(comm, (2, 2), checkpoint=state, resume=True)
    again = generate(comm, (2, 2), checkpoint=state, resume=True)
    whole = generate(comm, (2, 2))
    if comm.rank == 0:
        assert (first["host"]["resumed_at_token"], again["host"]["resumed_at_token"]) == (0, 6)
        assert outside_host(first) == outside_host(again) == outside_host(whole)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("name", ["state.json", "state-1-0.npz"])
@pytest.mark.parametrize("harm", ["cut", "changed", "gone"])
def test_a_damaged_state_is_told(
    comm: MPI.Intracomm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, harm: str
) -> None:
    state = Path(kept_state(comm, tmp_path, monkeypatch))
    whole = (state / name).read_bytes()
    if harm == "gone":
        (state / name).unlink()
    else:
        middle = len(whole) // 2
        (state / name).write_bytes(
            whole[:middle] + (b"" if harm == "cut" else bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
        )
    if (name, harm) == ("state.json", "gone"):
        assert generate(comm, (2, 2), checkpoint=str(state), resume=True)["host"]["resumed_at_token"] == 0
    else:
        with pytest.raises(UsageError, match=f"{name} (is damaged|cannot be read).*remove the folder and start again"):
            generate(comm, (2, 2), checkpoint=str(state), resume=True)


@pytest.mark.mpi(ranks=[2])
def test_a_full_disk_leaves_the_state_before(
    comm: MPI.Intracomm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank's file does not fit: all ranks are told, and nothing of the new state stays."""
    folder = Path(comm.bcast(str(tmp_path)))
    state = Path(kept_state(comm, folder, monkeypatch))
    comm.Barrier()
    before = {path.name: path.read_bytes() for path in state.iterdir()}
    comm.Barrier()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if comm.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(UsageError, match=r"--checkpoint .*/state-2-1.npz cannot be written: File too large"):
            generate(comm, (2, 2), checkpoint=str(state), resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    comm.Barrier()
    assert {path.name: path.read_bytes() for path in state.iterdir()} == before


@pytest.mark.mpi(ranks=[1])
def test_a_state_that_somebody_has_written_is_told(
    comm: MPI.Intracomm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anything but what a run writes: a message, whichever fact is gone or is something else."""
    state = Path(kept_state(comm, tmp_path, monkeypatch))
    whole = (state / "state.json").read_text()
    for change in changes(whole):
        rewrite(state, whole, change)
        with pytest.raises((UsageError, LimitError)):  # as many tokens as a core has no memory for
            generate(comm, (2, 2), checkpoint=str(state), resume=True)
    (state / "state.json").write_text(whole)
    generate(comm, (2, 2), checkpoint=str(state), resume=True)
