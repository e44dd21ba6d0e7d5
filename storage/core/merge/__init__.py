"""The merge kernel: events to merge state per key, and merge state to rows."""
