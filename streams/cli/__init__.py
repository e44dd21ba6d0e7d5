"""The command line, ``weft``."""
