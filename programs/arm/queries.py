"""What becomes of queries, keys and values before attention in some models, by rows: biases, norms, bounds."""

from itertools import pairwise

import numpy as np

from meshrt.arm.core import Team
from meshrt.arm.soc import Soc
from meshrt.programs.arm.attention import HeadCounts
from meshrt.programs.arm.parts import ArmMatrix, QkvNorms
from meshrt.programs.arm.products.inputs import span_of
from meshrt.programs.arm.rows import by_rows
from meshrt.programs.arm.simd.activations import bounded
from meshrt.programs.arm.simd.between import rms_norm
from meshrt.programs.arm.simd.vectors import added, units_of

Array = np.ndarray


def prepared(
    soc: Soc, qkv: Array | None, tokens: int, heads: HeadCounts, how: QkvNorms, matrix: ArmMatrix, buffer: int
) -> Array | None:
    """qkv float32 [T, (H + 2 G) D] in a buffer, there again: with biases, then norms of queries and of keys, of each
    head or of all, then cut off.
    """
    ends = [0, heads.queries * heads.size, (heads.queries + heads.kv) * heads.size, matrix.columns]
    spans = [slice(begin, end) for begin, end in pairwise(ends)]
    if not matrix.biased and how.clip is None:
        spans = spans[:2]  # values stay as they are

    def work(team: Team) -> list[Array | None]:
        rows, parts = span_of(team), []
        for at, span in enumerate(spans):
            width = span.stop - span.start
            x = None if qkv is None else qkv[rows, span]
            if matrix.biased:
                x = added(team, (len(units_of(team)),), width, x, None if matrix.bias is None else matrix.bias[span])
            if how.norms is not None and at < 2:
                norm, size = how.norms[at], how.sizes[at]
                split = None if x is None else x.reshape(len(x), -1, size)
                _, x = rms_norm(team, size, split, (), norm.weight, norm.eps, (width // size,))
                x = None if x is None else x.reshape(len(x), width)
            parts.append(bounded(team, width, x, how.clip) if how.clip is not None else x)
        return parts

    columns = ((buffer, range(ends[len(spans)])),)
    parts = by_rows(soc, tokens, matrix.how.rows, columns, columns, work, len(spans))
    if qkv is None:
        return None
    rest = [] if len(spans) == 3 else [qkv[:, ends[2] :]]
    return np.concatenate([*(part for part in parts if part is not None), *rest], axis=1)
