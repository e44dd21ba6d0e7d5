"""The transaction log: entries, lanes, checkpoints, and the table state computed from them."""
