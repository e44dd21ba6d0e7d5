"""Tries Spark with the settings of the pipeline, and decodes samples of messages as the writers would."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from weft.storage.core.merge.events import count_unordered
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.plural import counted
from weft.storage.write.write_task import check_columns, find_problems
from weft.streams.doctor.finding import Findings
from weft.streams.kafka.kafka_source import columns
from weft.streams.pipeline.file.check import exact_fields, key_of
from weft.streams.pipeline.file.model import WriterSpec
from weft.streams.pipeline.infer.check_ordering import unordered_text
from weft.streams.spark.for_workers import for_workers
from weft.streams.spark.session import temporary_session
from weft.streams.spark.task_errors import raise_task_errors
from weft.streams.write.dead_letter import IGNORED, SOURCE
from weft.streams.write.decode_events import decode_events
from weft.streams.write.left_out import partial_columns

JOB_SECONDS: Final = 120.0  # a cluster without a free executor never answers
MAX_REASONS: Final = 3


def check_messages(
    settings: Mapping[str, str],
    samples: Mapping[str, pa.Table],
    writers: Mapping[str, WriterSpec],
    schema: TableSchema | None,
    findings: Findings,
) -> None:
    """Start Spark, run a task, and decode the samples.

    Args:
        settings: Spark settings of the pipeline.
        samples: Messages by writer.
        writers: The writers by name.
        schema: Schema of the table; None if it is not known.
        findings: Gets the findings.
    """
    with findings.guarded("spark session"), temporary_session("weft doctor", settings) as spark:
        findings.ok("spark session", f"started with master {spark.sparkContext.master}")
        with findings.guarded("executors"), _limit_jobs(spark), raise_task_errors():
            task = for_workers(_report_python)
            (row,) = spark.range(1, numPartitions=1).mapInArrow(task, "python string").collect()
            findings.ok("executors", f"a task ran with Python {row.python}, and has weft")
        for name, sample in samples.items():
            where = f"writers.{name}.schema"
            with findings.guarded(where), _limit_jobs(spark):
                _check_sample(where, spark, sample, writers[name], schema, findings)


@contextmanager
def _limit_jobs(spark: SparkSession) -> Iterator[None]:
    """Cancel the jobs of the block after `JOB_SECONDS`, which is an error then."""
    timer = threading.Timer(JOB_SECONDS, spark.sparkContext.cancelAllJobs)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _report_python(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        yield pa.RecordBatch.from_pydict({"python": [version]})


def _check_sample(
    where: str,
    spark: SparkSession,
    sample: pa.Table,
    writer: WriterSpec,
    schema: TableSchema | None,
    findings: Findings,
) -> None:
    if writer.message is None:
        return
    rows = spark.createDataFrame(sample, columns(include_headers="headers" in sample.schema.names))
    key = writer.key if schema is None else key_of(writer, schema)
    partial: AbstractSet[str] = frozenset()
    if schema is not None and writer.message_format != "json":
        partial = partial_columns(schema, schema.stream(writer.stream))
    exact = frozenset[str]() if schema is None else exact_fields(writer, schema)
    frame = decode_events(rows, writer, key, partial=partial, exact=exact)
    table = frame.toArrow()
    if not len(sample):
        findings.skipped(where, "the topic has no message to try; the expressions of select and where are valid")
    else:
        _report_reasons(where, table, len(sample), findings)
        _report_empty_fields(where, rows, writer, findings)
    if schema is not None:
        _check_rows(where, table, writer, schema, findings)


def _report_reasons(where: str, table: pa.Table, count: int, findings: Findings) -> None:
    reasons = pc.struct_field(table.column(SOURCE), "reason").drop_null().to_pylist()
    bad = Counter(reason for reason in reasons if reason != IGNORED)
    if not bad:
        findings.ok(where, f"{counted(count, 'message')} decoded, {counted(len(table) - len(reasons), 'row')} to store")
        return
    text = "; ".join(f"{reason} ({number:,})" for reason, number in bad.most_common(MAX_REASONS))
    hint = "correct schema and select, or the producer; with weft run they become dead letters"
    text = f"{bad.total():,} of {counted(count, 'message')} cannot be decoded: {text}"
    (findings.problem if bad.total() == count else findings.warning)(where, text, hint)


def _report_empty_fields(where: str, rows: DataFrame, writer: WriterSpec, findings: Findings) -> None:
    """Fields that no message of the sample has are often misspelt."""
    all_fields = replace(writer, select=None, where=None, tombstones="ignore")
    plain = decode_events(rows, all_fields, writer.key).toArrow()
    good = plain.filter(pc.is_null(pc.struct_field(plain.column(SOURCE), "reason")))
    empty = [name for name in writer.message or () if len(good) and good.column(name).null_count == len(good)]
    if empty:
        text = f"no message of {len(good):,} has a value in {', '.join(empty)}"
        findings.warning(where, text, "compare the names with the messages; remove fields that are not needed")


def _check_rows(where: str, table: pa.Table, writer: WriterSpec, schema: TableSchema, findings: Findings) -> None:
    stream = schema.stream(writer.stream)
    reasons = pc.struct_field(table.column(SOURCE), "reason")
    rows = table.filter(pc.is_null(reasons)).drop_columns([SOURCE])
    check_columns(rows.schema, schema, stream)
    for problem in find_problems(rows, schema, stream):
        text = (
            f"column {problem.column!r}: {problem.reason} in {int(problem.rows.sum()):,} of {counted(len(rows), 'row')}"
        )
        findings.warning(where, text, problem.hint)
    _report_unordered(where, rows, writer, schema, findings)


def _report_unordered(where: str, rows: pa.Table, writer: WriterSpec, schema: TableSchema, findings: Findings) -> None:
    """Messages that change nothing, or not one of the groups, because they have no ordering value."""
    for group, count in count_unordered(rows, schema, schema.stream(writer.stream)).items():
        text, hint = unordered_text(writer, schema, group, count, len(rows))
        (findings.problem if count == len(rows) else findings.warning)(where, text, hint)
