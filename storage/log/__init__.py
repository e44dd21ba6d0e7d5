"""The transaction log: entries, lanes, checkpoints and the state of the table that they add up to."""
