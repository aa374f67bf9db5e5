"""Tensor-parallel GPUs: devices with a memory, a launch queue and a place in a group, and plans that are replayed.

`Gpus` (gpus.py) is what a program gets. Its array code runs operation by operation through `Gpu.launch` (gpu.py), which
counts and times each; what was recorded once is replayed from fixed buffers (plan.py).
"""
