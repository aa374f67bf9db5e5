"""A LLaMA forward pass on Arm cores: W4A8 products, and what lies between them in one stretch of work each.

The matrices that have one input lie in DRAM as one. T tokens, hidden size K. Names are those of models/matrix.py.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from meshrt.arm.cache import pieces
from meshrt.arm.core import ArmCore, Team
from meshrt.arm.repeat import repeated
from meshrt.arm.soc import Soc
from meshrt.models.config import Config
from meshrt.models.rope import cos_sin
from meshrt.programs.arm.attention import Heads, attention
from meshrt.programs.arm.between import rms_norm, silu_times
from meshrt.programs.arm.inputs import Rows, Stage, quantized, span_of
from meshrt.programs.arm.kv import LayerCache
from meshrt.programs.arm.layout import block
from meshrt.programs.arm.linear import product, shares_of
from meshrt.programs.arm.split import Split
from meshrt.programs.arm.tiles import row_tiles
from meshrt.programs.arm.vectors import widened
from meshrt.programs.arm.weights import How, Packed
from meshrt.records import dataclass

Array = np.ndarray


@dataclass(frozen=True)
class Factors:
    """Matrices in two factors that have one input: their first ones side by side, and the second of each."""

    first: Packed
    seconds: tuple[Packed, ...]


@dataclass(frozen=True)
class Matrix:
    """One matrix or several side by side, packed, and how products with them are computed. `bias` is None by shape.

    `whole`: those that are not in factors; as one, if none is.
    """

    name: str
    inner: int
    columns: int
    whole: tuple[Packed, ...]
    how: How
    biased: bool
    bias: Array | None
    factors: Factors | None = None

    @property
    def packed(self) -> tuple[Packed, ...]:
        """All that lies in DRAM."""
        return self.whole if self.factors is None else (*self.whole, self.factors.first, *self.factors.seconds)

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self.packed)

    @property
    def group(self) -> int:
        """Inputs whose weights share a scale."""
        return self.packed[0].group


More = tuple[Array | None, int, Matrix] | None  # a product that is to be added: numbers, buffer, whose it is


@dataclass(frozen=True)
class Layer:
    """One layer's matrices and norms; norms are None by shape."""

    attention_norm: Array | None
    qkv: Matrix
    o: Matrix
    mlp_norm: Array | None
    gate_up: Matrix
    down: Matrix

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        return self.qkv, self.o, self.gate_up, self.down


@dataclass(frozen=True)
class Model:
    """A model in DRAM. `embedding`: its table as float16 [vocabulary, K], and the buffer of it.

    By shape there may be fewer `layers` than it has: the last one is counted for those that lack.
    """

    config: Config
    heads: Heads
    embedding: Array | None
    table: int
    layers: tuple[Layer, ...]
    norm: Array | None
    head: Matrix
    split: Split
    blocks: bool  # activations have a scale for each group, not for each row
    flash: int = 0  # layers, the last ones, that are read from flash in every pass


@dataclass(frozen=True)
class Room:
    """Buffers of one pass over T tokens."""

    x: int
    codes: int
    y: int
    mixed: int
    middle: int


def forward(
    soc: Soc, model: Model, caches: Sequence[LayerCache], ids: Sequence[int], position: int, rows: int
) -> Array | None:
    """Tokens `ids` at `position`..: logits of the last `rows` of them, float32 [rows, vocabulary]; None by shape."""
    config, tokens = model.config, len(ids)
    hidden, inner = config.hidden_size, config.intermediate_size
    widest = max(one.columns for one in (model.layers[0].qkv, model.layers[0].gate_up))
    ranks = [one.factors.first.columns for layer in model.layers for one in layer.matrices if one.factors]
    mixed = model.heads.queries * model.heads.size
    sizes = {"x": 4 * hidden, "codes": max(hidden, inner, mixed) + 8, "y": 4 * widest, "mixed": 4 * max(hidden, mixed)}
    sizes["middle"] = 4 * max(ranks, default=0)  # between two factors
    room = Room(*(soc.buffer(name, tokens * size) for name, size in sizes.items()))
    logits = soc.buffer("logits", 4 * rows * config.vocab_size)
    rotary = cos_sin(config, np.arange(position, position + tokens))
    x = embed(soc, model, ids, position, room.x)
    more: More = None  # what the last product adds to x
    coming: dict[int, float] = {}  # layers that are read from flash, and when they are there
    for number, (layer, cache) in enumerate(zip(model.layers, caches, strict=True)):
        for at in (number, number + 1):  # the next one while this one computes
            if config.layers - model.flash <= at < config.layers and at not in coming:
                coming[at] = soc.fetch(sum(matrix.nbytes for matrix in model.layers[at].matrices))
        if number in coming:
            soc.arrived(coming[number], [one.buffer for matrix in layer.matrices for one in matrix.packed])
        others = config.layers - len(model.layers) if number + 1 == len(model.layers) else 0
        with repeated(soc, others):
            x, more = run_layer(soc, model, layer, cache, rotary, tokens, room, x, more)
    stage = normed(model, model.norm, room, x, more, slice(tokens - rows, tokens))
    found, _ = times(soc, model, model.head, stage, rows, room, logits)
    for name in (*sizes, "logits"):
        soc.free(name)
    return found


