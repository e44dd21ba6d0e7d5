"""Reads the newest messages of topics, for checks and proposals. Commits no offsets."""

from __future__ import annotations

import pyarrow as pa

from streams.kafka.fetch import HEADERS, SCHEMA, read_range
from streams.kafka.offset_plan import OffsetRange, Topics
from streams.kafka.options import KafkaOptions


def read_newest(options: KafkaOptions, topics: Topics, count: int) -> pa.Table:
    """Read about ``count`` messages, the newest of each partition, with the columns of the source.

    Args:
        options: Options of the source.
        topics: The topics, from `streams.kafka.cluster.Cluster.load_topics`.
        count: How many; 0 for none.

    Raises:
        SourceUnavailable, DataLoss: See `streams.kafka.fetch.read_range`.
    """
    schema = SCHEMA.append(HEADERS) if options.include_headers else SCHEMA
    batches: list[pa.RecordBatch] = []
    filled = {partition: log for partition, log in topics.logs.items() if log.high > log.low}
    for partition, log in filled.items():
        first = max(log.low, log.high - max(1, count // len(filled)))
        known = topics.identities.get(partition.topic)
        span = OffsetRange(partition, first, log.high, known.topic_id if known is not None else "")
        if count and sum(map(len, batches)) < count:
            batches += read_range(span, options)
    return pa.Table.from_batches(batches, schema)
