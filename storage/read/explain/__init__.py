"""Explanations: why a row has its values."""
