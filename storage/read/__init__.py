"""Reading: snapshots, scans, changes between two snapshots, and the state at a time."""
