"""W4A8 on Arm cores: how work is split, and what the paper's tables come to."""
