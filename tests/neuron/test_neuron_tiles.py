"""What indices, assignments and results that wait for their place mean, against NumPy."""

from typing import Any

import numpy as np
import pytest
from neuron_cores import loaded, new_core, rounded, tensor, values

from meshrt.errors import UsageError
from meshrt.neuron import isa as nisa
from meshrt.neuron import language as nl
from meshrt.neuron.tile import Deferred, as_tile

# ---- grids, indices


def test_axes_before_the_partition_axis_make_a_grid() -> None:
    core = new_core()
    x = tensor(core, 2, 3, 128, 40)
    grid = nl.ndarray((2, 3, nl.par_dim(128), 40), nl.float32, buffer=core.sbuf)
    assert grid.shape == (2, 3, 128, 40) and len(list(grid)) == 6
    for i in nl.affine_range(2):
        for j in nl.affine_range(3):
            grid[i, j] = nl.load(x[i, j])
    grid[1, 2, :, 0:10] += grid[0, 0, :, 30:40]
    grid[0, 1] += grid[0, 2]
    expected = x.data.copy()
    expected[1, 2, :, 0:10] += expected[0, 0, :, 30:40]
    expected[0, 1] += expected[0, 2]
    assert all((grid[at].data == expected[at]).all() for at in np.ndindex(2, 3))
    assert (nl.zeros((2, nl.par_dim(3), 4), nl.float32, buffer=core.psum)[1].data == 0).all()
    assert nl.ndarray((nl.par_dim(4), 2, 3), nl.float32, buffer=core.sbuf).shape == (4, 2, 3)


def test_index_arrays_are_slices() -> None:
    core = new_core()
    x, out = tensor(core, 256, 300), nl.ndarray((256, 300), nl.float32, buffer=core.hbm)
    i, j = nl.mgrid[0:128, 0:100]
    k = nl.mgrid[0:64, 0:50]
    tile = as_tile(nl.load(x[128 + i, 200 + j]))
    assert (tile.data == x.data[128:256, 200:300]).all()
    assert (tile[k.p + 1, k.x].data == tile.data[1:65, 0:50]).all()
    assert (tile[nl.arange(7)[:, None], 3].data == tile.data[0:7, 3]).all()
    nl.store(out[nl.arange(128)[:, None] + 128, nl.arange(100)[None, :]], tile)
    assert (out[128:, 0:100].data == tile.data).all()


@pytest.mark.parametrize(
    "index",
    [
        (nl.arange(4)[None, :], nl.arange(4)[:, None]),  # would transpose
        (nl.arange(4), nl.arange(4)),  # a diagonal
        (2 * nl.arange(4)[:, None], nl.arange(4)[None, :]),
        (nl.arange(4)[:, None] - 1, nl.arange(4)[None, :]),
        (nl.arange(9)[:, None], nl.arange(4)[None, :]),
        (nl.arange(4)[:, None], nl.arange(9)[None, :]),
        (nl.arange(4)[:, None] > 2, nl.arange(4)[None, :]),
        ([0, 1], slice(None)),
        (0, slice(None)),
        (None, slice(None)),
        slice(5, 5),
        (slice(None), slice(None), 0),
        "a",
        True,
    ],
    ids=str,
)
def test_other_indices_are_refused(index: Any) -> None:
    tile = loaded(new_core(), 8, 8)
    with pytest.raises(UsageError):
        tile[index]


@pytest.mark.parametrize("index", [2, (0, 2), (0,), (slice(0, 1), 0), (nl.arange(2), 0), ()], ids=str)
def test_a_grid_wants_its_numbers_first(index: Any) -> None:
    grid = nl.ndarray((2, 2, nl.par_dim(8), 8), nl.float32, buffer=new_core().sbuf)
    with pytest.raises(UsageError, match=r"tiles needs 2 numbers in range"):
        grid[index]


def test_slices_end_with_the_tile_as_in_numpy() -> None:
    core = new_core()
    assert nl.load(tensor(core, 200, 5)[128:256]).shape == (72, 5)


def test_reshape_and_broadcast_to() -> None:
    core = new_core()
    x = tensor(core, 6, 20)
    assert (values(nl.load(x.reshape(3, 2, 20))) == x.data.reshape(3, 2, 20)).all()
    row = nl.load(x.reshape((120, 1))[0:6])
    wide = row.broadcast_to((6, 7))
    assert (values(wide * 2.0) == np.repeat(x.data[0, 0:6, None], 7, 1) * 2).all()
    for bad in (lambda: x.reshape(7, 7), lambda: x[0:3].reshape(60), lambda: wide.broadcast_to((6, 9)),
                lambda: row.broadcast_to((128, 1)), lambda: as_tile(row).reshape(6)):  # fmt: skip
        with pytest.raises(UsageError):
            bad()
    with pytest.raises(UsageError, match="repeats its elements"):
        wide[:, 0:2] = nl.zeros((6, 2), nl.float32, buffer=core.sbuf)


