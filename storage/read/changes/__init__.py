"""Changes between two snapshots."""
