"""Schema changes by example: allowed and refused changes, and writers with the old schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest

from tests.faulty_store import FakeClock, Fault, FaultyStore, other_process
from tests.storage.support.shop import SHOP, append, contents, new_uri, orders, payments
from weft import Table
from weft.storage.core.log.entries import Schema
from weft.storage.core.model import FIELD_ID
from weft.storage.core.names import TABLE_LANE
from weft.storage.core.schema.evolution import widens
from weft.storage.core.types import parse_type
from weft.storage.errors import Conflict, InvalidInput, NotFound
from weft.storage.services.schema.schema_changes import SchemaChange
from weft.storage.store.open_store import open_store
from weft.storage.write.write_task import WriteTicket, write_rows


@pytest.fixture
def uri() -> str:
    return new_uri()


@pytest.fixture
def table(uri: str) -> Table:
    return Table.create(uri, SHOP)


def make(columns: Mapping[str, str], **group: Any) -> Table:
    """A table of one group in one bucket; its stream `all` ignores deletes if its functions cannot subtract."""
    on_delete = "ignore" if "functions" in group else "group"
    return Table.create(
        new_uri(),
        {
            "key": ["id"],
            "buckets": 1,
            "columns": {"id": "bigint", **columns},
            "groups": {"g": {"columns": list(columns), **group}},
            "streams": {"all": {"groups": ["g"], "on_delete": on_delete}},
        },
    )


def send(table: Table, types: Mapping[str, str], *rows: tuple[Any, ...]) -> None:
    """Append rows of these columns and types, ``id`` first."""
    values = zip(*rows, strict=True)
    arrays = [pa.array(column, parse_type(name)) for column, name in zip(values, types.values(), strict=True)]
    append(table, pa.table(arrays, list(types)), "all")


ID = {"id": "bigint"}


def test_a_column_is_added_under_a_live_writer(table: Table) -> None:
    with table.writer("orders") as old:
        old.append(orders(1))
        table.compact()
        assert table.add_column("order", "note", "string") == SchemaChange(table.state().head, changed=True)
        old.append(orders(2))
        append(table, payments(9), "payments")
        assert contents(table, ["id", "status", "note"]) == [(1, "new", None), (2, "new", None), (9, None, None)]
        # The open writer can also use the new column.
        old.append(orders(1, ts=2).append_column("note", pa.array(["gift"])))
        assert contents(table, ["id", "note"]) == [(1, "gift"), (2, None), (9, None)]
        # A row of an old writer replaces the whole group.
        old.append(orders(1, ts=3))
        assert contents(table, ["id", "note"]) == [(1, None), (2, None), (9, None)]
    assert table.snapshot().schema.names == [*SHOP["columns"], "note"]
    with table.writer("orders") as writer, pytest.raises(InvalidInput, match="column 'status' is missing"):
        writer.append(orders(1).append_column("note", pa.array(["x"])).drop_columns("status"))


@pytest.mark.parametrize("service", ["nothing", "compact", "fold"])
def test_a_default_is_shown_only_where_the_group_is_absent(table: Table, service: str) -> None:
    append(table, orders(1))
    append(table, payments(9), "payments")
    if service != "nothing":
        getattr(table, service)()
    table.add_column("order", "note", "string", default="none")
    assert contents(table, ["id", "note"]) == [(1, None), (9, "none")]
    table.set_default("note", "nothing")
    assert contents(table, ["id", "note"]) == [(1, None), (9, "nothing")]
    table.compact()
    table.set_default("note", None)
    assert contents(table, ["id", "note"]) == [(1, None), (9, None)]
    table.set_default("status", "unknown")
    append(table, payments(1, ts=3), "payments")
    assert contents(table, ["id", "status"]) == [(1, "new"), (9, "unknown")]


def test_a_group_and_its_stream_are_added(table: Table) -> None:
    append(table, orders(1))
    table.compact()
    before = table.snapshot()
    columns = {"carrier": {"type": "string", "default": "?"}, "sts": "bigint"}
    table.add_group("ship", columns, ordering=["sts"], streams=["payments"], new_streams={"ships": "group"})
    both = payments(1).append_column("carrier", pa.array(["x"])).append_column("sts", pa.array([5]))
    append(table, both, "payments")
    append(table, payments(2), "payments")  # a writer that does not know the group
    append(table, pa.table({"id": [1, 3], "carrier": ["late", "y"], "sts": [4, 4]}), "ships")
    assert contents(table, ["id", "carrier", "sts"]) == [(1, "x", 5), (2, "?", None), (3, "y", 4)]
    assert contents(table, ["id"], as_of=str(before.cut)) == [(1,)]
    assert [row["id"] for row in table.snapshot().to_arrow(require=["ship"]).sort_by("id").to_pylist()] == [1, 3]
    with pytest.raises(InvalidInput, match="does not write"):
        append(table, pa.table({"id": [1], "carrier": ["z"], "sts": [9]}), "orders")


def test_a_stream_is_added_to_existing_groups(table: Table) -> None:
    table.add_stream("corrections", ["order", "payment"], on_delete="ignore")
    append(table, orders(1).append_column("paid", pa.array([2.5])).append_column("pts", pa.array([1])), "corrections")
    assert contents(table) == [(1, "new", 1, 2.5, 1)]


def test_wider_types_accept_values_that_did_not_fit(table: Table) -> None:
    table = make({"n": "int", "f": "float", "d": "decimal(5,2)", "ts": "int"}, ordering=["ts"])
    narrow = {**ID, "n": "int", "f": "float", "d": "decimal(5,2)", "ts": "int"}
    send(table, narrow, (1, 1, 0.5, None, 1), (2, 2, 0.5, None, 1))
    table.compact()
    send(table, narrow, (2, 3, 0.5, None, 2), (3, 3, 0.5, None, 1))
    table.fold()
    send(table, narrow, (3, 3, 0.5, None, 2))
    with pytest.raises(InvalidInput, match="has type int64"):
        send(table, {**narrow, "n": "bigint"}, (1, 1 << 40, 0.5, None, 3))
    for name, wider in (("n", "bigint"), ("f", "double"), ("d", "decimal(12,2)"), ("ts", "bigint")):
        assert table.widen_column(name, wider).changed
        assert not table.widen_column(name, wider).changed
    wide = {**ID, "n": "bigint", "f": "double", "d": "decimal(12,2)", "ts": "bigint"}
    send(table, wide, (1, 1 << 40, 1e300, None, 1 << 40))
    send(table, narrow, (1, 5, 0.5, None, 1 << 30), (4, 5, 0.5, None, 1))  # continues with the older schema
    rows = [(1, 1 << 40, 1e300), (2, 3, 0.5), (3, 3, 0.5), (4, 5, 0.5)]
    assert contents(table, ["id", "n", "f"]) == rows
    table.compact()
    assert contents(table, ["id", "n", "f"]) == rows


def test_a_delete_floor_survives_widening_the_ordering_column() -> None:
    """S14."""
    for merge in ("latest", "latest_non_null"):
        table = make({"v": "string", "ts": "int"}, ordering=["ts"], merge=merge)
        narrow = {**ID, "v": "string", "ts": "int"}
        send(table, narrow, (1, "old", 1), (2, "kept", 1))
        send(table, {**narrow, "_op": "string"}, (1, None, 5, "D"))
        table.compact()
        table.widen_column("ts", "bigint")
        send(table, narrow, (1, "late", 3))
        assert contents(table) == [(2, "kept", 1)]
        send(table, {**ID, "v": "string", "ts": "bigint"}, (1, "new", 1 << 40))
        assert contents(table) == [(1, "new", 1 << 40), (2, "kept", 1)]


def test_a_widened_key_keeps_its_file_group() -> None:
    """S15."""
    config = {
        "key": ["region", "id"],
        "partition_by": ["region"],
        "columns": {"region": "smallint", "id": "int", "v": "string"},
        "groups": {"g": {"columns": ["v"]}},
        "streams": {"all": {"groups": ["g"]}},
    }
    table = Table.create(new_uri(), config)
    narrow = {"region": "smallint", "id": "int", "v": "string"}
    send(table, narrow, (1, -1, "a"), (1, 7, "a"), (-2, 7, "a"))
    table.compact()
    table.widen_column("region", "bigint")
    table.widen_column("id", "bigint")
    send(table, {"region": "bigint", "id": "bigint", "v": "string"}, (1, 7, "b"), (1 << 40, 7, "b"))
    send(table, narrow, (-2, 7, "c"))
    rows = [(-2, 7, "c"), (1, -1, "a"), (1, 7, "b"), (1 << 40, 7, "b")]
    assert sorted(contents(table)) == rows
    table.compact()
    assert sorted(contents(table)) == rows


@pytest.mark.parametrize("service", ["compact", "fold"])
def test_an_added_column_is_supplied_by_a_late_event(service: str) -> None:
    """`latest_non_null`: no earlier event supplied the column, not even the newest."""
    for first in ({"a": "string", "ts": "bigint"}, {"ts": "bigint"}):
        table = make(first, ordering=["ts"], merge="latest_non_null")
        send(table, {**ID, **first}, (1, *(("x",) if "a" in first else ()), 9))
        getattr(table, service)()
        table.add_column("g", "b", "string")
        send(table, {**ID, "b": "string", "ts": "bigint"}, (1, "late", 3))
        assert contents(table, ["id", "b", "ts"]) == [(1, "late", 9)]
        getattr(table, service)()
        send(table, {**ID, "b": "string", "ts": "bigint"}, (1, "later", 2))
        assert contents(table, ["id", "b", "ts"]) == [(1, "late", 9)]


@pytest.mark.parametrize("service", ["compact", "fold"])
def test_versions_per_column_survive_adding_a_column(service: str) -> None:
    """`latest_non_null`: `a` was supplied at 3 and `b` at 5; an event at 4 is newer only for `a`."""
    table = make({"a": "string", "b": "string", "ts": "bigint"}, ordering=["ts"], merge="latest_non_null")
    types = {**ID, "a": "string", "b": "string", "ts": "bigint"}
    send(table, types, (1, "a3", None, 3), (1, None, "b5", 5))
    getattr(table, service)()
    table.add_column("g", "c", "string")
    send(table, {**types, "c": "string"}, (1, "a4", "b4", 4, "c4"))
    assert contents(table) == [(1, "a4", "b5", 5, "c4")]


def test_an_added_count_is_zero_for_older_events() -> None:
    table = make({"n": "bigint"}, merge="aggregate", functions={"n": "sum"})
    send(table, {**ID, "n": "bigint"}, (1, 5))
    table.compact()
    assert table.add_column("g", "c", "bigint", function="count").changed
    assert contents(table) == [(1, 5, 0)]
    assert table.snapshot().scan(["c"]).clean_files is None
    send(table, {**ID, "n": "bigint"}, (1, 5), (2, 1))
    send(table, {**ID, "n": "bigint", "c": "bigint"}, (2, 1, 7))
    assert contents(table) == [(1, 10, 0), (2, 2, 1)]


def test_a_sum_that_did_not_fit_is_shown_once_its_column_is_wider() -> None:
    table = make({"n": "tinyint", "d": "decimal(28,0)"}, merge="aggregate", functions={"n": "sum", "d": "sum"})
    many = 10**28 - 1
    send(table, {**ID, "n": "tinyint", "d": "decimal(28,0)"}, (1, 100, many), (1, 100, many))
    result = table.compact()
    assert contents(table) == [(1, None, None)]
    assert result.overflows == {"n": 1, "d": 1}
    table.widen_column("n", "smallint")
    table.widen_column("d", "decimal(38,0)")
    assert [(row["n"], int(row["d"])) for row in table.snapshot().to_arrow().to_pylist()] == [(200, 2 * many)]


def test_hidden_columns_keep_their_field_ids() -> None:
    """Widening a decimal adds a hidden column to its sum; the ids of other hidden columns stay."""
    table = make({"d": "decimal(28,0)", "n": "int"}, merge="aggregate", functions={"d": "sum", "n": "sum"})
    before = {field.name: field.metadata[FIELD_ID] for field in table.schema.slice}
    table.widen_column("d", "decimal(38,0)")
    table.add_column("g", "m", "int", function="max")
    after = {field.name: field.metadata[FIELD_ID] for field in table.schema.slice}
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {"m", "__weft_c2_carry"}
    assert len(set(after.values())) == len(after)


def test_files_are_read_without_adaptation_only_if_nothing_has_changed(table: Table) -> None:
    append(table, orders(1))
    append(table, payments(2), "payments")
    table.compact()
    table.add_column("order", "note", "string")
    table.add_column("order", "kind", "string", default="b2c")
    table.widen_column("pts", "bigint")  # it already has this type

    def native(*columns: str) -> bool:
        return table.snapshot().scan(columns).clean_files is not None

    assert native("id", "status", "pts", "note")
    assert not native("id", "kind")
    table.set_default("status", "-")
    assert native("id", "pts", "note")
    assert not native("status")
    append(table, orders(*range(1, 40), ts=2))
    append(table, payments(*range(1, 40), ts=2), "payments")
    table.compact()
    assert native(*table.schema.arrow.names)


def test_an_older_snapshot_has_its_original_schema(table: Table) -> None:
    append(table, orders(1))
    before = table.snapshot()
    rows = contents(table)
    table.savepoint("before")
    table.add_column("order", "note", "string", default="-")
    table.widen_column("status", "string")
    append(table, orders(2))
    table.compact()
    for as_of in (str(before.cut), "before"):
        assert table.snapshot(as_of).schema == before.schema
        assert contents(Table.open(table.uri), as_of=as_of) == rows
        with pytest.raises(NotFound, match="no column 'note'"):
            table.snapshot(as_of).to_arrow(["note"])


def test_a_snapshot_never_sees_entries_of_a_newer_schema(table: Table, uri: str) -> None:
    """R2: the reader has read the table lane; then a column is added, and a row that has it is committed."""
    append(table, orders(1))

    def change() -> None:
        table.add_column("order", "note", "string")
        append(table, orders(2).append_column("note", pa.array(["x"])))

    store = FaultyStore(open_store(uri))
    reader = other_process(uri, FakeClock(), store)
    reader.state()
    store.faults.append(Fault("get", "lanes/orders/00000000000000000003", action=change))
    assert contents(reader) == [(1, "new", 1, None, None)]
    assert not store.faults[0].times, "the change came in between"
    assert len(contents(reader)) == 2


def test_a_restore_keeps_the_schema(table: Table) -> None:
    append(table, orders(1))
    append(table, payments(9), "payments")
    table.compact()
    table.savepoint("before")
    table.add_column("order", "note", "string", default="-")
    append(table, orders(1, ts=2).append_column("note", pa.array(["x"])))
    table.compact()
    table.restore("before")
    assert contents(table, ["id", "status", "note"]) == [(1, "new", None), (9, None, "-")]
    append(table, orders(1, ts=2).append_column("note", pa.array(["y"])))
    assert contents(table, ["id", "note"]) == [(1, "y"), (9, "-")]


def test_a_commit_begun_before_a_change_has_the_older_schema(table: Table) -> None:
    with table.writer("orders") as writer:
        ticket = writer.begin()
        assert isinstance(ticket, WriteTicket)
        table.add_column("order", "note", "string")
        table.widen_column("id", "bigint")
        writer.commit(ticket, [write_rows(ticket, orders(1))])
        writer.append(orders(2))
    assert contents(table, ["id", "note"]) == [(1, None), (2, None)]


@pytest.mark.parametrize("service", ["compact", "fold"])
def test_a_service_running_during_a_change_publishes_its_result(table: Table, uri: str, service: str) -> None:
    append(table, orders(1))
    append(table, payments(9), "payments")
    store = FaultyStore(open_store(uri))
    slow = other_process(uri, FakeClock(), store)

    def change() -> None:
        table.add_column("order", "note", "string", default="-")
        append(table, orders(2).append_column("note", pa.array(["x"])))

    call, path = ("open_output", "base/") if service == "compact" else ("put", "log/_fold")
    store.faults.append(Fault(call, path, action=change))
    assert getattr(slow, service)().done
    assert not store.faults[0].times, "the change came in between"
    assert contents(table, ["id", "note"]) == [(1, None), (2, "x"), (9, "-")]
    table.compact()
    assert contents(table, ["id", "note"]) == [(1, None), (2, "x"), (9, "-")]


def racing(uri: str, other: Callable[[], object]) -> Table:
    """The table of a process that loses the race for the next slot of the table lane to ``other``."""
    store = FaultyStore(open_store(uri))
    table = other_process(uri, FakeClock(), store)
    table.state()
    store.faults.append(Fault("put_if_absent", "timeline/table/", action=lambda: other() and None))
    return table


def test_concurrent_additions_are_merged(table: Table, uri: str) -> None:
    racing(uri, lambda: table.add_column("order", "note", "string")).add_column("order", "kind", "string")
    racing(uri, lambda: table.add_group("a", {"x": "int"}, new_streams={"as": "group"})).add_group(
        "b", {"y": "int"}, streams=["orders"]
    )
    racing(uri, lambda: table.widen_column("x", "bigint")).set_default("y", 7)
    schema = Table.open(uri).schema
    assert schema.group_by_name["order"].columns == ("status", "ots", "note", "kind")
    assert [column.id for column in schema.columns] == list(range(1, 10))
    assert [group.id for group in schema.groups] == [1, 2, 3, 4]
    assert schema.column_by_name["x"].type == pa.int64()
    assert schema.column_by_name["y"].default == 7
    assert schema.stream("orders").groups == ("order", "b")


def test_the_same_concurrent_addition_is_applied_once(table: Table, uri: str) -> None:
    late = racing(uri, lambda: table.add_column("order", "note", "string"))
    result = late.add_column("order", "note", "string")
    assert result == SchemaChange(2, changed=False)
    with pytest.raises(Conflict, match="column 'note' already exists, with type 'string', not 'int'"):
        racing(uri, lambda: table.add_column("order", "note", "string")).add_column("order", "note", "int")
    late = racing(uri, lambda: table.add_column("order", "Kind", "string"))
    with pytest.raises(InvalidInput, match="two names differ only in case"):
        late.add_column("order", "kind", "string")


def test_comments_change_no_read_and_no_file(table: Table) -> None:
    append(table, orders(1))
    table.compact()
    before, shown = table.snapshot(), contents(table)
    assert table.set_comment("all orders").changed
    assert table.set_comment("of today", "status").changed
    assert not table.set_comment("of today", "status").changed
    table.add_stream("more", ["payment"])
    schema = table.schema
    assert schema.comment == "all orders"
    assert {column.name: column.comment for column in schema.columns if column.comment} == {"status": "of today"}
    assert schema.changed == before.table_schema.changed, "older files need no adaptation"
    assert schema.arrow.equals(before.table_schema.arrow, check_metadata=True)
    assert [each.slice for each in table.snapshot().slices] == [each.slice for each in before.slices]
    assert contents(table) == shown
    assert table.snapshot(str(before.cut)).table_schema.comment == ""
    assert table.set_comment("").changed
    assert table.schema.comment == ""


def test_a_comment_that_cannot_be_set_is_refused(table: Table) -> None:
    head = table.state().head
    with pytest.raises(NotFound, match="the table has no column 'nope'"):
        table.set_comment("x", "nope")
    with pytest.raises(InvalidInput, match="set_comment: comment: is a number, and must be a text"):
        table.set_comment(7, "status")  # type: ignore[arg-type]
    assert table.state().head == head


def test_an_added_column_keeps_its_comment_unless_another_one_is_asked_for(table: Table) -> None:
    assert table.add_column("order", "note", "string", comment="free text").changed
    table.add_group("ship", {"carrier": {"type": "string", "comment": "who"}}, streams=["orders"])
    assert not table.add_column("order", "note", "string").changed
    assert not table.add_group("ship", {"carrier": "string"}, streams=["orders"]).changed
    with pytest.raises(Conflict, match="with comment 'free text', not 'other'") as caught:
        table.add_column("order", "note", "string", comment="other")
    assert "set_comment" in caught.value.hint
    assert [table.schema.column(name).comment for name in ("note", "carrier")] == ["free text", "who"]


def test_adding_what_exists_changes_nothing(table: Table) -> None:
    group = {"ordering": ["sts"], "merge": "latest_non_null", "new_streams": {"ships": "row"}}
    columns = {"carrier": "string", "sts": "bigint"}
    changes: list[Callable[[], SchemaChange]] = [
        lambda: table.add_column("order", "note", "string", default="-"),
        lambda: table.add_group("ship", columns, **group),
        lambda: table.add_stream("more", ["payment", "ship"], on_delete="ignore"),
        lambda: table.widen_column("paid", "double"),
        lambda: table.set_default("note", "-"),
    ]
    first = [change().changed for change in changes]
    assert first == [True, True, True, False, False]
    head = table.state().head
    assert not any(change().changed for change in changes)
    assert table.state().head == head
    kinds = [
        entry.change for entry in table._table_log.commit_log.read_after(TABLE_LANE, 0) if isinstance(entry, Schema)
    ]
    assert kinds == ["add column order.note string", "add group ship", "add stream more"]


def test_a_group_with_a_new_merge_mode_adds_a_reader_feature(table: Table) -> None:
    table.add_group("sums", {"n": "bigint"}, merge="aggregate", functions={"n": "sum"}, streams=["orders"])
    (entry,) = (e for e in table._table_log.commit_log.read_after(TABLE_LANE, 0) if isinstance(e, Schema))
    assert entry.reader_features == ["merge-aggregate", "merge-latest"]


def test_only_types_that_contain_every_value_are_wider() -> None:
    types = ["tinyint", "smallint", "int", "bigint", "float", "double", "decimal(5,2)", "decimal(9,2)", "decimal(9,3)"]
    types += ["string", "binary", "date", "timestamp", "timestamp_ntz", "boolean", "array<int>", "array<bigint>"]
    wider = {(a, b) for a in types for b in types if widens(parse_type(a), parse_type(b))}
    integers = {(a, b) for i, a in enumerate(types[:4]) for b in types[i + 1 : 4]}
    assert wider == integers | {("float", "double"), ("decimal(5,2)", "decimal(9,2)")}
