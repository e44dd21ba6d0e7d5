"""Compaction: new base files, shadow files and overlays of file slices."""
