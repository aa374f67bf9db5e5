"""Kernels for NeuronCores: the matrix products of NeuronMM and what they are compared with."""
