"""The sink: a streaming DataFrame into one lane of a table, each batch exactly once.

    driver   Writer.begin((query id, batch))  ->  the commit, if the batch is committed already: nothing to do
                 |  ticket
    tasks    mapInArrow: weft.storage.write.write_task.write_rows, one log file a task (`weft.streams.write.sink_task`)
                 |  reports, a few kilobytes each
    driver   Writer.commit: one DATA entry makes all of them visible

1. **Exactly once.** Spark replays a batch with the same query id, number and input, and the lane records both. A crash
   before the commit leaves files that no entry names; after the commit, the replayed batch is not written again.
2. **No shuffle, no second pass.** The tasks that read the source also write. The order of rows in the commit is the
   order of the partitions, in whatever order the tasks finish.
3. **A lane has one owner.** Starting a query claims the lane and fences the previous query, whose next batch fails with
   `Fenced`. The writer sends heartbeats while the query runs, and is closed when it ends.
4. **Errors are raised early.** Arguments, the schema of the DataFrame and the checkpoint are checked before the lane is
   claimed. Errors in the data fail the query (`StreamingQuery.exception`).
5. **No gaps.** A query that was fenced by a restore, or whose checkpoint does not agree with the table, fails.
   `weft.streams.write.resume` finds where it can continue.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_args

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from weft.storage import Commit, Table, Writer
from weft.storage.config.config_file import parse_duration
from weft.storage.errors import GapError, InvalidInput
from weft.storage.store.object_store import ObjectStore
from weft.storage.write.write_task import WriteTicket, discard
from weft.storage.write.write_task import check_columns as check_arrow_columns
from weft.streams.letters.letter_files import default_folder
from weft.streams.letters.limit import HINT as LIMIT_HINT
from weft.streams.letters.limit import LetterLimit, TooManyDeadLetters, frequent_reasons
from weft.streams.pipeline.file.model import OnError
from weft.streams.pipeline.file.pipeline_file import parse_lateness
from weft.streams.spark.for_workers import for_workers
from weft.streams.spark.task_errors import note_errors, worker_hints
from weft.streams.write.batch_trace import BatchTimes, batch_recorder
from weft.streams.write.dead_letter import SOURCE, DeadLetters, open_dead_letters
from weft.streams.write.decode import SOURCE_TYPES
from weft.streams.write.query_checkpoint import read_checkpoint, read_offsets
from weft.streams.write.resume import GAP_HINT, ResumePoint, check_follows
from weft.streams.write.sink_task import REPORT_TYPE, TaskReport, task_writer
from weft.streams.write.stateful_frame import check_state
from weft.streams.write.upkeep import Upkeep, UpkeepThread, upkeep_thread
from weft.streams.write.worker_deaths import run_despite_deaths

BATCH_ROWS: Final = 65_536
"""Rows per Arrow batch from Spark to Python, if `spark.sql.execution.arrow.maxBytesPerBatch` allows."""
LIST_BATCH_ROWS: Final = 4_096
"""The same for DataFrames with lists or maps: Spark reads the size of a batch after each row, and Arrow Java then
visits all rows since the last row whose list is not null."""
_ARROW_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_QUERY_ID: Final = "sql.streaming.queryId"
"""Spark's local property with the query id of the checkpoint, which a restart does not change."""


@dataclass(frozen=True, slots=True)
class CommitReport:
    """Report of one committed batch.

    Attributes:
        commit: The commit; if ``commit.replayed``, the batch was stored before and nothing was written.
        batch_id: Spark's number of the batch.
        rows_refused: Messages that went to the dead letters.
        seconds: Time from the start of the batch to its commit.
        committed_at_ms: Wall clock after the commit.
        source: End offsets of the batch in its sources, as recorded in the table; empty if not known.
        tombstones: Messages without a value that were skipped (`weft.streams.write.tombstones`).
        stored_bytes: Bytes of the log files; 0 for a replayed batch.
        deletes: Delete events among the rows; 0 for a replayed batch.
        unordered: Rows that changed nothing because they have no ordering value; 0 for a replayed batch.
    """

    commit: Commit
    batch_id: int
    rows_refused: int
    seconds: float
    committed_at_ms: int
    source: Mapping[str, Any] = field(default_factory=dict)
    tombstones: int = 0
    stored_bytes: int = 0
    deletes: int = 0
    unordered: int = 0


