"""Spark side of weft."""
