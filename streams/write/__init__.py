"""Writing with Spark: decoding messages, the streaming sink, batch writes, dead letters and compaction on a cluster."""
