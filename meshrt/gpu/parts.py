"""What a collective of GPUs is given: one array for each that this rank hosts, and all of them alike."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.gpu.gpu import Gpu
from meshrt.units import counted


def check_parts(
    mine: Sequence[Gpu], kind: str, parts: Any, sizes: Sequence[int] | None = None, axis: int = 0,
    members: range = range(0),
) -> None:  # fmt: skip
    """UsageError for what is not one array for each of `mine`, all of one shape or, along an axis, of the `sizes` of
    all `members`: by shape alone nothing else would fail.
    """
    if isinstance(parts, np.ndarray) or len(parts) != len(mine):
        given = f"one {[*parts.shape]}" if isinstance(parts, np.ndarray) else counted(len(parts), "array")
        raise UsageError(f"{kind} of {given}: give a list of one array for each of {counted(len(mine), 'GPU')}")
    if sizes is not None and len(sizes) != len(members):
        raise UsageError(f"{kind} has {counted(len(sizes), 'size')}: give one for each of {len(members)} GPUs")
    for gpu, part in zip(mine, parts, strict=True):
        if not isinstance(part, np.ndarray) or not part.ndim:
            raise UsageError(f"{kind} of a {type(part).__name__} on GPU {gpu.index}: give arrays with an axis")
        shape, whose = [*parts[0].shape], f"GPU {mine[0].index} has"
        if sizes is not None:
            shape[axis], whose = sizes[gpu.index - members.start], "its sizes say"
        if [*part.shape] != shape:
            raise UsageError(f"{kind} of {[*part.shape]} on GPU {gpu.index}, where {whose} {shape}: give these alike")
