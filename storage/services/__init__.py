"""What is done to a table as a whole, beside its writers and readers: each service is one module."""
