"""What a NeuronCore refuses, and with which words; and the same over the command line: a line, a code, no traceback."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi_jobs import Finished
from neuron_cores import loaded, new_core, tensor

from meshrt.errors import LimitError, MeshrtError, UsageError
from meshrt.neuron import isa as nisa
from meshrt.neuron import language as nl
from meshrt.neuron.core import NeuronCore

F32, U, L = nl.float32, UsageError, LimitError


def untyped(value: Any) -> Any:
    """For calls that are wrong on purpose: what a type checker would refuse is what is tested here."""
    return value


def sums(core: NeuronCore, count: int) -> list[Any]:
    return [nl.zeros((128, 512), F32, buffer=core.psum) for _ in range(count)]


def product(core: NeuronCore) -> Any:
    return nisa.nc_matmul(loaded(core, 8, 4), loaded(core, 8, 4))


def partly_written(core: NeuronCore) -> Any:
    tile = nl.ndarray((8, 8), F32, buffer=core.sbuf)
    tile[0:5] = nl.load(tensor(core, 5, 8))
    tile[5:, 0:3] = nl.load(tensor(core, 3, 3))
    return tile


def empty(core: NeuronCore, *shape: int, buffer: str = "sbuf") -> Any:
    return nl.ndarray(shape, F32, buffer=getattr(core, buffer))


def from_partition(core: NeuronCore, start: int, rows: int) -> Any:
    tile = loaded(core, 128, 4)
    return nl.exp(tile[start : start + rows][0:rows]).settle()


CASES: dict[str, tuple[Callable[[NeuronCore], Any], type[MeshrtError], str]] = {
    # memories
    "sbuf tile": (lambda c: empty(c, 8, 49153), L, "asks for 196612 bytes of a partition, which has 196608"),
    "sbuf operands": (
        lambda c: loaded(c, 8, 20000) + loaded(c, 8, 20000), L, "one instruction take more than the 196608"
    ),
    "psum banks": (lambda c: sums(c, 9), L, "all 8 banks are in use"),
    "psum tile": (lambda c: empty(c, 8, 513, buffer="psum"), L, "asks for 2052 bytes .* has 2048, or 512"),
    "hbm": (lambda c: empty(c, 2**22, 2**10, 2, buffer="hbm"), L, "34359738368 bytes asked .* 17179869184"),
    "partitions": (lambda c: empty(c, 129, 4), U, "SBUF has 129 partitions, 128 at most"),
    "partitions of psum": (lambda c: empty(c, 129, 4, buffer="psum"), U, "PSUM has 129 partitions"),
    "partitions of a load": (lambda c: loaded(c, 129, 4), U, "129 partitions, 128 at most"),
    "start": (lambda c: from_partition(c, 5, 35), U, "operand has 35 partitions from 5 on; so many start at 0 or 64"),
    "start of few": (lambda c: from_partition(c, 16, 8), U, "8 partitions from 16 on; so many start at 0 or 32 or 64"),
    "start of many": (lambda c: from_partition(c, 32, 65), U, "65 partitions from 32 on; so many start at 0$"),
    "one axis": (lambda c: nl.load(tensor(c, 100)).settle(), U, r"is \[partition, free...\], not \[100\]"),
    "no axis": (lambda c: empty(c), U, r"tile of shape \(\): every axis needs a size"),
    "size 0": (lambda c: empty(c, 4, 0), U, "every axis needs a size"),
    "size 1.5": (lambda c: untyped(nl).ndarray((4, 1.5), F32, buffer=c.sbuf), U, "a whole number"),
    # dtypes
    "dtype": (lambda c: nl.ndarray((4, 4), "float64", buffer=c.sbuf), U, "int8, not float64"),
    "dtype int": (lambda c: nl.exp(loaded(c, 4, 4), dtype=np.int32), U, "float32, float16, bfloat16, uint8, int8, not"),
    "dtype of a tensor": (lambda c: tensor(c, 4, 4, dtype="complex64"), U, "not complex64"),
    "dtype of a load": (lambda c: nl.load(tensor(c, 4, 4), dtype=3), U, "not 3"),
    "sum in 16 bit": (
        lambda c: nl.zeros((4, 4), nl.bfloat16, buffer=c.psum).__iadd__(product(c)),
        U, "sums in PSUM are float32, not bfloat16",
    ),
    # products
    "stationary": (
        lambda c: nisa.nc_matmul(loaded(c, 8, 129), loaded(c, 8, 4)), U, "stationary is 129 long, 128 is the limit"
    ),
    "moving": (
        lambda c: nisa.nc_matmul(loaded(c, 8, 4), loaded(c, 8, 513)), U, "moving is 513 long, 512 is the limit"
    ),
    "contraction": (
        lambda c: nisa.nc_matmul(loaded(c, 8, 4), loaded(c, 9, 4)), U, "stationary has 8 partitions, moving 9"
    ),
    "product of psum": (
        lambda c: nisa.nc_matmul(sums(c, 1)[0][0:8, 0:8], loaded(c, 8, 4)), U, "stationary is in psum"
    ),
    "product of two dtypes": (
        lambda c: nisa.nc_matmul(loaded(c, 8, 4), nl.copy(loaded(c, 8, 4), dtype=nl.bfloat16)), U,
        "stationary is float32, moving bfloat16; if one is float32 the other is, too",
    ),
    "product of hbm": (lambda c: nisa.nc_matmul(loaded(c, 8, 4), tensor(c, 8, 4)), U, "moving is in hbm"),
    "product of three axes": (
        lambda c: nisa.nc_matmul(loaded(c, 8, 2, 2), loaded(c, 8, 4)), U, r"shape \[8, 2, 2\]; it takes"
    ),
    "sum of another shape": (
        lambda c: sums(c, 1)[0].__iadd__(product(c)),
        U, r"a result of shape \[4, 4\] does not fit a tile of shape \[128, 512\]",
    ),
    "transpose": (lambda c: nisa.nc_transpose(loaded(c, 8, 129)), U, "129 long, 128 is the limit"),
    # what was never written
    "never written": (lambda c: nl.exp(empty(c, 8, 8)), U, r"sbuf that was never written: .*partition 0"),
    "partly written": (lambda c: nl.exp(partly_written(c)), U, "activation reads .* missing in partition 5"),
    "part of that": (lambda c: nl.exp(partly_written(c)[4:7, 2:4]), U, "missing in partition 1"),
    "hbm never written": (lambda c: nl.load(empty(c, 8, 8, buffer="hbm")), U, "load reads a tile of hbm"),
    "product of unwritten": (
        lambda c: nisa.nc_matmul(partly_written(c), loaded(c, 8, 4)), U, r"nc_matmul \(stationary\)"
    ),
    "sum never begun": (
        lambda c: empty(c, 4, 4, buffer="psum").__iadd__(product(c)),
        U, r"nc_matmul \(sum\) reads a tile of psum",
    ),
    # who reads and writes what
    "store of psum": (lambda c: nl.store(tensor(c, 128, 512), sums(c, 1)[0]), U, "not psum to hbm"),
    "store to sbuf": (lambda c: nl.store(loaded(c, 4, 4), loaded(c, 4, 4)), U, "not sbuf to sbuf"),
    "store of another shape": (
        lambda c: nl.store(tensor(c, 4, 4), loaded(c, 4, 5)), U, r"\[4, 5\] does not fit \[4, 4\]"
    ),
    "store of a number": (lambda c: untyped(nl).store(tensor(c, 4, 4), 3.0), U, "works on tiles, not on float"),
    "load of sbuf": (lambda c: nl.load(loaded(c, 4, 4)), U, "load reads HBM; the operand is in sbuf"),
    "load to psum": (
        lambda c: sums(c, 1)[0].__setitem__(slice(0, 4), nl.load(tensor(c, 4, 512))), U, "load writes SBUF, not psum"
    ),
    "load to hbm": (
        lambda c: tensor(c, 4, 4).__setitem__(..., nl.load(tensor(c, 4, 4))), U, "load writes SBUF, not hbm"
    ),
    "load_transpose2d": (lambda c: nl.load_transpose2d(tensor(c, 4, 4, 4)), U, "takes two axes"),
    "read hbm": (lambda c: nl.exp(tensor(c, 4, 4)), U, "activation on the scalar engine cannot read hbm"),
    "write hbm": (lambda c: tensor(c, 4, 4).__iadd__(1.0), U, "cannot read hbm"),
    "copy to hbm": (
        lambda c: tensor(c, 4, 4).__setitem__(..., loaded(c, 4, 4)), U, "tensor_copy .* cannot write hbm"
    ),
    "memset of hbm": (lambda c: nl.zeros((4, 4), F32, buffer=c.hbm), U, "memset writes SBUF or PSUM, not HBM"),
    "gpsimd and psum": (
        lambda c: nisa.affine_select(np.ones((128, 512)), sums(c, 1)[0], 0.0), U, "gpsimd engine cannot read"
    ),
    "two of psum": (lambda c: nl.add(*sums(c, 2)), U, "both operands are in PSUM"),
    "another core": (
        lambda c: nl.load(tensor(c, 4, 4)) + loaded(new_core(index=1), 4, 4), U, "0 has no tile of NeuronCore 1"
    ),
    "to another core": (
        lambda c: loaded(new_core(index=1), 4, 4).__setitem__(..., nl.exp(loaded(c, 4, 4))), U, "of another"
    ),
    # shapes of operands
    "tensor_tensor": (lambda c: loaded(c, 4, 4) + loaded(c, 4, 5), U, r"shapes \[4, 4\] and \[4, 5\] differ"),
    "partitions differ": (lambda c: loaded(c, 4, 4) + loaded(c, 5, 1), U, r"\[4, 4\] and \[5, 1\] differ"),
    "bias": (
        lambda c: nisa.activation(nl.exp, loaded(c, 4, 4), bias=loaded(c, 4, 4)), U, r"bias has shape \[4, 4\]"
    ),
    "operand0": (
        lambda c: nisa.tensor_scalar(loaded(c, 4, 4), np.add, loaded(c, 1, 4)), U, r"a number or a tile \[4, 1\]"
    ),
    "operand0 no number": (
        lambda c: untyped(nisa).tensor_scalar(loaded(c, 4, 4), np.add, [1, 2]), U, r"operand0 is \[1, 2\]"
    ),
    "op1 alone": (
        lambda c: nisa.tensor_scalar(loaded(c, 4, 4), np.add, 1, op1=np.add), U, "op1 and operand1 go together"
    ),
    "reduce the partitions": (
        lambda c: nisa.tensor_reduce(np.add, loaded(c, 4, 4), (0, 1)), U, "the last axes, never the first"
    ),
    "reduce an axis that is not there": (
        lambda c: nl.sum(loaded(c, 4, 4), 3), U, r"axis 3 of \[4, 4\]; it takes the last axes"
    ),
    "compared": (lambda c: loaded(c, 4, 4) * (loaded(c, 4, 4) == 1), U, "not compared by == and !="),
    "compared with !=": (lambda c: loaded(c, 4, 4) * (nl.exp(loaded(c, 4, 4)) != 1), U, "not compared by == and !="),
    "a lone number": (lambda c: untyped(c).tensor_of(3.0, F32), U, "a tensor has an axis at least, the partitions"),
    "nearly a name": (lambda c: untyped(nl).stor, U, "nl has no 'stor': docs/neuron.md .*; did you mean store"),
    "reduce axes apart": (lambda c: nl.sum(loaded(c, 4, 4, 4), 1), U, "takes the last axes"),
    "reduce_res": (
        lambda c: nisa.activation_reduce(np.exp, loaded(c, 4, 4), reduce_op=np.add, reduce_res=loaded(c, 4, 4)),
        U, r"reduce_res has shape \[4, 4\]; it takes \[4, 1\]",
    ),
    "pred": (
        lambda c: nisa.affine_select(np.ones((4, 5)), loaded(c, 4, 4), 0.0), U, r"pred is \[4, 5\], the tile"
    ),
    "result of another shape": (
        lambda c: empty(c, 4, 5).__setitem__(..., nl.exp(loaded(c, 4, 4))), U, r"\[4, 4\] does not fit"
    ),
    "assigned text": (lambda c: empty(c, 4, 5).__setitem__(..., "a"), U, "a number or a tile, not to str"),
    "tensor_tensor of one": (
        lambda c: nisa.tensor_tensor(loaded(c, 4, 4), loaded(c, 4, 4), nl.exp),
        U, "takes a function of 2 arrays, such as those of nl, not exp",
    ),
    "tensor_scalar of one": (
        lambda c: nisa.tensor_scalar(loaded(c, 4, 4), nl.add, 1.0, op1=nl.silu, operand1=2.0), U, "not silu"
    ),
    "activation of two": (lambda c: nisa.activation(nl.add, loaded(c, 4, 4)), U, "a function of 1 array, .* not add"),
    "activation of text": (lambda c: untyped(nisa).activation("exp", loaded(c, 4, 4)), U, "not 'exp'"),
    "reduction": (lambda c: nisa.tensor_reduce(nl.exp, loaded(c, 4, 4)), U, "nl.max and their like, not exp"),
    "reduction by silu": (lambda c: nisa.tensor_reduce(nl.silu, loaded(c, 4, 4)), U, "not silu"),
    "engine": (lambda c: nisa.tensor_copy(loaded(c, 4, 4), engine=c.tensor), U, "cannot run on the tensor engine"),
    "engine of another core": (
        lambda c: nisa.memset(loaded(c, 4, 4), 0.0, engine=new_core(index=1).vector), U, "of the tile's core"
    ),
    "engine by name": (
        lambda c: untyped(nisa).memset(loaded(c, 4, 4), 0.0, engine="vector"), U, "run on 'vector': engine= takes core"
    ),
    "memset by gpsimd": (
        lambda c: nisa.memset(sums(c, 1)[0], 0.0, engine=c.gpsimd), U, "memset on the gpsimd engine cannot write psum"
    ),
    "store to a result": (lambda c: nl.store(nl.load(tensor(c, 4, 4)), loaded(c, 4, 4)), U, "not sbuf to sbuf"),
    "buffer by name": (lambda c: untyped(nl).zeros((4, 4), F32, buffer="psum"), U, "buffer is 'psum'; say core.sbuf"),
    "half an index": (lambda c: loaded(c, 4, 4)[0:1.5], U, "slice indices must be integers"),
    "repeated to 3": (lambda c: untyped(loaded(c, 4, 1)).broadcast_to(3), U, "give every axis a size"),
    "an array of a tile": (lambda c: np.asarray(loaded(c, 4, 4)), U, "a tile is no array"),
    "array as operand": (
        lambda c: loaded(c, 4, 4) + np.ones((4, 4)), U, r"operand0 is an array of \[4, 4\]; it is a number or a tile"
    ),
    "no such name": (lambda c: nl.softmax, U, "nl has no 'softmax': docs/neuron.md"),
    "ufunc options": (lambda c: np.add(loaded(c, 4, 4), 1.0, where=True), U, "takes tiles, numbers and dtype"),
    "ufunc method": (lambda c: np.add.reduce(loaded(c, 4, 4)), U, "takes tiles, numbers and dtype"),
    "nl.sbuf": (lambda c: nl.sbuf, U, "nl.sbuf is no global here: say core.sbuf"),
    "nl.shared_hbm": (lambda c: nl.shared_hbm, U, "say core.hbm"),
}  # fmt: skip


@pytest.mark.parametrize("payload", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_with_or_without_numbers(name: str, payload: bool) -> None:
    wrong, error, message = CASES[name]
    core = new_core(payload)
    with pytest.raises(error, match=message):
        wrong(core)
        core.settle()


def test_a_tensor_needs_its_values() -> None:
    with pytest.raises(UsageError, match="needs its values"):
        new_core().tensor_of((4, 4), F32)
    assert new_core(payload=False).tensor_of((4, 4), F32).shape == (4, 4)


def test_a_tensor_of_what_is_no_number() -> None:
    with pytest.raises(UsageError, match="a tensor is made of numbers"):
        new_core().tensor_of(np.array([["a"]]), F32)


def test_a_function_that_does_not_work_on_arrays() -> None:
    """Only numbers tell: `math.exp` takes one argument, as it should."""
    with pytest.raises(UsageError, match=r"activation: its function does not work on arrays of \[4, 4\]"):
        nl.exp(nisa.activation(math.exp, loaded(new_core(), 4, 4)))


KERNEL = """
from meshrt.neuron import isa as nisa
from meshrt.neuron import language as nl
MACHINE = "neuron"
def run(cores):
    core = cores.mine[0]
    sums = [nl.zeros((128, 512), "float32", buffer=core.psum) for _ in range(8)]
    tile = nl.zeros((128, 512), "float32", buffer=core.sbuf)
    {line}
    return {{}}
