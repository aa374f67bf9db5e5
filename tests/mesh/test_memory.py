"""Core memory: every allocation has a name, the peak is recorded, the limit holds, and fresh memory is no number."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from measure import end, measured, run_report
from runs import new_block

from meshrt.errors import LimitError
from meshrt.mesh.collectives.broadcast import spreads, start_allgather
from meshrt.mesh.devicefile import find_device
from meshrt.mesh.memory import CoreMemory
from meshrt.mesh.mesh import Mesh
from meshrt.mesh.wires.fabric import transfer
from meshrt.mesh.wires.receiving import receive
from meshrt.mesh.wires.routes import chain
from meshrt.mesh.wires.tables import installed


def new_memory(limit: int | None = None, mesh: Mesh | None = None) -> CoreMemory:
    return CoreMemory(mesh or Mesh(4, 3), find_device("ideal", core_memory=limit))


def refusal(core: tuple[int, int], name: str, wanted: int, used: int, limit: int) -> str:
    """What the error says, as a pattern."""
    return re.escape(
        f"core {core}: {name!r} asks for {wanted} bytes, {used} are in use, the limit is {limit} (device ideal)"
    )


def test_the_peak_is_the_most_that_was_held_at_once():
    memory = new_memory()
    memory.take("weights", 100)
    memory.take("buffer", 50)
    memory.free("buffer")
    memory.take("cache", 30)
    assert (memory.common, memory.peak) == (130, 150)
    with memory.hold("buffer", 21):
        assert memory.peak == 151
    assert memory.common == 130


def test_hold_gives_back_when_it_fails():
    memory = new_memory()
    with pytest.raises(ZeroDivisionError), memory.hold("buffer", 10):
        raise ZeroDivisionError
    assert memory.common == 0 and not memory.names


def test_a_name_is_taken_once_and_freed_once():
    memory = new_memory()
    memory.take("A", 1)
    with pytest.raises(ValueError, match="'A'"):
        memory.take("A", 1)
    memory.free("A")
    memory.take("A", 2)
    with pytest.raises(KeyError):
        memory.free("B")
    assert memory.common == 2


def test_over_the_budget_names_core_allocation_and_numbers():
    memory = new_memory(limit=100)
    memory.take("weights", 80)
    with pytest.raises(LimitError, match=refusal((0, 0), "activations", 21, 80, 100)):
        memory.take("activations", 21)
    # What was refused is not held and is no peak; what fits to the byte fits.
    assert (memory.common, memory.peak, list(memory.names)) == (80, 80, ["weights"])
    memory.take("activations", 20)
    assert memory.peak == 100


def test_cores_with_numbers_of_their_own_are_counted_core_by_core():
    memory = new_memory(limit=100)
    memory.take("weights", 40)
    cache = np.zeros((3, 4), np.int64)
    cache[2, 1] = 30
    memory.take("cache", cache)
    other = np.zeros((3, 4), np.int64)
    other[0, 3] = 50
    memory.take("scratch", other)
    assert memory.peak == 40 + 50  # different cores: their numbers do not add up
    more = np.zeros((3, 4), np.int64)
    more[2, 1] = 31
    with pytest.raises(LimitError, match=refusal((1, 2), "more", 31, 70, 100)):
        memory.take("more", more)
    memory.free("scratch")
    memory.take("all", 30)
    with pytest.raises(LimitError, match=refusal((1, 2), "last", 1, 100, 100)):
        memory.take("last", 1)
    memory.free("cache")
    memory.take("last", 1)
    assert memory.peak == 100


def test_a_core_is_named_by_its_place_on_the_mesh():
    memory = new_memory(limit=10, mesh=Mesh(4, 6, columns=2, rows=2, rank=3))
    cache = np.zeros((3, 2), np.int64)
    cache[1, 1] = 11
    with pytest.raises(LimitError, match=refusal((3, 4), "cache", 11, 0, 10)):
        memory.take("cache", cache)


@pytest.mark.mpi(ranks=[1])
def test_fresh_tiles_are_counted_and_full_of_nan(comm):
    block = new_block(comm, (3, 2))
    tiles = block.tiles("A", (4, 5), "float16")
    numbers = block.tiles("ids", (7,), "int32")
    assert tiles.shape == (2, 3, 4, 5) and np.isnan(tiles).all()
    assert numbers.shape == (2, 3, 7) and (numbers == np.iinfo("int32").max).all()
    assert measured(block)["memory_bytes"] == {"max": 4 * 5 * 2 + 7 * 4, "limit": None}


@pytest.mark.mpi(ranks=[1, 4])
def test_each_phase_has_a_peak_of_its_own(comm):
    block = new_block(comm, (4, 4))
    block.memory.take("weights", 10)
    with block.phase("first"), block.memory.hold("buffer", 5):
        pass
    with block.phase("second"):
        pass
    with block.phase("third"):
        # Only the last rank's cores hold that; the report has the largest of all ranks.
        own = np.full(block.shape, 3 if comm.rank == comm.size - 1 else 0)
        block.memory.take("cache", own)
    assert [phase["memory_bytes"]["max"] for phase in end(block)["phases"]] == [15, 10, 13]


# ---------------------------------------------------------------------------------------------- what lives is charged


@pytest.mark.mpi(ranks=[1])
def test_an_array_is_charged_once_as_long_as_it_or_a_view_of_it_lives(comm):
    block = new_block(comm, (3, 2))
    memory = block.memory
    tiles = block.tiles("A", (4, 5), "float16")
    assert memory.common == 40
    assert memory.keep("again", tiles) is tiles and memory.keep("a part", tiles[:, :, 1:]).shape == (2, 3, 3, 5)
    assert memory.common == 40
    own = memory.keep("sum", tiles + tiles)
    assert memory.common == 80
    part = own[:, 1:].reshape(-1)[::2].reshape(-1, 4)
    view = own[:, :, 0]
    del own
    assert memory.common == 80, "a view keeps its numbers alive, a copy does not"
    del view
    assert memory.common == 40 and part.size
    del tiles
    assert (memory.common, memory.peak, memory.arrays) == (0, 80, {})


@pytest.mark.mpi(ranks=[1])
def test_what_was_charged_in_part_is_charged_the_rest(comm):
    """It was free, once any view of it had been kept. A view that NumPy has stretched is no more than there is."""
    block = new_block(comm, (3, 2), core_memory=100)
    whole = np.zeros((2, 3, 10), np.float32)
    for part, held in ((whole[..., 2:3], 4), (whole[:, :, None], 40), (whole[..., :5], 40)):
        block.memory.keep("part", part)
        assert block.memory.common == held
    block.memory.keep("stretched", np.broadcast_to(whole[:, :, None], (2, 3, 8, 10)))
    assert (block.memory.common, block.memory.peak) == (40, 40)
    with (
        block.memory.hold("NumPy's number", np.int64(60)),
        pytest.raises(LimitError, match="asks for 7 bytes, 100 are"),
    ):
        block.memory.take("more", np.int8(7))
    del part, whole
    assert not block.memory.common


@pytest.mark.mpi(ranks=[1])
def test_what_is_refused_is_not_charged_and_not_made(comm):
    block = new_block(comm, (2, 2), core_memory=100)
    kept = block.tiles("A", (20,), "float32")
    with pytest.raises(LimitError, match=refusal((0, 0), "B", 40, 80, 100)):
        block.tiles("B", (10,), "float32")
    with pytest.raises(LimitError, match=refusal((0, 0), "B", 40 * 10**15, 80, 100)):  # more than any host has
        block.tiles("B", (10**16,), "float32")
    assert block.memory.common == kept[0, 0].nbytes == 80


BOTH = pytest.mark.parametrize("payload", [True, False])


@BOTH
@pytest.mark.mpi(ranks=[1, 4])
def test_tiles_that_came_in_are_charged_as_long_as_they_are_kept(payload: bool, comm):
    """400 bytes at home, and 400 for each tile that is kept: of 50, a core of 4 kB has room for 9."""
    block = new_block(comm, (4, 4), payload=payload, core_memory=4000)
    tiles = block.tiles("tile", (100,), "float32")
    with installed(block, "x", chain(4, 1)) as channel:
        for _ in range(50):
            arrived = transfer(block, channel, tiles)
        assert (block.memory.common, block.memory.peak) == (800, 1200), "the last one lives while the next comes in"
        del arrived
        kept = []
        with pytest.raises(
            LimitError, match="'tile that came in' asks for 400 bytes, 4000 are in use, the limit is 4000"
        ):
            for _ in range(50):
                kept.append(transfer(block, channel, tiles))
        assert len(kept) == 9
        transfer(block, channel, tiles, kept[0])
    assert block.memory.common == 4000


@BOTH
@pytest.mark.mpi(ranks=[1])
def test_products_are_charged(payload: bool, comm):
    """[.., 1200, 1] @ [.., 1, 1200] has 5.76 MB at every core."""
    block = new_block(comm, (2, 2), "wse2", payload=payload)
    a, b = block.tiles("a", (1200, 1), "float32"), block.tiles("b", (1, 1200), "float32")
    with pytest.raises(LimitError, match="'product' asks for 5760000 bytes, 9600 are in use, the limit is 49152"):
        block.matmul(a, b)
    product = block.matmul(a[:, :, :50], b[..., :40])
    assert block.memory.common == 9600 + 8000
    block.matmul(a[:, :, :50], b[..., :40], product)
    assert (block.memory.common, block.memory.peak) == (17600, 17600), "a sum that is there already takes no more"
    parts = block.tiles("parts", (3, 2, 2), "float32")
    assert block.matmul(parts, parts, over=2).shape == (*block.lead, 2, 2)
    assert block.memory.peak == 17600 + 48 + 16


@BOTH
@pytest.mark.mpi(ranks=[1])
def test_an_allgather_that_a_core_has_no_room_for_is_refused(payload: bool, comm):
    """64 cores of a row, 1 KiB each, to cores of 48 KiB; nothing has moved then."""
    block = new_block(comm, (64, 1), "wse2", payload=payload)
    tiles = block.tiles("tile", (256,), "float32")
    message = "'tiles of the line' asks for 65536 bytes, 1024 are in use, the limit is 49152"
    with spreads(block) as (along_x, _), pytest.raises(LimitError, match=message):
        start_allgather(block, along_x, tiles)
    assert block.counters.messages == 0 and block.memory.common == 1024
    with spreads(block) as (along_x, _):
        every = receive(block, start_allgather(block, along_x, tiles[..., :128]))
    assert every.shape == (*block.lead, 64, 128) and block.memory.common == 1024 + 32768


LOOP = '''
"""Tiles in a loop, which are kept or not."""
from meshrt.mesh.block import Block

def run(block: Block, *, keep: bool = False) -> dict:
    """Twenty tiles of 400 bytes."""
    kept = []
    for number in range(20):
        tiles = block.tiles(f"tile {number}", (100,), "float32")
        kept += [tiles[:, :, 1:]] if keep else []
        del tiles
    return {"held": block.memory.common}
'''


def test_a_users_own_program_gives_back_what_it_lets_go(tmp_path, run_meshrt):
    """What is kept to say which memory was never written is the host's."""
    (tmp_path / "loop.py").write_text(LOOP)
    argv = ("run", str(tmp_path / "loop.py"), "--mesh", "2x2", "--core-memory", "900")
    code, out, err, _ = run_meshrt(*argv)
    assert (code, out.splitlines()[0], err) == (0, "held: 0", "")
    code, _, err, _ = run_meshrt(*argv, "--keep")
    assert code == 3 and "'tile 2' asks for 400 bytes, 800 are in use, the limit is 900" in err


