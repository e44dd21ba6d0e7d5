"""Refused schema changes: each has a specific message and a hint, and does not change the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from tests.mergers import BALANCE_STATE
from tests.storage.support.shop import SHOP, new_uri
from weft.storage import Table, mergers
from weft.storage.errors import Conflict, InvalidInput, NotFound, TableError

CLICKS = {"merge": "aggregate", "functions": {"n": "sum"}}
REFUSED: Mapping[str, tuple[Callable[[Table], object], type[TableError], str]] = {
    "no such group": (lambda t: t.add_column("nope", "x", "int"), NotFound, "no group 'nope'"),
    "no such type": (lambda t: t.add_column("order", "x", "text"), InvalidInput, "columns.x: 'text' is not"),
    "a default of another type": (
        lambda t: t.add_column("order", "x", "int", default="a"),
        InvalidInput,
        "columns.x.default: 'a' is not a int",
    ),
    "a reserved name": (lambda t: t.add_column("order", "_op", "int"), InvalidInput, "columns._op: .*reserved"),
    "an empty name": (lambda t: t.add_column("order", "", "int"), InvalidInput, "a name is empty"),
    "another case": (lambda t: t.add_column("order", "Status", "int"), InvalidInput, "differ only in case"),
    "a key column": (lambda t: t.add_column("order", "id", "bigint"), Conflict, "'id' is already a key column"),
    "another group's column": (
        lambda t: t.add_column("order", "paid", "double"),
        Conflict,
        "'paid' is already in group 'payment'",
    ),
    "the column with another type": (
        lambda t: t.add_column("order", "status", "int"),
        Conflict,
        "'status' already exists, with type 'string', not 'int'",
    ),
    "the column with another default": (
        lambda t: t.add_column("order", "status", "string", default="x"),
        Conflict,
        "with default None, not 'x'",
    ),
    "a function outside aggregates": (
        lambda t: t.add_column("order", "x", "int", function="sum"),
        InvalidInput,
        "groups.order.functions: the group's mode is 'latest'",
    ),
    "no function in an aggregate": (
        lambda t: t.add_column("clicks", "x", "int"),
        InvalidInput,
        "groups.clicks.functions: column 'x' has no function",
    ),
    "a function that cannot take back": (
        lambda t: t.add_column("clicks", "x", "int", function="max"),
        InvalidInput,
        "max cannot take back what stream 'clickers' deletes",
    ),
    "a function of another type": (
        lambda t: t.add_column("clicks", "x", "double", function="sum"),
        InvalidInput,
        "sum of double depends on the order",
    ),
    "a group that code merges": (
        lambda t: t.add_column("balance", "x", "int"),
        InvalidInput,
        "group 'balance' is merged by 'tests.mergers:balance', which was written for its columns",
    ),
    "a wider column that code merges": (
        lambda t: t.widen_column("b_small", "bigint"),
        InvalidInput,
        "merged by 'tests.mergers:balance', which was written for its types",
    ),
    "a group without streams": (lambda t: t.add_group("x", {"y": "int"}), InvalidInput, "no stream writes the group"),
    "streams as text": (lambda t: t.add_group("x", {"y": "int"}, streams="orders"), InvalidInput, "streams: is a text"),
    "a stream that is not there": (
        lambda t: t.add_group("x", {"y": "int"}, streams=["ordres"]),
        NotFound,
        "no stream 'ordres'",
    ),
    "a stream that is there, as new": (
        lambda t: t.add_group("x", {"y": "int"}, new_streams={"orders": "row"}),
        Conflict,
        "stream 'orders' already exists, with groups order, not x",
    ),
    "a group with another's column": (
        lambda t: t.add_group("x", {"paid": "int"}, streams=["orders"]),
        Conflict,
        "'paid' is already in group 'payment'",
    ),
    "a group without columns": (
        lambda t: t.add_group("x", {}, streams=["orders"]),
        InvalidInput,
        "groups.x.columns: is empty",
    ),
    "the group with other columns": (
        lambda t: t.add_group("order", {"status": "string"}, streams=["orders"]),
        Conflict,
        "group 'order' already exists, with columns ots, status, not status",
    ),
    "the group with another ordering": (
        lambda t: t.add_group("order", {"status": "string", "ots": "bigint"}, streams=["orders"]),
        Conflict,
        r"with ordering \['ots'\], not \[\]",
    ),
    "an ordering that has no order": (
        lambda t: t.add_group("x", {"y": "boolean"}, ordering=["y"], streams=["orders"]),
        InvalidInput,
        "groups.x.ordering: column 'y' has type boolean",
    ),
    "a merge mode that is none": (
        lambda t: t.add_group("x", {"y": "int"}, merge="newest", streams=["orders"]),
        InvalidInput,
        "groups.x.merge: 'newest' is not a merge mode",
    ),
    "a merger that is not allowed": (
        lambda t: t.add_group("x", {"y": "int"}, merge="os:getcwd", streams=["orders"]),
        InvalidInput,
        "module 'os' is not on this process's allow-list",
    ),
    "deletes that do not go together": (
        lambda t: t.add_stream("x", ["order"], on_delete="group"),
        InvalidInput,
        "streams.x.on_delete: 'group', but stream 'orders', which also writes group",
    ),
    "a stream of no group": (lambda t: t.add_stream("x", []), InvalidInput, "streams.x.groups: is empty"),
    "a stream of an unknown group": (lambda t: t.add_stream("x", ["y"]), InvalidInput, "there is no 'y'"),
    "a stream name that is none": (lambda t: t.add_stream("a b", ["order"]), InvalidInput, "not a lane or stream name"),
    "the stream with other groups": (
        lambda t: t.add_stream("orders", ["payment"], on_delete="row"),
        Conflict,
        "stream 'orders' already exists, with groups order, not payment",
    ),
    "wider: no such column": (lambda t: t.widen_column("nope", "bigint"), NotFound, "no column 'nope'"),
    "wider: no such type": (lambda t: t.widen_column("status", "text"), InvalidInput, "'text' is not a column type"),
    "narrower": (lambda t: t.widen_column("ots", "int"), InvalidInput, "'ots' is bigint, and int is not a wider form"),
    "another kind of type": (lambda t: t.widen_column("ots", "double"), InvalidInput, "double is not a wider form"),
    "another scale": (lambda t: t.widen_column("price", "decimal(12,4)"), InvalidInput, "is not a wider form of it"),
    "a nested type": (lambda t: t.widen_column("tags", "array<bigint>"), InvalidInput, "is not a wider form of it"),
    "default: no such column": (lambda t: t.set_default("nope", 1), NotFound, "no column 'nope'"),
    "default: of a key": (lambda t: t.set_default("id", 1), InvalidInput, "a key column cannot have a default"),
    "default: of another type": (lambda t: t.set_default("paid", True), InvalidInput, "True is not a double"),
    "default: of a nested type": (
        lambda t: t.set_default("tags", [1]),
        InvalidInput,
        "nested columns cannot have a default",
    ),
}


@pytest.fixture(scope="module")
def wide() -> Table:
    """One group of every mode."""
    mergers.allow("tests.mergers")
    columns = {
        "n": "bigint",
        "b_n": "bigint",
        "b_t": "string",
        "b_small": "int",
        "price": "decimal(9,2)",
        "tags": "array<int>",
    }
    config = {
        **SHOP,
        "columns": {**SHOP["columns"], **columns},
        "groups": {
            **SHOP["groups"],
            "clicks": {"columns": ["n"], **CLICKS},
            "balance": {"columns": ["b_n", "b_t", "b_small"], "merge": "tests.mergers:balance", "state": BALANCE_STATE},
            "rest": {"columns": ["price", "tags"]},
        },
        "streams": {**SHOP["streams"], "clickers": {"groups": ["clicks", "balance", "rest"]}},
    }
    return Table.create(new_uri(), config)


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_change_changes_nothing(wide: Table, name: str) -> None:
    change, error, message = REFUSED[name]
    head = wide.state().head
    with pytest.raises(error, match=message) as raised:
        change(wide)
    assert raised.value.hint
    assert wide.state().head == head
