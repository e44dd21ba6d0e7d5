"""A live view over something that plans its reads itself; it knows nothing of tables."""
