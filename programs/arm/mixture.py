"""Experts on Arm cores: the router in float32, then each expert that has tokens, in order of their numbers.

The router's columns are shared out to cores, eight together; who is likeliest is found by rows (simd/top.py). An
expert's rows are gathered where they become codes, and what comes of them is added, times their share, to a sum of all
rows. By shape who gets which token is drawn (programs/routing.py).
"""

from collections.abc import Sequence

import numpy as np

from meshrt.arm.cache import pieces
from meshrt.arm.core import ArmCore, Team
from meshrt.arm.isa import ld1, of, st1
from meshrt.arm.kernel import MicroKernel
from meshrt.arm.soc import Soc
from meshrt.models.errors import ModelError
from meshrt.programs.arm.layout import PANEL, block
from meshrt.programs.arm.mlp import through
from meshrt.programs.arm.parts import ArmExperts, ArmMlp, ArmModel, More, PassRoom
from meshrt.programs.arm.products.inputs import RowSource
from meshrt.programs.arm.rows import by_rows
from meshrt.programs.arm.simd import exponent
from meshrt.programs.arm.simd.floats import product
from meshrt.programs.arm.simd.operators import each_kernel
from meshrt.programs.arm.simd.top import likeliest
from meshrt.programs.arm.simd.vectors import F32, laid, sweep, taken, units_of
from meshrt.programs.arm.split import equal
from meshrt.programs.arm.tiles import UNITS, plan, row_tiles

Array = np.ndarray
CLEAR = MicroKernel("clear", (of("movi", "z", at=0),), (st1(("z",), "y"),), ())
WEIGH = MicroKernel(
    "weigh", (ld1(("s",), "share"),), (ld1(("x",), "x"), ld1(("t",), "total"), of("fmla", "t", "x", "s"),
                                       st1(("t",), "y")), (),
)  # fmt: skip


