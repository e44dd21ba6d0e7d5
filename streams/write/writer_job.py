"""The process of one writer of a pipeline: source, decoding, sink, and status reports.

    python -m weft.streams.write.writer_job PIPELINE WRITER [--once] [--http [ADDRESS:]PORT]

WRITER may also be the name of the compaction service, if that is a Spark application
(`weft.streams.write.cluster_job`). `weft.streams.pipeline.run.supervisor` starts the process;
`weft.streams.pipeline.run.error_kinds` defines its exit codes. Started without a supervisor (spark-submit, the Spark
operator) it serves its metrics itself, with ``--http``. On SIGTERM the current batch is finished if that takes at most
`DRAIN_SECONDS`, otherwise abandoned. In both cases the next process continues after the last commit.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Final

from weft.streams.pipeline.run.error_kinds import Ending, describe, ending_of, is_outage
from weft.streams.pipeline.run.outage import JobOutages
from weft.streams.pipeline.run.reporter import Reporter
from weft.streams.pipeline.run.stop_signal import StopSignal, end_process
from weft.streams.pipeline.run.writer_outage import (
    await_registry,
    await_source,
    await_store,
    report_brokers,
    report_executors,
    report_missing_topics,
    unreachable,
)
from weft.streams.write.writer_progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from weft.streams.pipeline.file.pipeline import Pipeline, WriterSpec
    from weft.streams.pipeline.run.lag import LagMeter
    from weft.streams.pipeline.run.report import Report
    from weft.streams.write.resume import ResumePoint
    from weft.streams.write.upkeep import Upkeep

REPORT_SECONDS: Final = 0.5  # often enough for a terminal
DRAIN_SECONDS: Final = (
    8.0  # most batches end in time; with the stop of Spark the total stays below `job_process.STOP_SECONDS`
)
MAX_STARTS: Final = (
    3  # a writer that is being fenced may commit one more batch after the lane was read and before it is claimed
)

_NETWORK: Final = frozenset(
    {
        "java.net.ConnectException",
        "java.net.NoRouteToHostException",
        "java.net.UnknownHostException",
        "org.apache.hadoop.net.ConnectTimeoutException",
        "org.apache.kafka.common.errors.DisconnectException",
        "org.apache.kafka.common.errors.TimeoutException",
    }
)
"""JVM exceptions that mean that a store or broker that Spark accesses (for example for its checkpoint) does not answer.
Their superclasses also include other errors, such as those of the socket of a Python worker that has died."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the writer; returns the exit code of the process."""
    stop = StopSignal(ends_start=True)
    parser = argparse.ArgumentParser(prog="weft.streams.write.writer_job", description="One writer of a pipeline.")
    parser.add_argument("pipeline")
    parser.add_argument("writer")
    parser.add_argument("--once", action="store_true", help="write what the source has now, then exit")
    parser.add_argument("--http", metavar="[ADDRESS:]PORT", help="serve /metrics, /healthz and /readyz")
    options = parser.parse_args(arguments)
    if options.http is None:
        return _report_run(options, Reporter.from_environment(), stop)
    from weft.storage.errors import InvalidInput
    from weft.streams.pipeline.run.http_status import StatusPage, parse_address, serve_status, unsupervised_status

    page = StatusPage()

    def show(report: Report) -> None:
        page.update([unsupervised_status(options.writer, report)])

    with contextlib.ExitStack() as stack:
        try:
            address, requested_port = parse_address(options.http)
            port = stack.enter_context(serve_status(page, address, requested_port))
        except InvalidInput as error:
            parser.error(describe(error))
        if requested_port == 0:
            sys.stderr.write(f"--http 0: http://{address}:{port}/metrics\n")
            sys.stderr.flush()
        return _report_run(options, Reporter.from_environment(show), stop)


