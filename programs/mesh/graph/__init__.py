"""Graphs of operators on the mesh."""