# ---- assignments


def test_augmented_assignment_adds_in_place_once() -> None:
    core = new_core()
    t, x = loaded(core, 8, 6), loaded(core, 8, 6, seed=1)
    expected = t.data + x.data
    expected[:, 2:4] += x.data[:, 0:2]
    expected[:, 0:1] *= 3
    t[...] += x
    t[:, 2:4] += x[:, 0:2]
    t[:, 0:1] *= 3.0
    before = core.vector.instructions
    assert (t.data == expected).all() and before == 3
    t += 1.0
    assert (t.data == expected + 1).all() and core.vector.instructions == before + 1


def test_a_view_that_was_added_to_is_still_copied_elsewhere() -> None:
    core = new_core()
    t, x = loaded(core, 8, 6), loaded(core, 8, 2, seed=1)
    part = t[:, 0:2]
    part += x
    t[:, 2:4] = part
    assert (t.data[:, 2:4] == part.data).all()
    t[:, 0:2] = part  # itself
    assert core.vector.instructions == 2
    with pytest.raises(UsageError, match="does not fit"):
        t[:, 0:3] = t


def test_assigning_a_tile_copies_and_a_result_does_not() -> None:
    core = new_core()
    buf, x = nl.ndarray((8, 6), nl.float32, buffer=core.sbuf), tensor(core, 8, 6)
    buf[...] = nl.load(x)
    assert core.vector.instructions == 0 and core.sbuf.live == 24
    other = nl.ndarray((8, 6), nl.float32, buffer=core.sbuf)
    other[...] = buf
    assert core.vector.instructions == 1 and (other.data == x.data).all()


@pytest.mark.parametrize("between", [True, False])
def test_a_product_that_is_assigned_to_sbuf_is_copied_there(between: bool) -> None:
    core = new_core()
    a, b = loaded(core, 8, 6), loaded(core, 8, 4, seed=1)
    buf = nl.ndarray((6, 4), nl.bfloat16, buffer=core.sbuf)
    acc = nisa.nc_matmul(a, b)
    if between:
        acc += nisa.nc_matmul(a, b)
    buf[...] = acc
    assert (core.tensor.instructions, core.vector.instructions) == (1 + between, 1)
    assert (buf.data == rounded((1 + between) * (a.data.T @ b.data), "bfloat16")).all()


# ---- results that wait for their place


def test_a_result_is_computed_once_however_often_it_is_used() -> None:
    core = new_core()
    x = loaded(core, 8, 6)
    once = nl.exp(x)
    twice = once + once
    assert (values(twice[0:4, 2:3]) == 2 * np.exp(x.data[0:4, 2:3])).all()
    assert (core.scalar.instructions, core.vector.instructions) == (1, 1)


def test_a_result_that_nobody_uses_takes_its_time_all_the_same() -> None:
    core = new_core()
    x = loaded(core, 8, 6)
    nl.exp(x)
    assert core.scalar.instructions == 0
    nl.exp(x)
    assert core.scalar.instructions == 1 and core.sbuf.live == 24  # dropped at once
    core.barrier()
    assert core.scalar.instructions == 2


def test_instructions_run_in_the_order_of_the_program() -> None:
    core = new_core()
    x = loaded(core, 8, 6)
    before = nl.exp(x)
    x[...] = 0.0
    after = nl.exp(x)
    assert (values(after) == 1).all() and (values(before) != 1).any()


def test_a_result_can_be_changed_in_place() -> None:
    core = new_core()
    x = tensor(core, 8, 6)
    tile = nl.load(x)
    tile[:, 0:2] = 1.0
    tile += 1.0
    assert (values(tile)[:, 0:2] == 2).all() and (values(tile)[:, 2:] == x.data[:, 2:] + 1).all()


def test_a_result_that_was_assigned_is_not_mistaken_for_what_its_tile_holds_later() -> None:
    core = new_core()
    x, buf = loaded(core, 8, 6), nl.zeros((8, 6), nl.float32, buffer=core.sbuf)
    buf[...] = result = nl.exp(x)
    assert (values(result) == np.exp(x.data)).all()
    buf += 1.0
    with pytest.raises(UsageError, match="used after the tile that it was assigned to was written again"):
        nl.square(result)
    acc = nl.zeros((6, 6), nl.float32, buffer=core.psum)
    product: Any = nisa.nc_matmul(x, x)
    acc += product
    assert isinstance(product, Deferred)
    with pytest.raises(UsageError, match="written again"):
        nl.square(product)
