"""A forward pass on Arm cores: W4A8 products, and what lies between them in one stretch of work each.

The matrices that have one input lie in DRAM as one. T tokens, hidden size K. Names are those of models/matrix.py.
"""

from collections.abc import Sequence

import numpy as np

from meshrt.arm.cache import pieces
from meshrt.arm.core import ArmCore, Team
from meshrt.arm.repeat import repeated
from meshrt.arm.soc import Soc
from meshrt.models.rope import cos_sin
from meshrt.programs.arm.attention import attention
from meshrt.programs.arm.kv import ArmLayerCache
from meshrt.programs.arm.layout import PANEL, block
from meshrt.programs.arm.mixture import mixed
from meshrt.programs.arm.mlp import through
from meshrt.programs.arm.parts import ArmLayer, ArmMlp, ArmModel, More, PassRoom
from meshrt.programs.arm.products.forms import times
from meshrt.programs.arm.products.inputs import RowSource, span_of
from meshrt.programs.arm.queries import prepared
from meshrt.programs.arm.simd.activations import capped, scaled
from meshrt.programs.arm.simd.between import ArmNorm, norm_of
from meshrt.programs.arm.simd.vectors import added, units_of, widened
from meshrt.programs.arm.split import equal
from meshrt.programs.arm.tiles import row_tiles

Array = np.ndarray
Rotary = tuple[Array, Array]  # cosines and sines [T, D / 2]


def forward(
    soc: Soc, model: ArmModel, caches: Sequence[ArmLayerCache], ids: Sequence[int], position: int, rows: int
) -> Array | None:
    """Tokens `ids` at `position`..: logits of the last `rows` of them, float32 [rows, vocabulary]; None by shape."""
    config, tokens = model.config, len(ids)
    sizes = sizes_of(model)
    room = PassRoom(**{name: soc.buffer(name, tokens * size) for name, size in sizes.items()})
    logits = soc.buffer("logits", 4 * rows * config.vocab_size)
    at = np.arange(position, position + tokens)
    rotary = [cos_sin(config, at, number) for number in range(len(config.ropes))]
    x = embed(soc, model, ids, position, room.x)
    more: More | None = None  # what the last product adds to x
    coming: dict[int, float] = {}  # layers that are read from flash, and when they are there
    for number, (layer, cache) in enumerate(zip(model.layers, caches, strict=True)):
        for index in (number, number + 1):  # the next one while this one computes
            if config.layers - model.flash <= index < config.layers and index not in coming:
                coming[index] = soc.fetch(sum(matrix.nbytes for matrix in model.layers[index].matrices))
        if number in coming:
            soc.arrived(coming[number], [packed.buffer for matrix in layer.matrices for packed in matrix.packed])
        others = config.layers - len(model.layers) if number + 1 == len(model.layers) else 0
        with repeated(soc, others):
            x, more = run_layer(soc, model, layer, cache, rotary[layer.rope] if rotary else None, tokens, room, x, more)
    source = normed(model, model.norm, room, x, more, slice(tokens - rows, tokens))
    numbers, _ = times(soc, model, model.head, source, rows, room, logits)
    numbers = bent(soc, model, numbers, rows, logits)
    for name in (*sizes, "logits"):
        soc.free(name)
    return numbers


