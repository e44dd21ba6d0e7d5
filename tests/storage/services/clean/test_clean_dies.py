"""A clean that dies or cannot delete: the next one finishes its work, and deletes no more (L3, S17)."""

from __future__ import annotations

import pytest

from tests.faulty_store import FakeClock, Fault, FaultyStore, other_process
from tests.storage.support.cleaning import (
    ALL,
    NOW,
    Killed,
    MortalStore,
    compacted,
    copied,
    entries,
    killed_late,
    stored,
    used,
)
from tests.storage.support.shop import SHOP, append, contents, new_uri, orders, payments
from weft import Table
from weft.storage.core.log.entries import CleanDone
from weft.storage.errors import StoreUnavailable
from weft.storage.store.open_store import open_store
from weft.storage.write.write_task import write_rows


@pytest.fixture
def uri() -> str:
    return new_uri()


@pytest.fixture
def table(uri: str, clock: FakeClock) -> Table:
    return Table.create(uri, SHOP, clock=clock)


class TestCrash:
    @pytest.mark.slow
    def test_the_next_clean_finishes_an_interrupted_one(self, clock: FakeClock) -> None:
        """At every call of the store: a clean that dies there, then one that completes."""
        survived = 0
        original = _with_garbage(clock)
        expected, kept = contents(original), contents(original, as_of="kept")
        for number in range(1000):
            table = copied(original, clock)
            store = MortalStore(open_store(table.uri), dies_at=number)
            try:
                other_process(table.uri, clock, store).clean(NOW, abandon_after=NOW)
            except Killed:
                survived += 1
            else:
                break
            assert contents(Table.open(table.uri)) == expected
            assert contents(table, as_of="kept") == kept
            table.release_savepoint("kept")
            table.clean(NOW, abandon_after=NOW)
            assert contents(Table.open(table.uri)) == expected
            assert stored(table) == used(table.snapshot())
        assert survived > 50

    def test_a_failed_deletion_is_reported_and_the_next_clean_continues(self, clock: FakeClock) -> None:
        table = _with_garbage(clock)
        expected = contents(table)
        store = FaultyStore(open_store(table.uri))
        store.faults.append(Fault("delete", "base", error=PermissionError("may not")))
        cleaner = other_process(table.uri, clock, store)
        with pytest.raises(StoreUnavailable, match="no access to base"):
            cleaner.clean(NOW, abandon_after=NOW)
        assert not [entry for entry in entries(table) if isinstance(entry, CleanDone)]
        cleaner.clean(NOW, abandon_after=NOW)
        table.release_savepoint("kept")
        cleaner.clean(NOW, abandon_after=NOW)
        assert contents(table) == expected
        assert stored(table) == used(table.snapshot())

    @pytest.mark.parametrize("call", ["list", "get", "delete", "put_if_absent"])
    def test_a_second_cleaner_at_the_same_time_does_no_harm(self, clock: FakeClock, call: str) -> None:
        table = _with_garbage(clock)
        expected = contents(table)
        kept = contents(table, as_of="kept")
        store = FaultyStore(open_store(table.uri))
        store.faults.append(Fault(call, "", action=lambda: table.clean(NOW, abandon_after=NOW) and None))
        other_process(table.uri, clock, store).clean(NOW, abandon_after=NOW)
        assert (contents(table), contents(table, as_of="kept")) == (expected, kept)
        table.release_savepoint("kept")
        table.clean(NOW)
        assert stored(table) == used(table.snapshot())


def _with_garbage(clock: FakeClock) -> Table:
    """A table with old slices, rolled back entries, orphans, a dead compaction, a savepoint."""
    table = Table.create(new_uri(), SHOP, clock=clock)
    compacted(table, "first", 1)
    append(table, payments(*ALL), "payments")
    table.savepoint("kept")
    compacted(table, "second", 2)
    table.savepoint("point")
    append(table, orders(1, status="void", ts=9))
    table.restore("point")
    table.release_savepoint("point")
    write_rows(table.writer("orders").__enter__().begin(), orders(2))
    append(table, orders(3, status="last", ts=9))
    with pytest.raises(KeyboardInterrupt):
        table.compact(execute=killed_late)
    compacted(table, "third", 10)
    append(table, payments(*ALL, ts=2), "payments")
    with pytest.raises(KeyboardInterrupt):
        table.compact(execute=killed_late)
    return table
