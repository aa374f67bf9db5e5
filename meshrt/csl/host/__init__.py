"""The host of a CSL program: its scripts, what they import, and runs without one."""
