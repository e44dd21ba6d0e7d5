"""One writer between a Kafka topic and a table, which resumes from the table, and the oracle for its result.

Every message has its own key, so the table has each message once if the live commits have as many input rows as there
were good messages, and the table has all keys. Bad messages must each be a dead letter once.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import weft.streams
from tests.streams.kafka.topics import Broker, produce, topic_numbers
from tests.streams.write.sink.rig import STARTS, TOO_BUSY, run
from weft import Table
from weft.storage.core.log.cut import in_spans
from weft.storage.core.log.entries import Data
from weft.storage.core.names import LaneName
from weft.storage.core.names import Path as StorePath
from weft.storage.log.commit_log import CommitLog
from weft.storage.store.open_store import open_store
from weft.streams.letters.letter_files import default_folder
from weft.streams.write.decode import decode_messages
from weft.streams.write.resume import ResumePoint
from weft.streams.write.sink import CommitReport

MESSAGE: Final = {"id": "bigint", "status": "string", "seq": "bigint"}
LANE: Final = LaneName("orders")
BAD_EVERY: Final = 5
"""Of the messages of a partition, one of so many is not JSON."""

Sent = tuple[str, int, int]
"""Topic, partition and offset of a message."""


class WriterOfTopic:
    """A topic of two partitions, and runs of a writer that end with what the topic holds.

    Attributes:
        topic: Its name.
        checkpoint: Folder of the first checkpoint; later ones are beside it.
        good: Keys of the good messages, in the order in which they were sent.
        bad: Positions of the bad messages.
    """

    def __init__(
        self,
        spark: SparkSession,
        broker: Broker,
        table: Table,
        folder: Path,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.topic = f"resumed-{next(topic_numbers)}"
        self.table, self.folder, self.storage_options = table, folder, storage_options
        self.checkpoint = str(folder / "checkpoints/orders")
        self.good: list[int] = []
        self.bad: list[Sent] = []
        self.spark, self.broker = spark, broker
        self._ends: Counter[int] = Counter()
        broker.create_topics({self.topic: 2})
        weft.streams.kafka.register(spark)

    def send(self, count: int, partitions: int = 2) -> None:
        """Send so many messages, in turn to each partition."""
        for number in range(count):
            partition = number % partitions
            offset = self._ends[partition]
            self._ends[partition] += 1
            key = len(self.good) + len(self.bad)
            if offset % BAD_EVERY == BAD_EVERY - 1:
                self.bad.append((self.topic, partition, offset))
                text = "{broken"
            else:
                self.good.append(key)
                text = json.dumps({"id": key, "status": "new", "seq": 1})
            produce(self.broker, self.topic, [text], partition=partition)

    def recreate(self, partitions: int = 2) -> None:
        """Delete the topic and create it again, empty."""
        self.broker.delete_topic(self.topic)
        self.broker.create_topics({self.topic: partitions})
        self._ends.clear()

    def point(self) -> ResumePoint:
        return weft.resume_point(
            self.spark, self.table.uri, LANE, checkpoint=self.checkpoint, storage_options=self.storage_options
        )

    def run(
        self,
        change: Callable[[DataFrame], DataFrame] = lambda df: df,
        on_commit: Callable[[CommitReport], None] | None = None,
        *,
        strict: bool = True,
        per_batch: int = 20,
    ) -> ResumePoint:
        """Start the writer where the table says, and run it to the end of the topic; returns where it started.

        Args:
            change: Applied to the frame before it is written.
            on_commit: As for `weft.write_stream`.
            strict: The option failOnDataLoss.
            per_batch: The option maxOffsetsPerTrigger.
        """
        first = self.point()
        for starts_left in reversed(range(STARTS)):
            point = self.point()
            df = self.frame(point.starting_offsets("earliest", [self.topic]), strict=strict, per_batch=per_batch)
            given = {"storage_options": self.storage_options, "on_commit": on_commit}
            try:
                run(change(df), self.table, self.folder, LANE, checkpoint=point.checkpoint, resume=point, **given)
            except StreamingQueryException as error:
                if TOO_BUSY not in str(error) or not starts_left:
                    raise
            else:
                return first
        raise AssertionError("the last start returns or raises")

    def frame(self, starting: str, *, strict: bool = True, per_batch: int = 20) -> DataFrame:
        """The decoded messages from these starting offsets on."""
        raw = (
            self.spark.readStream.format("weft_kafka")
            .option("kafka.bootstrap.servers", self.broker.bootstrap_servers)
            .option("subscribe", self.topic)
            .option("startingOffsets", starting)
            .option("maxOffsetsPerTrigger", per_batch)
            .option("failOnDataLoss", str(strict).lower())
            .load()
        )
        return decode_messages(raw, MESSAGE, select=None, where=None, keep_source=True)

    def lose_checkpoints(self) -> None:
        """Delete every checkpoint, as a new pod finds its scratch folder."""
        shutil.rmtree(Path(self.checkpoint).parent, ignore_errors=True)

    def check(self) -> None:
        """The table is equal to the oracle: each good message once, and each bad one a dead letter once."""
        found = self.table.snapshot().to_arrow(["id"]).column("id").to_pylist()
        assert sorted(found) == self.good
        assert self.live_rows() == len(self.good), "a message is there twice, or was"
        assert sorted(self.letters()) == sorted(self.bad)

    def commits(self) -> list[Data]:
        entries = CommitLog(self.table.env).read_after(LANE, 0)
        return [entry for entry in entries if isinstance(entry, Data)]

    def live_rows(self) -> int:
        """Input rows of live commits."""
        rolled_back = self.table.state().rolled_back.get(LANE, ())
        live = [entry for entry in self.commits() if not in_spans(rolled_back, entry.seq)]
        return sum(entry.rows + entry.rows_ignored for entry in live)

    def letters(self) -> list[Sent]:
        """Positions of the messages in the folder of dead letters."""
        store = open_store(default_folder(self.table.uri, LANE), self.storage_options)
        files = [store.get(StorePath(name)) or b"" for name, _ in store.list(StorePath("")) if name.endswith(".jsonl")]
        lines = [json.loads(line) for file in files for line in file.splitlines()]
        return [(line["topic"], line["partition"], line["offset"]) for line in lines]
