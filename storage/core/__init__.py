"""The pure part of the table format: values in, values out; no I/O, clock, randomness, threads or logging."""
