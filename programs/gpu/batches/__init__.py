"""What one step of a model on GPUs runs: whole prompts, parts of sequences, or one new token of each."""
