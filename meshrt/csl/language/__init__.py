"""What a CSL program means: computed where all is known, else written as Python."""
