"""The cache of keys and values on GPUs: blocks, what lies in them, and what is swapped out."""
