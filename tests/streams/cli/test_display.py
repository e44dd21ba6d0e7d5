"""The display of jobs: texts, ages, and how often a line is repeated."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from weft.streams.cli.display import describe_stored, format_line, render_jobs, show_jobs
from weft.streams.pipeline.run.report import Report
from weft.streams.pipeline.run.status_fields import status_fields
from weft.streams.pipeline.run.supervisor import JobStatus, Phase

REPORT = Report("running", 12000, 340.5, 12, 14, 9_000, 9_500, 7, 3)
STATUS = JobStatus("orders", Phase.RUNNING, 4711, 0, REPORT, "", Path("x.log"), (), None, background=False)


def test_a_running_writer() -> None:
    shown = status_fields(STATUS, 10_000)
    assert (shown["commit_age_seconds"], shown["freshness_seconds"]) == (1.0, 0.5)
    line = (
        "orders: running · 12,000 rows in 12 commits · 340/s · lag ≤ 7 · last commit 1.0 s ago · fresh 0.5 s · "
        "dead letters 3"
    )
    assert format_line(STATUS, 10_000) == line


def test_rows_without_an_ordering_value_are_shown() -> None:
    status = replace(STATUS, report=replace(REPORT, rows_ignored=14, rows_unordered=12))
    words = "12 rows changed nothing: no ordering value"
    assert format_line(status, 10_000).endswith(f"dead letters 3 · {words}")
    console = Console(file=io.StringIO(), width=120)
    console.print(render_jobs([status, STATUS], 10_000))
    assert console.file.getvalue().count(f"orders: {words}") == 1  # type: ignore[attr-defined]


def test_a_writer_without_reports() -> None:
    line = format_line(replace(STATUS, report=Report()), 10_000)
    assert line == "orders: starting · 0 rows · 0/s · lag unknown · fresh unknown"


@pytest.mark.parametrize(
    ("phase", "report", "words"),
    [
        (Phase.DONE, Report("ended", 1, commits=1, seq=2), "1 row in 1 commit"),
        (Phase.DONE, Report("ended", 0, commits=1, seq=2, dead_letters=5), "0 rows in 1 commit"),
        (Phase.DONE, Report("ended", seq=2, lag=0), "no new messages"),
        (Phase.DONE, Report("ended", seq=2), "no new messages"),
        (Phase.RUNNING, Report("idle", seq=2, lag=0), "no new messages"),
        (Phase.RUNNING, Report("running", seq=2, lag=7), "0 rows"),
        (Phase.FAILED, Report("failed"), "0 rows"),
    ],
)
def test_what_a_writer_stored_is_said_in_words(phase: Phase, report: Report, words: str) -> None:
    """An entry's number in the lane looks like a number of commits, or of rows."""
    status = replace(STATUS, phase=phase, report=report)
    assert describe_stored(status) == words
    assert format_line(status, 10_000).split(" · ")[1] == words


@pytest.mark.parametrize("phase", [Phase.WAITING, Phase.STOPPED, Phase.FAILED, Phase.FENCED])
def test_measurements_of_an_ended_process_are_not_shown(phase: Phase) -> None:
    shown = status_fields(replace(STATUS, phase=phase), 10_000)
    assert (shown["lag"], shown["freshness_seconds"]) == (None, None)
    assert shown["rows"] == 12_000, "totals stay"


def test_measurements_of_a_silent_job_are_not_shown() -> None:
    heard = replace(REPORT, reported_at_ms=9_900)
    status = replace(STATUS, report=heard)
    assert status_fields(status, 9_900 + 10_000)["lag"] == 7
    shown = status_fields(status, 9_900 + 10_001)
    assert (shown["lag"], shown["freshness_seconds"]) == (None, None)


def test_measurements_of_a_job_that_ended_by_itself_are_shown() -> None:
    done = replace(STATUS, phase=Phase.DONE, report=replace(REPORT, lag=0, reported_at_ms=9_900))
    shown = status_fields(done, 99_000)
    assert (shown["lag"], shown["freshness_seconds"]) == (0, 89.5)


def test_a_clock_that_went_back_makes_no_negative_age() -> None:
    assert status_fields(STATUS, 0)["commit_age_seconds"] == 0


def test_the_reason_for_a_stopped_job_takes_precedence_over_its_message() -> None:
    waiting = replace(STATUS, phase=Phase.WAITING, message="killed by SIGKILL", next_start_seconds=2.4, restarts=1)
    assert format_line(waiting, 10_000).startswith("orders: restart in 2 s · ")
    assert format_line(waiting, 10_000).endswith("restarts 1 · killed by SIGKILL")
    back = replace(waiting, phase=Phase.RUNNING)
    assert format_line(back, 10_000).endswith("last failure: killed by SIGKILL")


