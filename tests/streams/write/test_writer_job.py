"""The writer process: its counts, its lag, and the errors that it reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.errors.exceptions.captured import StreamingQueryException as CapturedQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.streams.support.pipelines import pipeline_file
from tests.streams.write.sink.rig import TEST_SECONDS, WAIT_SECONDS, Feed, event
from weft.storage.core.names import LaneName
from weft.storage.errors import Fenced, GapError, InvalidInput, NotFound, StoreUnavailable, TableError
from weft.storage.write.writer import Commit
from weft.streams.kafka.errors import DataLoss, SourceUnavailable
from weft.streams.pipeline.file.pipeline import load_pipeline
from weft.streams.pipeline.run.error_kinds import Ending, describe, ending_of
from weft.streams.pipeline.run.report import Report
from weft.streams.pipeline.run.reporter import Reporter
from weft.streams.spark.task_errors import noted_errors
from weft.streams.write.resume import GAP_HINT
from weft.streams.write.sink import CommitReport
from weft.streams.write.writer_job import failure_of, read_events
from weft.streams.write.writer_progress import Progress, messages_behind


class Source(NamedTuple):
    endOffset: str | None  # noqa: N815 - Spark's name
    latestOffset: str | None  # noqa: N815 - Spark's name


def committed(seq: int, rows: int, *, replayed: bool = False, refused: int = 0) -> CommitReport:
    return CommitReport(Commit(LaneName("a"), seq, rows, 0, replayed), seq, refused, 0.1, 1000 + seq)


def test_commits_add_up(pipe: tuple[int, int]) -> None:
    reporter = Reporter(pipe[1], Report())
    progress = Progress(reporter, 1.0)
    progress.committed(committed(2, 10))
    progress.committed(committed(3, 5, refused=2))
    last = reporter.report
    assert (last.rows, last.commits, last.seq, last.dead_letters, last.committed_at_ms) == (15, 2, 3, 2, 1003)
    assert last.rows_per_second > 0
    assert last.progress == 2
    assert [json.loads(line)["rows"] for line in os.read(pipe[0], 9999).splitlines()] == [10, 15]


def test_a_replayed_batch_counts_only_if_it_was_not_reported(pipe: tuple[int, int]) -> None:
    reporter = Reporter(pipe[1], Report(rows=15, commits=2, seq=3))
    Progress(reporter, 1.0).committed(committed(3, 5, replayed=True))
    assert (reporter.report.rows, reporter.report.commits) == (15, 2)
    assert reporter.report.progress == 0, "the previous run made this progress"
    untold = Reporter(pipe[1], Report(rows=10, commits=1, seq=2))
    Progress(untold, 1.0).committed(committed(3, 5, replayed=True))
    assert (untold.report.rows, untold.report.commits, untold.report.seq) == (15, 2, 3)


def test_a_new_process_does_not_keep_earlier_measurements(pipe: tuple[int, int]) -> None:
    reporter = Reporter(pipe[1], Report("running", rows=15, commits=2, seq=3, lag=0, complete_at_ms=5, dead_letters=1))
    reporter.update(message="still starting")
    [line] = os.read(pipe[0], 9999).splitlines()
    reported = json.loads(line)
    assert (reported["lag"], reported["complete_at_ms"]) == (None, None)
    assert (reported["rows"], reported["commits"], reported["seq"], reported["dead_letters"]) == (15, 2, 3, 1)
    assert reported["reported_at_ms"] is not None


@pytest.mark.timeout(TEST_SECONDS)
def test_a_query_stopped_during_a_batch_is_not_complete(
    spark: SparkSession, tmp_path: Path, pipe: tuple[int, int]
) -> None:
    feed = Feed(spark, tmp_path / "feed")
    feed.put(event(1))
    entered, leave = threading.Event(), threading.Event()

    def write(_: DataFrame, batch: int) -> None:
        if batch:
            entered.set()
            leave.wait(WAIT_SECONDS)

    reporter = Reporter(pipe[1], Report())
    progress = Progress(reporter, 0.1)
    stream = feed.read().writeStream.trigger(processingTime="100 milliseconds")
    query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).foreachBatch(write).start()
    try:
        query.processAllAvailable()
        deadline = time.monotonic() + WAIT_SECONDS
        while reporter.report.complete_at_ms is None:
            assert time.monotonic() < deadline, "it has read everything that was available"
            time.sleep(0.02)
            progress.observe(query)
        feed.put(event(2))
        assert entered.wait(WAIT_SECONDS)
        stopped_at_ms = time.time_ns() // 1_000_000
        progress.observe(query)
        assert (reporter.report.complete_at_ms or 0) <= stopped_at_ms
        known = reporter.report.complete_at_ms
    finally:
        leave.set()
        query.stop()
    progress.observe(query)
    assert reporter.report.complete_at_ms in (known, None), "that nothing is available now means that it has ended"


@pytest.mark.parametrize(
    ("sources", "behind"),
    [
        ([Source('{"t": {"0": 5, "1": 7}}', '{"t": {"0": 9, "1": 7}}')], 4),
        ([Source('{"t": {"0": 5}}', '{"t": {"0": 5, "1": 3}}')], 3),
        ([Source('{"t": {"0": 9}}', '{"t": {"0": 5}}')], 0),
        ([Source('{"t": {"0": 5, "topic_id": "a"}}', '{"t": {"0": 9}}')], 4),
        ([Source('{"t": {"0": 5, "leader_epochs": {"0": 3}}}', '{"t": {"0": 9}}')], 4),
        ([Source("{}", '{"t": {"0": 5}}'), Source('{"u": {"0": 1}}', '{"u": {"0": 2}}')], 6),
        ([Source("7", "9")], None),
        ([Source('{"t": {"0": 5}}', None)], None),
        ([Source('{"logOffset": 3}', '{"logOffset": 3}')], None),
        ([Source("not json", "not json")], None),
    ],
)
def test_messages_behind(sources: list[Any], behind: int | None) -> None:
    assert messages_behind(sources) == behind


def wrapped(text: str) -> StreamingQueryException:
    traceback = f'Traceback (most recent call last):\n  File "x.py", line 1, in call\n    raise e\n{text}\n'
    return StreamingQueryException(f"[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred: {traceback}\n=== Plan ===")


def raised(error: TableError) -> str:
    """The end of the traceback of an error that was raised in `noted_errors`."""
    with pytest.raises(TableError) as caught, noted_errors():
        raise error
    return "".join(traceback.format_exception_only(caught.value))


def test_a_weft_error_is_found_in_a_spark_error() -> None:
    original = Fenced("lane 'a' was claimed by b (claim 2; this writer holds claim 1)", hint="this writer must stop")
    found = failure_of(wrapped(raised(original)))
    assert isinstance(found, Fenced)
    assert (found.message, found.hint) == (original.message, original.hint)
    assert ending_of(found) is Ending.FENCED


def test_a_checkpoint_ahead_of_the_table_is_not_restarted() -> None:
    original = GapError("the table was restored: batches 4 to 6 count as never sent", hint=GAP_HINT)
    found = failure_of(wrapped(raised(original)))
    assert isinstance(found, GapError)
    assert ending_of(found) is Ending.REFUSED, "it is not retried"
    assert "resume: table" in describe(found)


def test_the_last_of_several_errors_is_reported() -> None:
    first, second = raised(NotFound("first")), raised(InvalidInput("second"))
    found = failure_of(wrapped(f"{first}\nDuring handling:\n{second}"))
    assert isinstance(found, InvalidInput)
    assert (found.message, found.hint) == ("second", "")


def test_errors_of_the_source_are_found_too() -> None:
    lost = failure_of(wrapped(raised(DataLoss("offsets are gone", hint="keep them"))))
    assert isinstance(lost, DataLoss)
    assert ending_of(lost) is Ending.REFUSED
    away = failure_of(wrapped(raised(SourceUnavailable("no answer"))))
    assert isinstance(away, SourceUnavailable)
    assert ending_of(away) is Ending.UNAVAILABLE


def failed_with(spark: SparkSession, thrown: Any) -> StreamingQueryException:
    """The error of a query that an exception of the JVM has ended."""
    jvm: Any = spark.sparkContext._jvm
    inner = jvm.java.io.IOException("the checkpoint cannot be read", thrown)
    return CapturedQueryException(origin=jvm.org.apache.spark.SparkException("[STREAM_FAILED] it ended", inner))


@pytest.mark.spark
def test_an_unreachable_store_of_spark_is_an_outage(spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm
    for thrown in (
        jvm.java.net.ConnectException("Connection refused by nowhere.example:9000"),
        jvm.java.net.UnknownHostException("nowhere.example"),
        jvm.org.apache.hadoop.net.ConnectTimeoutException("20000 millis timeout for nowhere.example"),
        jvm.java.net.NoRouteToHostException("nowhere.example"),
    ):
        found = failure_of(failed_with(spark, thrown))
        assert isinstance(found, StoreUnavailable)
        assert "nowhere.example" in found.message
        assert ending_of(found) is Ending.UNAVAILABLE
    for thrown in (
        jvm.java.net.SocketException("a worker died"),
        jvm.java.io.IOException("java.net.ConnectException: x"),
    ):
        assert ending_of(failure_of(failed_with(spark, thrown))) is Ending.FAILED


@pytest.mark.spark
def test_a_table_as_a_source_signs_its_errors(spark: SparkSession, tmp_path: Path) -> None:
    source = {"type": "spark", "format": "weft", "options": {"path": str(tmp_path / "nowhere")}}
    writer = load_pipeline(pipeline_file(tmp_path, writers={"sa": {"source": source}})).writer("sa")
    with pytest.raises(AnalysisException) as failed:
        read_events(spark, writer)
    assert isinstance(failure_of(failed.value), NotFound)


def test_a_value_in_a_text_is_no_outage() -> None:
    for line in (
        "ValueError: java.net.ConnectException: Connection refused",
        "\nCaused by: java.net.UnknownHostException: nowhere.example",
        "org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment",
        "ModuleNotFoundError: No module named 'pyarrow'",
        f"weft-error: {json.dumps(Fenced('a').to_dict())}",
    ):
        error = wrapped(f"ValueError: a value\n{line}")
        assert failure_of(error) is error


def test_a_wrong_expression_is_invalid_input() -> None:
    found = failure_of(AnalysisException("[UNRESOLVED_COLUMN] no column x; line 1 pos 0;\n'Project ['x]\n"))
    assert isinstance(found, InvalidInput)
    assert found.message == "[UNRESOLVED_COLUMN] no column x; line 1 pos 0"


def test_other_errors_are_not_changed() -> None:
    for error in (
        OSError("disk"),
        wrapped("ValueError: x"),
        wrapped("weft-error: x"),
        wrapped('weft-error: {"message": "x"}'),
    ):
        assert failure_of(error) is error
        assert ending_of(error) is Ending.FAILED


def test_an_error_of_a_data_source_is_kept_and_described_briefly() -> None:
    text = "Failed: Traceback:\n  File x\nTimeoutError: no\n answer\n"
    error = AnalysisException(f"[PYTHON_DATA_SOURCE_ERROR] {text}", errorClass="PYTHON_DATA_SOURCE_ERROR")
    assert failure_of(error) is error
    assert describe(error) == "TimeoutError: no"
    assert describe(OSError("a\n b")) == "OSError: a b"
    assert describe(InvalidInput("a", hint="b")) == "a (b)"


def test_the_last_report_has_the_code_of_the_error(tmp_path: Path) -> None:
    """Standard output has the reports of a writer without a supervisor; the next process begins without a code."""
    command = [sys.executable, "-m", "weft.streams.write.writer_job", str(pipeline_file(tmp_path)), "nobody"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == Ending.REFUSED, done.stderr
    last = Report(**json.loads(done.stdout.splitlines()[-1]))
    assert (last.doing, last.error_code) == ("failed", InvalidInput.code)
    assert last.restarted().error_code == ""


def test_rows_without_an_ordering_value_add_up(pipe: tuple[int, int]) -> None:
    reporter = Reporter(pipe[1], Report())
    progress = Progress(reporter, 1.0)
    for number, unordered in enumerate((2, 0, 3), 1):
        progress.committed(replace(committed(number, 10), unordered=unordered))
    assert (reporter.report.rows, reporter.report.rows_unordered) == (30, 5)
    assert reporter.report.restarted().rows_unordered == 5
