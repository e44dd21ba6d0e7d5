"""Metadata columns beside columns of references, without Spark. `tests/sql/inside.sql` has statements."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.streams.catalog.shop_lake import make_shop
from weft import Table
from weft.storage.core.predicate import Comparison, Condition
from weft.streams.catalog.metadata_columns import PinnedMetadata
from weft.streams.read.native_or_merged import TablePlanner
from weft.streams.read.read_options import ReadOptions
from weft.streams.read.relation.planner_interface import Part


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Orders 1 and 3 have a customer, order 2 has none."""
    root = tmp_path_factory.mktemp("lake")
    make_shop(root)
    return Table.open(root / "shop" / "orders_with_customers")


def rows(table: Table, columns: list[str], *filters: Condition, **options: str) -> list[tuple[Any, ...]]:
    planner = TablePlanner(table, ReadOptions.of(options), 1, lambda: None, lambda _file: None)
    state = PinnedMetadata.of(planner())
    assert state.joins() == (), "Spark joins nothing"
    assert set(columns) <= set(state.schema().names)
    plan = state.plan(columns, filters, Part.WHOLE)
    found = [row for task in plan.tasks for batch in plan.read(task) for row in batch.to_pylist()]
    return sorted((tuple(row[name] for name in columns) for row in found), key=str)


def test_columns_of_references_and_metadata_columns_together(table: Table) -> None:
    assert rows(table, ["order_id", "customer_name", "_present_g"]) == [
        (1, "Anna", True),
        (2, None, True),
        (3, "Bob", True),
    ]
    assert len(rows(table, ["_bucket"])) == 3
    assert len(rows(table, ["_commit_time_g", "customer_name"])) == 3
    assert rows(table, ["order_id", "_present_g"], Comparison("customer_name", "==", "Bob", pa.string())) == [(3, True)]


@pytest.mark.parametrize("require", ["customer", "customer,g"])
def test_a_required_reference_leaves_out_rows_without_it(table: Table, require: str) -> None:
    assert rows(table, ["order_id", "_present_g"], require=require) == [(1, True), (3, True)]
    assert len(rows(table, ["_bucket"], require=require)) == 2
    assert rows(table, ["customer_name", "_present_g"], require=require) == [("Anna", True), ("Bob", True)]
