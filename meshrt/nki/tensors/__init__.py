"""Tensors as kernels hold them: where they lie, and which of their elements are meant."""
