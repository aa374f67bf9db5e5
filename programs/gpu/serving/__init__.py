"""Serving many requests on GPUs: what comes and when, who is next, and the figures that follow."""