def write_stream(
    df: DataFrame,
    uri: str,
    stream: str,
    *,
    checkpoint: str,
    lane: str | None = None,
    trigger: str | None = "5 seconds",
    once: bool = False,
    dead_letter: str | None = None,
    on_error: OnError = "dead_letter",
    letter_limit: LetterLimit | None = None,
    takeover: bool = False,
    lateness: str | int | dt.timedelta | None = None,
    resume: ResumePoint | None = None,
    storage_options: Mapping[str, Any] | None = None,
    query_name: str | None = None,
    on_commit: Callable[[CommitReport], None] | None = None,
    upkeep: Upkeep | None = None,
) -> StreamingQuery:
    """Start a query that appends a streaming DataFrame to a table.

    Args:
        df: Key columns, the columns of whole groups of the stream, optionally ``_op``, and optionally the hidden column
            of `weft.streams.write.decode.decode_messages` (it is not stored; dead letters have its content).
        uri: Path or URL of the table.
        stream: A stream of its configuration.
        checkpoint: Folder of Spark's checkpoint, from which a restarted query continues.
        lane: Lane of this query; the name of the stream by default.
        trigger: Interval between batches, in the form of a pipeline file (``500 ms``, ``2 seconds``) or of Spark. With
            None the next batch begins as soon as one ends.
        once: Process what the source has now, then stop.
        dead_letter: Folder (path or fsspec URL) for messages that cannot be stored; by default
            ``<uri>_dead_letters/<lane>``, beside the table.
        on_error: With ``dead_letter`` such a message is stored there, and the rest of the batch is committed. With
            ``stop`` the first such message ends the query, and nothing of its batch is committed.
        letter_limit: How many dead letters are accepted. A batch that exceeds it ends the query with
            `TooManyDeadLetters`, and nothing of it is committed.
        takeover: Allow this query to continue a lane in which another query (another checkpoint) has written.
        lateness: An event's first ordering value is smaller than the largest before it by at most this much: ``10
            minutes`` or a timedelta for dates and times, an integer for integers. It must cover the distance between
            partitions of the source, also while the query catches up. Every batch then advances the watermark of the
            stream (`weft.Table.watermarks`). Later events are stored like any other, and counted.
        resume: From `weft.resume_point`: continue where the live commits of the lane end, also after a restore or an
            undo of the table. ``checkpoint`` and the DataFrame's starting offsets must be those of the point.
        storage_options: Options of the fsspec file system.
        query_name: Spark's name of the query.
        on_commit: Called on the driver after every batch, replayed ones included. If it raises, the query fails. The
            restarted query replays the batch, which is not written again.
        upkeep: Compaction in this process, and back-pressure (`weft.streams.write.upkeep`); neither by default.

    Raises:
        InvalidInput: An argument, a column or a type is wrong; or the DataFrame keeps state (aggregation,
            deduplication, join of streams) that the next start would not find. Nothing was started or claimed.
        NotFound: There is no such table or stream.
        StoreUnavailable: The table or the folder for dead letters cannot be written to.
        Conflict: The lane belongs to another stream, or another query.
        GapError: The checkpoint is ahead of the table, which was restored or undone; or it is an older copy, or lacks
            files. Nothing was claimed.
        LaneMoved: Another commit was made since ``resume`` was created. Nothing was written.
    """
    check_frame(df, streaming=True)
    if not isinstance(checkpoint, str) or not checkpoint:
        raise InvalidInput(
            "checkpoint is missing", hint="give each query its own folder, which is kept when the query ends"
        )
    if resume is not None and (resume.checkpoint, resume.lane) != (checkpoint, lane or stream):
        raise InvalidInput(
            f"the resume point is for checkpoint {resume.checkpoint!r} and lane {resume.lane!r}",
            hint="pass the checkpoint and the lane of the resume point",
        )
    within = check_lateness(lateness)
    table = Table.open(uri, storage_options=storage_options)
    check_columns(df, table, stream)
    spark = df.sparkSession
    if query_name is not None and any(query.name == query_name for query in spark.streams.active):
        raise InvalidInput(f"a query named {query_name!r} is running", hint="stop it first, or choose another name")
    check_state(df, checkpoint, anew=resume is not None and resume.anew)
    folder = _folder_for_errors(on_error, dead_letter, table.uri, lane or stream, storage_options)
    target = _stream_writer(df, checkpoint, None if once else trigger, query_name, once=once)
    previous = read_checkpoint(spark, checkpoint)
    check_follows(spark, uri, storage_options, lane or stream, previous)
    takeover |= resume is not None and resume.anew
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(
            table.writer(stream, lane, takeover=takeover, query_id=previous.query_id, lateness=within)
        )
        if resume is not None:
            resume.check(writer.source)
            if resume.abandoned is not None and folder is not None:
                # The previous query cannot commit this batch any more, and its messages are read again.
                DeadLetters(folder, *resume.abandoned, stream, writer.lane).discard_others(())
        keeper = stack.enter_context(upkeep_thread(upkeep, uri, storage_options, _seconds(trigger)))
        sink = _Sink(writer, stream, folder, checkpoint, on_commit, letter_limit, keeper)
        query = target.foreachBatch(sink).start()
        # Until here the stack closes the writer after an error; from now on `_Attend` does when the query ends.
        end = stack.pop_all()
    _attend(spark, query, writer, end)
    return query


