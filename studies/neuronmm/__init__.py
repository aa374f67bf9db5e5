"""What NeuronMM published of Trainium, beside what is emulated."""
