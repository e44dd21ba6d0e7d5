"""Requests of reads: filters, columns, and their check against the schema of a snapshot."""
