"""Bound rows: reads that patch the referenced rows of an earlier snapshot equal reads of the later one (M11).

A worker process that keeps rows is simulated by pickling scans and tasks. The stories are the cases in which rows of
the bound snapshot must not be used, or not without what has changed since. Broken implementations must fail in them.
"""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.storage.read.references.test_reference_laws import Shop, steps
from tests.storage.support.world import bag
from weft import Snapshot
from weft.storage.core.log import cut
from weft.storage.core.log.cut import Cut
from weft.storage.errors import TableError
from weft.storage.read.plan.log_slices import start_of
from weft.storage.read.references import bound_rows, reference_rows
from weft.storage.read.references.bound_rows import BoundRows, rows_since
from weft.storage.read.references.joined_scan import JoinedScan
from weft.storage.read.references.kept_rows import KeptRows
from weft.storage.read.references.reference_rows import Newer
from weft.storage.read.snapshot_files import SnapshotFiles

pytestmark = pytest.mark.usefixtures("small_files", "always_bound")

COLUMNS = ["order_id", "customer_name", "customer_tier", "twin_id"]
NOTHING_RETAINED = dt.timedelta(0)

FIRST: tuple[tuple[Any, ...], ...] = (
    ("crm", 0, "a", 1, "upsert"),
    ("crm", 1, "b", 1, "upsert"),
    *(("orders", key, key % 4, 1, "upsert") for key in range(5)),
    ("remember",),
    ("crm", 3, "c", 1, "upsert"),
    ("look",),
)
"""Customer 3 is in the bound snapshot, and not in the snapshot before, to which a restore may go back."""

STORIES: dict[str, list[tuple[Any, ...]]] = {
    "a customer changes": [("crm", 0, "A", 2, "upsert")],
    "customers change one after the other": [
        ("crm", 0, "A", 2, "upsert"),
        ("look",),
        ("crm", 3, "C", 2, "upsert"),
        ("crm", 2, "new", 1, "upsert"),
        ("look",),
        ("crm", 3, None, 3, "delete"),
    ],
    "a late event loses": [("crm", 0, "late", 0, "upsert")],
    "a new customer": [("crm", 2, "new", 1, "upsert")],
    "a customer is deleted, and inserted again": [
        ("crm", 1, None, 2, "delete"),
        ("look",),
        ("crm", 1, "again", 3, "upsert"),
    ],
    "a hidden customer is shown again by its owner": [
        ("crm", 1, None, 2, "delete"),
        ("loyalty", 1, "gold", 1, "upsert"),
        ("look",),
        ("crm", 1, "b", 3, "upsert"),
    ],
    "a foreign key changes, and changes back": [
        ("orders", 0, 1, 2, "upsert"),
        ("look",),
        ("orders", 0, 0, 3, "upsert"),
    ],
    "compactions of both tables": [("crm", 0, "A", 2, "upsert"), ("compact", "customers"), ("compact", "orders")],
    "an earlier cut after a later one": [("crm", 0, "A", 2, "upsert"), ("look",), ("look back", 0)],
    "a restore": [("crm", 0, "A", 2, "upsert"), ("look",), ("restore", 0), ("look",), ("crm", 0, "B", 2, "upsert")],
    "an undo": [("crm", 0, "A", 2, "upsert"), ("look",), ("undo", 0), ("look",), ("crm", 0, "B", 2, "upsert")],
    # The first erase or rewrite of a table is also a schema change, which adds a feature.
    "an erase": [("erase", 0), ("look",), ("erase", 1), ("look",), ("crm", 3, "C", 2, "upsert")],
    "a rewrite": [("rewrite",), ("look",), ("rewrite",), ("look",), ("crm", 3, "C", 2, "upsert")],
    "another default": [("default", "bronze"), ("look",), ("crm", 3, "C", 2, "upsert")],
    "a column is added": [("column",), ("look",), ("crm", 0, "A", 2, "upsert")],
    "the bound snapshot expires": [
        ("crm", 0, "A", 2, "upsert"),
        ("compact", "customers"),
        ("clean",),
        ("look",),
        ("crm", 3, "C", 2, "upsert"),
    ],
}

