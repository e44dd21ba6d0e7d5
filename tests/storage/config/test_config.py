"""Refused table configurations, by message: the message names the field, and nothing is created."""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path as LocalPath
from typing import Any

import pyarrow as pa
import pytest
import yaml

from tests.storage.support.shop import new_uri
from tests.strategies import KEY_TYPES, ORDERING_TYPES, POOLS
from weft import Table
from weft.storage.config.table_config import build_schema, configuration, load_config
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import InvalidInput, NotFound

GOOD: dict[str, Any] = {
    "key": ["id", "region"],
    "partition_by": ["region"],
    "buckets": 8,
    "columns": {
        "id": "bigint",
        "region": "string",
        "status": {"type": "string", "default": "unknown"},
        "ots": "timestamp",
        "paid": "double",
        "tags": "array<string>",
        "pts": "bigint",
    },
    "groups": {
        "order": {"columns": ["status", "ots"], "ordering": ["ots"]},
        "payment": {"columns": ["paid", "tags", "pts"], "ordering": ["pts"]},
    },
    "streams": {"orders": {"groups": ["order"], "on_delete": "row"}, "payments": {"groups": ["payment"]}},
}
Change = Callable[[dict[str, Any]], object]


def put(*path: str, to: Any) -> Change:
    def change(config: dict[str, Any]) -> None:
        for name in path[:-1]:
            config = config[name]
        config[path[-1]] = to

    return change


def drop(*path: str) -> Change:
    def change(config: dict[str, Any]) -> None:
        for name in path[:-1]:
            config = config[name]
        del config[path[-1]]

    return change


def both(*changes: Change) -> Change:
    def change(config: dict[str, Any]) -> None:
        for one in changes:
            one(config)

    return change


