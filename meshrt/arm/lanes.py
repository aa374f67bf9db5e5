"""What instructions do with the lanes of registers: arithmetic, comparisons, conversions, and moving them about.

Registers are uint8 [.., 16]. Each function takes its operands' registers, that of its target first where it reads it,
and the immediate or element `at`; it gives the target's. Suffixes of names are lanes: 16b, 8h, 4s, 2d; without one
they are float32 or bytes. Floats round to nearest with halves to even, as NumPy's do.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray
RunLanes = Callable[..., Array]
F16, F32 = np.float16, np.float32


def as_bytes(lanes: Array) -> Array:
    return np.ascontiguousarray(lanes).view(np.uint8)


def _by(kind: Any, function: Callable[[Array, Array], Array]) -> RunLanes:
    """An operation on lanes of that dtype, with all lanes of b or with its element `at`."""

    def run(a: Array, b: Array, at: int | None) -> Array:
        other = b.view(kind)
        return as_bytes(function(a.view(kind), other if at is None else other[..., at : at + 1]))

    return run


def _of(kind: Any, function: Callable[[Array], Array]) -> RunLanes:
    """An operation on lanes of that dtype, each for itself."""
    return lambda a, at: as_bytes(function(a.view(kind)))


def _shift(kind: Any, function: Callable[[Array, Any], Array]) -> RunLanes:
    """By so many bits."""
    return lambda a, at: as_bytes(function(a.view(kind), np.dtype(kind).type(at)))


def _shift_each(a: Array, b: Array, at: None) -> Array:
    """Bytes by as many bits as those of b say: to the left, or where they are negative to the right."""
    bits = b.view(np.int8).astype(np.int16)
    shifted: Array = np.where(bits < 0, a >> np.maximum(-bits, 0), a << np.maximum(bits, 0)).astype(np.uint8)
    return shifted


def _true(kind: Any, function: Callable[[Array, Array], Array]) -> RunLanes:
    """All bits of a lane where a comparison holds, none elsewhere."""
    return _by(kind, lambda a, b: -function(a, b).astype(f"i{np.dtype(kind).itemsize}"))


def _zip(kind: Any, half: int) -> RunLanes:
    def run(a: Array, b: Array, at: None) -> Array:
        lanes = 16 // np.dtype(kind).itemsize // 2
        part = slice(half * lanes, (half + 1) * lanes)
        ones, others = np.broadcast_arrays(a.view(kind)[..., part], b.view(kind)[..., part])
        return as_bytes(np.stack((ones, others), -1).reshape(*ones.shape[:-1], 2 * lanes))

    return run


def _unzip(kind: Any, half: int) -> RunLanes:
    """Every other lane, of a and then of b."""

    def run(a: Array, b: Array, at: None) -> Array:
        parts = np.broadcast_arrays(a.view(kind)[..., half::2], b.view(kind)[..., half::2])
        return as_bytes(np.concatenate(parts, -1))

    return run


def _widen(kind: Any, to: Any, half: int) -> RunLanes:
    """The lower or upper half of the lanes, each twice as wide."""
    lanes = 8 // np.dtype(kind).itemsize
    return _of(kind, lambda a: a[..., half * lanes : (half + 1) * lanes].astype(to))


def _narrow(kind: Any, to: Any) -> RunLanes:
    """All lanes at half of their width, in the lower half; whole numbers are clipped."""

    def run(a: Array, at: None) -> Array:
        small = as_bytes(_clipped(a.view(kind), to))
        return np.concatenate((small, np.zeros_like(small)), -1)

    return run


def _narrow2(kind: Any, to: Any) -> RunLanes:
    """The same in the upper half; the lower stays."""

    def run(a: Array, b: Array, at: None) -> Array:
        low, high = np.broadcast_arrays(a[..., :8], as_bytes(_clipped(b.view(kind), to)))
        return np.concatenate((low, high), -1)

    return run


def _clipped(numbers: Array, to: Any) -> Array:
    if np.dtype(to).kind != "f":
        numbers = np.clip(numbers, np.iinfo(to).min, np.iinfo(to).max)
    return numbers.astype(to)


def _rounded(numbers: Array) -> Array:
    """To nearest whole numbers of 32 bits; what is no number is 0."""
    wide = np.rint(np.nan_to_num(numbers.astype(np.float64), nan=0.0))
    return np.clip(wide, -(2.0**31), 2.0**31 - 1).astype(np.int32)


def _across(kind: Any, function: Callable[..., Array]) -> RunLanes:
    """One number of all lanes, in the first; the others are 0."""

    def run(a: Array, at: None) -> Array:
        lanes = a.view(kind)
        out = np.zeros_like(lanes)
        out[..., 0] = function(lanes, axis=-1)
        return as_bytes(out)

    return run


def _pairs(a: Array, b: Array, at: None) -> Array:
    """Sums of two neighbours, those of a and then those of b."""
    parts = np.broadcast_arrays(a.view(F32), b.view(F32))
    return as_bytes(np.concatenate([part[..., 0::2] + part[..., 1::2] for part in parts], -1))


def _sum_pairs(kind: Any, to: Any) -> Callable[[Array], Array]:
    return lambda lanes: lanes[..., 0::2].astype(to) + lanes[..., 1::2]


def _accumulate_pairs(total: Array, a: Array, at: None) -> Array:
    """Sums of neighbours of 16 bits, of all steps, onto 32 bits."""
    pairs = _sum_pairs(np.int16, np.int64)(a.view(np.int16)).sum(axis=-2, keepdims=True)
    return as_bytes((total.view(np.int32) + pairs).astype(np.int32))


def _select(mask: Array, a: Array, b: Array, at: None) -> Array:
    """Bits of a where the target has ones, of b elsewhere."""
    selected: Array = (mask & a) | (~mask & b)
    return selected


def _insert(kind: Any) -> RunLanes:
    """The first element in lane `at`; the others stay."""

    def run(a: Array, b: Array, at: int) -> Array:
        lanes, first = np.broadcast_arrays(a.view(kind), b.view(kind)[..., :1])
        lanes = lanes.copy()
        lanes[..., at] = first[..., at]
        return as_bytes(lanes)

    return run


def _long_product(a: Array, b: Array, at: None) -> Array:
    """Products of the first two lanes of 32 bits without a sign, of 64 bits."""
    return as_bytes(a.view(np.uint32)[..., :2].astype(np.uint64) * b.view(np.uint32)[..., :2])


def _all_lanes(kind: Any) -> RunLanes:
    """Element `at` in every lane."""

    def run(a: Array, at: int) -> Array:
        lanes = a.view(kind)
        return as_bytes(np.broadcast_to(lanes[..., at : at + 1], lanes.shape))

    return run


ALONE: dict[str, RunLanes] = {  # what reads its operands, and not its target
    "movi": lambda at: np.full(16, at, np.uint8),
    "fmov": lambda at: np.full(4, at, F32).view(np.uint8),
    "mov": lambda a, at: a,
    "dup_4s": _all_lanes(np.uint32),
    "dup_8h": _all_lanes(np.uint16),
    "ushr": _shift(np.uint8, np.right_shift),
    "shl": _shift(np.uint8, np.left_shift),
    "ushl": _shift_each,
    "ushr_8h": _shift(np.uint16, np.right_shift),
    "shl_8h": _shift(np.uint16, np.left_shift),
    "shl_4s": _shift(np.uint32, np.left_shift),
    "sshr_4s": _shift(np.int32, np.right_shift),
    "shl_2d": _shift(np.uint64, np.left_shift),
    "and": _by(np.uint8, np.bitwise_and),
    "orr": _by(np.uint8, np.bitwise_or),
    "eor": _by(np.uint8, np.bitwise_xor),
    "bic": _by(np.uint8, lambda a, b: a & ~b),
    "sub": _by(np.uint8, np.subtract),
    "smax": _by(np.int8, np.maximum),
    "add_8h": _by(np.uint16, np.add),
    "umin_8h": _by(np.uint16, np.minimum),
    "add_4s": _by(np.uint32, np.add),
    "sub_4s": _by(np.uint32, np.subtract),
    "mul_4s": _by(np.uint32, np.multiply),
    "add_2d": _by(np.uint64, np.add),
    "sub_2d": _by(np.uint64, np.subtract),
    "umull": _long_product,
    "uaddlp_4s": _of(np.uint32, _sum_pairs(np.uint32, np.uint64)),
    "rev64_4s": _of(np.uint32, lambda a: a.reshape(*a.shape[:-1], 2, 2)[..., ::-1].reshape(a.shape)),
    "smin_4s": _by(np.int32, np.minimum),
    "cmeq_4s": _true(np.int32, np.equal),
    "cmgt_4s": _true(np.int32, np.greater),
    "cmgt_2d": _true(np.int64, np.greater),
    "cmge_2d": _true(np.int64, np.greater_equal),
    "cmeq_2d": _true(np.int64, np.equal),
    "cmeq_16b": _true(np.uint8, np.equal),
    "zip1_16b": _zip(np.uint8, 0),
    "zip2_16b": _zip(np.uint8, 1),
    "zip1_8h": _zip(np.uint16, 0),
    "zip2_8h": _zip(np.uint16, 1),
    "zip1_4s": _zip(np.uint32, 0),
    "zip2_4s": _zip(np.uint32, 1),
    "zip1_2d": _zip(np.uint64, 0),
    "zip2_2d": _zip(np.uint64, 1),
    "uzp1_16b": _unzip(np.uint8, 0),
    "uzp1_8h": _unzip(np.uint16, 0),
    "uzp1_4s": _unzip(np.int32, 0),
    "uzp2_4s": _unzip(np.int32, 1),
    "saddlp": _of(np.int8, _sum_pairs(np.int8, np.int16)),
    "addv_4s": _across(np.int32, lambda lanes, axis: lanes.sum(axis=axis, dtype=np.int64).astype(np.int32)),
    "sminv_4s": _across(np.int32, np.min),
    "sxtl": _widen(np.int8, np.int16, 0),
    "sxtl2": _widen(np.int8, np.int16, 1),
    "uxtl": _widen(np.uint8, np.uint16, 0),
    "uxtl2": _widen(np.uint8, np.uint16, 1),
    "sqxtn_4h": _narrow(np.int32, np.int16),
    "sqxtn_8b": _narrow(np.int16, np.int8),
    "scvtf": _of(np.int32, lambda a: a.astype(F32)),
    "scvtf_8h": _of(np.int16, lambda a: a.astype(F16)),
    "fcvtns": _of(F32, _rounded),
    "fcvtl": _widen(F16, F32, 0),
    "fcvtl2": _widen(F16, F32, 1),
    "fcvtn": _narrow(F32, F16),
    "fmul": _by(F32, np.multiply),
    "fmul_8h": _by(F16, np.multiply),
    "fdiv": _by(F32, np.divide),
    "fadd": _by(F32, np.add),
    "fsub": _by(F32, np.subtract),
    "fmax": _by(F32, np.maximum),
    "fmin": _by(F32, np.minimum),
    "fmaxv": _across(F32, np.max),
    "fminv": _across(F32, np.min),
    "faddp": _pairs,
    "fneg": _of(F32, np.negative),
    "fabs": _of(F32, np.abs),
    "fsqrt": _of(F32, np.sqrt),
    "frintn": _of(F32, np.rint),
    "fcmgt": _true(F32, np.greater),
    "fcmge": _true(F32, np.greater_equal),
    "fcmeq": _true(F32, np.equal),
    "fcmeq0": _of(F32, lambda a: -(a == 0).astype(np.int32)),
}
ONTO: dict[str, RunLanes] = {  # what reads its target as well
    "bsl": _select,
    "ins_16b": _insert(np.uint8),
    "ins_4s": _insert(np.uint32),
    "ins_2d": _insert(np.uint64),
    "sadalp": _accumulate_pairs,
    "sqxtn2_8h": _narrow2(np.int32, np.int16),
    "sqxtn2_16b": _narrow2(np.int16, np.int8),
    "fcvtn2": _narrow2(F32, F16),
}
