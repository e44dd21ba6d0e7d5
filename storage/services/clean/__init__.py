"""Cleaning: which snapshots expire, and which objects are garbage."""
