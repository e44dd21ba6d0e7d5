"""One process for many tables: real tables, one of them huge or damaged; fairness is checked without timing."""

from __future__ import annotations

import datetime as dt
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.http_get import get
from tests.storage.support.shop import SHOP, append, contents, orders
from tests.streams.cluster.standalone import until
from tests.streams.support.pipelines import pipeline_file, weft
from tests.tuning import tune
from weft import DuePolicy, Table
from weft.storage.core.plan.due_policy import Work
from weft.storage.errors import InvalidInput, NotFound
from weft.storage.services.due_work import find_due
from weft.streams.pipeline.file.model import CleanSection, CompactionSection, TableLocation, TtlSection
from weft.streams.pipeline.file.table_list import TableTarget, list_tables
from weft.streams.pipeline.run.many_tables import STEP_BYTES, ManyTables
from weft.streams.pipeline.run.serve_tables import serve_tables
from weft.streams.pipeline.run.supervisor import JobStatus, Phase
from weft.streams.pipeline.run.table_rounds import TableSettings
from weft.streams.pipeline.run.table_watch import TableView

PATIENCE_SECONDS = 240.0  # for operations of a second or two on an idle machine
POLICY = CompactionSection(min_commits=1)
STEPS = 4
TURN = STEPS * STEP_BYTES
"""Four steps of these small tables, by the minimum cost of a step."""


@pytest.fixture(autouse=True)
def _a_step_for_each_file_group(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, small_group_bytes=1, fold_file_bytes=1)


def make(folder: Path, name: str, *, buckets: int = 4) -> Table:
    """A table with rows in all buckets that are not compacted."""
    table = Table.create(folder / name, {**SHOP, "buckets": buckets})
    append(table, orders(*range(16 * buckets)))
    return table


def folder_of(table: Table) -> Path:
    return Path(table.uri.removeprefix("file://"))


def waits(table: Table) -> bool:
    return bool(find_due(Table.open(table.uri).snapshot(), DuePolicy(min_commits=1), {Work.COMPACT}))


def settings(table: Table, clean: CleanSection | None = None) -> Callable[[], TableSettings]:
    return lambda: TableSettings(TableLocation(table.uri), POLICY, clean)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def finish(tables: ManyTables) -> list[str]:
    """Run steps until no table has one; returns whose steps were run."""
    done = []
    while (name := tables.step()) is not None:
        done.append(name)
        assert len(done) < 2_000
    return done


def status(tables: ManyTables, name: str) -> JobStatus:
    return next(status for status in tables.statuses if status.name == name)


