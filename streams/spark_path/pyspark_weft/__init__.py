"""Where Spark finds ``format("weft")`` by itself, in every session, for read, readStream and SQL.

Spark looks once, when a format is asked for that it does not know, through the top-level packages on Python's path
whose names begin with ``pyspark_``, and registers the `DefaultSource` of each.
"""

from streams.read.table_source import WeftSource as DefaultSource

__all__ = ["DefaultSource"]
