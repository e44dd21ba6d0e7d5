"""Waiting in an outage: pauses, retries, and reports."""

from __future__ import annotations

import os

import pytest

from weft.storage.errors import InvalidInput, StoreRefused, StoreUnavailable
from weft.streams.pipeline.run.outage import JobOutages, pause_seconds, spell_duration, spell_since, wait_out
from weft.streams.pipeline.run.report import Report, parse_report
from weft.streams.pipeline.run.reporter import Reporter


class Source:
    """Succeeds after a number of failures."""

    def __init__(self, failures: int, error: Exception | None = None) -> None:
        self.failures, self.error = failures, error or StoreUnavailable("no answer", hint="wait")

    def ask(self) -> str:
        self.failures -= 1
        if self.failures >= 0:
            raise self.error
        return "here I am"


class Stop:
    """Stops after a number of waits."""

    def __init__(self, waits: int = 1000) -> None:
        self.left, self.waits = waits, list[float]()

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.left -= 1
        return not self.left

    def __bool__(self) -> bool:
        return self.left <= 0


def test_pauses_grow_to_a_bound() -> None:
    assert [pause_seconds(n) for n in (1, 2, 3, 4, 5, 6, 7)] == [1, 2, 4, 8, 16, 30, 30]
    assert pause_seconds(10_000) == 30


def test_calls_are_repeated_until_there_is_an_answer() -> None:
    stop, reported = Stop(), list[float]()
    answer = wait_out(Source(50).ask, lambda _, seconds: reported.append(seconds), stop.wait)
    assert answer == "here I am"
    assert len(stop.waits) == 50
    assert reported == stop.waits


def test_a_stop_ends_the_wait() -> None:
    assert wait_out(Source(50).ask, lambda *_: None, Stop(3).wait) is None


@pytest.mark.parametrize("error", [InvalidInput("x"), StoreRefused("x"), ValueError("x")])
def test_other_errors_are_not_retried(error: Exception) -> None:
    with pytest.raises(type(error)):
        wait_out(Source(1, error).ask, pytest.fail, pytest.fail)


def test_status_and_log_show_what_the_job_waits_for(pipe: tuple[int, int], capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Reporter(pipe[1], Report(message="8 file groups"))
    outages = JobOutages(reporter, Stop())  # type: ignore[arg-type]
    assert outages.wait_out(Source(3).ask, "the broker b:1") == "here I am"
    reports = [parse_report(line) for line in os.read(pipe[0], 1 << 16).splitlines()]
    assert [report.waiting_for for report in reports] == ["the broker b:1"] * 3 + [""]
    assert len({report.waiting_since_ms for report in reports[:3]}) == 1
    assert (reports[0].doing, reports[0].message) == ("waiting", "no answer (wait)")
    assert (reports[3].doing, reports[3].message, reports[3].waiting_since_ms) == ("starting", "", None)
    first, last = capsys.readouterr().err.splitlines()
    assert "waiting for the broker b:1, 0 seconds: no answer" in first
    assert "the broker b:1 answers again after " in last


def test_an_outage_keeps_its_start_across_a_restart(pipe: tuple[int, int]) -> None:
    name = "the broker " + ",".join(f"broker-{i}:9092" for i in range(20))
    first = Reporter(pipe[1], Report())
    JobOutages(first, Stop()).report_outage(name, "no answer")  # type: ignore[arg-type]
    (line,) = os.read(pipe[0], 1 << 16).splitlines()
    second = Reporter(pipe[1], parse_report(line))
    assert JobOutages(second, Stop(2)).wait_out(Source(5).ask, name) is None  # type: ignore[arg-type]
    assert second.report.waiting_since_ms == first.report.waiting_since_ms
    assert len(second.report.waiting_for) == 80


def test_without_an_outage_nothing_is_reported(pipe: tuple[int, int]) -> None:
    reporter = Reporter(pipe[1], Report())
    assert JobOutages(reporter, Stop()).wait_out(Source(0).ask, "the broker b:1") == "here I am"  # type: ignore[arg-type]
    os.set_blocking(pipe[0], False)
    with pytest.raises(BlockingIOError):
        os.read(pipe[0], 1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 seconds"), (1.9, "1 second"), (59, "59 seconds"), (60, "1 minute"), (239, "3 minutes"), (7200, "2 hours")],
)
def test_durations_in_words(seconds: float, text: str) -> None:
    assert spell_duration(seconds) == text


def test_ages_in_words() -> None:
    assert spell_since(1000, 181_000) == "3 minutes"
    assert spell_since(0, 3 * 86_400_000) == "3 days"
    assert spell_since(5000, 0) == "0 seconds", "the clock was set back"