@pytest.mark.sample(1)
@pytest.mark.parametrize("payload", ["full", "none"])
def test_the_readmes_program_does_not_run_in_the_memory_of_its_tile_alone(payload: str, tmp_path, run_meshrt):
    """Its tile takes 400 bytes, and the sum as many."""
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (tmp_path / "rowsum.py").write_text(readme.split("```python\n")[1].split("```")[0])
    argv = ("run", str(tmp_path / "rowsum.py"), "--size", "100", "--payload", payload, "--quiet", "--core-memory")
    code, out, err, _ = run_meshrt(*argv, "400")
    assert (code, out) == (3, "") and "'sum' asks for 400 bytes, 400 are in use, the limit is 400" in err
    code, out, err, _ = run_meshrt(*argv, "800", "--json", "-")
    assert (code, err) == (0, "") and json.loads(out)["measured"]["memory_bytes"] == {"max": 800, "limit": 800}


PROGRAMS = [
    ("gemm", (4, 4), {"m": 13, "k": 10, "n": 9}),
    ("gemm", (3, 2), {"m": 13, "k": 10, "n": 9, "transpose_b": True}),
    ("gemv", (4, 4), {"k": 30, "n": 17}),
    ("kvcache", (4, 4), {"tokens": 9}),
]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(("name", "mesh", "options"), PROGRAMS, ids=lambda value: str(value))
def test_a_program_runs_in_its_peak_and_not_in_a_byte_less(name: str, mesh: tuple[int, int], options: dict, comm):
    peak = run_report(comm, name, mesh, **options)["measured"]["memory_bytes"]["max"]
    enough, less = (find_device("ideal", core_memory=limit) for limit in (peak, peak - 1))
    again = run_report(comm, name, mesh, enough, **options)["measured"]["memory_bytes"]
    assert again == {"max": peak, "limit": peak}
    with pytest.raises(LimitError, match=f"the limit is {peak - 1} "):
        run_report(comm, name, mesh, less, **options)
