"""The kernel's way from codes to float16: exact for every half word; how far the zero in one fused operation is off."""

from typing import Any

import numpy as np
import pytest
from gpu_runs import new_gpus

from meshrt.gpu.codes import GpuCodes
from meshrt.gpu.operations import int3_matmul
from meshrt.models.catalogue import find_model
from meshrt.models.config import read_config
from meshrt.models.folders.checkpoint import open_checkpoint
from meshrt.models.quantize.codes import nearest, symmetric
from meshrt.models.quantize.halfwords import codes_as_halves, weights_as_halves
from meshrt.models.quantize.hqq import hqq
from meshrt.models.quantize.packing import pack, unpack


@pytest.mark.parametrize("shift", [False, True], ids=["asymmetric", "symmetric"])
def test_every_half_word_is_exact(shift: bool) -> None:
    """All 65,536 of them in each of the three words, in both halves."""
    every = np.arange(1 << 16, dtype="<u2")
    for at in range(6):
        words = np.zeros((len(every), 6), "<u2")
        words[:, at] = every
        packed = words.view(np.uint8)
        want = unpack(packed, 3).astype(np.float64) - (4 if shift else 0)
        np.testing.assert_array_equal(codes_as_halves(packed, shift), want)


def test_random_words_are_exact() -> None:
    codes = np.random.default_rng(0).integers(0, 8, (50, 4, 64)).astype(np.uint8)
    np.testing.assert_array_equal(codes_as_halves(pack(codes, 3)), codes)


def matrices() -> list[np.ndarray]:
    folder = find_model("llama-tiny")
    checkpoint = open_checkpoint(folder)
    return [checkpoint.read(name + ".weight").astype(np.float64) for name in read_config(folder).matrices()]


def test_symmetric_weights_are_those_of_the_codes_rounded_once() -> None:
    for w in matrices()[:7]:
        codes = symmetric(w, 3, 64)
        halves = weights_as_halves(pack(codes.codes, 3), codes.scale, None).reshape(len(w), -1)[:, : codes.columns]
        np.testing.assert_array_equal(halves, codes.dequantized().astype(np.float16))


@pytest.mark.parametrize("method", [nearest, hqq])
def test_a_zero_that_is_rounded_with_its_scale_moves_weights_by_little(method: Any) -> None:
    """In scales, over all matrices of llama-tiny: z' = -z s and the result are up to 7 s and a little, and each is off
    by 2^-11 of itself at most."""
    most = 2 * 7.5 / 2**11
    worst, moved, count = 0.0, 0, 0
    for w in matrices():
        codes = method(w, 3, 64)
        halves = weights_as_halves(pack(codes.codes, 3), codes.scale, codes.zero).reshape(len(w), -1)[
            :, : codes.columns
        ]
        want = codes.dequantized()
        steps = np.repeat(codes.scale.astype(np.float64), 64, axis=1)[:, : codes.columns]
        worst = max(worst, float(np.max(np.abs(halves - want) / steps)))
        moved += np.count_nonzero(halves != want.astype(np.float16))
        count += halves.size
    assert most / 4 < worst < most
    assert 0.5 < moved / count < 0.8


@pytest.mark.parametrize("zeros", [False, True], ids=["symmetric", "asymmetric"])
def test_the_fused_kernel_of_gpus_computes_with_these_weights(zeros: bool) -> None:
    """Up to the zero's rounding: the kernel here takes (code - zero) scale in float32."""
    rng = np.random.default_rng(2)
    w, x = rng.standard_normal((70, 192)), rng.standard_normal((5, 192)).astype(np.float32)
    codes = nearest(w, 3, 64) if zeros else symmetric(w, 3, 64)
    packed = pack(codes.codes, 3)
    held = GpuCodes(packed.reshape(70, -1), codes.scale, codes.zero, 3, 64, 0, 0, 70, 192)
    halves = weights_as_halves(packed, codes.scale, codes.zero).reshape(70, -1).astype(np.float64)
    product = int3_matmul(new_gpus(1).mine[0], x, held)
    np.testing.assert_allclose(product, x @ halves.T, atol=0.05)
    np.testing.assert_allclose(product, x @ codes.dequantized().T, atol=1e-4)
