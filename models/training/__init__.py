"""Training the models that come with meshrt, and getting back what compression cost. Needs torch."""