def _folder_for_errors(
    on_error: OnError,
    dead_letter: str | None,
    table_uri: str,
    lane: str,
    storage_options: Mapping[str, Any] | None,
) -> ObjectStore | None:
    """Open the folder of dead letters; None if the first message that cannot be stored ends the query."""
    if on_error not in get_args(OnError):
        raise InvalidInput(f"on_error: unknown value {on_error!r}", hint=f"use {' or '.join(get_args(OnError))}")
    if on_error == "stop":
        if dead_letter is not None:
            raise InvalidInput("dead_letter cannot be combined with on_error='stop'", hint="remove one of the two")
        return None
    folder = default_folder(table_uri, lane) if dead_letter is None else dead_letter
    return open_dead_letters(folder, table_uri, storage_options)


class _Sink:
    """The function that Spark calls for each batch of one run of a query."""

    def __init__(
        self,
        writer: Writer,
        stream: str,
        folder: ObjectStore | None,
        checkpoint: str,
        on_commit: Callable[[CommitReport], None] | None,
        limit: LetterLimit | None = None,
        keeper: UpkeepThread | None = None,
    ) -> None:
        self._writer, self._stream, self._folder = writer, stream, folder
        self._keeper = keeper
        self._checkpoint, self._on_commit = checkpoint, on_commit
        self._fresh = True
        self._record = batch_recorder()
        self._limit, self._letters = limit, 0

    @note_errors
    def __call__(self, df: DataFrame, batch_id: int) -> None:
        if self._keeper is not None:
            self._keeper.wait_before_batch()
        began = time.monotonic()
        commit, reports = self._write(df, batch_id)
        self._fresh = False
        if self._keeper is not None:
            self._keeper.committed()
        if self._on_commit is not None:
            seconds = time.monotonic() - began
            now_ms, source = time.time_ns() // 1_000_000, self._writer.source
            dead = sum(report.letters for report in reports)
            dropped_keys = sum(report.tombstones for report in reports)
            files = [file for report in reports for file in report.written.files]
            size, deletes = sum(file.file.size for file in files), sum(file.deletes for file in files)
            unordered = sum(report.written.rows_unordered for report in reports)
            self._on_commit(
                CommitReport(commit, batch_id, dead, seconds, now_ms, source, dropped_keys, size, deletes, unordered)
            )

    def _write(self, df: DataFrame, batch_id: int) -> tuple[Commit, Sequence[TaskReport]]:
        began = time.time_ns()
        spark = df.sparkSession
        query_id = spark.sparkContext.getLocalProperty(_QUERY_ID)
        if not query_id:
            raise InvalidInput(
                "Spark does not pass the id of the query to this thread", hint="do not set PYSPARK_PIN_THREAD=false"
            )
        try:
            ticket = self._writer.begin((query_id, batch_id))
        except GapError as error:
            raise GapError(error.message, hint=GAP_HINT) from None
        if isinstance(ticket, Commit):
            return ticket, ()
        letters = None
        if self._folder is not None:
            letters = DeadLetters(self._folder, query_id, batch_id, self._stream, self._writer.lane)
        set_batch_rows(df)
        tasks_began = time.time_ns()
        reports = run_tasks(df, ticket, letters)
        tasks_ended = time.time_ns()
        if letters is not None and self._fresh:
            # Only the first batch of a run may be a batch that an earlier run began.
            letters.discard_others({report.task for report in reports if report.letters})
        if letters is not None:
            self._count_letters(ticket, letters, reports)
        # The offsets are for users and for `weft.streams.write.resume`; Spark reads its own copy in the checkpoint.
        source = read_offsets(spark, self._checkpoint, batch_id)
        commit = self._writer.commit(ticket, [report.written for report in reports], source=source)
        if self._record is not None:
            tasks = [report.times for report in reports if report.times is not None]
            attributes: dict[str, str | int] = {
                "stream": self._stream,
                "lane": commit.lane,
                "batch": batch_id,
                "commit": commit.seq,
                "rows": commit.rows,
            }
            self._record(BatchTimes(began, tasks_began, tasks_ended, time.time_ns(), tasks, attributes))
        return commit, reports

    def _count_letters(self, ticket: WriteTicket, letters: DeadLetters, reports: Sequence[TaskReport]) -> None:
        """Count the dead letters of a batch before its commit.

        Raises:
            TooManyDeadLetters: There are more than the limit. The log files of the batch are removed. Its dead letters
                stay, so that the user can look at them; a batch that runs again replaces them.
        """
        count = sum(report.letters for report in reports)
        rows = sum(file.file.rows for report in reports for file in report.written.files)
        ignored = sum(report.written.rows_ignored + report.tombstones for report in reports)
        total = count + rows + ignored
        exceeded = None if self._limit is None else self._limit.describe_excess(count, total, self._letters)
        if exceeded is not None:
            discard(ticket, (report.written for report in reports))
            reasons = frequent_reasons(letters.store, letters.query_id, letters.batch)
            raise TooManyDeadLetters(f"stream {self._stream!r}: {exceeded}: {reasons}", hint=LIMIT_HINT)
        self._letters += count


