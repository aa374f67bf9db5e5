"""Models in two factors for each matrix."""
