"""W4A8 products on Arm cores: how weights and inputs are packed, micro-kernels, and what matrices are made of."""