def run_tasks(df: DataFrame, ticket: WriteTicket, letters: DeadLetters | None) -> list[TaskReport]:
    """Write the rows of a DataFrame, and return the reports of the tasks in the order of the partitions.

    Raises:
        InvalidInput: A row cannot be stored. The files that the tasks wrote are removed.
    """
    # `mapInArrow` parses names of columns as expressions, in which dots and backquotes have a meaning.
    numbered = df.toDF(*(f"c{number}" for number in range(len(df.columns))))
    task = task_writer(ticket, letters, df.columns)
    with worker_hints():
        reported = numbered.mapInArrow(for_workers(task), REPORT_TYPE)
        rows = run_despite_deaths(df.sparkSession.sparkContext, reported.collect)
    reports: list[TaskReport] = [pickle.loads(row.report) for row in rows]  # noqa: S301 - written by our own tasks
    reports.sort(key=lambda report: report.task)
    for report in reports:
        if report.refused is not None:
            # A query that fails and is restarted repeatedly must not fill the store.
            discard(ticket, (report.written for report in reports))
            raise report.refused
    return reports


def set_batch_rows(df: DataFrame) -> None:
    """Set the number of rows per Arrow batch. The session is a copy for this query, so it does not affect others."""
    spark, rows = df.sparkSession, int(df.sparkSession.conf.get(_ARROW_ROWS) or 0)
    if any(_has_lists(field.dataType) for field in df.schema if field.name != SOURCE):
        if not 0 < rows < LIST_BATCH_ROWS:
            spark.conf.set(_ARROW_ROWS, LIST_BATCH_ROWS)
    elif 0 < rows < BATCH_ROWS:
        spark.conf.set(_ARROW_ROWS, BATCH_ROWS)


def _has_lists(data_type: DataType) -> bool:
    if isinstance(data_type, StructType):
        return any(_has_lists(field.dataType) for field in data_type)
    return isinstance(data_type, ArrayType | MapType)


