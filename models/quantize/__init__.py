"""Matrices in a few bits a weight: round to nearest, HQQ, GPTQ, and MiLo's compensators (MLSys 2025). NumPy alone.

Equations, sections, tables and algorithms that are named without a paper are those of MiLo.
"""
