"""What the scalar and the vector engine reduce on the way: registers, one a partition, that stay between instructions.

An instruction computes, gathers what it has computed in its engine's registers, and may read these out to `reduce_res`,
which takes `least_cycles` more. `reduce_cmd` says what becomes of what was there (NKI API reference, nisa.activation):
`reset` and `reset_reduce` forget it, `reduce` adds to it. Registers that nobody has reset hold NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.neuron.timeline import ComputeEngine
from meshrt.nki.constants import reduce_cmd as cmd
from meshrt.nki.instructions.emit import emit, masked, partitions_of
from meshrt.nki.instructions.ops import reducing
from meshrt.nki.session import Session, session
from meshrt.nki.tensors.tensor import Tensor
from meshrt.records import dataclass

FROM_NOTHING = {"add": 0.0, "subtract": 0.0, "multiply": 1.0, "maximum": -np.inf, "minimum": np.inf}


@dataclass(frozen=True, eq=False)
class Gathering:
    """What an instruction on `data` does with its engine's registers, and where these go."""

    launch: Session
    engine: ComputeEngine
    data: Tensor
    reduce: Any  # a ufunc, or what reduces as one
    command: cmd
    into: Tensor | None
    mask: Any

    def beside(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """The same function of the operands' numbers, which gathers its results by the way."""
        if self.command is cmd.idle:
            return compute

        def both(*arrays: np.ndarray) -> np.ndarray:
            values = np.asarray(compute(*arrays))
            self._gather(values.reshape(len(values), -1))
            return values

        return both

    def _registers(self, rows: int) -> np.ndarray:
        """Those of the first `rows` partitions of data."""
        first = partitions_of(self.data)[0]
        return self.launch.registers_of(self.engine)[first : first + rows]

    def _gather(self, values: np.ndarray) -> None:
        registers = self._registers(len(values))
        if self.command is cmd.reset:
            registers[...] = FROM_NOTHING.get(self.reduce.__name__, 0.0)
            return
        totals = self.reduce.reduce(values, axis=1)
        registers[...] = totals if self.command is cmd.reset_reduce else self.reduce(registers, totals)

    def then(self, result: Any, dst: Tensor | None) -> Any:
        """After the instruction, whose result this is: its registers to `into`, if they go anywhere."""
        if self.into is None:
            return result
        if dst is not None:
            self._read_out(dst)
            return result
        first = result.pending

        def run(target: Tensor, add: bool) -> None:
            first(target, add)
            self._read_out(target)

        result.pending = run
        return result

    def _read_out(self, written: Tensor) -> None:
        """An instruction of its own, which waits for what the one before has written."""
        rows, over, into = self.data.shape[0], self.data.shape, self.into
        assert into is not None
        after = written if written.shape == over else self.data
        emit("read sums", self.engine, lambda _: 0, [after], (rows, 1), into.dtype,
             lambda x: self._registers(len(x)).reshape(-1, 1).copy(), dst=into, mask=self.mask, over=over,
             result_extents=lambda left: (left[0], 1))  # fmt: skip


def gathering(
    name: str, engine: ComputeEngine, data: Tensor, op: Any, command: Any, into: Tensor | None, mask: Any
) -> Gathering:
    """UsageError for what cannot be reduced, or read out. A reduction without a command is `reset_reduce`: so it was
    said before there were commands.
    """
    if command is cmd.load_reduce or not isinstance(command, cmd):
        raise UsageError(f"{name}: reduce_cmd {command} is not there; reset, reduce and reset_reduce are")
    if into is not None and command is cmd.idle:
        command = cmd.reset_reduce
    if into is not None and (into.size, into.shape[0]) != (data.shape[0],) * 2:
        raise UsageError(f"{name}: reduce_res has shape {list(into.shape)}; it takes [{data.shape[0]}, 1]")
    if command is not cmd.idle and masked(mask, data.shape)[1] is not None:
        raise UsageError(f"{name}: what a mask leaves is reduced if it is a rectangle; select with nl.where before")
    return Gathering(session(), engine, data, reducing(name, op), command, into, mask)
