"""The version; no other file repeats it."""

__version__ = "0.1.0"
