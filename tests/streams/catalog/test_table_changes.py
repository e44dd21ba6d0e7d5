"""ALTER TABLE of the SQL catalog: what it changes, and what it refuses without changing anything."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from weft import Table
from weft.storage.alter import AddColumn, Change, SetComment, SetDefault, WidenColumn
from weft.storage.config.table_properties import schema_properties
from weft.storage.core.types import format_type
from weft.storage.errors import InvalidInput, TableError
from weft.streams.catalog.table_changes import apply_changes, find_group

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


class NewColumn(NamedTuple):
    """ADD COLUMN."""

    name: str
    type: str
    default: Any = None
    after: str | None = None
    comment: str = ""


Parts = Sequence[NewColumn | Change | dict[str, str | None]]
"""The parts of a statement; a dictionary has properties."""


def alter(table: Table, parts: Parts) -> None:
    changes: list[Change] = []
    properties: dict[str, str | None] = {}
    for part in parts:
        match part:
            case NewColumn(name, kind, default, after, comment):
                group = find_group(table.schema, name, after, changes)
                changes.append(AddColumn(group=group, name=name, type=kind, default=default, comment=comment))
            case Change():
                changes.append(part)
            case _:
                properties |= part
    apply_changes(table, changes, properties)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    Table.create(tmp_path / "customers", CUSTOMERS)
    return Table.create(tmp_path / "orders", CONFIG)


def test_columns_join_the_group_of_the_column_that_they_follow(table: Table) -> None:
    alter(table, [NewColumn("tip", "decimal(9,2)", 1, "status"), NewColumn("note", "string", after="tip")])
    assert table.schema.group("order").columns == ("status", "order_ts", "tip", "note")
    assert str(table.schema.column("tip").default) == "1.00"


def test_a_statement_is_one_entry(table: Table) -> None:
    head = table.state().head
    columns = [NewColumn("tip", "int", 1, "status"), NewColumn("note", "string", after="tip")]
    alter(table, [*columns, WidenColumn(name="tip", type="bigint"), {"ttl.rows": "90 days"}])
    assert table.state().head == head + 1
    assert format_type(table.schema.column("tip").type) == "bigint"
    alter(table, [{"comment": "x"}, {"index": "note"}, {"ttl": None}])
    assert (table.state().head, table.schema.index, table.schema.ttl) == (head + 2, ("note",), None)


def test_a_table_with_one_group_needs_no_name_of_it(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "c", CUSTOMERS)
    alter(table, [NewColumn("tier", "string")])
    assert table.schema.group("c").columns == ("name", "tier")


def test_types_and_defaults(table: Table) -> None:
    alter(table, [WidenColumn(name="order_ts", type="bigint"), SetDefault(name="status", value="new")])
    assert format_type(table.schema.column("order_ts").type) == "bigint"
    assert table.schema.column("status").default == "new"
    alter(table, [SetDefault(name="status", value=None)])
    assert table.schema.column("status").default is None


def test_comments(table: Table) -> None:
    added = NewColumn("tip", "double", after="status", comment="for the driver")
    alter(table, [added, SetComment(comment="of today", column="status"), {"comment": "all orders"}])
    schema = table.schema
    assert [schema.column(name).comment for name in ("status", "tip")] == ["of today", "for the driver"]
    assert schema.comment == schema_properties(schema)["comment"] == "all orders"
    alter(table, [{"ttl.rows": "90 days"}])
    assert table.schema.comment == "all orders"
    alter(table, [{"comment": None}, SetComment(comment="", column="status")])
    assert (table.schema.comment, table.schema.column("status").comment) == ("", "")
    assert "comment" not in schema_properties(table.schema)


def test_properties_add_streams_references_and_a_time_to_live(table: Table) -> None:
    alter(
        table,
        [
            {"stream.fixes": "order"},
            {"stream.fixes.on_delete": "ignore"},
            {"reference.customer": "../customers"},
            {"reference.customer.on": "status"},
            {"ttl.rows": "90 days"},
        ],
    )
    shown = schema_properties(table.schema)
    assert (shown["stream.fixes"], shown["stream.fixes.on_delete"]) == ("order", "ignore")
    assert (shown["reference.customer"], shown["reference.customer.columns"]) == ("../customers", "name")
    assert (shown["ttl.rows"], shown["ttl.deletes"], shown["ttl.within"]) == ("90 days", "90 days", "9 days")
    alter(table, [{"ttl": None}, {"reference.customer": None}, {"nothing": None}])
    assert not [name for name in schema_properties(table.schema) if name.startswith(("ttl", "reference"))]


def test_index(table: Table) -> None:
    alter(table, [{"index": "status"}])
    assert table.schema.index == ("status",)
    assert schema_properties(table.schema)["index"] == "status"
    alter(table, [{"index": None}])
    assert table.schema.index == ()


def test_overlays(table: Table) -> None:
    alter(table, [{"overlays": "TRUE"}])
    assert table.schema.overlays
    assert schema_properties(table.schema)["overlays"] == "true"
    alter(table, [{"overlays": None}])
    assert not table.schema.overlays
    assert "overlays" not in schema_properties(table.schema)


REFUSED: dict[str, tuple[Parts, str, str]] = {
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
    "unknown property": ([{"colour": "red"}], "property 'colour' is unknown", "known: key"),
    "key": (
        [{"key": "status"}],
        "property group.order: 'status' is a key column",
        "key columns belong to no group",
    ),
    "buckets": ([{"buckets": "4"}], "property 'buckets' of a table cannot be changed by", "weft.system.split"),
    "merge mode": (
        [{"group.order.merge": "latest_non_null"}],
        "properties of group 'order' cannot be changed",
        "add a group",
    ),
    "dropped group": ([{"group.order": None}], "column status: the column is not in a group", ""),
    "new group": ([{"group.tip": "tip"}], "property group.tip: there is no 'tip'", "known"),
    "stream": ([{"stream.orders": "order,click"}], "stream 'orders' cannot be changed", "another stream"),
    "dropped stream": ([{"stream.orders": None}], "no stream writes the group", "add the group"),
    "overlays": ([{"overlays": "some"}], "property 'overlays': 'some' is not a boolean", "true or false"),
    "ttl": ([{"ttl.rows": "soon"}], "property ttl.rows: 'soon' is not a duration", ""),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_changes_nothing(table: Table, name: str) -> None:
    changes, message, hint = REFUSED[name]
    before = table.state()
    with pytest.raises(TableError, match=re.escape(message)) as caught:
        alter(table, changes)
    assert isinstance(caught.value, InvalidInput)
    assert hint in caught.value.hint
    assert table.state() == before
