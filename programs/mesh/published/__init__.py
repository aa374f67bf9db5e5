"""WaferLLM's published programs and kernels as they ran, where the programs here do otherwise."""
