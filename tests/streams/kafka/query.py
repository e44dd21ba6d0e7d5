"""A query as Spark runs it, without Spark: plans a batch, records its end, reads its ranges, and continues."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Self

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from tests.streams.kafka.topics import Broker, parsed
from weft.streams.kafka.kafka_source import KafkaStreamReader
from weft.streams.kafka.offset_plan import OffsetRange


class Query:
    """Batches of one query over a source. Its position corresponds to Spark's checkpoint."""

    def __init__(self, broker: Broker, topics: str, position: dict[str, Any] | None = None, **given: str) -> None:
        self._options = parsed(broker, topics, **{"startingOffsets": "earliest", **given})
        self._reader = KafkaStreamReader(self._options)
        self.position: dict[str, Any] = {} if position is None else position

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.stop()

    def plan(self, limit: int | None = None) -> dict[str, Any]:
        """End of the next batch, as read from a checkpoint file."""
        admit = ReadAllAvailable() if limit is None else ReadMaxRows(limit)
        return json.loads(json.dumps(self._reader.latestOffset(self.position, admit)))

    def ranges(self, end: dict[str, Any]) -> list[OffsetRange]:
        return [span for span in self._reader.partitions(self.position, end) if isinstance(span, OffsetRange)]

    def read(self, end: dict[str, Any]) -> Iterator[tuple[str, int, int, str]]:
        """Topic, partition, offset and value of each message up to ``end``, in the order of ranges."""
        for span in self.ranges(end):
            for batch in self._reader.read(span):
                for row in batch.to_pylist():
                    value = None if row["value"] is None else row["value"].decode()
                    yield row["topic"], row["partition"], row["offset"], value

    def batch(self, limit: int | None = None) -> list[str]:
        """Values of the next batch."""
        end = self.plan(limit)
        values = [value for *_, value in self.read(end)]
        self.position = end
        return values

    def drain(self, limit: int | None = None) -> list[tuple[str, int, int, str]]:
        """All messages of the batches until a batch does not change the position."""
        found: list[tuple[str, int, int, str]] = []
        while (end := self.plan(limit)) != self.position:
            found += self.read(end)
            self.position = end
        return found
