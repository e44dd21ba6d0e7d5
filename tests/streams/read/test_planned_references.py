"""Plans of scans with columns of references, without a JVM: what the tasks and files of a plan contain."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.storage.support.reference_shop import CUSTOMER, Shop, write
from weft import Table
from weft.storage.core.predicate import Comparison, Condition, IsNull
from weft.streams.read import reference_planner
from weft.streams.read.native_or_merged import PinnedSnapshot, PlannerTuning, TablePlanner
from weft.streams.read.read_options import ReadOptions
from weft.streams.read.relation.planner_interface import Part

WHOLE, HALVES = (Part.WHOLE,), (Part.FILES, Part.REST)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Six orders of the customers 0 and 1, and of customers who do not exist; order 1 has a payment in the log."""
    made = Shop(tmp_path, {"customer": CUSTOMER})
    made.customer(0, "Ann")
    made.customer(1, "Bob")
    for key in range(6):
        made.order(key, key % 4)
    for group in [each.group for each in made.orders.snapshot().slices]:
        made.orders.compact(lambda part, group=group: part.group == group)  # type: ignore[misc]
    write(made.orders, "payments", order_id=[1], paid=[6.0], pay_ts=[1])
    return made


def planner_of(shop: Shop) -> TablePlanner:
    table = Table.open(shop.folder / "orders")
    return TablePlanner(
        table, ReadOptions(), 2, lambda: None, lambda file: file, tuning=PlannerTuning(mix_min_bytes=0, merged_share=2)
    )


def read(state: PinnedSnapshot, columns: Sequence[str], filters: Sequence[Condition], parts: Sequence[Part]) -> Any:
    """The rows of plans as Spark's workers read them, and whether a part is read from files."""
    batches, native = [], False
    for part in parts:
        plan = state.plan(columns, filters, part)
        if plan.parquet_files and not state.exact(filters, part):
            native = True
            for file in plan.parquet_files:
                batches += pq.read_table(file.path.removeprefix("file://"), columns=list(columns)).to_pylist()
        else:
            run, tasks = pickle.loads(pickle.dumps((plan.read, plan.tasks)))
            for task in tasks:
                for batch in run(task):
                    batches += batch.to_pylist()
    return sorted(batches, key=repr), native


@pytest.mark.parametrize("parts", [WHOLE, HALVES], ids=["one scan", "two scans"])
def test_columns_of_references_are_read_in_tasks_and_all_others_as_before(shop: Shop, parts: Sequence[Part]) -> None:
    state = planner_of(shop)()
    assert not state.joins()
    everything = shop.orders.snapshot().to_arrow()
    assert state.schema().names == everything.schema.names
    for columns in (["order_id", "customer_name"], ["customer_tier"], ["customer_id", "order_id"], ["paid"]):
        found, native = read(state, columns, (), parts)
        assert found == sorted(everything.select(columns).to_pylist(), key=repr)
        of_reference = {"customer_name", "customer_tier"}.intersection(columns)
        assert native == (parts is HALVES and not of_reference)


def test_tasks_apply_filters_on_columns_of_references(shop: Shop) -> None:
    state = planner_of(shop)()
    everything = shop.orders.snapshot().to_arrow().to_pylist()
    named = Comparison("customer_name", "==", "Ann", pa.string())
    hidden = IsNull("_present_payment")  # a metadata column: another scan has it
    for parts in (WHOLE, HALVES):
        assert [list(state.exact((hidden, named), part)) for part in parts] == [[1]] * len(parts)
        for columns in (["order_id"], ["customer_tier", "order_id"]):
            found, _ = read(state, columns, (named,), parts)
            wanted = [{name: row[name] for name in columns} for row in everything if row["customer_name"] == "Ann"]
            assert found == sorted(wanted, key=repr)
    count = state.plan((), (named,), Part.WHOLE)
    assert sum(len(batch) for task in count.tasks for batch in count.read(task)) == 2


def test_a_later_query_of_a_view_is_sent_what_has_changed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.storage.read.references.reference_rows.LOOK_UP_ROWS", 0)
    monkeypatch.setattr("weft.storage.read.references.bound_rows.MOST_SHARE", 1e9)
    planner = planner_of(shop)
    for version, name in enumerate(("Ann", "Anna", "Anne"), 2):
        shop.customer(0, name, ts=version)
        found, _ = read(planner(), ["order_id", "customer_name"], (), WHOLE)
        assert found == sorted(shop.orders.snapshot().to_arrow(["order_id", "customer_name"]).to_pylist(), key=repr)
        assert {row["customer_name"] for row in found} == {name, "Bob", None}


def test_large_and_required_references_are_joined_by_spark(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    required = TablePlanner(
        Table.open(shop.folder / "orders"),
        ReadOptions.of({"require": ["customer"]}),
        2,
        lambda: None,
        lambda file: file,
    )()
    assert [join.name for join in required.joins()] == ["customer"]
    monkeypatch.setattr(reference_planner, "SMALL_BYTES", -1)
    state = planner_of(shop)()
    assert [join.name for join in state.joins()] == ["customer"]
    # A view that was analysed while the table was small still reads its columns.
    found, _ = read(state, ["order_id", "customer_name"], (), WHOLE)
    assert found == sorted(shop.orders.snapshot().to_arrow(["order_id", "customer_name"]).to_pylist(), key=repr)
    assert pa.schema(state.columns).names == shop.orders.snapshot().schema.names
