"""Language models on tensor-parallel GPUs: what `lowrank` is made of."""