more_steps = st.one_of(
    steps,
    st.tuples(st.sampled_from(["restore", "undo", "erase", "look back"]), st.integers(0, 3)),
    st.tuples(st.just("default"), st.sampled_from(["bronze", "none"])),
    st.tuples(st.sampled_from(["rewrite", "column", "clean", "look"])),
)


@pytest.fixture
def always_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound rows are used, however much has changed, and whole referenced tables are read for few foreign keys."""
    monkeypatch.setattr(bound_rows, "MOST_SHARE", 1e9)
    monkeypatch.setattr(reference_rows, "LOOK_UP_ROWS", 0)


class Reader:
    """Reads orders as a view does: one `BoundRows` in the driver, and a worker process that keeps rows."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.bound = BoundRows()
        self.cuts: list[tuple[str, str]] = []
        self.used = 0

    def look(self, as_of: str | None = None) -> None:
        snapshot = self.shop.orders.snapshot(as_of)
        try:
            expected = bag(snapshot.to_arrow(COLUMNS))
        except TableError:
            return  # it has expired
        self.remember()
        assert bag(self.read(snapshot)) == expected

    def remember(self) -> None:
        """Record the cuts of both tables, to come back to them."""
        self.cuts.append((str(self.shop.orders.snapshot().cut), str(self.shop.customers.snapshot().cut)))

    def read(self, snapshot: Snapshot) -> pa.Table:
        scan = snapshot.scan(COLUMNS)
        assert isinstance(scan, JoinedScan)
        bound = self.bound.apply(scan, snapshot.references)
        self.used += sum(join.rows.since is not None for join in bound.joins)
        sent, tasks = pickle.loads(pickle.dumps((bound.without_tasks(), bound.tasks)))
        return pa.Table.from_batches([batch for task in tasks for batch in sent.read(task)], scan.arrow)

    def run(self, step: Sequence[Any], number: int) -> None:
        customers = self.shop.customers
        cuts = self.cuts[step[1] % len(self.cuts)] if step[0] in {"look back", "restore", "undo"} else ("", "")
        match step[0]:
            case "look":
                self.look()
            case "remember":
                self.remember()
            case "look back":
                self.look(cuts[0])
            case "restore":
                customers.restore(cuts[1])
            case "undo":
                customers.undo("crm", cuts[1])
            case "erase":
                customers.erase([step[1]], expire_snapshots=True, release_savepoints=True)
            case "rewrite":
                customers.rewrite("name", lambda names: pc.binary_join_element_wise(names, "rewritten", " "))
            case "default":
                customers.set_default("tier", step[1])
            case "column":
                customers.add_column("crm", f"extra{number}", "int")
            case "clean":
                customers.clean(NOTHING_RETAINED)
            case _:
                self.shop.run(step)


def tell(story: Sequence[Sequence[Any]]) -> Reader:
    """Run a story, and compare at each look."""
    reader = Reader(Shop())
    for number, step in enumerate([*FIRST, *story, ("look",)]):
        try:
            reader.run(step, number)
        except TableError:
            assert step[0] in {"restore", "undo"}, step  # the cut has expired
    return reader


def examples(test: Any) -> Any:
    for story in STORIES.values():
        test = example(story=story)(test)
    return test


@examples
@given(story=st.lists(more_steps, max_size=10))
def test_bound_rows_give_the_answer_of_a_read_that_joins_the_newest_rows(story: list[tuple[Any, ...]]) -> None:
    tell(story)


@pytest.mark.parametrize(
    ("name", "used"), [("a customer changes", True), ("compactions of both tables", True), ("a restore", False)]
)
def test_bound_rows_are_used_where_the_changes_can_be_told(name: str, used: bool) -> None:  # noqa: FBT001
    reader = tell(STORIES[name][:3])
    assert bool(reader.used) or not used


