"""Programs on Arm cores: tiles, packed layouts, micro-kernels, products and what a model needs beside them."""
