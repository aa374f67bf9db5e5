"""The short kernels of the guides in AWS's documentation (aws-neuron-sdk, nki/examples), of the new API."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.studies.nki.case import ResultPairs, case, normal


@case("getting_started_baremetal.py", "nki_tensor_add_kernel")
@case("getting_started_jax.py", "nki_tensor_add_kernel")
@case("getting_started_torch.py", "nki_tensor_add_kernel")
@case("simulate/nki_simulate_example.py", "add_kernel")
@case("tensor_addition/tensor_addition_nki_kernels.py", "nki_tensor_add")
def added(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    a, b = normal(rng, 128, 512), normal(rng, 128, 512)
    return [(kernel(a, b), a + b)]


@case("index-case-1.py", "tensor_split_kernel_")
def split(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    a = normal(rng, 128, 512)
    return list(zip(kernel(a), (a[:, ::2], a[:, 1::2]), strict=True))


@case("index-case-3.py", "tensor_maxpool_kernel_")
def pooled(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    a = normal(rng, 64, 8, 10)
    return [(kernel(a, 2), a.reshape(64, 4, 2, 5, 2).max(axis=(2, 4)))]


@case("layout-pass.py", "tensor_exp_kernel_")
def exponentials(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    a = normal(rng, 128, 512)
    return [(kernel(a), np.exp(a))]


@case("layout-violation.py", "tensor_exp_kernel_")
@case("layout-loop.py", "tensor_exp_kernel_")
def beyond_the_partitions(kernel: Any, module: Any, rng: np.random.Generator) -> ResultPairs:
    """The guide shows the first as what is refused; the second is a part of a file."""
    a = normal(rng, 256, 512)
    return [(kernel(a), np.exp(a))]