def _report_run(options: argparse.Namespace, reporter: Reporter, stop: StopSignal) -> int:
    """Run the writer, and report how it ends; returns the exit code."""
    reporter.update(doing="starting")
    outages = JobOutages(reporter, stop)
    pipeline = None
    try:
        from weft.streams.pipeline.file.pipeline import load_pipeline
        from weft.streams.pipeline.run.run import COMPACTION

        pipeline = load_pipeline(options.pipeline)
        if options.writer == pipeline.service_name(COMPACTION):
            from weft.streams.write.cluster_job import compact_on_cluster

            return compact_on_cluster(options.pipeline, stop, reporter, once=options.once)
        _run(pipeline, _find_writer(pipeline, options.writer), reporter, stop, outages, once=options.once)
    except Exception as error:
        from weft.streams.kafka.errors import TopicMissing

        failure = failure_of(error)
        if failure is error:
            traceback.print_exc()
        else:
            sys.stderr.write(f"{error}\n")
        reporter.update(
            doing="failed",
            rows_per_second=0.0,
            lag=None,
            complete_at_ms=None,
            message=describe(failure),
            error_code=getattr(failure, "code", ""),
        )
        if is_outage(failure) and pipeline is not None:
            outages.report_outage(unreachable(failure, pipeline, options.writer), describe(failure))
        # A run with --once has already waited for the topic as long as it may.
        return Ending.REFUSED if options.once and isinstance(failure, TopicMissing) else ending_of(failure)
    if stop:
        reporter.update(lag=None, complete_at_ms=None)  # the batch in flight may have been abandoned
    reporter.update(doing="ended", rows_per_second=0.0)
    return 0


def _find_writer(pipeline: Pipeline, name: str) -> WriterSpec:
    """Return the writer with a name.

    Raises:
        InvalidInput: There is no such writer.
    """
    from weft.storage.errors import InvalidInput
    from weft.streams.pipeline.run.run import CLEAN, PUBLISH, TTL

    for service, work in ((CLEAN, "cleaning"), (TTL, "the time to live"), (PUBLISH, "publishing")):
        if name == pipeline.service_name(service):
            raise InvalidInput(
                f"{work} is not a Spark application: it needs no executors",
                hint=f"run it with weft run {pipeline.path} --only {name}",
            )
    return pipeline.writer(name)


def _run(
    pipeline: Pipeline, writer: WriterSpec, reporter: Reporter, stop: StopSignal, outages: JobOutages, *, once: bool
) -> None:
    from weft.streams.kafka.skipped_offsets import SKIPPED
    from weft.streams.spark.executors import ExecutorWatch
    from weft.streams.spark.session import build_session
    from weft.streams.write.batch_trace import flush_traces
    from weft.streams.write.upkeep import upkeep_of

    reporter.update(trigger_seconds=writer.trigger_seconds)
    await_source(writer, stop, outages, once=once)
    await_registry(writer, stop, outages, once=once)
    if not stop:
        await_store(pipeline, outages, once=once)
    if stop:
        return
    with _planning(pipeline, writer) as python:
        scratch = pipeline.state / "scratch" / writer.name
        spark = build_session(f"weft {writer.name}", writer.spark, scratch=scratch, planner=python)
        try:
            if stop:
                return
            executors = ExecutorWatch(spark)
            with _meter(writer) as meter:
                progress = Progress(
                    reporter,
                    writer.trigger_seconds,
                    meter,
                    waits=partial(report_brokers, outages, writer),
                    starved=partial(report_executors, outages, executors),
                    skipped=SKIPPED.total,
                    lacks=partial(report_missing_topics, outages, writer),
                )
                upkeep = None if once else upkeep_of(pipeline, reporter, stop)
                before = reporter.report.progress
                query = _start(spark, pipeline, writer, progress, upkeep, once=once, python=python)
                while not query.awaitTermination(REPORT_SECONDS):  # type: ignore[arg-type]  # fractions are fine
                    progress.observe(query)
                    if reporter.report.progress > before:
                        stop.started()
                    if stop:
                        reporter.update(doing="stopping", steady=False)
                        _drain(query)
                        query.stop()
                        break
                progress.observe(query)
                if once and not stop:
                    _finish_lane(pipeline, writer, str(query.id))
        finally:
            flush_traces()
            with contextlib.suppress(Exception):  # keep the first error; the JVM ends with this process
                spark.stop()


