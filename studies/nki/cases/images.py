"""Pooling, interpolation, scattering: kernels on images."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from meshrt.studies.nki.case import ResultPairs, case, normal


@case("average_pool2d_nki_kernels.py", "tensor_avgpool_kernel")
def average_pool(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    a = normal(rng, 60, 12, 16)
    return [(kernel(a, 2), a.reshape(60, 6, 2, 8, 2).mean(axis=(2, 4)))]


@case("contributed/maxpooling.py", "max_pooling_2d_stride_1")
def max_pool(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    a = normal(rng, 200, 150)
    return [(kernel(a, 3), sliding_window_view(a, (3, 3)).max(axis=(2, 3)))]


def _doubled(a: np.ndarray, axis: int) -> np.ndarray:
    """Twice as long along an axis by linear interpolation, samples at the middles of pixels."""
    before = np.concatenate([a.take([0], axis), a.take(range(a.shape[axis] - 1), axis)], axis)
    after = np.concatenate([a.take(range(1, a.shape[axis]), axis), a.take([-1], axis)], axis)
    both = np.stack([0.75 * a + 0.25 * before, 0.75 * a + 0.25 * after], axis + 1)
    return both.reshape(*a.shape[:axis], 2 * a.shape[axis], *a.shape[axis + 1 :])


@case("interpolate_bilinear_fwd.py", "interpolate_bilinear_2x_fwd")
def bilinear(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    a = normal(rng, 2, 70, 28, 20)
    return [(kernel(a), _doubled(_doubled(a, 2), 3))]


@case("interpolate_trilinear_fwd.py", "interpolate_trilinear_2x_fwd")
def trilinear(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    a = normal(rng, 1, 130, 10, 10, 10)
    return [(kernel(a), _doubled(_doubled(_doubled(a, 2), 3), 4))]


@case("reference/vision.py", "resize_nearest_fixed_dma_kernel")
def resize_nearest(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    a = normal(rng, 2, 30, 20, 64)
    rows, columns = np.arange(59) * 30 // 59, np.arange(38) * 20 // 38
    return [(kernel(a, (2, 59, 38, 64)), a[:, rows][:, :, columns])]


@case("reference/vision.py", "adaptive_avg_pool2d_kernel")
def adaptive_pool(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    a = normal(rng, 2, 100, 13, 13)
    wanted = np.empty((2, 100, 6, 6))
    for row in range(6):
        for column in range(6):
            high, wide = (slice(at * 13 // 6, -(-(at + 1) * 13 // 6)) for at in (row, column))
            wanted[:, :, row, column] = a[:, :, high, wide].mean(axis=(2, 3))
    return [(kernel(a, 6), wanted)]


@case("reference/vision.py", "select_and_scatter_kernel")
def select_and_scatter(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    images, source = normal(rng, 2, 64, 16, 16), normal(rng, 2, 64, 8, 8)
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    windows = sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::2, ::2].reshape(2, 64, 8, 8, 9)
    best = windows.argmax(axis=-1)
    n, c, row, column = np.indices(best.shape)
    wanted = np.zeros((2, 64, 18, 18))
    np.add.at(wanted, (n, c, 2 * row + best // 3, 2 * column + best % 3), source)
    return [(kernel(images, source), wanted[:, :, 1:-1, 1:-1])]


def _convolved(a: np.ndarray, w: np.ndarray, pad: int) -> np.ndarray:
    """a [n, c, h, w], w [o, c, r, s]: sums of products over c and windows of r x s, with zeros around."""
    padded = np.pad(a, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = sliding_window_view(padded, w.shape[2:], axis=(2, 3))
    result: np.ndarray = np.einsum("nchwrs,ocrs->nohw", windows, w)
    return result


@case("neuron-team-kernels/conv.py", "conv2d")
def convolution(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    a, w = normal(rng, 4, 16, 14, 14), normal(rng, 64, 16, 3, 3)
    out = np.zeros((4, 64, 14, 14), np.float32)
    kernel(a, w, out, padding=[[1, 1], [1, 1]])
    return [(out, _convolved(a, w, 1))]
