"""weft beside other table formats on Spark: Paimon, Hudi, Delta Lake and Iceberg. ``python -m tests.benchmarks.peers``.

All get the same Parquet files and are compared with the same oracle. Each runs in a process of its own, with the
newest Spark that its newest release supports, and is measured in ratios to plain Parquet, which the same Spark reads
and writes in turns with it.

A peer is used as its documents recommend for this work: updates of some columns of known keys, of which late ones must
lose. The module of each peer says which settings it has and why; what is not mentioned has its default.
`releases` has the versions. Common to all: Spark with two cores and 6 GB, zstd, a key that is hashed into the same
number of buckets (where the format has buckets), clean-up of old files by itself switched off or kept out of what is
measured, and the same merging rule: the newest ordering value wins, for each column group by itself.

What is measured is in `table_story`, `concurrent_writers` and `skewed_hour`.
"""
