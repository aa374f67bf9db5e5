"""How a job ends when a rank cannot go on: who sees it, who tells, with which exit code."""
