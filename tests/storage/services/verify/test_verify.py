"""Verify reports nothing for intact tables, whatever their history and whatever happens meanwhile."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faulty_store import FakeClock, FaultyStore, other_process
from tests.storage.support.damage import shop, verified
from tests.storage.support.history import STEPS, History
from tests.storage.support.shop import append, new_uri, orders, payments
from tests.storage.support.world import World
from tests.strategies import EVERY_GROUP, Compact, Story, stories
from weft import Table
from weft.storage.core.names import Path
from weft.storage.services.verify.findings import VerifyReport
from weft.storage.services.verify.verify import verify_table
from weft.storage.store.object_store import ObjectStore
from weft.storage.store.open_store import open_store

pytestmark = pytest.mark.usefixtures("small_files")


def sound(report: VerifyReport) -> VerifyReport:
    assert report.ok, str(report)
    return report


@given(stories())
def test_verify_finds_nothing_in_a_table_of_any_shape(story: Story) -> None:
    with World(story.config) as world:
        world.run(story.steps)
        sound(world.table.verify())
        world.compact(Compact(EVERY_GROUP))
        report = sound(Table.open(world.uri).verify())
        assert report.checked["entries"] > 0
        assert report.checked.get("rows", 0) >= len(world.expected())


@given(st.lists(st.sampled_from(STEPS), min_size=3, max_size=25))
def test_verify_finds_nothing_in_a_table_with_any_history(steps: list[str]) -> None:
    history = History()
    for step in steps:
        history.run(step)
    sound(history.table.verify())
    sound(Table.open(history.table.uri).verify(deep=False))


class BusyStore(FaultyStore):
    """Runs a function just before one of the calls of a kind."""

    def __init__(self, inner: ObjectStore, kind: str, at: int, action: Callable[[], object]) -> None:
        super().__init__(inner)
        self._kind, self._at, self._action = kind, at, action
        self.met = 0

    def _call(self, call: str, path: Path, run: Callable[[], Any]) -> Any:
        if call == self._kind:
            if self.met == self._at:
                self._action()
            self.met += 1
        return super()._call(call, path, run)


def happen(table: Table, *, clean: bool) -> None:
    """Many operations at once."""
    append(table, orders(1, 2, 3, ts=20))
    table.fold()
    append(table, payments(1, 2, 3, ts=20), "payments")
    table.add_column("order", "late", "bigint")
    with table.writer("orders", lane="late") as writer:
        writer.append(orders(30))
    table.compact()
    for number in (2, 3, 4):
        append(table, orders(number, ts=30), batch=("q", number + 2))
    table.restore("before")
    append(table, orders(1, 2, 3, ts=30), batch=("q", 4))
    table.compact()
    if clean:
        table.clean(dt.timedelta(0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "calls", "clean"),
    [
        ("list", range(2, 10), False),
        ("list", range(2, 12, 3), True),
        ("get", range(0, 60, 15), False),
        ("open_input", range(0, 18, 6), True),
    ],
)
def test_verify_finds_nothing_in_a_table_that_changes_meanwhile(kind: str, calls: range, *, clean: bool) -> None:
    """Before every relevant listing, and before many reads."""
    for number in calls:
        table = shop(new_uri())
        table.savepoint("before")
        store = BusyStore(open_store(table.uri), kind, number, functools.partial(happen, table, clean=clean))
        report = other_process(table.uri, FakeClock(), store).verify()
        assert report.ok, f"{kind} {number}: {report}"
        assert store.met > number
        sound(verified(table))


def test_none_reads_the_files_in_this_process() -> None:
    table = shop(new_uri())
    for report in (table.verify(execute=None), verify_table(table.uri, execute=None)):
        assert sound(report).checked == table.verify().checked
