"""An application without Spark that writes the customers of the demo from their topic.

It shows the smallest exact writer: a Kafka consumer and a `storage.Table.writer`. Each commit records the next offsets
of the topic, and the next start continues there.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa
from confluent_kafka import Consumer, Message, TopicPartition

from storage import Table
from storage.errors import StoreUnavailable
from streams.demo.shop import CUSTOMERS
from streams.demo.workload import Topic

QUERY: Final = "customers-application"
"""The query of the batches: a batch that is sent again is stored once."""
MOST_MESSAGES: Final = 50_000
"""Messages of one commit."""


class CustomersWriter:
    """Writes a topic to the table of the customers, in a ``with`` block."""

    def __init__(self, table: Table, bootstrap_servers: str, topic: Topic) -> None:
        """Describe the writer; the ``with`` block claims the lane.

        Args:
            table: The table of the customers.
            bootstrap_servers: The broker.
            topic: The topic; its messages come from the broker.
        """
        self._writer = table.writer(CUSTOMERS, query_id=QUERY)
        self._kinds = table.schema.arrow
        self._topic = topic.name
        self._next = dict.fromkeys(range(topic.partitions), 0)
        # The group is required, but nothing is stored in it.
        self._consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": QUERY, "log_level": 2})

    def __enter__(self) -> Self:
        """Claim the lane, and continue after its last commit."""
        self._writer.__enter__()
        for offsets in self._writer.source.get("offsets", ()):
            self._next |= {int(partition): offset for partition, offset in offsets[self._topic].items()}
        self._consumer.assign([TopicPartition(self._topic, *position) for position in self._next.items()])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lane and the consumer."""
        self._writer.__exit__(kind, error, trace)
        self._consumer.close()

    def write_batch(self, wait_seconds: float = 0.0) -> int:
        """Commit the messages that have arrived; returns how many.

        Args:
            wait_seconds: How long to wait for the first message.

        Raises:
            StoreUnavailable: The broker does not deliver messages.
            TableError: See `Writer.append`.
        """
        found = self._consumer.consume(1, wait_seconds)
        found += self._consumer.consume(MOST_MESSAGES, 0) if found else []
        if not found:
            return 0
        rows = [self._row(message) for message in found]
        for message in found:
            partition, offset = message.partition(), message.offset()
            assert partition is not None, "a message that was received has a position"
            assert offset is not None, "a message that was received has a position"
            self._next[partition] = offset + 1
        source = {"offsets": [{self._topic: {str(partition): offset for partition, offset in self._next.items()}}]}
        schema = pa.schema([*self._kinds, ("_op", pa.string())])
        number = self._writer.last_batch(QUERY)
        self._writer.append(
            pa.Table.from_pylist(rows, schema), batch=(QUERY, 0 if number is None else number + 1), source=source
        )
        return len(found)

    def _row(self, message: Message) -> dict[str, Any]:
        if (error := message.error()) is not None:
            raise StoreUnavailable(f"topic {self._topic}: {error.str()}", hint="the broker must be reachable")
        event = json.loads(message.value() or b"")
        return {
            "_op": "delete" if event["closed"] else "upsert",
            "id": event["id"],
            "name": event["name"],
            "tier": event["tier"],
            "credit": decimal.Decimal(event["credit_cents"]).scaleb(-2),
            "changed_at": dt.datetime.fromtimestamp(event["changed_ms"] / 1000, dt.UTC),
            "version": event["version"],
        }
