"""M11: a read of a table with references is the LEFT JOIN of reads of the tables at the cuts that its cut names.

The expected answer is computed from the oracles of two tables with dictionaries.
"""

from __future__ import annotations

import itertools
import pickle
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import Snapshot, Table
from storage.log.table_log import TableLog
from storage.read import referenced_snapshots as references
from storage.read.references import reference_rows
from tests.oracle import Oracle
from tests.storage.support.reference_shop import CUSTOMERS, ORDERS
from tests.storage.support.world import bag

# The fixture only makes files small; it has no state that examples could share.
pytestmark = pytest.mark.usefixtures("small_files")

REFERENCES: dict[str, dict[str, Any]] = {
    "customer": {"table": "../customers", "on": "customer_id", "columns": ["name", "tier"]},
    "twin": {"table": "../customers", "on": "order_id", "columns": ["name", "id"]},
}
COLUMNS = {
    "crm": ("id", "name", "crm_ts"),
    "loyalty": ("id", "tier", "tier_ts"),
    "orders": ("order_id", "customer_id", "ts"),
    "payments": ("order_id", "paid", "pay_ts"),
}
CUSTOMER_STREAMS = ("crm", "loyalty")

keys = st.integers(0, 4)
versions = st.integers(0, 3)
operations = st.sampled_from(["upsert", "upsert", "delete"])
steps = st.one_of(
    st.tuples(st.just("crm"), keys, st.sampled_from(["a", "b", None]), versions, operations),
    st.tuples(st.just("loyalty"), keys, st.sampled_from(["gold", None]), versions, operations),
    st.tuples(st.just("orders"), keys, st.one_of(st.none(), keys), versions, operations),
    st.tuples(st.just("payments"), keys, st.floats(0, 9), versions, operations),
    st.tuples(st.sampled_from(["compact", "fold"]), st.sampled_from(["customers", "orders"])),
    st.tuples(st.just("split"), st.sampled_from(["customers", "orders"]), st.sampled_from([1, 2, 8])),
)

FILTERS: dict[str, tuple[pc.Expression, Callable[[dict[str, Any]], bool]]] = {
    "of a reference": (pc.field("customer_name") == "a", lambda row: row["customer_name"] == "a"),
    "no row": (pc.field("customer_tier").is_null(), lambda row: row["customer_tier"] is None),
    "of both": (
        (pc.field("order_id") > 1) & (pc.field("twin_name") == "b"),
        lambda row: row["order_id"] > 1 and row["twin_name"] == "b",
    ),
    "of two references": (
        pc.field("customer_name") == pc.field("twin_name"),
        lambda row: row["customer_name"] is not None and row["customer_name"] == row["twin_name"],
    ),
}


class Shop:
    """Two tables and their oracles."""

    def __init__(self) -> None:
        folder = f"memory://references/{uuid.uuid4().hex}"
        self.customers = Table.create(f"{folder}/customers", CUSTOMERS)
        self.orders = Table.create(f"{folder}/orders", {**ORDERS, "references": REFERENCES})
        self.oracles = {"customers": Oracle(CUSTOMERS), "orders": Oracle(ORDERS)}
        self.arrival = 0

    def run(self, step: Sequence[Any]) -> None:
        if step[0] in {"compact", "fold", "split"}:
            service, name, *arguments = step
            getattr(self.customers if name == "customers" else self.orders, service)(*arguments)
            return
        stream, *cells, op = step
        row = dict(zip(COLUMNS[stream], cells, strict=True)) | {"_op": op}
        if stream == "orders":
            row |= {"shop": None, "sku": None}
        table = self.customers if stream in CUSTOMER_STREAMS else self.orders
        self.arrival += 1
        self.oracles["customers" if stream in CUSTOMER_STREAMS else "orders"].append(stream, [row], self.arrival)
        types = {name: column.type for name, column in table.schema.column_by_name.items()} | {"_op": pa.string()}
        with table.writer(stream) as writer:
            writer.append(pa.table({name: pa.array([value], types[name]) for name, value in row.items()}))

    def expected(self, require: Sequence[str] = ()) -> list[dict[str, Any]]:
        customers = self.oracles["customers"].read()
        found = []
        for row in self.oracles["orders"].read([name for name in require if name not in REFERENCES]).values():
            joined, matched = dict(row), set()
            for name, reference in REFERENCES.items():
                other = customers.get((row[reference["on"]],))
                matched.update([] if other is None else [name])
                joined |= {f"{name}_{column}": other and other[column] for column in reference["columns"]}
            if matched.issuperset(name for name in require if name in REFERENCES):
                found.append(joined)
        return found


def check(snapshot: Snapshot, expected: Sequence[dict[str, Any]], **options: Any) -> None:
    for columns in (snapshot.schema.names, ["customer_name"], ["paid", "twin_id"]):
        wanted = bag(pa.Table.from_pylist([{name: row[name] for name in columns} for row in expected]))
        assert bag(snapshot.to_arrow(columns, **options)) == wanted
        assert bag(snapshot.to_reader(columns, **options).read_all()) == wanted
        assert bag(as_worker(snapshot, columns, **options)) == wanted