def _finish_lane(pipeline: Pipeline, writer: WriterSpec, query_id: str) -> None:
    """Finish the lane after the writer has read everything, so that it does not hold back the watermark of its stream.

    The next run continues the lane. A run that was stopped has not read everything, and does not finish its lane.
    """
    from weft.storage import Table

    table = Table.open(pipeline.table.uri, storage_options=pipeline.table.storage_options)
    with table.writer(writer.stream, writer.lane, query_id=query_id, takeover=writer.takeover) as last:
        last.finish()


@contextlib.contextmanager
def _planning(pipeline: Pipeline, writer: WriterSpec) -> Iterator[str]:
    """Yield the path of the Python that plans the source: for a Kafka source, a stand-in for threads of this process.

    Other sources may be Python data sources that Spark has to look up, and that expect separate processes.
    """
    from weft.streams import kafka
    from weft.streams.spark.planning_threads import PlanningThreads

    if writer.reader_format != kafka.FORMAT:
        yield sys.executable
        return
    with PlanningThreads(pipeline.state / "planning" / writer.name) as threads:
        yield threads.python


def _meter(writer: WriterSpec) -> contextlib.AbstractContextManager[LagMeter | None]:
    """Measure the writer's lag during the block; the value is None for a source other than ``weft_kafka``."""
    from weft.streams import kafka
    from weft.streams.kafka.options import parse_options
    from weft.streams.pipeline.run.lag import LagMeter

    if writer.reader_format != kafka.FORMAT:
        return contextlib.nullcontext()
    options = parse_options(writer.reader_options, default_starting="latest")
    return LagMeter(options, every_seconds=writer.trigger_seconds)


def _start(
    spark: SparkSession,
    pipeline: Pipeline,
    writer: WriterSpec,
    progress: Progress,
    upkeep: Upkeep | None = None,
    *,
    once: bool,
    python: str,
) -> StreamingQuery:
    """Start the query at the end of its checkpoint or, with ``resume: table``, of the lane's live commits."""
    from weft.storage import Table
    from weft.streams.pipeline.file.check import check_deletes, exact_fields, key_of
    from weft.streams.write.left_out import partial_columns
    from weft.streams.write.query_checkpoint import check_place, read_checkpoint, read_offsets
    from weft.streams.write.resume import LaneMoved, resume_point
    from weft.streams.write.sink import write_stream

    if writer.resume == "checkpoint":
        check_place(spark, writer.checkpoint)
    location, key = pipeline.table, writer.key
    schema = Table.open(location.uri, storage_options=location.storage_options).schema
    stream = schema.stream(writer.stream)
    partial_names, exact = partial_columns(schema, stream), exact_fields(writer, schema)
    if writer.tombstones == "delete":
        check_deletes(writer, stream, schema)  # the pipeline file may lack the table's configuration
        key = key_of(writer, schema)
    for tries_left in reversed(range(MAX_STARTS)):
        point = None
        if writer.resume == "table":
            point = resume_point(
                spark,
                location.uri,
                writer.lane,
                checkpoint=writer.checkpoint,
                storage_options=location.storage_options,
            )
        folder = writer.checkpoint if point is None else point.checkpoint
        last = read_checkpoint(spark, folder).last
        if last is not None:
            progress.reached(read_offsets(spark, folder, last))
        try:
            return write_stream(
                read_events(spark, writer, point, key, python=python, partial_names=partial_names, exact=exact),
                location.uri,
                writer.stream,
                checkpoint=folder,
                lane=writer.lane,
                trigger=f"{round(writer.trigger_seconds * 1000)} milliseconds",
                once=once,
                dead_letter=writer.dead_letter,
                on_error=writer.on_error,
                letter_limit=writer.letter_limit,
                takeover=writer.takeover,
                lateness=writer.lateness,
                resume=point,
                storage_options=location.storage_options,
                query_name=writer.name,
                on_commit=progress.committed,
                upkeep=upkeep,
            )
        except LaneMoved:
            if not tries_left:
                raise
    raise AssertionError("the last try returns or raises")