class _Attend(StreamingQueryListener):
    """Sends heartbeats of the writer of one run, and closes it when the run has ended."""

    def __init__(self, spark: SparkSession, run_id: str, writer: Writer, end: contextlib.ExitStack) -> None:
        self._spark, self._run_id, self._writer, self._end = spark, run_id, writer, end

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Send a heartbeat of the writer. Spark calls this after a batch, and regularly without batches."""
        if str(event.progress.runId) == self._run_id:
            self._writer.heartbeat()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Send a heartbeat of the writer. Spark calls this if there was no message for some seconds."""
        if str(event.runId) == self._run_id:
            self._writer.heartbeat()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Close the writer if its query has ended. Spark calls this when any query ends."""
        if str(event.runId) == self._run_id:
            self.close()

    def close(self) -> None:
        """Close the writer and stop listening. A second call does nothing."""
        self._end.close()
        self._spark.streams.removeListener(self)


def _attend(spark: SparkSession, query: StreamingQuery, writer: Writer, end: contextlib.ExitStack) -> None:
    listener = _Attend(spark, str(query.runId), writer, end)
    spark.streams.addListener(listener)
    if not query.isActive:  # it may have ended before the listener was added
        listener.close()


def _seconds(trigger: str | None) -> float:
    """Return the trigger interval in seconds; 1 if there is none, or if only Spark can parse it."""
    try:
        return parse_duration(trigger)
    except ValueError:
        return 1.0


def _stream_writer(
    df: DataFrame, checkpoint: str, trigger: str | None, query_name: str | None, *, once: bool
) -> DataStreamWriter:
    target = df.writeStream.option("checkpointLocation", checkpoint)
    if query_name is not None:
        target = target.queryName(query_name)
    if once:
        return target.trigger(availableNow=True)
    if trigger is None:
        return target
    # Spark does not parse "500 ms", but it parses forms that are not allowed in a pipeline file.
    with contextlib.suppress(ValueError):
        trigger = f"{round(parse_duration(trigger) * 1000)} milliseconds"
    try:
        return target.trigger(processingTime=trigger)
    except PySparkException as error:
        raise InvalidInput(
            f"trigger {trigger!r} is not an interval: {error}",
            hint="use e.g. '500 ms', '2 seconds' or '1 minute'",
        ) from None


def check_lateness(lateness: str | int | dt.timedelta | None) -> int | dt.timedelta | None:
    """Parse a lateness; None stays None.

    Raises:
        InvalidInput: The value is neither a duration nor an integer.
    """
    if lateness is None:
        return None
    try:
        return parse_lateness(lateness)
    except ValueError as error:
        raise InvalidInput(f"lateness: {error}", hint="leave it out if no reader waits for this stream") from None


def check_frame(df: DataFrame, *, streaming: bool) -> None:
    """Check that a DataFrame can be written from this process, and that it is a stream if ``streaming``, else not.

    Raises:
        InvalidInput: The DataFrame belongs to a Spark Connect session, or is (not) a stream.
    """
    if not isinstance(df, ClassicDataFrame):
        raise InvalidInput(
            "the DataFrame belongs to a Spark Connect session",
            hint="use a classic SparkSession in the driver, where the writer runs",
        )
    if df.isStreaming != streaming:
        raise InvalidInput(
            "the DataFrame is not a stream" if streaming else "the DataFrame is a stream",
            hint="use write_batch" if streaming else "use write_stream",
        )


def check_columns(df: DataFrame, table: Table, stream: str) -> None:
    """Check the columns of a DataFrame with an empty batch.

    Raises:
        InvalidInput: A column is missing or unknown, or its type does not fit the table's column.
        NotFound: The table has no such stream.
    """
    schema = table.schema
    stream_spec = schema.stream(stream)
    fields = []
    for column in df.schema:
        if column.name == SOURCE:
            if column.dataType.simpleString() not in {kind.simpleString() for kind in SOURCE_TYPES}:
                raise InvalidInput(
                    f"column {SOURCE!r} does not have the type that decode_messages gives it",
                    hint="do not change the column, or drop it",
                )
            continue
        try:
            fields.append(pa.field(column.name, to_arrow_type(column.dataType, timezone="UTC")))
        except PySparkException as error:
            raise InvalidInput(
                f"column {column.name!r} has type {column.dataType.simpleString()}, which cannot be stored: {error}",
                hint="cast it to the type of the table's column",
            ) from None
    check_arrow_columns(pa.schema(fields), schema, stream_spec)
