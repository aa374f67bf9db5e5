"""Does a program fit into a machine's memory? Told without a run of it."""
