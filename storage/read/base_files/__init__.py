"""Reads of the base files alone, and the base files as a dataset for other software."""
