"""Many runs, set side by side: comparisons, compliance, tuning, the papers' tables."""
