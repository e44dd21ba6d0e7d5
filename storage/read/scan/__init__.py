"""Scans: the plan of a read, and its execution task by task."""
