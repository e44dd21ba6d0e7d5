"""Data files: log files, base files and what is cached of them."""