REFUSED: dict[str, tuple[Change, str, str]] = {
    "unknown column in a group": (
        put("groups", "order", "columns", to=["status", "ots", "nope"]),
        "groups.order.columns: there is no 'nope'",
        "known: id, region, status",
    ),
    "unknown column in the key": (put("key", to=["nope"]), "key: there is no 'nope'", "known: id"),
    "unknown group of a stream": (
        put("streams", "orders", "groups", to=["nope"]),
        "streams.orders.groups: there is no 'nope'",
        "known: order, payment",
    ),
    "a column in two groups": (
        put("groups", "payment", "columns", to=["paid", "tags", "pts", "status"]),
        "column 'status' is already in group 'order'",
        "exactly one group",
    ),
    "a column twice in one group": (
        put("groups", "payment", "columns", to=["paid", "paid", "tags", "pts"]),
        "column 'paid' is already in group 'payment'",
        "exactly one group",
    ),
    "a column in no group": (
        put("groups", "payment", "columns", to=["paid", "pts"]),
        "columns.tags: the column is not in a group",
        "add it to a group",
    ),
    "a key column in a group": (
        put("groups", "order", "columns", to=["status", "ots", "id"]),
        "groups.order.columns: 'id' is a key column",
        "remove it",
    ),
    "an ordering column of another group": (
        put("groups", "order", "ordering", to=["pts"]),
        "groups.order.ordering: 'pts' is not a column of the group",
        "status, ots",
    ),
    "an ordering column that is the key": (
        put("groups", "order", "ordering", to=["id"]),
        "groups.order.ordering: 'id' is not a column of the group",
        "",
    ),
    "an ordering column twice": (
        put("groups", "order", "ordering", to=["ots", "ots"]),
        "groups.order.ordering: 'ots' is listed 2 times",
        "once",
    ),
    "an ordering column of an array type": (
        put("groups", "payment", "ordering", to=["tags"]),
        "column 'tags' has type array<string>",
        "ordering values are",
    ),
    "an ordering column of float": (
        put("columns", "pts", to="float"),
        "groups.payment.ordering: column 'pts' has type float",
        "double",
    ),
    "an ordering column of boolean": (put("columns", "pts", to="boolean"), "column 'pts' has type boolean", ""),
    "an ordering column of binary": (put("columns", "pts", to="binary"), "column 'pts' has type binary", ""),
    "no key": (drop("key"), "key: is missing", ""),
    "an empty key": (put("key", to=[]), "key: is empty", ""),
    "a key column twice": (put("key", to=["id", "id", "region"]), "key: 'id' is listed 2 times", ""),
    "a key of a floating type": (put("columns", "id", to="double"), "key: column 'id' has type double", "keys are"),
    "a key of boolean": (put("columns", "id", to="boolean"), "key: column 'id' has type boolean", "keys are"),
    "a key of a nested type": (
        put("columns", "id", to="struct<a:int>"),
        "key: column 'id' has type struct<a:int>",
        "keys are",
    ),
    "a key with a default": (
        put("columns", "id", to={"type": "bigint", "default": 0}),
        "columns.id.default: a key column cannot have a default",
        "",
    ),
    **{
        f"{buckets} buckets": (put("buckets", to=buckets), f"buckets: {buckets} is not a power of two", "8")
        for buckets in (0, -8, 3, 12, 1 << 17)
    },
    "buckets that are no number": (put("buckets", to="many"), "buckets: ", ""),
    "a partition column outside the key": (
        put("partition_by", to=["status"]),
        "partition_by: column 'status' is not part of the key",
        "add the column to the key",
    ),
    "a partition column twice": (put("partition_by", to=["region"] * 2), "partition_by: 'region' is listed 2", ""),
    "an unknown merge mode": (
        put("groups", "order", "merge", to="newest"),
        "groups.order.merge: 'newest' is not a merge mode",
        "latest",
    ),
    "a custom merger outside the allow-list": (
        put("groups", "order", "merge", to="os:system"),
        "merger 'os:system': module 'os' is not on this process's allow-list",
        'weft.storage.mergers.allow("os")',
    ),
    **{
        f"the reserved column name {name}": (
            both(put("columns", name, to="string"), put("groups", "order", "columns", to=["status", "ots", name])),
            f"columns.{name}: the name is reserved",
            "_supplied",
        )
        for name in ("_op", "_supplied", "_OP", "__weft_g1_arrival", "__WEFT_x")
    },
    "a reserved group name": (
        both(put("groups", "_op", to=GOOD["groups"]["order"]), drop("groups", "order")),
        "groups._op: the name is reserved",
        "",
    ),
    "an empty column name": (put("columns", "", to="string"), "columns: a name is empty", ""),
    "column names that differ in case": (
        both(put("columns", "PAID", to="double"), put("groups", "order", "columns", to=["status", "ots", "PAID"])),
        "two names differ only in case",
        "rename",
    ),
    "column names of which Spark takes one for the other": (
        both(
            put("columns", "pa\u0131d", to="double"),
            put("groups", "order", "columns", to=["status", "ots", "pa\u0131d"]),
        ),
        "two names differ only in case",
        "rename",
    ),
    "group names that differ in case": (
        put("groups", "Order", to={"columns": ["paid"]}),
        "two names differ only in case",
        "rename",
    ),
    "stream names that differ in case": (
        put("streams", "Orders", to={"groups": ["order"]}),
        "two names differ only in case",
        "rename",
    ),
    "a stream without groups": (
        put("streams", "orders", "groups", to=[]),
        "streams.orders.groups: is empty",
        "",
    ),
    "a stream that names a group twice": (
        put("streams", "orders", "groups", to=["order", "order"]),
        "streams.orders.groups: 'order' is listed 2 times",
        "",
    ),
    "a group without a stream": (drop("streams", "payments"), "groups.payment: no stream writes the group", "stream"),
    "no stream": (put("streams", to={}), "streams: ", ""),
    "no group": (put("groups", to={}), "groups: ", ""),
    "no column": (put("columns", to={}), "columns: ", ""),
    "a group without columns": (put("groups", "order", "columns", to=[]), "groups.order.columns: is empty", ""),
    "row and group deletes on one group": (
        put("streams", "returns", to={"groups": ["payment", "order"], "on_delete": "group"}),
        "streams.returns.on_delete: 'group', but stream 'orders', which also writes group 'order', has 'row'",
        "must not mix",
    ),
    "an unknown delete policy": (
        put("streams", "orders", "on_delete", to="cascade"),
        "streams.orders.on_delete: ",
        "",
    ),
    "a stream name that is no file name": (
        put("streams", "a/b", to={"groups": ["order"]}),
        "'a/b' is not a lane or stream name",
        "",
    ),
    "an unknown type": (put("columns", "paid", to="money"), "columns.paid: 'money' is not a column type", "decimal"),
    "a broken nested type": (put("columns", "tags", to="array<string"), "columns.tags: 'array<string' is not", ""),
    "a decimal out of range": (
        put("columns", "paid", to="decimal(39,2)"),
        "columns.paid: ",
        "a precision from 1 to 38",
    ),
    "a bottomless type": (
        put("columns", "tags", to="array<" * 40 + "int" + ">" * 40),
        "nests deeper than 32",
        "flatten",
    ),
    "a struct with a field twice": (put("columns", "tags", to="struct<a:int,A:int>"), "a field name twice", ""),
    "a default of the wrong type": (
        put("columns", "paid", to={"type": "double", "default": "much"}),
        "columns.paid.default: 'much' is not a double",
        "",
    ),
    "a default that is a number for a boolean": (
        put("columns", "paid", to={"type": "boolean", "default": 1}),
        "columns.paid.default: 1 is not a boolean",
        "",
    ),
    "a boolean default for a number": (
        put("columns", "paid", to={"type": "int", "default": True}),
        "columns.paid.default: True is not a int",
        "",
    ),
    "a default that does not fit": (
        put("columns", "paid", to={"type": "tinyint", "default": 300}),
        "columns.paid.default: 300 is not a tinyint",
        "",
    ),
    "a default of a nested column": (
        put("columns", "tags", to={"type": "array<string>", "default": []}),
        "columns.tags.default: nested columns cannot have a default",
        "",
    ),
    "a column that is a number": (
        put("columns", "paid", to=5),
        "columns.paid: is neither a type nor a mapping",
        "bigint",
    ),
    "a column without a type": (put("columns", "paid", to={}), "columns.paid.type: is missing", "add type"),
    "a group that is no mapping": (
        put("groups", "order", to="status"),
        "groups.order: is not a mapping",
        "configuration.md",
    ),
    "a misspelled field": (put("bucket", to=8), "bucket: is not a known field", "did you mean buckets?"),
    "an unknown field": (put("bucketz", to=8), "bucketz: is not a known field", ""),
    "an unknown field of a group": (
        put("groups", "order", "mode", to="latest"),
        "groups.order.mode: is not a known field",
        "",
    ),
    "an unknown field of a column": (
        put("columns", "paid", to={"type": "double", "nullable": True}),
        "columns.paid.nullable: is not a known field",
        "",
    ),
}