def test_an_outage_is_shown_with_its_age_across_restarts() -> None:
    report = replace(
        REPORT, doing="waiting", message="no answer", waiting_for="the broker b:1", waiting_since_ms=10_000
    )
    running = replace(STATUS, report=report)
    message = "waiting for the broker b:1, 3 minutes: no answer"
    assert format_line(running, 190_000 + 9_999).endswith(message)
    shown = status_fields(running, 190_000)
    assert (shown["state"], shown["waiting_for"], shown["waiting_seconds"]) == ("waiting", "the broker b:1", 180.0)
    between = replace(running, phase=Phase.WAITING, message="no answer", next_start_seconds=4.0)
    assert format_line(between, 190_000).endswith(message)
    ended = status_fields(replace(running, phase=Phase.STOPPED), 190_000)
    assert (ended["waiting_for"], ended["waiting_seconds"]) == (None, None)


def test_an_outage_is_shown_repeatedly_at_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    report = replace(REPORT, doing="waiting", message="no answer", waiting_for="the broker b:1", waiting_since_ms=1)
    between = replace(STATUS, report=report, phase=Phase.WAITING, message="no answer", next_start_seconds=4.0)
    for every, lines in ((3600, 1), (0, 3)):
        with show_jobs(Console(file=io.StringIO()), line_seconds=0, unchanged_seconds=every) as on_status:
            for _ in range(3):
                on_status([between])
        assert len(capsys.readouterr().out.splitlines()) == lines


def test_a_service_has_no_lag() -> None:
    service = replace(STATUS, name="compaction", background=True, report=Report("idle", message="8 file groups"))
    assert format_line(service, 0) == "compaction: idle · 8 file groups"
    once = replace(service, background=False, phase=Phase.DONE)
    assert format_line(once, 0) == "compaction: done · 8 file groups"


def test_the_table_shows_every_job_and_its_message() -> None:
    console = Console(file=io.StringIO(), width=120)
    failed = replace(STATUS, name="pay[red]", phase=Phase.FAILED, message="no [bold] luck")
    console.print(render_jobs([STATUS, failed], 10_000))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for part in ("orders", "running", "12,000", "340", "12", "0.5 s", "failed", "pay[red]: no [bold] luck"):
        assert part in text


def test_why_a_job_has_failed_is_left_to_the_caller_if_it_wants() -> None:
    """`weft run` says it once, above the table."""
    console = Console(file=io.StringIO(), width=120)
    failed = replace(STATUS, name="pay", phase=Phase.FAILED, message="no luck")
    waiting = replace(STATUS, name="wait", phase=Phase.WAITING, message="no answer", next_start_seconds=1.0)
    console.print(render_jobs([failed, waiting], 10_000, show_failures=False))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "no luck" not in text
    assert "wait: no answer" in text, "it is started again"


def test_a_process_that_reports_its_failure_and_then_ends_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    failing = replace(STATUS, report=replace(REPORT, doing="failed", message="no luck"))
    ended = replace(failing, phase=Phase.FAILED, message="no luck")
    with show_jobs(Console(file=io.StringIO()), line_seconds=0) as on_status:
        for status in (failing, failing, ended):
            on_status([status])
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_job_that_does_nothing_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Ages and rates change by themselves; rows, commits and lag are news."""
    later = replace(STATUS, report=replace(REPORT, rows_per_second=3.0, complete_at_ms=9_900, reported_at_ms=9_950))
    more = replace(STATUS, report=replace(REPORT, rows=12_001, commits=13))
    behind = replace(more, report=replace(more.report, lag=9))
    with show_jobs(Console(file=io.StringIO()), line_seconds=0) as on_status:
        for status in (STATUS, later, later, more, more, behind, behind):
            on_status([status])
    shown = [line.split(" · ")[1:4:2] for line in capsys.readouterr().out.splitlines()]
    assert shown == [
        ["12,000 rows in 12 commits", "lag ≤ 7"],
        ["12,001 rows in 13 commits", "lag ≤ 7"],
        ["12,001 rows in 13 commits", "lag ≤ 9"],
    ]


@pytest.mark.parametrize("as_json", [True, False])
def test_lines_are_printed_when_something_changes(capsys: pytest.CaptureFixture[str], *, as_json: bool) -> None:
    with show_jobs(Console(file=io.StringIO()), as_json=as_json, line_seconds=3600) as on_status:
        for status in (STATUS, STATUS, replace(STATUS, phase=Phase.STOPPED), replace(STATUS, phase=Phase.STOPPED)):
            on_status([status])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    if as_json:
        assert [json.loads(line)["state"] for line in lines] == ["running", "stopped"]
