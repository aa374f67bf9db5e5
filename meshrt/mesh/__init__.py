"""The mesh machine: cores on ranks, their memory, clocks and counters."""
