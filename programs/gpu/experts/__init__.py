"""Mixtures of experts on GPUs: where experts lie, how tokens come to them, what is computed there."""
