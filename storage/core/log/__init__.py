"""The contents of the log as values: entries, cuts, the state of a table and of a lane, and their encodings."""
