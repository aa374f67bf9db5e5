"""Norms on the mesh: of prompts, of one token, of the heads of queries and keys."""
