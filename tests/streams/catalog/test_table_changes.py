"""ALTER TABLE of the SQL catalog: what it changes, and what it refuses without changing anything."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from weft import Table
from weft.storage.alter import SetComment, SetDefault, WidenColumn
from weft.storage.config.table_properties import schema_properties
from weft.storage.core.types import format_type
from weft.storage.errors import InvalidInput, TableError
from weft.streams.catalog.table_changes import NewColumn, Part, RemoveProperty, SetProperty, apply_changes

CONFIG = {
    "key": ["order_id"],
    "buckets": 1,
    "columns": {
        "order_id": "bigint",
        "status": "string",
        "order_ts": "int",
        "clicks": "bigint",
        "click_ts": "bigint",
    },
    "groups": {
        "order": {"columns": ["status", "order_ts"], "ordering": ["order_ts"]},
        "click": {
            "columns": ["clicks", "click_ts"],
            "ordering": ["click_ts"],
            "merge": "aggregate",
            "functions": {"clicks": "sum"},
        },
    },
    "streams": {"orders": {"groups": ["order"]}, "clicks": {"groups": ["click"]}},
}
CUSTOMERS = {
    "key": ["id"],
    "columns": {"id": "string", "name": "string"},
    "groups": {"c": {"columns": ["name"]}},
    "streams": {"c": {"groups": ["c"]}},
}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    Table.create(tmp_path / "customers", CUSTOMERS)
    return Table.create(tmp_path / "orders", CONFIG)


def test_columns_join_the_group_of_the_column_that_they_follow(table: Table) -> None:
    apply_changes(table, [NewColumn("tip", "decimal(9,2)", 1, "status"), NewColumn("note", "string", after="tip")])
    assert table.schema.group("order").columns == ("status", "order_ts", "tip", "note")
    assert str(table.schema.column("tip").default) == "1.00"


def test_a_statement_is_one_entry(table: Table) -> None:
    head = table.state().head
    columns = [NewColumn("tip", "int", 1, "status"), NewColumn("note", "string", after="tip")]
    apply_changes(table, [*columns, WidenColumn(name="tip", type="bigint"), SetProperty("ttl.rows", "90 days")])
    assert table.state().head == head + 1
    assert format_type(table.schema.column("tip").type) == "bigint"
    apply_changes(table, [SetProperty("comment", "x"), SetProperty("index", "note"), RemoveProperty("ttl")])
    assert (table.state().head, table.schema.index, table.schema.ttl) == (head + 2, ("note",), None)


def test_a_table_with_one_group_needs_no_name_of_it(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "c", CUSTOMERS)
    apply_changes(table, [NewColumn("tier", "string")])
    assert table.schema.group("c").columns == ("name", "tier")


def test_types_and_defaults(table: Table) -> None:
    apply_changes(table, [WidenColumn(name="order_ts", type="bigint"), SetDefault(name="status", value="new")])
    assert format_type(table.schema.column("order_ts").type) == "bigint"
    assert table.schema.column("status").default == "new"
    apply_changes(table, [SetDefault(name="status", value=None)])
    assert table.schema.column("status").default is None


def test_comments(table: Table) -> None:
    added = NewColumn("tip", "double", after="status", comment="for the driver")
    apply_changes(table, [added, SetComment(comment="of today", column="status"), SetProperty("comment", "all orders")])
    schema = table.schema
    assert [schema.column(name).comment for name in ("status", "tip")] == ["of today", "for the driver"]
    assert schema.comment == schema_properties(schema)["comment"] == "all orders"
    apply_changes(table, [SetProperty("ttl.rows", "90 days")])
    assert table.schema.comment == "all orders"
    apply_changes(table, [RemoveProperty("comment"), SetComment(comment="", column="status")])
    assert (table.schema.comment, table.schema.column("status").comment) == ("", "")
    assert "comment" not in schema_properties(table.schema)


def test_properties_add_streams_references_and_a_time_to_live(table: Table) -> None:
    apply_changes(
        table,
        [
            SetProperty("stream.fixes", "order"),
            SetProperty("stream.fixes.on_delete", "ignore"),
            SetProperty("reference.customer", "../customers"),
            SetProperty("reference.customer.on", "status"),
            SetProperty("ttl.rows", "90 days"),
        ],
    )
    shown = schema_properties(table.schema)
    assert (shown["stream.fixes"], shown["stream.fixes.on_delete"]) == ("order", "ignore")
    assert (shown["reference.customer"], shown["reference.customer.columns"]) == ("../customers", "name")
    assert (shown["ttl.rows"], shown["ttl.deletes"], shown["ttl.within"]) == ("90 days", "90 days", "9 days")
    apply_changes(table, [RemoveProperty("ttl"), RemoveProperty("reference.customer"), RemoveProperty("nothing")])
    assert not [name for name in schema_properties(table.schema) if name.startswith(("ttl", "reference"))]


def test_index(table: Table) -> None:
    apply_changes(table, [SetProperty("index", "status")])
    assert table.schema.index == ("status",)
    assert schema_properties(table.schema)["index"] == "status"
    apply_changes(table, [RemoveProperty("index")])
    assert table.schema.index == ()


def test_overlays(table: Table) -> None:
    apply_changes(table, [SetProperty("overlays", "TRUE")])
    assert table.schema.overlays
    assert schema_properties(table.schema)["overlays"] == "true"
    apply_changes(table, [RemoveProperty("overlays")])
    assert not table.schema.overlays
    assert "overlays" not in schema_properties(table.schema)


REFUSED: dict[str, tuple[Sequence[Part], str, str]] = {
    "no group": ([NewColumn("tip", "double")], "does not say to which group", "AFTER status for group order"),
    "after a key column": ([NewColumn("tip", "double", after="order_id")], "'order_id' is in no group", "AFTER status"),
    "no function": ([NewColumn("n", "bigint", after="clicks")], "needs an aggregate function", "add_column"),
    "second of two columns": (
        [NewColumn("tip", "double", after="status"), NewColumn("bad", "int", "x", after="status")],
        "columns.bad.default: 'x' is not a int",
        "a value of the column's type",
    ),
    "a type and then a default that does not fit": (
        [WidenColumn(name="order_ts", type="bigint"), SetDefault(name="status", value=5)],
        "columns.status.default: 5 is not a string",
        "a value of the column's type",
    ),
    "narrower": ([WidenColumn(name="clicks", type="int")], "int is not a wider form", "add a column"),
    "unknown property": ([SetProperty("colour", "red")], "property 'colour' is unknown", "known: key"),
    "key": (
        [SetProperty("key", "status")],
        "property group.order: 'status' is a key column",
        "key columns belong to no group",
    ),
    "buckets": ([SetProperty("buckets", "4")], "property 'buckets' of a table is not changed by", "weft.system.split"),
    "merge mode": (
        [SetProperty("group.order.merge", "latest_non_null")],
        "properties of group 'order' cannot be changed",
        "add a group",
    ),
    "dropped group": ([RemoveProperty("group.order")], "column status: the column is in no group", ""),
    "new group": ([SetProperty("group.tip", "tip")], "property group.tip: there is no 'tip'", "known"),
    "stream": ([SetProperty("stream.orders", "order,click")], "stream 'orders' cannot be changed", "another stream"),
    "dropped stream": ([RemoveProperty("stream.orders")], "no stream writes the group", "add the group"),
    "overlays": ([SetProperty("overlays", "some")], "property 'overlays': 'some' is not a boolean", "true or false"),
    "ttl": ([SetProperty("ttl.rows", "soon")], "property ttl.rows: 'soon' is not a duration", ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_changes_nothing(table: Table, name: str) -> None:
    changes, message, hint = REFUSED[name]
    before = table.state()
    with pytest.raises(TableError, match=re.escape(message)) as caught:
        apply_changes(table, changes)
    assert isinstance(caught.value, InvalidInput)
    assert hint in caught.value.hint
    assert table.state() == before
