"""How a job of ranks ends that cannot go on: who hears of it, who says so, and with which exit code."""