def as_worker(snapshot: Snapshot, columns: Sequence[str], **options: Any) -> pa.Table:
    """The rows, as a process reads them that is sent the scan and its tasks, and keeps referenced rows."""
    scan = snapshot.scan(columns, **options)
    sent, tasks = pickle.loads(pickle.dumps((scan.without_tasks(), scan.tasks)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference_rows, "LOOK_UP_ROWS", 0)
        return pa.Table.from_batches([batch for task in tasks for batch in sent.read(task)], scan.arrow)


@given(st.lists(steps, max_size=14), st.data())
def test_a_read_is_the_left_join_of_the_tables_at_the_cuts_that_it_names(
    story: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    shop = Shop()
    remembered = []
    for step in story:
        shop.run(step)
        if data.draw(st.booleans(), label="look"):
            remembered.append((str(shop.orders.snapshot().cut), shop.expected()))
    check(shop.orders.snapshot(), shop.expected())
    for cut, expected in remembered:
        check(shop.orders.snapshot(cut), expected)
    require = data.draw(st.lists(st.sampled_from(["order", "payment", *REFERENCES]), unique=True), label="require")
    condition, holds = FILTERS[data.draw(st.sampled_from(sorted(FILTERS)), label="filter")]
    rows = [row for row in shop.expected(require) if holds(row)]
    check(shop.orders.snapshot(), rows, require=require, filter=condition)
    chosen = data.draw(st.lists(keys, unique=True), label="keys")
    found = shop.orders.get(chosen, ["order_id", "customer_tier"], require=require)
    wanted = {row["order_id"]: row["customer_tier"] for row in shop.expected(require) if row["order_id"] in chosen}
    assert dict(zip(*found.to_pydict().values(), strict=True)) == wanted


FIRST = [
    ("crm", 0, "a", 1, "upsert"),
    ("crm", 1, "b", 1, "upsert"),
    *(("orders", key, key % 3, 1, "upsert") for key in range(5)),
    ("compact", "orders"),
]
"""Orders of the customers 0 and 1, and of customer 2, who does not exist."""


def presence(shop: Shop) -> dict[Any, set[str]]:
    """The groups and references that are present in each row."""
    found: dict[Any, set[str]] = {row["order_id"]: set() for row in shop.expected()}
    for name in ("order", "payment", *REFERENCES):
        for row in shop.expected([name]):
            found[row["order_id"]].add(name)
    return found


@given(st.lists(steps, max_size=6), st.data())
def test_changes_are_the_difference_of_two_joined_reads(story: list[tuple[Any, ...]], data: st.DataObject) -> None:
    shop = Shop()
    states: list[tuple[str, dict[Any, Any], dict[Any, set[str]]]] = []
    for step in [*FIRST, *story]:
        shop.run(step)
        if step not in FIRST or step is FIRST[-1]:
            rows = {row["order_id"]: row for row in shop.expected()}
            states.append((str(shop.orders.snapshot().cut), rows, presence(shop)))
    columns = data.draw(
        st.sampled_from([None, ["customer_name"], ["paid", "twin_id"], ["customer_id"]]), label="columns"
    )
    groups = {"order": ORDERS["groups"]["order"]["columns"], "payment": ORDERS["groups"]["payment"]["columns"]}
    groups |= {name: [f"{name}_{column}" for column in each["columns"]] for name, each in REFERENCES.items()}
    asked = [name for name in [*ORDERS["columns"], *groups["customer"], *groups["twin"]] if name != "order_id"]
    asked = asked if columns is None else columns
    first = data.draw(st.integers(0, len(states) - 1), label="since")
    last = len(states) - 1
    (since, before, had), (until, after, has) = states[first], states[last]
    expected = {}
    for key in {*before, *after}:
        old, new = before.get(key), after.get(key)
        counted = {name: [column for column in group if column in asked] for name, group in groups.items()}
        counted = {name: group for name, group in counted.items() if group}
        differing = {
            name
            for name, group in counted.items()
            if (name in had.get(key, ())) != (name in has.get(key, ()))
            or (old is not None and new is not None and any(old[column] != new[column] for column in group))
        }
        if old is None or new is None or differing:
            kind = "insert" if old is None else "delete" if new is None else "update"
            image = None if old is None else tuple(old[name] for name in asked)
            shown = tuple(None if new is None else new[name] for name in asked)
            expected[key] = (kind, frozenset(differing), shown, image)
    found = {}
    for row in shop.orders.changes(since, until, columns=columns, before=True).read_all().to_pylist():
        image = None if row["_before"] is None else tuple(row["_before"][name] for name in asked)
        shown = tuple(row[name] for name in asked)
        found[row["order_id"]] = (row["_change"], frozenset(row["_changed_groups"]), shown, image)
    assert found == expected


def test_two_references_to_one_table_see_one_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row refers to customer 0 twice; its name changes whenever a snapshot of the customers was taken."""
    shop = Shop()
    shop.run(("crm", 0, "a", 1, "upsert"))
    shop.run(("orders", 0, 0, 1, "upsert"))
    taken, versions = references.snapshot_at, itertools.count(2)

    def slowly(table_log: TableLog, *arguments: Any, **options: Any) -> Snapshot:
        found = taken(table_log, *arguments, **options)
        version = next(versions)
        shop.run(("crm", 0, f"name {version}", version, "upsert"))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(references, "snapshot_at", slowly)
        snapshot = shop.orders.snapshot()
    row = snapshot.get([0], ["customer_name", "twin_name"]).to_pylist()[0]
    assert row["customer_name"] == row["twin_name"]
