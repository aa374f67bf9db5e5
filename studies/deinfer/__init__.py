"""What DeInfer published of tensor-parallel GPUs, beside what is emulated."""
