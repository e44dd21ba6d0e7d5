"""Inspections: what is in a table, in sizes, lanes, snapshots and references."""
