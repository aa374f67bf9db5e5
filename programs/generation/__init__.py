"""How text is generated, on any machine: prompt, choice of a token, logits, what is kept on disk, and the loop."""
