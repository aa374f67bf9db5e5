"""Models as others write them, in a few bits a weight: GGUF files, and folders of Hugging Face's compressed-tensors."""
