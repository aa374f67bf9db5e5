"""The state of NeuronCores: what goes on from it ends, instruction by instruction, as what never stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshrt.errors import UsageError
from meshrt.neuron import isa as nisa
from meshrt.neuron import language as nl
from meshrt.neuron import state
from meshrt.neuron.cores import Cores
from meshrt.neuron.device import find_neuron_device
from meshrt.neuron.tile import Tile
from meshrt.ranks import saving, snapshot
from meshrt.ranks.board import Board
from meshrt.ranks.control import Control


def new_cores(comm: Any) -> tuple[Cores, list[Tile]]:
    """Three cores, of which each has a tensor that nobody has written yet."""
    cores = Cores(3, find_neuron_device("trn1"), Control(comm, Board.alone(), "test"))
    return cores, [nl.ndarray((6, 8), nl.float32, buffer=core.hbm) for core in cores.mine]


def work(cores: Cores, tensors: list[Tile], columns: slice) -> None:
    """Write some columns: a product with the core's own identity, and a sum over the cores."""
    for core, tensor in zip(cores.mine, tensors, strict=True):
        numbers = np.arange(12.0).reshape(2, 6) * (core.index + columns.stop)
        turned = nisa.tensor_copy(nisa.nc_transpose(nl.load(core.tensor_of(numbers, nl.bfloat16))))
        nl.store(tensor[:, columns], turned)
    cores.all_reduce([core.tensor_of(np.ones((3, 5)), nl.bfloat16) for core in cores.mine])


def held(tensors: list[Tile], columns: int) -> list[state.NamedTiles]:
    return [{"tensor": tensor[:, 0:columns]} for tensor in tensors]


def facts(cores: Cores, tensors: list[Tile], columns: int) -> Any:
    return json.loads(json.dumps(state.describe(cores, held(tensors, columns))[0]))


@pytest.mark.mpi(ranks=[1, 2, 3])
def test_cores_go_on_where_others_were(comm: Any, tmp_path: Path) -> None:
    folder = comm.bcast(str(tmp_path))
    cores, tensors = new_cores(comm)
    with cores.phase("first", 1):
        work(cores, tensors, slice(0, 2))
    with cores.phase("second"):
        work(cores, tensors, slice(2, 4))
        description, parts = state.describe(cores, held(tensors, 4))
        saving.save(cores.control, "--checkpoint", folder, 1, description, parts)
        work(cores, tensors, slice(4, 6))
    others, again = new_cores(comm)
    with others.phase("second"):
        loaded = snapshot.load(others.control, "--checkpoint", folder)
        state.restore(others, held(again, 4), loaded)
        assert facts(others, again, 4) == (loaded.facts if comm.rank == 0 else {})
        with pytest.raises(UsageError, match="never written"):
            nl.load(again[0][:, 3:5])
        work(others, again, slice(4, 6))
    ended = facts(cores, tensors, 6)
    assert facts(others, again, 6) == ended
    assert comm.rank or ended["cores"][0]["identities"]
    for tensor, other in zip(tensors, again, strict=True):
        assert (tensor.data[:, :6] == other.data[:, :6]).all()


def fill(cores: Cores, tensors: list[Tile], *parts: slice) -> None:
    """Store some columns, one after the other, of tiles that are set on the vector engine."""
    for core, tensor in zip(cores.mine, tensors, strict=True):
        for part in parts:
            tile = nl.ndarray((6, part.stop - part.start), nl.float32, buffer=core.sbuf)
            nisa.memset(tile, core.index)
            nl.store(tensor[:, part], tile)


@pytest.mark.mpi(ranks=[1, 3])
def test_parts_that_are_in_use_still_are(comm: Any, tmp_path: Path) -> None:
    """Each load of the tensor waits for the stores of its own columns, also where it has room for more by then."""
    folder = comm.bcast(str(tmp_path))
    cores, tensors = new_cores(comm)
    others = new_cores(comm)[0]
    longer = [nl.ndarray((6, 20), nl.float32, buffer=core.hbm) for core in others.mine]
    with cores.phase("first"), others.phase("first"):
        fill(cores, tensors, slice(0, 2), slice(2, 5), slice(5, 8))
        description, parts = state.describe(cores, held(tensors, 8))
        saving.save(cores.control, "--checkpoint", folder, 1, description, parts)
        loaded = snapshot.load(others.control, "--checkpoint", folder)
        state.restore(others, held(longer, 8), loaded)
        if comm.rank == 0:
            rows, columns, times = loaded.facts["cores"][0]["tiles"]["tensor"][-2]
            assert (rows, columns) == ([0, 6], [0, 8, 20, 32]) and 0 < times[0][0] < times[0][1] < times[0][2]
        for tensor, other, core, again in zip(tensors, longer, cores.mine, others.mine, strict=True):
            ends = []
            for part in (slice(0, 1), slice(1, 5), slice(6, 7)):
                tile, copy = (nl.load(source[:, part]).settle() for source in (tensor, other))
                assert tile.store.ready == copy.store.ready
                ends.append(tile.store.ready)
            assert ends[0] < ends[1] < ends[2] and core.dma.queues == again.dma.queues