"""
LINES = {
    'nl.ndarray((1, 49153), "float32", buffer=core.sbuf)': (3, "a tile of SBUF asks for 196612 bytes"),
    "nisa.nc_matmul(tile[:, 0:128], tile).settle()": (3, "PSUM: all 8 banks are in use"),
    "nisa.nc_matmul(tile, tile)": (2, "the free axis of stationary is 512 long, 128 is the limit"),
    'nl.ndarray((129, 4), "float32", buffer=core.sbuf)': (2, "129 partitions, 128 at most"),
    'nl.exp(nl.ndarray((4, 4), "bfloat16", buffer=core.sbuf))': (2, "reads a tile of sbuf that was never written"),
    "nisa.nc_matmul(tile[:, 0:128], nl.zeros((128, 513), 'float32', buffer=core.sbuf))": (
        2,
        "the free axis of moving is 513 long, 512 is the limit",
    ),
    "nl.zeros((128, 30000), 'float32', buffer=core.sbuf) + nl.zeros((128, 30000), 'float32', buffer=core.sbuf)": (
        3,
        "the tiles of one instruction take more than the 196608 bytes of a partition",
    ),
    "nl.ndarray((4, 4), 'int32', buffer=core.sbuf)": (
        2,
        "tiles are float32, float16, bfloat16, uint8, int8, not int32",
    ),
    "nl.load(tile, mask=None)": (2, "TypeError: load() got an unexpected keyword argument 'mask'"),
    "nisa.bn_stats(tile)": (2, "AttributeError: module 'meshrt.neuron.isa' has no attribute 'bn_stats'"),
    "nl.sofmax(tile)": (2, "nl has no 'sofmax': docs/neuron.md"),
    "nl.load(tile, buffer=nl.sbuf)": (2, "nl.sbuf is no global here: say core.sbuf"),
    'nl.ndarray((2**20, 2**20), "float32", buffer=core.hbm)': (3, "HBM of NeuronCore 0 is full"),
}


@pytest.mark.parametrize("line", LINES)
def test_a_users_kernel_ends_with_one_line(line: str, tmp_path: Path, run_meshrt: Callable[..., Finished]) -> None:
    """The line has what was wrong, and where in the file. A result without a place settles at the end."""
    (tmp_path / "kernel.py").write_text(KERNEL.format(line=f"out = {line}\n    core.settle()"))
    code, out, err, _ = run_meshrt("run", str(tmp_path / "kernel.py"), "--payload", "none")
    expected, message = LINES[line]
    assert (code, out) == (expected, "") and err.count("\n") == 1
    assert err.startswith("meshrt: error: ") and message in err and re.search(r"kernel\.py, line 9|10\b", err)


def test_what_does_not_fit_is_refused_before_the_host_makes_it(run_meshrt: Callable[..., Finished]) -> None:
    code, out, err, _ = run_meshrt("run", "xuv", "--m", "100000000", "--k", "100000000")
    assert (code, out) == (3, "") and err.count("\n") == 1 and "HBM of NeuronCore 0 is full: 20000000000000000" in err


@pytest.mark.parametrize(("start", "rows"), [(0, 128), (64, 64), (32, 32), (96, 32), (96, 1), (0, 100)])
def test_engines_start_at_every_32nd_partition_and_dma_anywhere(start: int, rows: int) -> None:
    from_partition(new_core(), start, rows)
    core = new_core()
    tile = empty(core, 128, 4)
    for row in range(0, 128, 16):
        tile[row : row + 16] = nl.load(tensor(core, 16, 4))


def test_an_error_behind_nl_is_not_hidden_by_asking_nl_for_its_shape(
    tmp_path: Path, run_meshrt: Callable[..., Finished]
) -> None:
    (tmp_path / "kernel.py").write_text(KERNEL.format(line="range(7)[nl.float32.itemsize + 9]"))
    code, _, err, _ = run_meshrt("run", str(tmp_path / "kernel.py"))
    assert code == 1 and "IndexError: range object index out of range" in err