def run_layer(
    soc: Soc, model: Model, layer: Layer, cache: LayerCache, rotary: tuple[Array, Array], tokens: int, room: Room,
    x: Array | None, more: More,
) -> tuple[Array | None, More]:  # fmt: skip
    """x [T, K], of which the product `more` is still to be added: the same after the layer."""
    every = slice(0, tokens)
    qkv, x = times(
        soc, model, layer.qkv, normed(model, layer.attention_norm, room, x, more, every), tokens, room, room.y
    )
    mixed = attention(
        soc, qkv, tokens, model.heads, cache, rotary, layer.qkv.bias, layer.qkv.biased, room.y, room.mixed,
        layer.qkv.how.rows,
    )  # fmt: skip
    stage = Stage(
        lambda team: (None, None if mixed is None else mixed[span_of(team)]), ((room.mixed, range(layer.o.inner)),)
    )
    o, _ = times(soc, model, layer.o, stage, tokens, room, room.y)
    stage = normed(model, layer.mlp_norm, room, x, (o, room.y, layer.o), every)
    gate_up, x = times(soc, model, layer.gate_up, stage, tokens, room, room.y)
    width = layer.down.inner

    def active(team: Team) -> tuple[None, Array | None]:
        both = None if gate_up is None else gate_up[span_of(team)]
        gate, up = (None, None) if both is None else (both[:, :width], both[:, width:])
        return None, silu_times(team, width, gate, up)

    stage = Stage(active, ((room.y, range(2 * width)),))
    down, _ = times(soc, model, layer.down, stage, tokens, room, room.mixed)
    return x, (down, room.mixed, layer.down)


def times(
    soc: Soc, model: Model, matrix: Matrix, stage: Stage, rows: int, room: Room, y: int
) -> tuple[Array | None, Array | None]:
    """The rows that a stage makes, times a matrix, without its bias; and what stays of the stage."""

    def inputs_of(before: Stage, inner: int, group: int) -> tuple[Rows, Array | None]:
        form = matrix.how.form
        return quantized(soc, before, (rows, inner), group, matrix.how.rows, room.codes, form.blocks)

    def by(inputs: Rows, packed: Packed, target: int) -> Array | None:
        return product(soc, inputs, packed, matrix.how, shares_of(soc, inputs, packed, matrix.how, model.split), target)

    inputs, stays = inputs_of(stage, matrix.inner, matrix.group)
    found = [(one, by(inputs, one, y)) for one in matrix.whole]
    if matrix.factors is not None:
        middle, begin = by(inputs, matrix.factors.first, room.middle), 0
        for second in matrix.factors.seconds:
            columns = range(begin, begin + second.inner)
            begin = columns.stop
            before = Stage(partial(_cut, middle, columns), ((room.middle, columns),))
            found.append((second, by(inputs_of(before, second.inner, second.group)[0], second, y)))
    if len(found) == 1:
        return found[0][1], stays
    parts = [part for _, part in sorted(found, key=lambda one: one[0].at) if part is not None]
    return np.concatenate(parts, axis=1) if parts else None, stays


def _cut(whole: Array | None, columns: range, team: Team) -> tuple[None, Array | None]:
    """A team's rows, in these columns, of which nothing stays."""
    return None, None if whole is None else whole[span_of(team), columns.start : columns.stop]


def embed(soc: Soc, model: Model, ids: Sequence[int], position: int, target: int) -> Array | None:
    """Rows of the embedding as float32 [T, K], by the first core; each is read from DRAM, whichever it is."""
    hidden, heights = model.config.hidden_size, row_tiles(len(ids), model.head.how.rows)

    def work(core: ArmCore) -> Array | None:
        for at in range(position, position + len(ids)):
            core.caches.read(pieces(model.table, at, 2 * hidden))
        core.caches.write(block(target, heights, range(len(heights)), range(hidden)))
        rows = None if model.embedding is None else model.embedding[[*ids]]
        return widened([(core, range(len(ids)))], (len(ids),), hidden, rows)

    return soc.alone(work)


def normed(model: Model, weight: Array | None, room: Room, x: Array | None, more: More, rows: slice) -> Stage:
    """x + `more` stays, and becomes codes after an RMSNorm; of these rows of all."""
    hidden, eps = model.config.hidden_size, model.config.eps

    def numbers(team: Team) -> tuple[Array | None, Array | None]:
        some = span_of(team)
        here = slice(rows.start + some.start, rows.start + some.stop)
        adds: tuple[Array | None, ...] = ()
        if more is not None:
            adds = (None if more[0] is None else more[0][here], *((more[2].bias,) if more[2].biased else ()))
        return rms_norm(team, hidden, None if x is None else x[here], adds, weight, eps)

    own = (room.x, range(hidden))
    reads = (own,) if more is None else (own, (more[1], range(hidden)))
    return Stage(numbers, reads, () if more is None else (own,), rows.stop)
