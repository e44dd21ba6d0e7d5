"""Lets Spark find ``format("weft")`` by itself, in every session, for read, readStream and SQL.

When a format is unknown, Spark searches once the top-level packages on Python's path whose names begin with
``pyspark_``, and registers the `DefaultSource` of each.
"""

from weft.streams.read.table_source import WeftSource as DefaultSource

__all__ = ["DefaultSource"]
