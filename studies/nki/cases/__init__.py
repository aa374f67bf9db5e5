"""Cases for the kernels of nki-samples, by what they compute."""

from meshrt.studies.nki.cases import attention, fused, images, layers, products

__all__ = ("attention", "fused", "images", "layers", "products")