def check_refused(config: dict[str, Any], message: str, hint: str) -> None:
    """Check that creating the table fails with this message and a hint, and creates nothing."""
    uri = new_uri()
    with pytest.raises(InvalidInput) as error:
        Table.create(uri, config)
    assert message in error.value.message
    assert hint in error.value.hint
    assert error.value.hint
    with pytest.raises(NotFound):
        Table.open(uri)


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_configurations_are_refused(name: str) -> None:
    change, message, hint = REFUSED[name]
    config = copy.deepcopy(GOOD)
    change(config)
    check_refused(config, message, hint)


def test_every_wrong_field_is_named_at_once() -> None:
    with pytest.raises(InvalidInput) as error:
        load_config({**GOOD, "buckets": "many", "bucketz": 1, "key": []})
    assert all(word in error.value.message for word in ("buckets: ", "bucketz: ", "key: "))


def test_the_good_configuration_is_good_as_mapping_and_as_yaml(tmp_path: LocalPath) -> None:
    file = tmp_path / "table.yaml"
    file.write_text(yaml.safe_dump(GOOD, sort_keys=False), encoding="utf-8")
    schemas = [build_schema(load_config(source)) for source in (GOOD, file, str(file), load_config(GOOD))]
    assert all(schema == schemas[0] for schema in schemas)
    assert [column.name for column in schemas[0].columns] == list(GOOD["columns"])
    assert TableSchema.from_json(schemas[0].to_json()) == schemas[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read"),
        ("a: [", "expected the node content"),
        ("- 1", "configuration"),
        ("", "configuration"),
        ("key: [a]\nkey: [b]", r"table.yaml, line 2: 'key' appears twice"),
        ("key: [id]\nbuckets: {{ buckets }}", r"table.yaml, line 2: found unhashable key"),
    ],
)
def test_a_file_that_is_not_a_configuration_is_refused(tmp_path: LocalPath, text: str | None, message: str) -> None:
    file = tmp_path / "table.yaml"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInput, match=message) as error:
        Table.create(new_uri(), file)
    assert error.value.hint