def sizes_of(model: ArmModel) -> dict[str, int]:
    """Bytes of a token in each buffer of a pass."""
    config, layers, matrices = model.config, model.layers, [*model.matrices()]
    hidden, heads = config.hidden_size, model.heads.queries * model.heads.size
    widest = max(matrix.columns for matrix in matrices)
    codes = max(hidden, *(matrix.inner for matrix in matrices)) + 8
    columns = [-(-layer.mlp.columns // PANEL) * PANEL for layer in layers if not isinstance(layer.mlp, ArmMlp)]
    more = [matrix.columns for matrix in matrices if matrix.more is not None]
    return {
        "x": 4 * hidden, "codes": codes, "y": 4 * widest, "mixed": 4 * max(hidden, heads),
        "middle": 4 * max((rank for matrix in matrices for rank in matrix.ranks), default=0),
        "more": 4 * max(more, default=0), "normed": 4 * hidden * bool(columns), "scores": 4 * max(columns, default=0),
        "total": 4 * hidden * bool(columns),
    }  # fmt: skip


def run_layer(
    soc: Soc, model: ArmModel, layer: ArmLayer, cache: ArmLayerCache, rotary: Rotary | None, tokens: int,
    room: PassRoom, x: Array | None, more: More | None,
) -> tuple[Array | None, More]:  # fmt: skip
    """x [T, K], of which the product `more` is still to be added: the same after the layer."""
    every = slice(0, tokens)
    source = normed(model, layer.attention_norm, room, x, more, every)
    qkv, x = times(soc, model, layer.qkv, source, tokens, room, room.y)
    bias, biased = layer.qkv.bias, layer.qkv.biased
    if layer.heads is not None:
        qkv = prepared(soc, qkv, tokens, model.heads, layer.heads, layer.qkv, room.y)
        bias, biased = None, False
    mixed_heads = attention(
        soc, qkv, tokens, model.heads, cache, rotary, bias, biased, room.y, room.mixed, layer.qkv.how.rows, layer.scores
    )  # fmt: skip
    source = RowSource(
        lambda team: (None, None if mixed_heads is None else mixed_heads[span_of(team)]),
        ((room.mixed, range(layer.o.inner)),),
    )
    o, _ = times(soc, model, layer.o, source, tokens, room, room.y)
    more = More(o, room.y, layer.o, layer.after_attention)
    source = normed(model, layer.mlp_norm, room, x, more, every)
    if isinstance(layer.mlp, ArmMlp):
        made, x = through(soc, model, layer.mlp, source, tokens, room)
    else:
        made, x = mixed(soc, model, layer.mlp, source, tokens, room)
    return x, More(made.numbers, made.buffer, made.matrix, layer.after_mlp)


def embed(soc: Soc, model: ArmModel, ids: Sequence[int], position: int, target: int) -> Array | None:
    """Rows of the embedding as float32 [T, K], by the first core; each is read from DRAM, whichever it is.

    Times its scale, and with the rows of learned positions, where there are such.
    """
    hidden, heights, tokens = model.config.hidden_size, row_tiles(len(ids), model.head.how.rows), len(ids)
    scale, learned = (hidden**0.5 if model.config.kind.scaled_embedding else None), model.positions

    def work(core: ArmCore) -> Array | None:
        team = [(core, range(tokens))]
        for at in range(position, position + tokens):
            core.caches.read(pieces(model.table, at, 2 * hidden))
        rows = None if model.embedding is None else model.embedding[[*ids]]
        x = widened(team, (tokens,), hidden, rows)
        if scale is not None:
            x = scaled(team, (), hidden, scale, x)
        if learned is not None:
            first = learned.offset + position
            for at in range(first, first + tokens):
                core.caches.read(pieces(learned.buffer, at, 2 * hidden))
            own = None if learned.table is None else learned.table[first : first + tokens]
            x = added(team, (tokens,), hidden, x, widened(team, (tokens,), hidden, own))
        core.caches.write(block(target, heights, range(len(heights)), range(hidden)))
        return x

    return soc.alone(work)


def normed(
    model: ArmModel, norm: ArmNorm, room: PassRoom, x: Array | None, more: More | None, rows: slice
) -> RowSource:
    """x + `more` stays, and becomes codes after a norm; of these rows of all."""
    hidden = model.config.hidden_size

    def numbers(team: Team) -> tuple[Array | None, Array | None]:
        span = span_of(team)
        own = slice(rows.start + span.start, rows.start + span.stop)
        adds: tuple[Array | None, ...] = ()
        if more is not None:
            adds = (None if more.numbers is None else more.numbers[own], *more.biases)
            if more.norm is not None:
                adds = (norm_of(team, hidden, adds[0], adds[1:], more.norm)[1],)
        return norm_of(team, hidden, None if x is None else x[own], adds, norm)

    own = (room.x, range(hidden))
    reads = (own,) if more is None else (own, (more.buffer, range(hidden)))
    return RowSource(numbers, reads, () if more is None else (own,), rows.stop)


def bent(soc: Soc, model: ArmModel, logits: Array | None, rows: int, buffer: int) -> Array | None:
    """Logits with their cap, if there is one; cores share panels of words."""
    cap, words = model.config.logit_cap, model.config.vocab_size
    if cap is None:
        return logits
    heights, panels = row_tiles(rows, model.head.how.rows), -(-words // PANEL)
    lying = None
    if logits is not None:
        lying = np.pad(logits, ((0, 0), (0, -words % PANEL))).reshape(rows, panels, PANEL).transpose(1, 0, 2)

    def work(team: Team) -> Array | None:
        for core, units in team:
            own = block(buffer, heights, range(len(heights)), range(PANEL * units[0], PANEL * (units[-1] + 1)))
            core.caches.read(own)
            core.caches.write(own)
        return capped(team, (rows,), PANEL, cap, None if lying is None else lying[units_of(team)], True)

    parts = [part for _, part in soc.parallel(equal(panels, soc.count), work) if part is not None]
    if not parts:
        return None
    return np.ascontiguousarray(np.concatenate(parts).transpose(1, 0, 2).reshape(rows, -1)[:, :words])