@pytest.mark.slow
@pytest.mark.parametrize("huge_first", [True, False])
def test_a_huge_table_does_not_keep_small_ones_waiting(tmp_path: Path, *, huge_first: bool) -> None:
    huge = make(tmp_path, "huge", buckets=64)
    small = {f"small{i}": make(tmp_path, f"small{i}", buckets=2) for i in range(3)}
    every = {"huge": huge, **small} if huge_first else {**small, "huge": huge}
    before = {name: contents(table) for name, table in every.items()}
    tables = ManyTables({n: settings(t) for n, t in every.items()}, turn_bytes=TURN, clock=Clock())
    done = finish(tables)
    steps = Counter(done)
    assert steps["huge"] > 64
    last = {name: len(done) - done[::-1].index(name) for name in every}
    for name in small:
        # A small table needs a few turns, and waits for as many of each other table, however many steps the huge one
        # has.
        turns = -(-steps[name] // STEPS)
        assert last[name] <= turns * STEPS * len(every) < last["huge"] / 2, (last, steps)
        mine = [at for at, who in enumerate(done) if who == name]
        for one, other in zip([-1, *mine], mine, strict=False):
            between = Counter(done[one + 1 : other])
            assert between["huge"] * STEP_BYTES <= TURN + STEP_BYTES
    assert {name: contents(Table.open(table.uri)) for name, table in every.items()} == before
    assert not any(map(waits, every.values()))
    assert all(table.verify().ok for table in every.values())


def test_a_compaction_in_steps_moves_the_start_of_the_log_like_a_single_one(tmp_path: Path) -> None:
    """The whole round is one compaction, so its log can be cleaned."""
    table = make(tmp_path, "t", buckets=16)
    tables = ManyTables({"t": settings(table)}, turn_bytes=1, clock=Clock())
    finish(tables)
    assert Table.open(table.uri).state().covered == table.snapshot().cut.lanes
    table.clean(dt.timedelta(0))
    assert not list((folder_of(table) / "log").rglob("*.arrow"))


def test_a_damaged_table_does_not_stop_the_others_and_is_tried_again(tmp_path: Path) -> None:
    tables = {name: make(tmp_path, name) for name in ("a", "b", "c")}
    logs = folder_of(tables["b"]) / "log"
    logs.rename(tmp_path / "away")
    clock = Clock()
    many = ManyTables({n: settings(t) for n, t in tables.items()}, turn_bytes=TURN, clock=clock)
    finish(many)
    assert [waits(tables["a"]), waits(tables["c"])] == [False, False]
    broken = status(many, "b")
    assert broken.report.doing == "waiting"
    assert "is missing" in broken.report.message
    assert "next try in 2 s" in broken.report.message
    assert broken.failures == 1
    assert not Table.open(tables["b"].uri).state().plans
    pauses = []
    for _ in range(12):
        pauses.append(many.wait_seconds())
        clock.now += many.wait_seconds()
        finish(many)
    assert pauses[0] == 2.0
    assert status(many, "b").failures > 2
    (tmp_path / "away").rename(logs)
    clock.now += 1_000
    finish(many)
    mended = status(many, "b")
    assert (mended.failures, mended.report.doing, "missing" in mended.report.message) == (0, "idle", False)
    assert not waits(tables["b"])


def test_an_unreachable_store_is_shown_as_an_outage(tmp_path: Path) -> None:
    table = make(tmp_path, "here")
    with socket.socket() as silent:  # bound, so that nobody else listens there
        silent.bind(("127.0.0.1", 0))
        options = {"endpoint_url": f"http://127.0.0.1:{silent.getsockname()[1]}", "key": "k", "secret": "s"}
        away = TableSettings(TableLocation("s3://bucket/away", options), POLICY, None)
        many = ManyTables({"away": lambda: away, "here": settings(table)}, clock=Clock())
        finish(many)
    shown = status(many, "away").report
    assert (shown.doing, shown.waiting_for) == ("waiting", "the store of s3://bucket/away")
    assert shown.waiting_since_ms is not None
    assert not waits(table)


def test_a_table_that_is_slow_to_open_does_not_keep_others_waiting(tmp_path: Path) -> None:
    tables = {name: make(tmp_path, name) for name in ("a", "b")}
    leave = threading.Event()

    def slow() -> TableSettings:
        assert leave.wait(PATIENCE_SECONDS)
        return settings(tables["a"])()

    with ThreadPoolExecutor(2) as opener:
        many = ManyTables({"a": slow, "b": settings(tables["b"])}, once=True, opener=opener)
        work_until(many, lambda: not waits(tables["b"]))
        assert waits(tables["a"])
        assert not many.finished
        leave.set()
        work_until(many, lambda: many.finished)
    assert not waits(tables["a"])


def work_until(tables: ManyTables, done: Callable[[], bool]) -> None:
    for _ in until(time.monotonic() + PATIENCE_SECONDS / 2):
        while tables.step() is not None:
            pass
        if done():
            return
    raise AssertionError(tables.statuses)


def test_settings_are_read_again_after_an_error(tmp_path: Path) -> None:
    table = make(tmp_path, "t")
    wrong = [True]

    def load() -> TableSettings:
        if wrong[0]:
            raise InvalidInput("p.yaml: no such field")
        return settings(table)()

    clock = Clock()
    many = ManyTables({"t": load}, clock=clock)
    finish(many)
    assert "no such field" in status(many, "t").report.message
    wrong[0] = False
    clock.now = 10.0
    finish(many)
    assert not waits(table)


@pytest.mark.slow
def test_large_rounds_are_limited_and_small_ones_do_not_wait_for_them(tmp_path: Path) -> None:
    large = {f"large{i}": make(tmp_path, f"large{i}", buckets=16) for i in range(3)}
    small = make(tmp_path, "small", buckets=1)
    bytes_of = [sum(each.log_bytes for each in table.snapshot().slices) for table in (small, *large.values())]
    turn = bytes_of[0] + 1
    assert min(bytes_of[1:]) > turn
    every = {**large, "small": small}
    many = ManyTables({n: settings(t) for n, t in every.items()}, turn_bytes=turn, max_large=1, clock=Clock())
    done, plans, open_plans = [], set(), []
    while (name := many.step()) is not None:
        done.append(name)
        plans = {n for n in large if Table.open(large[n].uri).state().plans}
        open_plans.append(plans)
        assert len(plans) <= 1
    assert any(open_plans)
    assert not any(map(waits, every.values()))
    first_end = next(at for at, plans in enumerate(open_plans) if at and not plans and any(open_plans[:at]))
    assert "small" in done[:first_end]
    assert not any("wait until fewer" in each.report.message for each in many.statuses)


def test_few_tables_stay_open(tmp_path: Path) -> None:
    tables = {name: make(tmp_path, name, buckets=1) for name in "abcd"}
    many = ManyTables({n: settings(t) for n, t in tables.items()}, max_open=2, clock=Clock())
    finish(many)
    assert many.open_tables == 2
    assert not any(map(waits, tables.values()))


def test_a_stop_leaves_no_open_plan_and_no_garbage(tmp_path: Path) -> None:
    table = make(tmp_path, "t", buckets=16)
    before = contents(table)
    many = ManyTables({"t": settings(table)}, turn_bytes=TURN, clock=Clock())
    for _ in range(8):
        assert many.step() == "t"
    assert Table.open(table.uri).state().plans
    assert list((folder_of(table) / "base").rglob("*.parquet"))
    many.stop()
    assert not Table.open(table.uri).state().plans
    assert not list((folder_of(table) / "base").rglob("*.parquet"))
    assert contents(Table.open(table.uri)) == before
    assert status(many, "t").phase is Phase.STOPPED
    assert Table.open(table.uri).verify().ok


def test_tables_are_folded_and_cleaned_when_due(tmp_path: Path) -> None:
    table = make(tmp_path, "t")
    clean = CleanSection(every=600.0, retain=0.0)
    patient = CompactionSection(every=1.0, min_commits=1_000, max_log_ratio=1e9, fold_commits=3)
    clock = Clock()
    many = ManyTables({"t": lambda: TableSettings(TableLocation(table.uri), patient, clean)}, clock=clock)
    finish(many)  # the first slice
    for number in range(3):
        append(table, orders(*range(16), ts=number + 2))
    clock.now = 2.0
    finish(many)
    assert len(Table.open(table.uri).state().folds) == 1
    assert status(many, "t").report.message.startswith("3 commits, ")
    table.compact()
    clock.now = 4.0
    finish(many)
    assert not status(many, "t").report.message.endswith("MB deleted"), "the last clean was too recent"
    clock.now = 601.0
    finish(many)
    assert status(many, "t").report.message.endswith("MB deleted")
    assert status(many, "t").report.due_bytes == 0


def test_a_time_to_live_is_applied_between_compaction_and_cleaning(tmp_path: Path) -> None:
    table, other = make(tmp_path, "t"), make(tmp_path, "other")
    table.set_ttl(rows="1 day", by="ots", unit="seconds")  # these are seconds of 1970
    clock, ttl = Clock(), TtlSection(every=600.0)

    def load(given: Table) -> Callable[[], TableSettings]:
        return lambda: TableSettings(TableLocation(given.uri), POLICY, None, ttl)

    many = ManyTables({"t": load(table), "other": load(other)}, clock=clock)
    finish(many)
    assert table.snapshot().to_arrow().num_rows == 0
    assert other.snapshot().to_arrow().num_rows == 64
    report = status(many, "t").report
    assert (report.expired_rows, report.forgotten_deletes) == (64, 0)
    assert report.message.startswith("64 rows and 0 deletes expired in 4 file groups, ")
    assert report.expired_at_ms is not None
    assert status(many, "other").report.expired_at_ms is None
    append(table, orders(1))
    clock.now = 599.0
    finish(many)
    assert table.snapshot().to_arrow().num_rows == 1, "the last look was too recent"
    clock.now = 630.0
    finish(many)
    assert status(many, "t").report.expired_rows == 65


def test_measures_have_samples_and_late_events(tmp_path: Path) -> None:
    table, clock = make(tmp_path, "t"), Clock()
    with table.writer("orders", lateness=0) as writer:
        writer.append(orders(1, ts=9))
        writer.append(orders(1, ts=3))
    views: list[TableView] = []
    many = ManyTables({"t": settings(table)}, clock=clock, on_view=lambda _, view: views.append(view))
    for now in (0.0, 31.0, 601.0):
        clock.now = now
        finish(many)
    assert len(views) == 3
    for view in views:
        assert view.measures is not None
        assert view.measures.late["orders", "order"] == 1
        assert view.sample is not None
    assert views[0].sample is views[1].sample, "a sample reads files, so it is taken each ten minutes"
    assert views[2].sample is not views[1].sample
    assert views[0].sample.fill == {}  # type: ignore[union-attr]
    assert views[2].sample.fill["order"] == 1  # type: ignore[union-attr]


def test_once_ends_after_one_round_of_each(tmp_path: Path) -> None:
    tables = {name: make(tmp_path, name) for name in ("a", "b")}
    shutil.rmtree(folder_of(tables["b"]) / "log")
    many = ManyTables({n: settings(t) for n, t in tables.items()}, once=True)
    seen: list[tuple[Phase, ...]] = []
    serve_tables(many, threading.Event(), lambda statuses: seen.append(tuple(each.phase for each in statuses)))
    assert seen[-1] == (Phase.DONE, Phase.FAILED)
    assert status(many, "b").is_lost
    assert "is missing" in status(many, "b").message


def test_tables_are_named_by_location_file_pattern_and_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("x", "y"):
        make(tmp_path / "lake", name, buckets=1)
    (tmp_path / "lake/none").mkdir()
    for name in ("p", "q"):
        (tmp_path / "pipes" / name).mkdir(parents=True)
        shutil.move(pipeline_file(tmp_path / "pipes" / name), tmp_path / f"pipes/{name}.yaml")
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists/all.txt").write_text("../lake/x  # again\n\n# nothing\ns3://bucket/other/x\n../pipes/*.yaml\n")
    assert list_tables(["lake/*"]) == [TableTarget("x", "lake/x"), TableTarget("y", "lake/y")]
    found = list_tables(["lake/*", "@lists/all.txt", "lake/y"])
    assert [Path(target.text).name for target in found] == ["x", "y", "x", "x", "p.yaml", "q.yaml"]
    assert len({target.name for target in found}) == 6
    assert found[-1] == TableTarget("q", "lists/../pipes/q.yaml")
    for wrong, error in (
        (["lake/z*"], InvalidInput),
        (["s3://b/*"], InvalidInput),
        (["@none.txt"], NotFound),
        ([], InvalidInput),
    ):
        with pytest.raises(error):
            list_tables(wrong)


def test_the_command_runs_one_round_of_each_table(tmp_path: Path) -> None:
    here = make(tmp_path, "here")
    made = make(tmp_path / "of_file", "wide")
    writer = {"source": {"type": "spark", "format": "rate"}}
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump({"table": {"uri": made.uri}, "writers": {"orders": writer}}))
    good = weft("services", here.uri, path, "--once", "--json")
    assert good.exit_code == 0, good.output
    assert not waits(here)
    assert not waits(made)
    assert '"job": "here", "state": "done"' in good.stdout
    bad = weft("services", here.uri, tmp_path / "none", tmp_path / "none.yaml", "--once")
    assert bad.exit_code == 1
    assert f"there is no table at {(tmp_path / 'none').as_uri()}" in bad.stderr
    assert "none.yaml" in bad.stderr
    assert weft("services", here.uri, "--once", "--retain", "0").exit_code == 0
    assert not list((folder_of(here) / "log").rglob("*.arrow"))
    wrong = weft("services", here.uri, "--every", "soon")
    assert (wrong.exit_code, "--every" in wrong.stderr) == (2, True)
    assert weft("services", tmp_path / "z*").exit_code == 2