def test_a_worker_that_finds_the_bound_snapshot_expired_reads_the_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_rows, "KEPT_ROWS", KeptRows(0))
    shop = Shop()
    reader = Reader(shop)
    for step in [*FIRST, ("crm", 0, "A", 2, "upsert")]:
        reader.run(step, 0)
    snapshot = shop.orders.snapshot()
    scan = snapshot.scan(COLUMNS)
    assert isinstance(scan, JoinedScan)
    bound = reader.bound.apply(scan, snapshot.references)
    assert all(join.rows.since is not None for join in bound.joins)
    expected = bag(snapshot.to_arrow(COLUMNS))
    shop.customers.compact()
    shop.customers.clean(NOTHING_RETAINED)
    current = shop.orders.snapshot()
    again = current.scan(COLUMNS)
    assert isinstance(again, JoinedScan)
    # The rows of the newest snapshot equal those of ``snapshot``; only the bound files are gone.
    joins = tuple(
        replace(late, rows=replace(late.rows, since=early.rows.since))
        for late, early in zip(again.joins, bound.joins, strict=True)
    )
    sent = replace(again, joins=joins)
    assert bag(pa.Table.from_batches([b for task in sent.tasks for b in sent.read(task)], sent.arrow)) == expected


def test_much_that_has_changed_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bound_rows, "MOST_SHARE", 0.4)
    reader = Reader(Shop())
    for step in FIRST:
        reader.run(step, 0)
    before = reader.shop.customers.snapshot().cut
    reader.run(("crm", 0, "A", 2, "upsert"), 0)
    assert rows_since(before, reader.shop.customers.snapshot(), ["id", "name"]) is not None
    reader.run(("crm", 1, "B", 2, "upsert"), 0)
    reader.run(("crm", 3, "C", 2, "upsert"), 0)
    assert rows_since(before, reader.shop.customers.snapshot(), ["id", "name"]) is None


def test_few_rows_that_are_large_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    story = STORIES["a customer changes"]
    assert tell(story).used
    monkeypatch.setattr(bound_rows, "MOST_BYTES", 1)
    assert not tell(story).used


def _tells(without: str) -> Callable[[Cut, SnapshotFiles], bool]:
    """`bound_rows.has_all_changed_keys` without one of its conditions."""

    def has_all_changed_keys(bound: Cut, later: SnapshotFiles) -> bool:
        state = later.state
        conditions = {
            "part": bound.table <= later.at.table and cut.within(start_of(bound, state), later.at.lanes),
            "restored": state.restored <= bound.table,
            "rewritten": state.rewritten <= bound.table,
            "schema": state.schema_rev <= bound.table,
        }
        return all(holds for name, holds in conditions.items() if name != without)

    return has_all_changed_keys


def _without_deleted(schema: Any, changed: Any, rows: pa.Table) -> Newer:
    return Newer.of(schema, {name: rows.column(name).combine_chunks() for name in changed}, rows)


@pytest.mark.parametrize(
    ("target", "broken", "story"),
    [
        ("has_all_changed_keys", _tells("restored"), "a restore"),
        ("has_all_changed_keys", _tells("restored"), "an undo"),
        ("has_all_changed_keys", _tells("rewritten"), "a rewrite"),
        ("has_all_changed_keys", _tells("rewritten"), "an erase"),
        ("has_all_changed_keys", _tells("schema"), "another default"),
        ("has_all_changed_keys", _tells("part"), "an earlier cut after a later one"),
        ("_changed_keys", lambda *_: ({"id": pa.array([], pa.int64())}, {}), "a customer changes"),
        ("Newer.followed_by", lambda _, later: later, "customers change one after the other"),
    ],
)
def test_broken_implementations_are_found(
    target: str, broken: Any, story: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(STORIES[story])
    monkeypatch.setattr(f"weft.storage.read.references.bound_rows.{target}", broken)
    with pytest.raises(AssertionError):
        tell(STORIES[story])


def test_an_implementation_that_forgets_deleted_customers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful:
        of = staticmethod(_without_deleted)

    monkeypatch.setattr(bound_rows, "Newer", Forgetful)
    with pytest.raises(AssertionError):
        tell(STORIES["a customer is deleted, and inserted again"])
