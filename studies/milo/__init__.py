"""MiLo (MLSys 2025): mixtures of experts in three bits with low-rank compensators."""
