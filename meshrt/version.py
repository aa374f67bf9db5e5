"""The version, of the package and of every report."""

__version__ = "0.1.0"
