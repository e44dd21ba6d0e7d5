"""Responses of ``weft run --http``: metrics of each part, health, readiness."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.streams.kafka.topics import NOBODY
from tests.streams.support.pipelines import CONFIG, pipeline_file, weft
from weft import DuePolicy, Table
from weft.storage.errors import InvalidInput
from weft.streams.pipeline.file.model import TableLocation
from weft.streams.pipeline.run.http_status import (
    HUNG_SECONDS,
    STUCK_SECONDS,
    StatusPage,
    parse_address,
    serve_status,
    unsupervised_status,
)
from weft.streams.pipeline.run.report import Report, encode_report, parse_report
from weft.streams.pipeline.run.reporter import Reporter
from weft.streams.pipeline.run.supervisor import JobStatus, Phase
from weft.streams.pipeline.run.table_watch import TableView, TableWatch

PATIENCE_SECONDS = 120.0  # for operations of a second or two on an idle machine


def status(name: str = "orders", phase: Phase = Phase.RUNNING, **report: Any) -> JobStatus:
    told = Report(**{"doing": "running", "reported_at_ms": time.time_ns() // 1_000_000, **report})
    pid = 7 if phase is Phase.RUNNING else None
    return JobStatus(name, phase, pid, 2, told, "", Path("log"), (), None, background=False)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def page(clock: Clock) -> StatusPage:
    return StatusPage(clock)


@pytest.fixture
def base(page: StatusPage) -> Iterator[str]:
    with serve_status(page, "127.0.0.1", 0) as port:
        yield f"http://127.0.0.1:{port}"


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def samples(base: str) -> dict[tuple[str, str], float]:
    code, text = get(f"{base}/metrics")
    assert code == 200
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, sample.labels["part"]): sample.value for sample in found if "part" in sample.labels}


def test_metrics_of_each_part(page: StatusPage, base: str) -> None:
    assert samples(base) == {}
    page.update([status(rows=1500, commits=3, lag=0, dead_letters=1), status("compaction", Phase.FAILED)])
    found = samples(base)
    assert {name: value for (name, part), value in found.items() if part == "orders"} == {
        "weft_up": 1,
        "weft_rows_total": 1500,
        "weft_commits_total": 3,
        "weft_dead_letters_total": 1,
        "weft_tombstones_ignored_total": 0,
        "weft_restarts_total": 2,
        "weft_lag_messages": 0,
        "weft_failures_in_a_row": 0,
        "weft_bytes_total": 0,
        "weft_deletes_total": 0,
        "weft_ignored_rows_total": 0,
        "weft_unordered_rows_total": 0,
        "weft_late_events_total": 0,
        "weft_skipped_offsets_total": 0,
        "weft_stopped_for_good": 0,
        "weft_back_pressure_wait_seconds_total": 0,
    }
    assert found["weft_up", "compaction"] == 0


@pytest.mark.parametrize("phase", Phase)
def test_a_part_that_is_not_started_again_is_shown(page: StatusPage, base: str, phase: Phase) -> None:
    page.update([status(phase=phase)])
    assert samples(base)["weft_stopped_for_good", "orders"] == (phase in {Phase.FAILED, Phase.FENCED})


def test_metrics_of_back_pressure(page: StatusPage, base: str) -> None:
    slowed = status(delay_seconds=2.5, read_amplification=9.0, waited_seconds=70.0)
    page.update([slowed, replace(slowed, name="hangs", report=replace(slowed.report, reported_at_ms=1))])
    prefix = "weft_back_pressure_"
    found = {(name.removeprefix(prefix), part): n for (name, part), n in samples(base).items() if prefix in name}
    assert found == {
        ("delay_seconds", "orders"): 2.5,
        ("read_amplification", "orders"): 9,
        ("wait_seconds_total", "orders"): 70,
        ("wait_seconds_total", "hangs"): 70,
    }


def test_batch_durations_are_a_histogram(page: StatusPage, base: str) -> None:
    report = Report()
    for seconds in (0.05, 0.1, 0.3, 7.0, 1000.0):
        report = replace(report, **report.with_batch(seconds))
    page.update([replace(status(), report=replace(report, doing="running"))])
    _, text = get(f"{base}/metrics")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    found = {(sample.name, sample.labels.get("le")): sample.value for sample in families["weft_batch_seconds"].samples}
    counts = {le: found["weft_batch_seconds_bucket", le] for le in ("0.1", "0.25", "0.5", "5.0", "10.0", "+Inf")}
    assert counts == {"0.1": 2, "0.25": 2, "0.5": 3, "5.0": 3, "10.0": 4, "+Inf": 5}
    assert found["weft_batch_seconds_sum", None] == 1007.45
    assert found["weft_batch_seconds_count", None] == 5


def test_totals_survive_the_restart_of_a_process() -> None:
    report = Report(stored_bytes=7, deletes=1, rows_ignored=2, rows_unordered=1, late=3, skipped_offsets=4, steady=True)
    report = replace(report, **report.with_batch(1.5))
    resumed = parse_report(encode_report(report)).restarted()
    assert resumed == replace(report, steady=False)


def test_cleaning_counts_files(page: StatusPage, base: str) -> None:
    page.update([status("clean", deleted_files=5, deleted_bytes=50, unknown_objects=1), status("orders")])
    found = samples(base)
    assert (found["weft_cleaned_files_total", "clean"], found["weft_cleaned_bytes_total", "clean"]) == (5, 50)
    assert found["weft_unknown_objects", "clean"] == 1
    assert ("weft_cleaned_files_total", "orders") not in found


def test_expiry_counts_rows_and_deletes(page: StatusPage, base: str) -> None:
    now_ms = time.time_ns() // 1_000_000
    page.update([status("ttl", expired_rows=5, forgotten_deletes=2, expired_at_ms=now_ms - 60_000), status("orders")])
    found = samples(base)
    assert (found["weft_expired_rows_total", "ttl"], found["weft_forgotten_deletes_total", "ttl"]) == (5, 2)
    assert 60 <= found["weft_expiry_age_seconds", "ttl"] < 1000
    assert ("weft_expiry_age_seconds", "orders") not in found


def table_samples(base: str) -> dict[tuple[str, tuple[str, ...]], float]:
    _, text = get(f"{base}/metrics")
    return {
        (sample.name, tuple(value for name, value in sample.labels.items() if name != "table")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "table" in sample.labels
    }


def test_metrics_of_the_table(page: StatusPage, base: str, tmp_path: Path) -> None:
    location = TableLocation(str(tmp_path / "wide"))
    watch = TableWatch(location, DuePolicy(), lambda _: None)
    page.show_table(location.uri, watch.look())
    assert table_samples(base) == {("weft_table_up", ()): 0}, "there is no table yet"
    table = Table.create(location.uri, CONFIG)
    with table.writer("sa") as writer:
        for at in (1, 2):
            writer.append(pa.table({"id": [1, 2], "a": ["x", "y"], "at": pa.array([at, at], pa.int64())}))
            table.compact()
        writer.append(pa.table({"id": [1], "a": ["z"], "at": pa.array([0], pa.int64())}))
    page.show_table(location.uri, watch.look())
    found = table_samples(base)
    assert (found["weft_table_up", ()], found["weft_table_base_rows", ()]) == (1, 2)
    assert found["weft_table_waiting_events", ()] == found["weft_table_log_files", ()] == 1
    assert found["weft_table_read_amplification", ()] > 1
    assert found["weft_table_log_ratio", ()] > 0
    assert found["weft_table_entries_total", ("sa",)] == 4, "a claim and three commits"
    assert found["weft_table_late_events_total", ("ga", "sa")] == 0
    assert (found["weft_table_group_fill_ratio", ("ga",)], found["weft_table_group_fill_ratio", ("gb",)]) == (1, 0)
    assert found["weft_table_sampled_events", ()] == 1
    next_slot = len(list((tmp_path / "wide/_weft/timeline/table").iterdir())) + 1
    (tmp_path / f"wide/_weft/timeline/table/{next_slot:020d}.json").write_text("damaged")
    page.show_table(location.uri, watch.look())
    found = table_samples(base)
    assert found["weft_table_up", ()] == 0
    assert ("weft_table_base_rows", ()) not in found, "old values are not shown"
    assert found["weft_table_age_seconds", ()] >= 0


def test_counters_of_the_table_survive_the_process_that_serves_them(tmp_path: Path) -> None:
    location = TableLocation(str(tmp_path / "wide"))
    table = Table.create(location.uri, CONFIG)

    def append(at: int) -> None:
        with table.writer("sa", lateness=0) as writer:
            writer.append(pa.table({"id": [1], "a": ["x"], "at": pa.array([at], pa.int64())}))

    def counters() -> dict[tuple[str, tuple[str, ...]], float]:
        """What a process that has just been started serves."""
        page = StatusPage()
        page.show_table(location.uri, TableWatch(location, None, lambda _: None).look())
        with serve_status(page, "127.0.0.1", 0) as port:
            found = table_samples(f"http://127.0.0.1:{port}")
        return {name: number for name, number in found.items() if name[0].endswith("_total")}

    append(5)
    append(3)
    table.compact()
    first = counters()
    assert first["weft_table_entries_total", ("sa",)] == 4
    assert first["weft_table_late_events_total", ("ga", "sa")] == 1
    assert counters() == first
    append(1)
    later = counters()
    assert later["weft_table_late_events_total", ("ga", "sa")] == 2
    assert all(later[name] >= number for name, number in first.items())


def test_a_watch_looks_again_and_again(tmp_path: Path) -> None:
    views: Queue[TableView] = Queue()
    with TableWatch(TableLocation(str(tmp_path / "wide")), None, views.put, measure_seconds=0.01):
        assert views.get(timeout=PATIENCE_SECONDS).measures is None
        Table.create(tmp_path / "wide", CONFIG)
        while (found := views.get(timeout=PATIENCE_SECONDS).measures) is None:
            pass
    assert found.entries == {"": 1}


def test_unknown_values_are_absent(page: StatusPage, base: str) -> None:
    page.update([status(lag=5, reported_at_ms=1)])  # the job hangs: nobody knows its lag now
    assert ("weft_lag_messages", "orders") not in samples(base)
    assert ("weft_freshness_seconds", "orders") not in samples(base)


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ([], 503),
        ([status(doing="starting")], 503),
        ([status(doing="running")], 200),
        ([status(doing="idle"), status("compaction", doing="compacting")], 200),
        ([status(doing="idle"), status("payments", Phase.WAITING)], 503),
        ([status(doing="idle", waiting_for="the broker", waiting_since_ms=1)], 503),
        ([status(phase=Phase.DONE)], 200),
        ([status(doing="idle"), status("payments", Phase.FENCED)], 503),
    ],
)
def test_ready_means_that_every_part_is_working(
    page: StatusPage, base: str, statuses: list[JobStatus], code: int
) -> None:
    page.update(statuses)
    assert get(f"{base}/readyz")[0] == code
    assert get(f"{base}/healthz")[0] == 200, "a restart by the orchestrator would not help any of them"


def test_a_writer_that_does_not_report_any_more_is_not_ready(page: StatusPage, base: str) -> None:
    page.update([status(steady=True)])
    assert get(f"{base}/readyz") == (200, "orders: running\n")
    page.update([status(steady=True, reported_at_ms=1), status("compaction", doing="idle", reported_at_ms=1)])
    answer = "orders: running (no report from its process)\ncompaction: idle\n"
    assert get(f"{base}/readyz") == (503, answer), "services report only when something changes"


def test_a_writer_that_does_not_commit_what_it_has_is_not_ready(page: StatusPage, base: str, clock: Clock) -> None:
    page.update([status(commits=3, lag=0)])
    clock.now += STUCK_SECONDS + 1
    page.update([status(commits=3, lag=0)])
    page.update([status(commits=3, lag=5)])
    assert get(f"{base}/readyz")[0] == 200, "until now there was nothing to commit"
    clock.now += STUCK_SECONDS - 1
    page.update([status(commits=3, lag=9)])
    assert get(f"{base}/readyz")[0] == 200
    clock.now += 1
    page.update([status(commits=3, lag=9)])
    assert get(f"{base}/readyz") == (503, "orders: running (no commit for 600 s, lag 9)\n")
    page.update([status(commits=4, lag=9)])
    assert get(f"{base}/readyz")[0] == 200


def test_a_writer_is_ready_between_batches_that_are_far_apart(page: StatusPage, base: str, clock: Clock) -> None:
    page.update([status(commits=3, lag=5, trigger_seconds=3_600.0)])
    clock.now += 3_600 + STUCK_SECONDS - 1
    page.update([status(commits=3, lag=9, trigger_seconds=3_600.0)])
    assert get(f"{base}/readyz")[0] == 200
    clock.now += 1
    page.update([status(commits=3, lag=9, trigger_seconds=3_600.0)])
    assert get(f"{base}/readyz")[0] == 503


def test_healthy_means_that_the_supervisor_works(page: StatusPage, base: str, clock: Clock) -> None:
    page.update([status(doing="idle")])
    clock.now = HUNG_SECONDS - 1
    assert get(f"{base}/healthz") == (200, "orders: idle\n")
    clock.now = HUNG_SECONDS + 1
    assert get(f"{base}/healthz")[0] == 503


def test_a_writer_without_a_supervisor_shows_its_reports(page: StatusPage, base: str) -> None:
    reporter = Reporter(None, Report(), lambda report: page.update([unsupervised_status("orders", report)]))
    reporter.update(doing="starting")
    assert get(f"{base}/readyz") == (503, "orders: starting\n")
    reporter.update(doing="idle", rows=7, commits=2, lag=0)
    assert get(f"{base}/readyz") == (200, "orders: idle\n")
    found = samples(base)
    assert (found["weft_up", "orders"], found["weft_rows_total", "orders"], found["weft_lag_messages", "orders"]) == (
        1,
        7,
        0,
    )


def test_other_paths_are_not_found(base: str) -> None:
    assert get(f"{base}/") == (404, "see /metrics, /healthz and /readyz\n")


@pytest.mark.parametrize(
    ("text", "address"),
    [("9464", ("127.0.0.1", 9464)), ("0.0.0.0:9464", ("0.0.0.0", 9464)), (":0", ("127.0.0.1", 0))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


def writer_job(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "weft.streams.write.writer_job", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_writer_job_serves_its_own_status(tmp_path: Path) -> None:
    source = {"type": "kafka", "topic": "t"}
    writers = {"sa": {"source": source, "schema": {"id": "bigint", "a": "string", "at": "bigint"}}}
    path = pipeline_file(tmp_path, kafka={"bootstrap.servers": NOBODY}, writers=writers)
    process = writer_job(path, "sa", "--http", "0")
    try:
        assert process.stderr is not None
        told = process.stderr.readline()
        port = told.removeprefix("--http 0: http://127.0.0.1:").removesuffix("/metrics\n")
        assert port.isdecimal(), told
        deadline, found = time.monotonic() + PATIENCE_SECONDS, {}
        while ("weft_waiting_seconds", "sa") not in found:
            assert time.monotonic() < deadline
            assert process.poll() is None
            with contextlib.suppress(urllib.error.URLError):
                found = samples(f"http://127.0.0.1:{port}")
            time.sleep(0.1)
        assert found["weft_up", "sa"] == 1
        assert get(f"http://127.0.0.1:{port}/readyz") == (503, "sa: waiting\n")
        assert get(f"http://127.0.0.1:{port}/healthz")[0] == 200
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_writer_job_refuses_a_wrong_or_taken_port(tmp_path: Path, base: str) -> None:
    for address, why in (("http", "not an address and a port"), (base.removeprefix("http://"), "cannot listen at")):
        process = writer_job(pipeline_file(tmp_path), "sa", "--http", address)
        _, complaints = process.communicate(timeout=PATIENCE_SECONDS)
        assert (process.returncode, why in complaints) == (2, True)


@pytest.mark.parametrize("text", ["", "http", "0.0.0.0:", "70000", "-1"])
def test_wrong_addresses_are_usage_errors(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_address(text)
    refused = weft("run", pipeline_file(tmp_path), "--http", text)
    assert (refused.exit_code, "for example --http 9464" in refused.stderr) == (2, True)
    assert not (tmp_path / "wide").exists()


def test_a_port_in_use_is_an_error_before_anything_starts(tmp_path: Path, base: str) -> None:
    path = pipeline_file(tmp_path)
    port = base.rpartition(":")[2]
    refused = weft("run", path, "--only", "compaction", "--once", "--http", port)
    assert refused.exit_code == 1
    assert f"cannot listen at 127.0.0.1:{port}" in refused.stderr
    assert not (tmp_path / "wide").exists()
