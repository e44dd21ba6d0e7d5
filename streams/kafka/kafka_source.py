"""The data source ``weft_kafka`` for ``spark.readStream`` and ``spark.read``.

`KafkaSource` runs in a short-lived Python process at ``load()``. The planning methods of `KafkaStreamReader` run in one
Python process beside the driver, which lives as long as the query. ``read`` runs in the Python workers of the
executors, on an unpickled copy of the reader. So a reader has no connection until it plans.

A new query starts with the empty offset ``{}``. Its first batch only stores the starting offsets in the checkpoint; see
`weft.streams.kafka.offset_plan` for the reason. So ``Trigger.Once`` reads nothing in a first run; use
``Trigger.AvailableNow``.

Limits: if retention deletes records of a new partition before the query first sees it, the query starts at the first
remaining record, without an error. On brokers without topic ids (Kafka before 2.8) a topic that was deleted and created
again is detected only if its leader epoch or the end of its log is smaller than before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import (
    StructType,
)

from weft.storage.errors import InvalidInput
from weft.streams.kafka.cluster import Cluster, Connection
from weft.streams.kafka.errors import SourceRefused, SourceUnavailable, logger, report_losses, report_recreated
from weft.streams.kafka.fetch import HEADERS, SCHEMA, read_range
from weft.streams.kafka.offset_plan import (
    Log,
    OffsetRange,
    Offsets,
    Position,
    Topics,
    count_deleted,
    drop_recreated,
    format_offsets,
    format_position,
    identify,
    parse_position,
    plan_end,
    plan_ranges,
    plan_start,
    restart_recreated,
)
from weft.streams.kafka.options import KafkaOptions, parse_options
from weft.streams.kafka.recreated_topic import find_recreated
from weft.streams.kafka.skipped_offsets import SKIPPED
from weft.streams.spark.for_workers import ForWorkers, Source

FORMAT: Final = "weft_kafka"

Json = dict[str, Any]


def columns(*, include_headers: bool) -> StructType:
    """Return the schema of the source: `weft.streams.kafka.fetch.SCHEMA` as Spark types, as in Spark's Kafka source."""
    return from_arrow_schema(SCHEMA.append(HEADERS) if include_headers else SCHEMA)


class KafkaSource(Source):
    """The data source; Spark creates an instance for every ``load()``."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format(...)``."""
        return FORMAT

    def schema(self) -> StructType:
        """Check the options, so that ``load()`` reports wrong ones, and return the columns.

        Raises:
            InvalidInput: See `parse_options`; or librdkafka does not accept a setting.
        """
        options = self._parse("latest")
        Connection(options).close()
        return columns(include_headers=options.include_headers)

    def reader(self, schema: StructType) -> KafkaBatchReader:
        """Return the reader for ``spark.read``, from ``startingOffsets`` (default earliest) to the end of the logs."""
        options = self._parse("earliest")
        _check_schema(schema, options)
        if options.max_offsets_per_trigger is not None:
            raise InvalidInput("option 'maxOffsetsPerTrigger' is for streams", hint="remove it from spark.read")
        if options.starting == "latest":
            raise InvalidInput(
                "option 'startingOffsets' is 'latest': a batch would be empty",
                hint="use earliest, or JSON with offsets",
            )
        return KafkaBatchReader(options)

    def streamReader(self, schema: StructType) -> KafkaStreamReader:  # noqa: N802 - Spark's name
        """Return the reader for ``spark.readStream``; ``startingOffsets`` is latest by default."""
        options = self._parse("latest")
        _check_schema(schema, options)
        return KafkaStreamReader(options)

    def _parse(self, default_starting: Literal["earliest", "latest"]) -> KafkaOptions:
        return parse_options(self.options, default_starting=default_starting)


def _check_schema(schema: StructType, options: KafkaOptions) -> None:
    expected = columns(include_headers=options.include_headers)
    if schema != expected:
        raise InvalidInput(
            f"weft_kafka does not accept a schema; its columns are: {', '.join(expected.fieldNames())}",
            hint="leave out .schema(...) and decode the value with from_json or another function",
        )


class KafkaBatchReader(ForWorkers, DataSourceReader):
    """A batch of all records that the topics have when it is planned."""

    def __init__(self, options: KafkaOptions) -> None:
        """Do not connect yet, because Spark pickles the reader."""
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges from the starting offsets to the ends of the logs.

        Raises:
            TopicMissing: A topic does not exist.
            SourceUnavailable: The brokers do not answer.
            DataLoss: Kafka does not have the starting offsets any more, or the topic was created again.
        """
        cluster = Cluster(self._options)
        try:
            topics = cluster.load_topics(wait_for_topics=False)
            cluster.require(topics.logs, (), waited=False)
        finally:
            cluster.close()
        start = _plan_start(self._options, topics)
        end = {partition: log.high for partition, log in topics.logs.items()}
        return plan_ranges(start, end, self._options.min_partitions, topics.identities)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range. If there are no ranges, Spark adds a partition of another type, which is empty."""
        return read_range(partition, self._options) if isinstance(partition, OffsetRange) else iter(())