@pytest.mark.slow
def test_the_process_serves_metrics_and_stops_on_a_signal(tmp_path: Path) -> None:
    tables = [make(tmp_path, name) for name in ("a", "b")]
    command = [sys.executable, "-P", "-m", "weft.streams.cli.main", "services", *(table.uri for table in tables)]
    process = subprocess.Popen(
        [*command, "--every", "100 ms", "--http", "0"],
        env=os.environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        base = process.stderr.readline().removeprefix("--http 0: ").removesuffix("/metrics\n")
        # It measures the tables with the snapshots of its rounds. The round of the commit may still go on.
        expected = {f'weft_table_up{{table="{table.uri}"}} 1.0' for table in tables}
        expected |= {f'weft_commits_total{{part="{part}"}} 1.0' for part in "ab"}
        expected |= {f'weft_due_bytes{{part="{part}"}} 0.0' for part in "ab"}
        deadline, text = time.monotonic() + PATIENCE_SECONDS, ""
        while not expected <= set(text.splitlines()):
            assert time.monotonic() < deadline, text
            time.sleep(0.1)
            text = get(f"{base}/metrics")
        assert re.fullmatch(r"a: (idle|compacting)\nb: (idle|compacting)\n", get(f"{base}/readyz"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.communicate()
    assert not any(map(waits, tables))


def test_a_second_signal_does_not_wait_for_the_step(tmp_path: Path) -> None:
    """The step does not end, because it waits for the test; the handler raises SystemExit in the main thread."""
    table, entered, leave, stop = make(tmp_path, "t"), threading.Event(), threading.Event(), threading.Event()

    def load() -> Any:
        entered.set()
        leave.wait(PATIENCE_SECONDS)
        return settings(table)()

    def on_status(_: object) -> None:
        if entered.is_set():
            raise SystemExit(130)

    with pytest.raises(SystemExit):
        serve_tables(ManyTables({"t": load}), stop, on_status)
    stop.set()
    leave.set()


def test_two_processes_of_services_divide_one_table(tmp_path: Path) -> None:
    """Their rounds overlap: the steps take turns. Each file group is written about once, and nothing waits."""
    table = make(tmp_path, "t", buckets=32)
    before = contents(table)
    both = [ManyTables({"t": settings(table)}, turn_bytes=1, clock=Clock()) for _ in range(2)]
    steps = 0
    while sum(tables.step() is not None for tables in both):
        steps += 1
        assert steps < 2_000
    messages = [status(tables, "t").report.message for tables in both]
    done = [int(re.match(r"(\d+) file groups?", message).group(1)) for message in messages]  # type: ignore[union-attr]
    assert sum(done) == 32
    assert min(done) >= 8, "both have worked"
    written = {name for name, _ in table.env.store.list("base")}  # type: ignore[arg-type]
    assert len(written) == 32, "what was written twice is removed"
    assert contents(Table.open(table.uri)) == before
    assert not waits(table)
    assert Table.open(table.uri).state().covered == table.snapshot().cut.lanes
    assert table.verify().ok
