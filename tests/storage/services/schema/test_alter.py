"""Several schema changes in one call: one entry, all or none, and the same as one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.services.schema.test_evolution import racing
from tests.storage.support.evolving import Change, Evolution, EvolvingWorld, Sent, evolutions
from tests.storage.support.shop import SHOP, append, contents, new_uri, orders
from weft import Table
from weft.storage.alter import (
    CHANGES,
    AddColumn,
    AddGroup,
    AddReference,
    AddStream,
    DropReference,
    SetComment,
    SetDefault,
    SetIndex,
    SetOverlays,
    SetTtl,
    WidenColumn,
    parse_change,
)
from weft.storage.core.log.entries import Schema
from weft.storage.core.names import TABLE_LANE
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import Conflict, InvalidInput, NotFound, TableError
from weft.storage.services.schema.schema_changes import SchemaChange

SHIPMENT = AddGroup(
    name="ship", columns={"carrier": "string", "sts": "bigint"}, ordering=["sts"], new_streams={"ships": "row"}
)


@pytest.fixture
def uri() -> str:
    return new_uri()


@pytest.fixture
def table(uri: str) -> Table:
    return Table.create(uri, SHOP)


def words(table: Table) -> list[str]:
    entries = table._table_log.commit_log.read_after(TABLE_LANE, 0)
    return [entry.change for entry in entries if isinstance(entry, Schema)]


def test_all_changes_of_a_call_are_one_entry(table: Table) -> None:
    append(table, orders(1))
    head = table.state().head
    changes = [
        SHIPMENT,
        AddColumn(group="ship", name="weight", type="int", default=0),
        WidenColumn(name="weight", type="bigint"),
        AddStream(name="fixes", groups=["ship", "order"], on_delete="row"),
        SetDefault(name="carrier", value="?"),
        SetComment(comment="shipped", column="sts"),
        SetComment(comment="all orders"),
        SetTtl(rows="90 days", by="sts", unit="seconds"),
        SetOverlays(on=True),
        SetIndex(columns=["carrier"]),
    ]
    assert table.alter(*changes) == SchemaChange(head + 1, changed=True)
    assert contents(table, ["id", "carrier", "sts", "weight"]) == [(1, "?", None, 0)]
    schema = table.schema
    assert (schema.column("sts").comment, schema.comment, schema.overlays) == ("shipped", "all orders", True)
    assert (schema.index, schema.ttl is not None) == (("carrier",), True)
    assert schema.group("ship").columns == ("carrier", "sts", "weight")
    assert [stream.name for stream in schema.streams] == ["orders", "payments", "ships", "fixes"]
    assert "|".join(words(table)) == (
        "add group ship; add column ship.weight int; widen column weight to bigint; add stream fixes; "
        "set default of carrier; set comment of sts; set comment; set time to live; compactions write overlays; "
        "index carrier"
    )
    assert table.alter(*changes[2:]) == SchemaChange(head + 1, changed=False)


def test_only_changes_that_change_something_are_named(table: Table) -> None:
    table.add_column("order", "note", "string")
    table.alter(AddColumn(group="order", name="note", type="string"), SetComment(comment="x"))
    assert words(table) == ["add column order.note string", "set comment"]


def test_no_changes_and_changes_that_cancel_out_publish_nothing(table: Table) -> None:
    head = table.state().head
    assert not table.alter().changed
    assert not table.alter(SetDefault(name="status", value="x"), SetDefault(name="status")).changed
    assert table.state().head == head


def test_a_column_with_a_default_that_is_not_equal_to_itself_is_not_changed_again(table: Table) -> None:
    assert table.set_default("paid", float("nan")).changed
    assert not table.set_default("paid", float("nan")).changed
    assert not table.set_comment("").changed


def test_a_lost_race_is_tried_again_with_all_changes(table: Table, uri: str) -> None:
    late = racing(uri, lambda: table.add_column("order", "first", "string"))
    late.alter(AddColumn(group="order", name="second", type="int"), WidenColumn(name="second", type="bigint"))
    assert Table.open(uri).schema.group("order").columns == ("status", "ots", "first", "second")
    late = racing(uri, lambda: table.add_column("order", "third", "string"))
    head = table.state().head
    with pytest.raises(Conflict, match="column 'third' already exists, with type 'string', not 'int'"):
        late.alter(SetComment(comment="x"), AddColumn(group="order", name="third", type="int"))
    assert (table.schema.comment, table.state().head) == ("", head + 1)


def test_a_change_is_also_a_mapping(table: Table) -> None:
    fields = {"kind": "add_column", "group": "order", "name": "note", "type": "string"}
    assert table.alter(fields, {"kind": "set_overlays", "on": True}).changed
    assert parse_change(fields) == AddColumn(group="order", name="note", type="string")
    for kind, model in CHANGES.items():
        assert model.kind() == kind


WRONG: Mapping[str, tuple[Any, str, str]] = {
    "no kind": ({"name": "x"}, "the kind '' is unknown", "add_column"),
    "another kind": ({"kind": "drop_table"}, "the kind 'drop_table' is unknown", "use one of: add_column"),
    "a field that is unknown": (
        {"kind": "widen_column", "name": "ots", "typ": "bigint"},
        "widen_column: type: is missing; widen_column: typ: is not a known field",
        "did you mean type",
    ),
    "a policy": (
        {"kind": "add_stream", "name": "x", "groups": ["order"], "on_delete": "rows"},
        "add_stream: on_delete: must be 'group', 'row' or 'ignore'",
        "",
    ),
    "text for names": ({"kind": "set_index", "columns": "a"}, "set_index: columns: is a text", "columns: \\[a\\]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_fields_are_named(table: Table, name: str) -> None:
    change, message, hint = WRONG[name]
    head = table.state().head
    with pytest.raises(InvalidInput, match=message) as raised:
        table.alter(SetComment(comment="x"), change)
    assert hint.replace("\\", "") in raised.value.hint
    assert table.state().head == head


CUSTOMERS = {
    "key": ["cid"],
    "columns": {"cid": "bigint", "name": "string"},
    "groups": {"c": {"columns": ["name"]}},
    "streams": {"c": {"groups": ["c"]}},
}


def test_references_are_changed_with_columns(tmp_path: Path) -> None:
    Table.create(tmp_path / "customers", CUSTOMERS)
    others = Table.create(tmp_path / "others", CUSTOMERS)
    table = Table.create(tmp_path / "orders", SHOP)
    customer = AddReference(name="c", table="../customers", on="cid")
    table.alter(AddColumn(group="order", name="cid", type="bigint"), customer)
    assert table.snapshot().schema.names[-1] == "c_name"
    with pytest.raises(Conflict, match="reference 'c' already exists, with table"):
        table.alter(SetComment(comment="x"), customer.model_copy(update={"table": "../others"}))
    first = AddReference(name="d", table="../customers", on=["cid"])
    with pytest.raises(Conflict, match="reference 'd' already exists"):
        table.alter(first, first.model_copy(update={"table": "../others"}))
    head = table.state().head
    assert table.schema.comment == ""
    table.alter(DropReference(name="c"), AddReference(name="c", table="../others", on="cid"))
    assert table.schema.reference("c").table_id == others.state().table_id
    assert table.state().head == head + 1


def without_slots(schema: TableSchema) -> TableSchema:
    return replace(schema, columns=tuple(replace(column, since=1, changed=1) for column in schema.columns))


def as_fields(change: Change) -> dict[str, Any]:
    return {"kind": change.method, **change.arguments}


@given(evolutions(), st.data())
def test_changes_in_one_call_read_as_the_same_changes_one_by_one(evolution: Evolution, data: st.DataObject) -> None:
    """Beside the oracle, with events, compactions and folds between the calls."""
    with EvolvingWorld(evolution.config) as single, EvolvingWorld(evolution.config) as together:
        waiting: list[Change] = []

        def alter() -> None:
            head = together.table.state().head
            assert together.table.alter(*map(as_fields, waiting)).rev <= head + 1
            for change in waiting:
                together.evolve(change.config)
            together.check_comments()
            waiting.clear()

        for step in evolution.steps:
            single.do(step)
            if isinstance(step, Change):
                new_groups = {change.arguments["name"] for change in waiting if change.method == "add_group"}
                # Batches of a sender between the two would lack the column, and no such sender exists.
                if step.arguments.get("group") in new_groups:
                    alter()
                waiting.append(step)
                continue
            if (isinstance(step, Sent) and step.version >= len(together.versions)) or data.draw(st.booleans()):
                alter()
            together.do(step)
        alter()
        assert without_slots(together.table.schema) == without_slots(single.table.schema)
        together.check()
        assert together.answer(together.table.snapshot().to_arrow()) == single.answer(
            single.table.snapshot().to_arrow()
        )


REFUSED = (
    AddColumn(group="nope", name="x", type="int"),
    AddColumn(group="g0", name="k0", type="text"),
    AddGroup(name="fresh", columns={"fresh_c": "int"}),
    AddGroup(name="fresh", columns={"fresh_c": "int"}, streams=["nope"]),
    AddStream(name="fresh", groups=["nope"]),
    WidenColumn(name="nope", type="bigint"),
    SetDefault(name="nope", value=1),
    SetComment(comment="x", column="nope"),
    SetTtl(rows="soon"),
    SetIndex(columns=["nope"]),
    AddReference(name="other", table="../nope", on="nope"),
    DropReference(name="nope"),
)


@given(evolutions(), st.data())
def test_one_refused_change_refuses_all_and_changes_nothing(evolution: Evolution, data: st.DataObject) -> None:
    """With the error that it has after the changes before it; these alone can be made."""
    changes: list[Any] = [as_fields(step) for step in evolution.steps if isinstance(step, Change)]
    place = data.draw(st.integers(0, len(changes)))
    refused = data.draw(st.sampled_from(REFUSED))
    with EvolvingWorld(evolution.config) as single, EvolvingWorld(evolution.config) as together:
        for change in changes[:place]:
            single.table.alter(change)
        with pytest.raises(TableError) as one:
            single.table.alter(refused)
        before = together.table.state()
        with pytest.raises(type(one.value)) as all_of_them:
            together.table.alter(*changes[:place], refused, *changes[place:])
        assert (all_of_them.value.message, all_of_them.value.hint) == (one.value.message, one.value.hint)
        assert isinstance(one.value, InvalidInput | NotFound | Conflict)
        assert together.table.state() == before
        together.table.alter(*changes)
        assert without_slots(together.table.schema) == without_slots(_all_one_by_one(single, changes[place:]))


def _all_one_by_one(world: EvolvingWorld, changes: list[Any]) -> TableSchema:
    for change in changes:
        world.table.alter(change)
    return world.table.schema


def test_adding_again_what_has_functions_or_states_changes_nothing(table: Table) -> None:
    """Whatever the order in which functions are named."""
    columns, functions = {"n": "bigint", "m": "bigint"}, {"n": "sum", "m": "max"}
    group: dict[str, Any] = {"columns": columns, "merge": "aggregate", "new_streams": {"counts": "ignore"}}
    first = table.add_group("counts", **group, functions=functions)
    again = dict(reversed(functions.items()))
    assert table.add_group("counts", **group, functions=again) == SchemaChange(first.rev, changed=False)
    assert table.add_group("counts", **{**group, "columns": dict(reversed(columns.items()))}, functions=again) == (
        SchemaChange(first.rev, changed=False)
    )
    for name, function in functions.items():
        assert table.add_column("counts", name, "bigint", function=function) == SchemaChange(first.rev, changed=False)
    with pytest.raises(Conflict, match="functions"):
        table.add_group("counts", **group, functions={"n": "max", "m": "max"})


def test_indexed_columns_may_be_any_collection(table: Table) -> None:
    assert table.set_index({"status"}).changed  # type: ignore[arg-type]
    assert table.schema.index == ("status",)
