"""Products with matrices in DRAM, whatever they are made of: whole ones, factors, compensators."""

from functools import partial

import numpy as np

from meshrt.arm.core import Team
from meshrt.arm.soc import Soc
from meshrt.programs.arm.parts import ArmFactors, ArmMatrix, ArmModel, PassRoom
from meshrt.programs.arm.products.inputs import CodedRows, RowSource, quantized, span_of
from meshrt.programs.arm.products.linear import product, shares_of
from meshrt.programs.arm.products.weights import PackedWeights, ProductMethod
from meshrt.programs.arm.rows import by_rows
from meshrt.programs.arm.simd.vectors import added, units_of

Array = np.ndarray


def times(
    soc: Soc, model: ArmModel, matrix: ArmMatrix, source: RowSource, rows: int, room: PassRoom, y: int
) -> tuple[Array | None, Array | None]:
    """The rows that a source makes, times a matrix, without its bias; and what stays of the source."""

    def inputs_of(before: RowSource, inner: int, group: int) -> tuple[CodedRows, Array | None]:
        form = matrix.how.form
        return quantized(soc, before, (rows, inner), group, matrix.how.rows, room.codes, form.blocks)

    def by(inputs: CodedRows, packed: PackedWeights, how: ProductMethod, target: int) -> Array | None:
        return product(soc, inputs, packed, how, shares_of(soc, inputs, packed, how, model.split), target)

    def by_both(factors: ArmFactors, target: int) -> list[tuple[PackedWeights, Array | None]]:
        middle, begin, products = by(inputs, factors.first, factors.how, room.middle), 0, []
        for second in factors.seconds:
            columns = range(begin, begin + second.inner)
            begin = columns.stop
            before = RowSource(partial(_cut, middle, columns), ((room.middle, columns),))
            made = by(inputs_of(before, second.inner, second.group)[0], second, factors.how, target)
            products.append((second, made))
        return products

    inputs, stays = inputs_of(source, matrix.inner, matrix.group)
    products = [(packed, by(inputs, packed, matrix.how, y)) for packed in matrix.whole]
    thin = [] if matrix.more is None else by_both(matrix.more, room.more)
    if matrix.factors is not None:
        products += by_both(matrix.factors, y)
    out = products[0][1]
    if len(products) > 1:
        parts = [part for _, part in sorted(products, key=lambda pair: pair[0].at) if part is not None]
        out = np.concatenate(parts, axis=1) if parts else None
    for second, part in thin:
        out = _with(soc, rows, matrix.how.rows, out, y, second, part, room.more)
    return out, stays


def _cut(whole: Array | None, columns: range, team: Team) -> tuple[None, Array | None]:
    """A team's rows, in these columns, of which nothing stays."""
    return None, None if whole is None else whole[span_of(team), columns.start : columns.stop]


def _with(
    soc: Soc, rows: int, high: int, y: Array | None, target: int, second: PackedWeights, part: Array | None, source: int
) -> Array | None:
    """y with what a compensator makes of some of its columns, by rows."""
    columns = range(second.at, second.at + second.columns)

    def work(team: Team) -> tuple[Array | None]:
        span = span_of(team)
        own, more = (None if y is None else y[span, columns.start : columns.stop], None if part is None else part[span])
        return (added(team, (len(units_of(team)),), len(columns), own, more),)

    (sums,) = by_rows(soc, rows, high, ((target, columns), (source, columns)), ((target, columns),), work, 1)
    if y is not None:
        y[:, columns.start : columns.stop] = sums
    return y
