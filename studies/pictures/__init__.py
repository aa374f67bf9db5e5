"""What a person looks at: pages, maps, critical paths and rooflines, from the files that runs write."""
