"""A system on a chip with Arm cores: registers and SIMD instructions, caches, a shared bus, DRAM.

`Soc` (soc.py) is what a program gets. Micro-kernels are lists of instructions (kernel.py) that really run, on arrays of
all micro-tiles at once; what they touch goes through caches of ranges (cache.py), and what misses those shares the bus.
"""
