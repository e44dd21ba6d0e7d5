"""The log of a pipeline: which changes of a status make a line, in both forms, and rotation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.streams.support.pipelines import CONFIG, pipeline_file, weft
from weft import Table
from weft.storage.errors import InvalidInput
from weft.streams.pipeline.run.error_kinds import Ending
from weft.streams.pipeline.run.event_log import changes, open_event_log
from weft.streams.pipeline.run.report import Report
from weft.streams.pipeline.run.supervisor import JobStatus, Phase

NOW_MS = 1_700_000_000_000
STARTING = JobStatus("orders", Phase.RUNNING, 7, 0, Report(), "", Path("orders.log"), (), None, background=False)


def after(status: JobStatus = STARTING, /, **report: Any) -> JobStatus:
    return replace(status, report=replace(status.report, **report))


def batch(status: JobStatus, seconds: float, **report: Any) -> JobStatus:
    return after(status, commits=status.report.commits + 1, **status.report.with_batch(seconds), **report)


def texts(*statuses: JobStatus) -> list[str]:
    found = []
    before = None
    for status in statuses:
        found += [line.format("text", NOW_MS).partition(" ")[2] for line in changes(before, status, NOW_MS)]
        before = status
    return found


def test_one_line_for_each_batch() -> None:
    first = batch(STARTING, 0.4, rows=1200, seq=14, lag=0, stored_bytes=500)
    second = batch(first, 2.0, rows=1300, seq=15, lag=1000, dead_letters=3)
    assert texts(STARTING, after(doing="running"), first, first, second) == [
        "INFO orders started",
        "INFO orders batch: 1,200 rows in 0.40 s, commit 14, lag 0",
        "WARNING orders batch: 100 rows in 2.00 s, commit 15, lag 1,000, 3 dead letters",
    ]


def test_rows_that_are_not_in_the_table_are_a_warning() -> None:
    none = batch(STARTING, 0.1, rows=1, seq=2, rows_unordered=2, dead_letters=1)
    text = "WARNING orders batch: 1 row in 0.10 s, commit 2, 1 dead letter, 2 rows changed nothing: no ordering value"
    assert texts(STARTING, none)[1:] == [text]


def test_batches_between_two_looks_share_a_line() -> None:
    second = batch(batch(STARTING, 0.1, rows=1), 0.1, rows=2, seq=2)
    assert texts(STARTING, second)[1:] == ["INFO orders batch: 2 rows in 0.20 s, commit 2, 2 batches"]


def test_a_line_as_json() -> None:
    (line,) = changes(STARTING, batch(STARTING, 0.5, rows=3, seq=2, lag=7, complete_at_ms=NOW_MS - 1500), NOW_MS)
    assert json.loads(line.format("json", NOW_MS)) == {
        "time": "2023-11-14T22:13:20.000Z",
        "level": "info",
        "part": "orders",
        "event": "batch",
        "rows": 3,
        "bytes": 0,
        "batches": 1,
        "seconds": 0.5,
        "commit": 2,
        "lag": 7,
        "freshness_seconds": 1.5,
        "dead_letters": 0,
        "rows_unordered": 0,
        "text": "3 rows in 0.50 s, commit 2, lag 7",
    }


def test_what_a_part_waits_for() -> None:
    reason = "no answer within 30 s"
    away = after(waiting_for="the broker b:1", waiting_since_ms=NOW_MS - 65_000, message=reason, doing="waiting")
    starved = after(waiting_for="an executor of spark://h:7077", waiting_since_ms=NOW_MS, doing="waiting")
    assert texts(STARTING, away, away, starved, STARTING)[1:] == [
        "WARNING orders waiting: the broker b:1: no answer within 30 s",
        "INFO orders answers: the broker b:1, after 1 minute",
        "WARNING orders waiting: an executor of spark://h:7077",
        "INFO orders answers: an executor of spark://h:7077, after 0 seconds",
    ]


def test_restarts_and_ends() -> None:
    broken = replace(STARTING, phase=Phase.WAITING, pid=None, message="killed by SIGKILL", next_start_seconds=2.0)
    again = replace(STARTING, pid=8, restarts=1)
    failed = replace(broken, phase=Phase.FAILED, next_start_seconds=None, message="a column is missing")
    assert texts(STARTING, replace(broken, failures=1), again, failed) == [
        "INFO orders started",
        "WARNING orders restart: in 2 s, failure 1 in a row: killed by SIGKILL",
        "INFO orders started",
        "ERROR orders failed: a column is missing",
    ]
    assert texts(STARTING, replace(STARTING, phase=Phase.STOPPED, pid=None))[1:] == ["INFO orders stopped"]


def test_a_restart_within_an_outage_has_a_line_only_if_the_outage_is_not_its_reason() -> None:
    away = after(waiting_for="the broker b:1", waiting_since_ms=NOW_MS, message="no answer", doing="waiting")
    ended = replace(away, phase=Phase.WAITING, pid=None, next_start_seconds=1.0)
    killed = replace(ended, exit_code=-9, failures=1, message="killed by SIGKILL")
    assert texts(away, killed)[2:] == ["WARNING orders restart: in 1 s, failure 1 in a row: killed by SIGKILL"]
    assert texts(away, replace(ended, exit_code=Ending.UNAVAILABLE, message="no answer"))[2:] == []


def test_a_file_is_rotated(tmp_path: Path) -> None:
    path = tmp_path / "logs/weft.log"
    with open_event_log(path, "json", max_bytes=2_000, backups=2) as log:
        status = STARTING
        for number in range(100):
            status = batch(status, 0.1, rows=number, seq=number)
            log([status])
    files = sorted(path.parent.iterdir())
    assert [file.name for file in files] == ["weft.log", "weft.log.1", "weft.log.2"]
    lines = [json.loads(line) for file in (files[2], files[1], files[0]) for line in file.read_text().splitlines()]
    kept = [line["commit"] for line in lines]
    assert kept == list(range(100 - len(kept), 100)), "the newest lines, in order"
    assert all(file.stat().st_size <= 2_000 for file in files)


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="--log-file"), open_event_log(tmp_path / "file/weft.log"):
        pass


def test_weft_services_logs_rounds(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "wide", CONFIG)
    with table.writer("sa") as writer:
        writer.append(pa.table({"id": [1], "a": ["x"], "at": pa.array([1], pa.int64())}))
    path = tmp_path / "weft.log"
    done = weft("services", tmp_path / "wide", "--once", "--log-file", path, "--log-format", "json")
    assert done.exit_code == 0, done.output
    events = [json.loads(line)["event"] for line in path.read_text().splitlines()]
    assert events == ["started", "round", "done"]
    assert "done" in done.stdout, "the status is shown as before"


@pytest.mark.slow
def test_weft_run_logs_to_standard_output_in_place_of_the_status(tmp_path: Path) -> None:
    done = weft("run", pipeline_file(tmp_path), "--only", "compaction", "--once", "--log-format", "json")
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()] == ["started", "done"]
