"""Groups of devices, and their collectives by real messages: rings, trees, all to all, within a node and over nodes."""
