"""One partition repeated over several: the tensor engine's product of ones and that row, brought to SBUF."""

from __future__ import annotations

from meshrt.errors import UsageError
from meshrt.neuron.dtypes import float32
from meshrt.nki.instructions.emit import Extents, emit
from meshrt.nki.session import session
from meshrt.nki.tensors.home import Home
from meshrt.nki.tensors.pattern import AccessPattern
from meshrt.nki.tensors.tensor import Tensor


def repeated(tensor: Tensor, shape: Extents) -> Tensor:
    """A tensor with axes of size 1 repeated, or with axes of 1 in front. Free axes are a view; partitions are not.

    [1, f] to [p, f]: the product of ones [1, p] and the row, 512 elements at a time, then a copy from PSUM to SBUF by
    the vector engine; max(64, f) cycles, four times that in float32, and f cycles.
    """
    assert tensor.pattern is not None
    pattern = tensor.pattern.checked()
    lead = len(shape) - len(tensor.shape)
    sizes, strides = (1,) * lead + tensor.shape, (0,) * lead + pattern.strides
    if lead < 0 or any(old not in (1, new) for old, new in zip(sizes, shape, strict=True)):
        raise UsageError(f"a tile of shape {list(tensor.shape)} cannot be repeated to {list(shape)}")
    if pattern.elements is not None:
        raise UsageError("what index arrays have picked cannot be repeated: copy it to a tile first")
    if tensor.buffer.on_chip and shape[0] != sizes[0]:
        tensor = _over_partitions(tensor, shape[0])
        assert tensor.pattern is not None
        sizes, strides, pattern = tensor.shape, tensor.pattern.strides, tensor.pattern
    steps = tuple(0 if old == 1 and new != 1 else step for old, new, step in zip(sizes, shape, strides, strict=True))
    view = AccessPattern(shape, steps, pattern.offset)
    return Tensor(tensor.buffer, tensor.dtype, home=tensor.home, pattern=view, name=tensor.name, parent=tensor)


def _over_partitions(row: Tensor, rows: int) -> Tensor:
    core = session().core
    shape = (rows, *row.shape[1:])
    home = Home(session(), core.sbuf, shape, row.dtype)
    tile = Tensor(core.sbuf, row.dtype, home=home, pattern=AccessPattern.whole(shape))
    passes = core.device.float32_passes if row.dtype == float32 else 1
    free = row.size
    source = row.in_store()
    source.check_written("broadcast_to")
    core.settle()
    core.issue(core.tensor, "broadcast", passes * max(core.device.least_cycles, free), [source], tile.in_store())
    emit("broadcast", core.vector, lambda _: free, [row], shape, row.dtype, lambda data: data.repeat(rows, 0), dst=tile,
         over=shape)  # fmt: skip
    return tile
