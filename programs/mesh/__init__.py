"""How LLaMA, and the products, sums and caches that it is made of, run on a mesh of cores: parts of the programs."""
