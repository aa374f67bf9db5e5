"""Quantized matrices on the mesh: how codes are packed at a core, become numbers, or are multiplied as they are."""
