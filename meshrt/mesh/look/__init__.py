"""What a run on the mesh leaves to be looked at: maps, timelines, the critical path, messages."""