def read_events(
    spark: SparkSession,
    writer: WriterSpec,
    point: ResumePoint | None = None,
    key: Mapping[str, str] | None = None,
    *,
    python: str = sys.executable,
    partial_names: AbstractSet[str] = frozenset(),
    exact: AbstractSet[str] = frozenset(),
) -> DataFrame:
    """Create a streaming DataFrame with the events of the stream: the columns that the sink stores.

    Args:
        spark: The session.
        writer: The writer, which describes the source and the decoding.
        point: Where a Kafka source begins, unless the query has a checkpoint.
        key: Fields of the Kafka key and their types, from `weft.streams.pipeline.file.check.key_of`.
        python: Path of the Python that plans a Kafka source, see `weft.streams.spark.data_sources.register_source`.
        partial_names: Columns that an event may lack, see `weft.streams.write.left_out.partial_columns`.
        exact: Fields of the message that identify a row, from `weft.streams.pipeline.file.check.exact_fields`.

    Raises:
        InvalidInput: The source, an option or an expression is wrong.
    """
    from weft.streams import kafka
    from weft.streams.spark.data_sources import register_source
    from weft.streams.write.decode_events import decode_events
    from weft.streams.write.file_source import read_files

    if writer.reader_format == kafka.FORMAT:
        kafka.register(spark, python=python)
    if writer.reader_format == "weft":
        # Errors of a source that Spark finds by itself are not signed (`weft.streams.spark.task_errors`).
        with contextlib.suppress(ImportError):
            register_source(spark, import_module("pyspark_weft").DefaultSource)
    if writer.file_format is not None:
        return decode_events(read_files(spark, writer), writer, key, exact=exact)
    options = dict(writer.reader_options)
    if point is not None:
        topics = options["subscribe"].split(",")
        options["startingOffsets"] = point.starting_offsets(options["startingOffsets"], topics)
    if writer.reader_format == kafka.FORMAT and writer.on_error == "dead_letter":
        options.setdefault("includeHeaders", "true")  # for dead letters
    reader = spark.readStream.format(writer.reader_format).options(**options)
    if writer.reader_schema is not None:
        reader = reader.schema(writer.reader_schema)
    rows = reader.load()
    return decode_events(rows, writer, key, partial=partial_names, exact=exact)


def _drain(query: StreamingQuery) -> None:
    """Wait for the end of the current batch, for at most `DRAIN_SECONDS`."""
    deadline = time.monotonic() + DRAIN_SECONDS
    before = _last_batch(query)
    while time.monotonic() < deadline and query.status["isTriggerActive"] and _last_batch(query) == before:
        time.sleep(REPORT_SECONDS / 5)


def _last_batch(query: StreamingQuery) -> int | None:
    last = query.lastProgress
    return None if last is None else last.batchId


def failure_of(error: Exception) -> Exception:
    """Return the cause of a Spark error: the error of weft in its text, or an error of weft for its class."""
    from pyspark.errors import AnalysisException, ParseException, PySparkException

    import weft.streams.formats.registry
    import weft.streams.kafka.errors  # noqa: F401 - so that their errors are found
    from weft.storage.errors import InvalidInput, StoreUnavailable, TableError
    from weft.streams.spark.java_causes import java_causes
    from weft.streams.spark.sql_text import spark_message
    from weft.streams.spark.task_errors import error_in, python_problem

    if isinstance(error, TableError):
        return error
    if (known_error := error_in(str(error))) is not None:
        return known_error
    if isinstance(error, PySparkException) and (problem := python_problem(error)) is not None:
        return problem
    if (cause := next((cause for cause in java_causes(error) if cause.classes & _NETWORK), None)) is not None:
        return StoreUnavailable(f"Spark has no connection to a store or broker: {cause.message}")
    # Spark raises AnalysisException also if code of a Python data source fails, for any reason; then a retry may help.
    if not isinstance(error, AnalysisException | ParseException):
        return error
    if error.getCondition() != "PYTHON_DATA_SOURCE_ERROR":
        return InvalidInput(spark_message(error), hint="fix source, select or where of this writer")
    return error


if __name__ == "__main__":
    end_process(main())
