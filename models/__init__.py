"""What is computed: configurations, checkpoints, tokenizer, sampling and the dense NumPy reference. No MPI, no mesh."""
