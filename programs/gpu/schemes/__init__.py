"""How the matrices of a layer are cut over GPUs, and what these exchange: dense, and decomposed in three ways."""
