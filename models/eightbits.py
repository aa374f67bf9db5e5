"""Activations in 8 bits: whole numbers and a scale for each row of them, or for each block of a row (W4A8)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshrt.models.errors import ModelError

Array = NDArray[Any]
MOST = 127  # of an activation; -128 is never used
MOST_SUM = 2**31 - 1


def quantize_rows(x: Array, block: int | None) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.int32]]:
    """float32 [rows, k] to int8 [rows, k], their scale and sums [rows, blocks]. block None: a row is one block.

    By the largest magnitude of a block, to nearest with halves to even; a block of zeros has scale 1. The last block
    may have fewer numbers. ModelError for what is NaN or infinite.
    """
    x = np.asarray(x, np.float32)
    parts = _in_blocks(x, max(x.shape[1], 1) if block is None else block)
    scale = scale_of(np.abs(parts).max(axis=-1))
    codes = round_to(parts, scale[..., None])
    sums = codes.sum(axis=-1, dtype=np.int32)
    whole = codes.reshape(len(x), parts.shape[1] * parts.shape[2])
    return np.ascontiguousarray(whole[:, : x.shape[1]]), scale, sums


def scale_of(most: Array) -> NDArray[np.float32]:
    """The scale of numbers of up to that magnitude; of zeros 1. ModelError for what is NaN or infinite."""
    if not np.isfinite(most).all():
        raise ModelError("activations are NaN or infinite; they cannot be put into 8 bits")
    scale = np.asarray(most / np.float32(MOST), np.float32)
    scale[scale == 0] = 1
    return scale


def round_to(x: Array, scale: Array) -> NDArray[np.int8]:
    """The whole numbers that stand for x, to nearest with halves to even."""
    codes: NDArray[np.int8] = np.clip(np.rint(x / scale), -MOST, MOST).astype(np.int8)
    return codes


def block_sums(codes: NDArray[np.int8], block: int) -> NDArray[np.int32]:
    """Sums [rows, blocks] of int8 [rows, k]."""
    sums: NDArray[np.int32] = _in_blocks(codes, block).sum(axis=-1, dtype=np.int32)
    return sums


def _in_blocks(x: Array, block: int) -> Array:
    """[rows, k] as [rows, blocks, block], the last block filled up with zeros."""
    missing = -x.shape[1] % block
    padded = np.pad(x, ((0, 0), (0, missing))) if missing else x
    return padded.reshape(len(x), -(-x.shape[1] // block), block)


def check_sums(inputs: int, bits: int) -> None:
    """ModelError where a sum over so many inputs may not fit into 32 bits."""
    if inputs * MOST * (2**bits - 1) > MOST_SUM:
        raise ModelError(f"{inputs} inputs of {bits} bits: their sum may not fit into 32 bits")
