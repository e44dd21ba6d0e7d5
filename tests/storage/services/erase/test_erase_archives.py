"""Erases and cleans that stall around an archive: no key range comes back, whatever arrives late."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from tests.faulty_store import FakeClock, Fault, FaultyStore
from tests.storage.support.erased_table import ALL, append, errors_of, small, with_keys
from weft import Table
from weft.storage.clock import Stamps
from weft.storage.core.names import TABLE_LANE, LaneName, archive_folder, archive_path
from weft.storage.environment import Environment
from weft.storage.log.commit_log import CommitLog
from weft.storage.services.erase.erase import EraseResult
from weft.storage.services.erase.key_search import KeySearch
from weft.storage.services.erase.proof import Boundary, prove
from weft.storage.store.open_store import open_store

FIRST, SECOND = "person-3", "person-8"
NOW = dt.timedelta(0)
STREAM = LaneName("s")


class Died(BaseException):
    pass


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return small(tmp_path, archive_chunk=16, table_checkpoint_every=2, lane_checkpoint_every=2)


def other(table: Table, *faults: Fault, **tuning: int) -> Table:
    """The table opened by another process; ``faults`` occur at its requests."""
    store = FaultyStore(open_store(table.uri))
    store.faults += faults
    env = Environment(store, FakeClock(), tuning=table.env.tuning)
    return Table(env.tuned(**tuning) if tuning else env, Stamps())


def erase(table: Table, key: str) -> EraseResult:
    return table.erase([key], expire_snapshots=True)


def kinds(table: Table) -> list[str]:
    return [entry.kind for entry in CommitLog(table.env).read_after(TABLE_LANE, 0)]


def archives(table: Table) -> list[str]:
    return [name for name, _ in open_store(table.uri).list(archive_folder(TABLE_LANE))]


def fold_of(table: Table, key: str) -> None:
    """A FOLD with one key, and an unrelated one, so that there is something to fold."""
    append(table, "s", [key], 5)
    append(table, "s", [key], 6)
    table.fold()


def two_folds(table: Table) -> None:
    """A table lane with a FOLD of FIRST that nothing needs, and one of SECOND that a savepoint needs. An erase of
    FIRST has died before it redacted the log.
    """
    append(table, "s", ALL)
    table.compact()
    fold_of(table, FIRST)
    table.compact()
    with pytest.raises(Died):
        erase(other(table, Fault("put", "timeline/", error=Died())), FIRST)
    fold_of(table, SECOND)
    append(table, "s", ["person-1"], 7)
    for name in ("one", "two"):  # the savepoint is read from a checkpoint after the second FOLD
        table.savepoint(name)
        table.release_savepoint(name)
    table.savepoint("kept")
    table.compact()
    table.clean(NOW)


def test_a_chunk_with_a_fold_that_a_snapshot_needs_is_not_archived(table: Table) -> None:
    two_folds(table)
    assert archives(table) == []
    table.release_savepoint("kept")
    table.clean(NOW)
    assert len(archives(table)) == 1
    assert errors_of(table) == []


def test_a_late_put_of_an_archive_brings_no_key_back(table: Table) -> None:
    """An erase of one key judges, and another process archives what it has read. It stalls before it replaces the
    archive, and another erase removes the other key from it.
    """
    two_folds(table)

    def archive_both() -> None:
        table.release_savepoint("kept")
        append(table, "s", ["person-1"], 8)
        table.compact()  # from here on a checkpoint that the erase has not replaced is retained
        table.clean(NOW)
        assert len(archives(table)) == 1

    def erase_the_second() -> None:
        assert erase(other(table), SECOND).complete
        late.append(True)

    late: list[bool] = []
    stalled = other(
        table,
        Fault("put", "timeline/table", action=archive_both),
        Fault("put", "archive/table", action=erase_the_second),
    )
    assert erase(stalled, FIRST).complete
    assert late
    assert with_keys(table, [FIRST, SECOND]) == []
    table.clean(NOW)
    assert errors_of(table) == []


def commits(table: Table) -> None:
    """A lane whose first chunk can be archived, with a key at the end of a key range."""
    for number in range(20):
        append(table, "s", [FIRST], number)
    table.compact()
    append(table, "s", ALL, 21)
    table.compact()


def test_a_clean_that_stalls_before_it_creates_an_archive_brings_no_key_back(table: Table) -> None:
    commits(table)

    def erase_the_key() -> None:
        assert erase(other(table, archive_bytes=1), FIRST).complete  # its own clean archives nothing

    stalled = other(table, Fault("put_if_absent", "archive/lanes", action=erase_the_key))
    assert stalled.clean(NOW).archives
    assert with_keys(table, [FIRST]) == []
    assert errors_of(table) == []


def test_the_next_clean_redacts_the_archive_of_a_clean_that_died(table: Table) -> None:
    commits(table)

    def erase_the_key() -> None:
        assert erase(other(table, archive_bytes=1), FIRST).complete
        faults.append(Fault("get", "archive/lanes", error=Died()))

    stalled = other(table, Fault("put_if_absent", "archive/lanes", action=erase_the_key))
    assert isinstance(stalled.env.store, FaultyStore)
    faults = stalled.env.store.faults
    with pytest.raises(Died):
        stalled.clean(NOW)
    assert len(with_keys(table, [FIRST])) == 1
    table.clean(NOW)
    assert with_keys(table, [FIRST]) == []
    assert errors_of(table) == []


def test_the_proof_reads_entries_that_are_archived_meanwhile(table: Table) -> None:
    commits(table)
    slots = {path for path in with_keys(table, [FIRST]) if path.startswith("_weft/timeline/lanes/")}
    assert slots

    def archive() -> None:
        assert table.clean(NOW).archives

    store = FaultyStore(open_store(table.uri))
    store.faults.append(Fault("get", min(slots), action=archive))
    search = KeySearch.of(Environment(store, FakeClock(), tuning=table.env.tuning), table.state().schema, [FIRST])
    proof = prove(store, search, Boundary({STREAM: 1_000}, 1_000, lambda _: False), lambda path, _: path)
    assert archive_path(STREAM, 1) in {remaining.path for remaining in proof.remains}