def mixed(
    soc: Soc, model: ArmModel, mixture: ArmExperts, source: RowSource, tokens: int, room: PassRoom
) -> tuple[More, Array | None]:
    """What the experts make of the rows that a source makes, and what stays of the source."""
    hidden, high = model.config.hidden_size, model.head.how.rows
    whole = range(hidden)

    def begin(team: Team) -> tuple[Array | None, ...]:
        cleared = sweep(team, CLEAR, (len(units_of(team)),), -(-hidden // 4), {}, {"y": 16})
        return *source.before(team), None if cleared is None else taken(cleared["y"], F32, hidden)

    writes = (*source.writes, (room.normed, whole), (room.total, whole))
    stays, x, total = by_rows(soc, tokens, high, source.reads, writes, begin, 3)
    scores = routed(soc, mixture, x, tokens, hidden, room, high)
    chosen, shares, gate = chosen_of(soc, model, mixture, scores, tokens, room, high)
    assert model.loads is not None
    model.loads[mixture.layer] += np.bincount(chosen.ravel(), minlength=len(mixture.experts))
    for number in np.unique(chosen).tolist():
        own, choices = np.nonzero(chosen == number)
        share = None if shares is None else shares[own, choices]
        total = weighed(soc, model, mixture.experts[number], x, total, share, own.tolist(), tokens, room, high)
    if mixture.shared is not None:
        ones = None if x is None else np.ones(tokens, F32)
        share = gate if mixture.gated else ones
        total = weighed(soc, model, mixture.shared, x, total, share, range(tokens), tokens, room, high)
    return More(total, room.total), stays


def routed(
    soc: Soc, mixture: ArmExperts, x: Array | None, tokens: int, hidden: int, room: PassRoom, high: int
) -> Array | None:
    """x float32 [T, K] times the router: [T, columns in panels]."""
    unit = UNITS["fmla"]
    tile, heights = plan(unit, soc.device.registers, 16), row_tiles(tokens, high)
    panels = -(-mixture.columns // PANEL)

    def work(team: Team) -> Array | None:
        for core, units in team:
            core.caches.read(block(room.normed, heights, range(len(heights)), range(hidden)))
            for panel in units:
                core.caches.read(pieces(mixture.buffer, panel, 4 * PANEL * hidden))
                core.caches.write(
                    block(room.scores, heights, range(len(heights)), range(PANEL * panel, PANEL * (panel + 1)))
                )
        mine = units_of(team)
        rows = None if x is None else np.broadcast_to(x, (len(mine), *x.shape))
        router = None if mixture.router is None else mixture.router[mine]
        return product(team, unit, tile, rows, router, (tokens, hidden, PANEL))

    parts = [part for _, part in soc.parallel(equal(panels, soc.count), work) if part is not None]
    return np.concatenate(np.concatenate(parts), axis=1) if parts else None


def chosen_of(
    soc: Soc, model: ArmModel, mixture: ArmExperts, scores: Array | None, tokens: int, room: PassRoom, high: int
) -> tuple[Array, Array | None, Array | None]:
    """The experts of each token [T, top], their shares, and the sigmoid of the shared expert's gate [T]."""
    count = len(mixture.experts)

    def work(team: Team) -> tuple[Array | None, ...]:
        own = None if scores is None else scores[units_of(team)]
        chosen, shares = likeliest(
            team, count, mixture.top, mixture.renormalise, None if own is None else own[:, :count]
        )
        if not mixture.gated:
            return chosen, shares
        last = {"a": laid(None if own is None else own[:, count : count + 1], 4), "exponent": exponent.constants()}
        sigmoid = each_kernel("Sigmoid", "f")
        assert sigmoid is not None
        opened = sweep(team, sigmoid, (len(units_of(team)),), 1, last, {"y": 16})
        return chosen, shares, None if opened is None else taken(opened["y"], F32, 1)[:, 0]

    columns = (room.scores, range(mixture.columns))
    chosen, shares, *gate = by_rows(soc, tokens, high, (columns,), (columns,), work, 2 + mixture.gated)
    if chosen is None:
        assert model.routing is not None and model.loads is not None
        step = int(model.loads[mixture.layer].sum()) // mixture.top  # tokens so far
        return model.routing.draw(mixture.layer, step, tokens), None, None
    if shares is not None and not np.isfinite(shares).all():
        raise ModelError("a router's scores are NaN or infinite; they choose no expert")
    return chosen, shares, gate[0] if gate else None


def weighed(
    soc: Soc, model: ArmModel, mlp: ArmMlp, x: Array | None, total: Array | None, share: Array | None,
    own: Sequence[int], tokens: int, room: PassRoom, high: int,
) -> Array | None:  # fmt: skip
    """The sum with what an expert makes of its `own` rows, times their shares."""
    hidden = model.config.hidden_size

    def gathered(team: Team) -> tuple[None, Array | None]:
        return None, None if x is None else x[[own[row] for row in units_of(team)]]

    source = RowSource(gathered, ((room.normed, range(hidden)),), of=tokens, picked=tuple(own))
    more, _ = through(soc, model, mlp, source, len(own), room)

    heights = row_tiles(tokens, high)

    def also(core: ArmCore, rows: range) -> None:
        pieces_of_total = block(room.total, heights, source.touched(heights, len(own), rows), range(hidden))
        core.caches.read(pieces_of_total)
        core.caches.write(pieces_of_total)

    def add(team: Team) -> tuple[Array | None]:
        rows = units_of(team)
        inputs: dict[str, Array | None] = {"x": None, "total": None, "share": None}
        if more.numbers is not None and total is not None and share is not None:
            by_row = np.repeat(share[rows].astype(F32)[:, None, None], 4, axis=-1).view(np.uint8)
            sums = total[[own[row] for row in rows]]
            inputs = {"x": laid(more.numbers[rows], 4), "total": laid(sums, 4), "share": by_row}
        stored = sweep(team, WEIGH, (len(rows),), -(-hidden // 4), inputs, {"y": 16})
        return (None if stored is None else taken(stored["y"], F32, hidden),)

    (sums,) = by_rows(soc, len(own), high, ((more.buffer, range(hidden)),), (), add, 1, also)
    if total is not None:
        total[[*own]] = sums
    return total
