"""An MLP on Arm cores: gate and up as one product, the activation where its rows become codes, and down."""

import numpy as np

from meshrt.arm.core import Team
from meshrt.arm.soc import Soc
from meshrt.programs.arm.parts import ArmMlp, ArmModel, More, PassRoom
from meshrt.programs.arm.products.forms import times
from meshrt.programs.arm.products.inputs import RowSource, span_of
from meshrt.programs.arm.simd.activations import activated

Array = np.ndarray


def through(
    soc: Soc, model: ArmModel, mlp: ArmMlp, source: RowSource, rows: int, room: PassRoom
) -> tuple[More, Array | None]:
    """What it makes of the rows that a source makes, without the bias of down, and what stays of the source."""
    both, stays = times(soc, model, mlp.inner, source, rows, room, room.y)
    width, bias = mlp.width, mlp.inner.bias
    parts = (slice(0, width), slice(width, 2 * width)) if mlp.gated else (slice(0, width),)
    biases = tuple(None if bias is None else bias[part] for part in parts) if mlp.inner.biased else ()

    def active(team: Team) -> tuple[None, Array | None]:
        own = [None if both is None else both[span_of(team), part] for part in parts]
        return None, activated(team, width, mlp.activation, own[0], mlp.gated, own[-1] if mlp.gated else None, biases)

    down, _ = times(
        soc, model, mlp.down, RowSource(active, ((room.y, range(len(parts) * width)),)), rows, room, room.mixed
    )
    return More(down, room.mixed, mlp.down), stays
