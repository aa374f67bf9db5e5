"""From the text of a CSL file to its tree."""
