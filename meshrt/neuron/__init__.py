"""NeuronCores: HBM, SBUF, PSUM and engines of AWS Trainium, on which kernels written as NKI kernels are really compute.

A kernel imports `language as nl` and `isa as nisa` from here. Every byte over the HBM-SBUF boundary is counted, every
instruction takes its time on the clock of its engine, and what the hardware would refuse is refused.
"""