def _plan_start(options: KafkaOptions, topics: Topics) -> Offsets:
    """Plan the first offsets of a query without a checkpoint, and report offsets that Kafka does not have any more."""
    recreated = find_recreated(options.starting_identities, topics.identities)
    report_recreated(recreated.values(), strict=options.fail_on_data_loss)
    plan = plan_start(restart_recreated(options.starting, recreated), topics.logs)
    report_losses(plan.losses, strict=options.fail_on_data_loss)
    return plan.offsets


class KafkaStreamReader(ForWorkers, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches; its state is a connection and the last response of the brokers."""

    def __init__(self, options: KafkaOptions) -> None:
        """Do not connect yet, because Spark pickles the reader."""
        self._options = options
        self._cluster = Cluster(options)
        self._waited = False
        self._required = False
        self._target: Offsets | None = None
        self._latest: Offsets | None = None

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's name
        """Return the empty offset for every new query, because Spark does not store the initial offset."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of the option ``maxOffsetsPerTrigger``."""
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Remember the ends of the logs, where the run ends. Later records are not read."""
        self._target = {partition: log.high for partition, log in self._cluster.load_logs(wait_for_topics=True).items()}
        self._waited = True

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802 - Spark's name
        """Return the end of the batch that begins at ``start``.

        During an outage of the brokers a running query waits: it returns ``start``, and tries again at the next
        trigger. A query that starts, or that runs with ``Trigger.AvailableNow``, fails instead.

        Raises:
            TopicMissing: A subscribed topic does not exist when the query starts.
            SourceUnavailable: The brokers do not answer when the query starts, or with ``Trigger.AvailableNow``.
            SourceRefused: The brokers refuse access.
            DataLoss: Kafka does not have the offsets after ``start`` any more, or the topic was created again.
        """
        assert isinstance(limit, ReadAllAvailable | ReadMaxRows), (
            f"Spark passed a limit that this reader did not return: {limit}"
        )
        begin = parse_position(start)
        try:
            topics = self._cluster.load_topics(wait_for_topics=not self._waited)
        except SourceUnavailable as error:
            if isinstance(error, SourceRefused) or not begin.offsets or self._target is not None:
                raise
            logger.warning("the brokers do not answer; the next trigger tries again: %s", error.message)
            self._latest = None
            return start
        self._waited = True
        if not self._required:
            # Only in the first call: a topic that is deleted later is reported as a loss.
            self._cluster.require(topics.logs, begin.offsets, waited=True)
            self._required = True
        self._latest = {partition: log.high for partition, log in topics.logs.items()}
        return format_position(self._plan_batch(begin, topics, limit) if begin.offsets else self._plan_first(topics))

    def _plan_first(self, topics: Topics) -> Position:
        if self._target is not None:
            ends = self._target
            logs = {p: Log(log.low, min(log.high, ends[p])) for p, log in topics.logs.items() if p in ends}
            topics = Topics(logs, topics.identities)
        return identify(_plan_start(self._options, topics), Position({}, {}), topics.identities)

    def _plan_batch(self, begin: Position, topics: Topics, limit: ReadLimit) -> Position:
        strict = self._options.fail_on_data_loss
        start, recreated = drop_recreated(begin, topics.identities)
        report_recreated(recreated, strict=strict)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        plan = plan_end(start.offsets, topics.logs, self._options.topics, limit=most, target=self._target)
        report_losses(plan.losses, strict=strict)
        SKIPPED.add(count_deleted(start.offsets, topics.logs))
        return identify(plan.offsets, start, topics.identities)

    def reportLatestOffset(self) -> Json | None:  # noqa: N802 - Spark's name
        """Return the ends of the logs when the last batch was planned; Spark's progress shows the lag by them."""
        return None if self._latest is None else format_offsets(self._latest)

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """Return the ranges between two offsets of the checkpoint, without brokers, so that a replay plans the same."""
        finish = parse_position(end)
        begin, _ = drop_recreated(parse_position(start), finish.identities)
        return plan_ranges(begin.offsets, finish.offsets, self._options.min_partitions, finish.identities)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range, on an executor."""
        assert isinstance(partition, OffsetRange)
        return read_range(partition, self._options)

    def stop(self) -> None:
        """Disconnect."""
        self._cluster.close()