@pytest.mark.parametrize("type_name", KEY_TYPES)
def test_every_key_type_is_accepted_and_small_integers_are_widened(type_name: str) -> None:
    config = {**copy.deepcopy(GOOD), "columns": {**GOOD["columns"], "id": type_name}}
    schema = build_schema(load_config(config))
    stored = schema.column_by_name["id"].type
    assert stored not in {pa.int8(), pa.int16()}


@pytest.mark.parametrize("type_name", ORDERING_TYPES)
def test_every_ordering_type_is_accepted(type_name: str) -> None:
    build_schema(load_config({**copy.deepcopy(GOOD), "columns": {**GOOD["columns"], "pts": type_name}}))


@pytest.mark.parametrize("type_name", [name for name in POOLS if "<" not in name])
def test_every_default_survives_the_table_lane(type_name: str) -> None:
    for value in POOLS[type_name]:
        columns = {**GOOD["columns"], "paid": {"type": type_name, "default": value}}
        uri = new_uri()
        Table.create(uri, {**copy.deepcopy(GOOD), "columns": columns})
        assert Table.open(uri).schema.column_by_name["paid"].default == value


@pytest.mark.parametrize(
    ("type_name", "given", "meant"),
    [
        ("decimal(12,2)", "1.5", Decimal("1.50")),
        ("decimal(12,2)", 1, Decimal("1.00")),
        ("date", "2026-03-01", dt.date(2026, 3, 1)),
        ("timestamp", "2026-03-01T00:00:00+01:00", dt.datetime(2026, 2, 28, 23, tzinfo=dt.UTC)),
        ("timestamp_ntz", "2026-03-01 12:00", dt.datetime(2026, 3, 1, 12)),  # noqa: DTZ001
        ("double", 1, 1.0),
    ],
)
def test_defaults_are_read_as_yaml_gives_them(type_name: str, given: Any, meant: Any) -> None:
    columns = {**GOOD["columns"], "paid": {"type": type_name, "default": given}}
    assert build_schema(load_config({**GOOD, "columns": columns})).column_by_name["paid"].default == meant


def test_comments_survive_the_table_lane_and_are_left_out_if_there_are_none() -> None:
    columns = {**GOOD["columns"], "id": {"type": "smallint", "comment": "n°"}}
    schema = build_schema(load_config({**GOOD, "columns": columns, "comment": "a\nb"}))
    assert (schema.comment, schema.column("id").comment, schema.column("paid").comment) == ("a\nb", "n°", "")
    assert build_schema(load_config(configuration(schema))) == schema
    stored = schema.to_json()
    assert TableSchema.from_json(stored) == schema
    assert [column["name"] for column in stored["columns"] if "comment" in column] == ["id"]
    assert "comment" not in build_schema(load_config(GOOD)).to_json()
