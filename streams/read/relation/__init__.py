"""A live view over any planner of reads; this package does not know tables of weft."""
