"""Do the kernels of a checkout of AWS's nki-samples run, unmodified, and are their numbers right?"""
