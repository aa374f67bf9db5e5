"""Cases for the kernels of nki-samples, and of NeuronMM's published code, by what they compute."""

from meshrt.studies.nki.cases import attention, examples, fused, images, layers, neuronmm, paged, products

__all__ = ("attention", "examples", "fused", "images", "layers", "neuronmm", "paged", "products")
