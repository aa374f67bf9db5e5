"""Model folders: what is read of them, a tensor or a slice at a time, and how they are written."""
