"""What engines gather in their registers on the way: in place, from instruction to instruction, by partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshrt.nki as nki
import meshrt.nki.isa as nisa_module
import meshrt.nki.language as nl_module
from meshrt.errors import UsageError

nl: Any = nl_module
nisa: Any = nisa_module
cmd: Any = nisa.reduce_cmd
X = np.random.default_rng(3).standard_normal((64, 20)).astype(np.float32)
UP = np.exp(X.astype(np.float64))


def launched(function: Callable[..., Any], x: np.ndarray = X) -> Any:
    def kernel(x: Any) -> Any:
        out = nl.ndarray((x.shape[0], 1), nl.float32, nl.shared_hbm)
        sums = nl.ndarray((x.shape[0], 1), nl.float32, nl.sbuf)
        function(nl.load(x), sums)
        nl.store(out, sums)
        return out

    return nki.simulate(nki.jit(kernel), show=False)(x)


def _exp(tile: Any, command: Any, sums: Any = None) -> Any:
    nisa.activation(dst=nl.ndarray(tile.shape, nl.float32, nl.sbuf), op=nl.exp, data=tile, reduce_op=nl.add,
                    reduce_cmd=command, reduce_res=sums)  # fmt: skip


def _old_in_place(tile: Any, sums: Any) -> None:
    tile[...] = nisa.activation(op=nl.exp, data=tile, reduce_op=nl.add, reduce_res=sums)


def _in_two_halves(tile: Any, sums: Any) -> None:
    _exp(tile[:, 0:10], cmd.reset_reduce)
    _exp(tile[:, 10:20], cmd.reduce, sums)


def _read_out_each_time(tile: Any, sums: Any) -> None:
    _exp(tile[:, 0:10], cmd.reset_reduce, sums)
    _exp(tile[:, 10:20], cmd.reduce, sums)


def _after_a_reset(tile: Any, sums: Any) -> None:
    _exp(tile, cmd.reset_reduce)
    _exp(tile, cmd.reset)
    _exp(tile, cmd.reduce, sums)


def _by_partitions(tile: Any, sums: Any) -> None:
    for rows in (slice(0, 32), slice(32, 64)):
        _exp(tile[rows, 0:10], cmd.reset_reduce)
    for rows in (slice(0, 32), slice(32, 64)):
        _exp(tile[rows, 10:20], cmd.reduce, sums[rows])


def _select_over_two(tile: Any, sums: Any) -> None:
    chosen = nl.ndarray(tile.shape, nl.uint8, nl.sbuf)
    nisa.tensor_scalar(dst=chosen, data=tile, op0=nl.less, operand0=0.0)
    for part, command in ((slice(0, 10), cmd.reset_reduce), (slice(10, 20), cmd.reduce)):
        nisa.select_reduce(dst=tile[:, part], predicate=chosen[:, part], on_true=tile[:, part], on_false=-5.0,
                           reduce_res=sums, reduce_cmd=command)  # fmt: skip


@pytest.mark.parametrize(
    ("function", "want"),
    [
        (lambda t, s: nisa.activation_reduce(dst=t, op=nl.exp, data=t, reduce_op=nl.add, reduce_res=s), UP.sum(1)),
        (lambda t, s: nisa.tensor_scalar_reduce(dst=t, data=t, op0=nl.multiply, operand0=3.0, reduce_op=nl.add,
                                                reduce_res=s), 3 * X.sum(1)),
        (_old_in_place, UP.sum(1)),
        (_in_two_halves, UP.sum(1)),
        (_read_out_each_time, UP.sum(1)),
        (_after_a_reset, UP.sum(1)),
        (_by_partitions, UP.sum(1)),
        (_select_over_two, np.where(X < 0, X, -5).max(1)),
        (lambda t, s: _exp(t, cmd.reduce, s), np.full(64, np.nan)),  # that nobody has reset
    ],
)  # fmt: skip
def test_what_is_gathered(function: Callable[..., Any], want: np.ndarray) -> None:
    np.testing.assert_allclose(launched(function)[:, 0], want, rtol=1e-5, atol=1e-5)


def test_what_is_not_gathered_is_refused() -> None:
    def masked(tile: Any, sums: Any) -> None:
        i, j = nl.mgrid[0:64, 0:20]
        nisa.activation_reduce(tile, op=nl.exp, data=tile, reduce_op=nl.add, reduce_res=sums, mask=j <= i)

    for function, message in (
        (lambda t, s: _exp(t, cmd.load_reduce, s), "reduce_cmd reduce_cmd.load_reduce is not there; reset, reduce and"),
        (lambda t, s: _exp(t, cmd.reduce, s[0:32]), r"reduce_res has shape \[32, 1\]; it takes \[64, 1\]"),
        (masked, "is reduced if it is a rectangle; select with nl.where before"),
    ):
        with pytest.raises(UsageError, match=message):
            launched(function)
