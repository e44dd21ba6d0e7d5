"""A copy of a table, made in the order of deploy/OPERATIONS.md while writers and services run, opens and verifies."""

from __future__ import annotations

import datetime as dt
import itertools
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.storage.support.shop import SHOP, append, orders, payments
from weft import Table
from weft.storage.environment import open_environment
from weft.storage.errors import CorruptData

ADVICE = Path(__file__).resolve().parents[3] / "deploy" / "OPERATIONS.md"
ORDER = ("_weft/timeline/table", "_weft/timeline/lanes", "_weft/archive", "_weft/index", "log", "base", "shadow")
PATIENCE_SECONDS = 240.0
PAUSE_SECONDS = 0.2  # between cleanings, which take time from the writers


def copy_folders(source: Path, target: Path, order: Sequence[str], between: Callable[[], None]) -> None:
    """Copy folders as rsync does: each is listed when its turn comes, and a file that has vanished is passed over."""
    for folder in order:
        for path in sorted((source / folder).rglob("*")):
            if path.is_file() and not path.name.startswith(".tmp-"):
                place = target / path.relative_to(source)
                place.parent.mkdir(parents=True, exist_ok=True)
                try:
                    shutil.copy2(path, place)
                except FileNotFoundError:
                    place.unlink(missing_ok=True)
        between()


@contextmanager
def busy(uri: Path) -> Iterator[Callable[[], int]]:
    """Writers of two streams, and one process that compacts, folds and cleans. Gives the number of rounds so far."""
    stop, started = threading.Event(), threading.Semaphore(0)
    rounds, failures = [0], []

    def write(stream: str) -> None:
        with Table.open(uri).writer(stream) as writer:
            for number in itertools.count(1):
                ids = [number % 50, number % 7]
                made = orders(*set(ids), ts=number) if stream == "orders" else payments(*set(ids), ts=number)
                writer.append(made)
                rounds[0] += 1
                if number == 1:
                    started.release()
                if stop.is_set():
                    return

    def serve() -> None:
        table = Table(open_environment(uri).tuned(archive_chunk=8, table_checkpoint_every=4, lane_checkpoint_every=8))
        for _ in range(2):  # cleanings would take the probes of writers that start
            assert started.acquire(timeout=PATIENCE_SECONDS)
        while not stop.wait(PAUSE_SECONDS):
            table.compact()
            table.fold()
            table.clean(dt.timedelta(minutes=10))

    def guarded(run: Callable[[], None]) -> Callable[[], None]:
        def inner() -> None:
            try:
                run()
            except Exception as error:
                failures.append(error)
                raise

        return inner

    jobs = [lambda: write("orders"), lambda: write("payments"), serve]
    threads = [threading.Thread(target=guarded(job)) for job in jobs]
    for thread in threads:
        thread.start()
    try:
        yield lambda: rounds[0]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []


def wait_for(rounds: Callable[[], int], more: int) -> None:
    wanted, deadline = rounds() + more, time.monotonic() + PATIENCE_SECONDS
    while rounds() < wanted:
        assert time.monotonic() < deadline, "the writers have stopped"
        time.sleep(0.01)


def finish_copy(table: Table) -> None:
    """Do what the advice says about the report of a verification."""
    errors = table.verify().errors
    assert {finding.invariant for finding in errors} <= {"S31"}
    if errors:
        cuts = {re.findall(r"weft restore URI '(cut:[^']*)'", finding.hint)[0] for finding in errors}
        assert cuts == {str(table.snapshot().cut)}
        table.restore(cuts.pop())
    assert table.verify().ok


def test_writers_refuse_a_copy_with_commits_that_nobody_sees(tmp_path: Path) -> None:
    """Commits follow entries of the table lane that the copy lacks. No reader would see a commit after them."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    table = Table.create(source, SHOP)
    with table.writer("orders") as writer, table.batch_writer("payments") as batch:
        writer.append(orders(1, 2, ts=1))
        batch.append(payments(1, ts=1))

        def go_on() -> None:
            if not (copy / ORDER[1]).exists():
                writer.append(orders(2, ts=2))
                table.compact()
                writer.append(orders(3, ts=3))

        copy_folders(source, copy, ORDER, go_on)
    copied = Table.open(copy)
    before = copied.snapshot().to_arrow().sort_by("id")
    assert before["id"].to_pylist() == [1, 2]
    slots = sorted((copy / ORDER[1]).rglob("*.json"))
    with pytest.raises(CorruptData, match="no reader sees them, and none would see later ones"):
        append(copied, orders(4))
    assert sorted((copy / ORDER[1]).rglob("*.json")) == slots, "nothing was written"
    finish_copy(copied)
    assert copied.snapshot().to_arrow().sort_by("id") == before
    append(copied, orders(1, status="in the copy", ts=9))
    assert copied.get([1])["status"].to_pylist() == ["in the copy"]


@pytest.mark.slow
def test_a_copy_while_writers_run_opens_verifies_and_goes_on(tmp_path: Path) -> None:
    source = tmp_path / "source"
    Table.create(source, SHOP)
    copies = [tmp_path / f"copy-{number}" for number in range(3)]
    with busy(source) as rounds:
        for copy in copies:
            wait_for(rounds, 30)
            copy_folders(source, copy, ORDER, lambda: wait_for(rounds, 8))
    original = Table.open(source)
    for copy in copies:
        table = Table.open(copy)
        snapshot = table.snapshot()
        kept = original.snapshot(str(snapshot.cut))
        assert snapshot.to_arrow().sort_by("id") == kept.to_arrow().sort_by("id")
        assert len(snapshot.to_arrow()) > 10
        finish_copy(table)
        assert table.snapshot().to_arrow().sort_by("id") == kept.to_arrow().sort_by("id")
        append(table, orders(1, status="in the copy", ts=1_000_000))
        table.compact()
        assert table.get([1])["status"].to_pylist() == ["in the copy"]


def test_another_order_loses_files(tmp_path: Path) -> None:
    """The reason for the order: entries that are copied after files name files that are not in the copy."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    table = Table.create(source, SHOP)
    append(table, orders(1))
    reverse = tuple(reversed(ORDER))
    copy_folders(source, copy, reverse, lambda: append(table, orders(2)) and None)
    assert not Table.open(copy).verify().ok


def test_the_advice_has_this_order() -> None:
    text = ADVICE.read_text(encoding="utf-8").split("## Backups", 1)[1].split("\n## ", 1)[0]
    places = [text.index(f"$TABLE/{folder}") for folder in ORDER[:2]]
    rest = re.search(r"\$TABLE/ ", text)
    assert rest is not None
    assert places == sorted(places)
    assert places[-1] < rest.start()
    for left_out in ("/_weft/timeline", "/_weft/checkpoints", "/_weft/heartbeats", "/_weft/pins", ".tmp-*"):
        assert f"--exclude '{left_out}'" in text


@pytest.mark.parametrize("folder", ["_weft/checkpoints", "_weft/heartbeats", "_weft/pins"])
def test_what_is_left_out_is_not_needed(tmp_path: Path, folder: str) -> None:
    table = Table(open_environment(tmp_path / "wide").tuned(table_checkpoint_every=2, lane_checkpoint_every=2))
    Table.create(tmp_path / "wide", SHOP)
    for ts in range(6):
        append(table, orders(1, 2, ts=ts))
        table.compact()
    shutil.rmtree(tmp_path / "wide" / folder, ignore_errors=True)
    opened = Table.open(tmp_path / "wide")
    assert opened.verify().ok
    assert len(opened.snapshot().to_arrow()) == 2
