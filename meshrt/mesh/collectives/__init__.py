"""What the cores of a line do together: shift, reduce, allreduce, broadcast, change of places."""
