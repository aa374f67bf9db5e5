"""`meshrt fuzz`: input from outside, broken at random."""
