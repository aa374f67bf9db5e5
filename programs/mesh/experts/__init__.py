"""Mixtures of experts on the mesh: where experts lie, which a token takes, how it comes there, and what is counted."""
