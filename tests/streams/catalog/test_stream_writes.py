"""What SQL statements that write mean, without Spark: the stream, the columns, and the rows that DELETE deletes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from weft import Table
from weft.storage.core.predicate import And, Comparison, Condition, IsNull, Not
from weft.storage.errors import InvalidInput, NotFound
from weft.streams.catalog.stream_writes import (
    check_delete,
    check_statement,
    choose_stream,
    columns_of,
    delete_rows,
    is_by_position,
    match_columns,
)

CONFIG: dict[str, Any] = {
    "key": ["id"],
    "buckets": 1,
    "columns": {"id": "bigint", "status": "string", "ots": "bigint", "paid": "double", "pts": "bigint", "n": "bigint"},
    "groups": {
        "order": {"columns": ["status", "ots"], "ordering": ["ots"]},
        "payment": {"columns": ["paid", "pts"], "ordering": ["pts"]},
        "count": {"columns": ["n"], "merge": "aggregate", "functions": {"n": "sum"}},
    },
    "streams": {
        "orders": {"groups": ["order"], "on_delete": "row"},
        "payments": {"groups": ["payment"]},
        "imports": {"groups": ["payment"], "on_delete": "ignore"},
        "counts": {"groups": ["count"]},
    },
}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table.create(tmp_path / "t", CONFIG)
    append(made, "orders", id=[1, 2, 3], status=["a", "b", "b"], ots=[10, 20, 30])
    append(made, "payments", id=[1, 4], paid=[1.5, 4.5], pts=[7, 8])
    return made


def append(table: Table, stream: str, **columns: list[Any]) -> None:
    with table.writer(stream) as writer:
        writer.append(pa.table(columns))


def ids(table: Table) -> list[int]:
    return sorted(table.snapshot().to_arrow(["id"])["id"].to_pylist())


def where(column: str, value: Any) -> Condition:
    return Comparison(column, "==", value, pa.scalar(value).type)


def test_delete_has_the_ordering_value_of_the_row_that_it_deletes(table: Table) -> None:
    done = delete_rows(table, table.schema.stream("orders"), where("status", "b"))
    assert done is not None
    assert done.rows == 2
    assert ids(table) == [1, 4]
    append(table, "orders", id=[2, 3], status=["late", "new"], ots=[20 - 1, 30 + 1])
    assert ids(table) == [1, 3, 4], "an older event does not bring the row back, a newer one does"
    assert [name for name in table.state().lanes if "batch" in name] == ["orders-batches-1"]


def test_delete_of_a_group_leaves_the_row_to_its_other_groups(table: Table) -> None:
    delete_rows(table, table.schema.stream("payments"), And((Not(IsNull("id")),)))
    assert ids(table) == [1, 2, 3]
    assert set(table.snapshot().to_arrow(["paid"])["paid"].to_pylist()) == {None}


def test_delete_without_rows_commits_nothing(table: Table) -> None:
    before = str(table.snapshot().cut)
    assert delete_rows(table, table.schema.stream("orders"), where("status", "z")) is None
    assert str(table.snapshot().cut) == before


REFUSED = {
    "ignore": ("imports", where("id", 1), "deletes of stream 'imports' are ignored"),
    "aggregate": ("counts", where("id", 1), "group 'count' is merged by 'aggregate'"),
    "no ordering value": ("orders", Not(IsNull("id")), "has no event for 1 of 4 rows"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_delete_cannot_do_changes_nothing(table: Table, name: str) -> None:
    stream, condition, message = REFUSED[name]
    before = str(table.snapshot().cut)
    with pytest.raises(InvalidInput, match=re.escape(message)):
        delete_rows(table, table.schema.stream(stream), condition)
    assert str(table.snapshot().cut) == before


def test_the_stream_of_a_statement(table: Table) -> None:
    assert choose_stream(table.schema, "weft.t", "payments").name == "payments"
    with pytest.raises(NotFound, match=re.escape("weft.t has no stream 'files'")):
        choose_stream(table.schema, "weft.t", "files")
    with pytest.raises(InvalidInput, match="the statement names none") as caught:
        choose_stream(table.schema, "weft.t", "")
    assert "weft.t.orders, weft.t.payments" in caught.value.hint


def test_a_table_with_one_stream_needs_no_name_of_it(tmp_path: Path) -> None:
    config = {**CONFIG, "streams": {"all": {"groups": ["order", "payment", "count"]}}}
    assert choose_stream(Table.create(tmp_path / "t", config).schema, "weft.t", "").name == "all"


@pytest.mark.parametrize(
    ("rest", "how"),
    [
        ("", "position"),
        (" (a, b)", "name"),
        ("(selected)", "name"),
        (" (table, values)", "name"),
        ("(`a)`, `b``(`)", "name"),
        (" BY NAME", "name"),
        ("  by -- name\n  name", "name"),
        (" /* (a) */", "position"),
        (" -- (a)\n (a)", "name"),
        (" WITH ('query_id' = 'a', 'batch' = '1') (a)", "name"),
        (" WITH ('query_id' = '--(', 'batch' = '1')  (a)", "name"),
        (" WITH ('query_id' = 'a', 'batch' = '1')", "position"),
    ],
)
@pytest.mark.parametrize(
    "table_name",
    [
        "weft.shop.o.orders",
        "weft . `sh.op` . `a``(b` .orders",
        "weft.d.with",
        "IDENTIFIER('weft.d.' || concat('a', 'b'))",
    ],
)
@pytest.mark.parametrize("verb", ["INSERT INTO ", "insert  into table "])
def test_whether_values_are_given_by_position(verb: str, table_name: str, rest: str, how: str) -> None:
    head = f"{verb}{table_name}{rest}"
    assert is_by_position(f"WITH x AS (SELECT 1) {head} SELECT (1)", head) is (how == "position")


def test_a_frame_and_create_table_as_select_give_values_by_name() -> None:
    assert not is_by_position("", "")
    text = "-- text\nCREATE TABLE weft.t AS SELECT 1 AS id"
    assert not is_by_position(text, text)


@pytest.mark.parametrize(
    ("text", "privileges"),
    [
        ("UPDATE t SET a = 1", {"UPDATE"}),
        ("-- INSERT\nMERGE INTO t USING s", {"INSERT"}),
        ("INSERT OVERWRITE t SELECT 1", {"INSERT", "DELETE"}),
        ("", {"UPDATE", "DELETE"}),
    ],
)
def test_statements_that_are_refused(text: str, privileges: set[str]) -> None:
    with pytest.raises(InvalidInput, match=re.escape("weft.t.orders")) as caught:
        check_statement(text, "weft.t.orders", frozenset(privileges))
    assert "INSERT INTO" in caught.value.hint
    check_statement("INSERT INTO t SELECT 1", "weft.t.orders", frozenset({"INSERT"}))
    check_statement("DELETE FROM t WHERE a = 1", "weft.t.orders", frozenset({"DELETE"}))


@pytest.mark.parametrize(
    ("stream", "part", "rest", "statement"),
    [
        (
            "orders",
            "orders",
            " WHERE id IN (SELECT 1)",
            (
                "INSERT INTO weft.t.orders BY NAME SELECT `id`, `status`, `ots`, 'delete' AS _op FROM weft.t AS orders "
                "WHERE id IN (SELECT 1)"
            ),
        ),
        (
            "payments",
            "payments",
            " AS p WHERE EXISTS (TABLE x)",
            (
                "INSERT INTO weft.t.payments BY NAME SELECT `id`, `paid`, `pts`, 'delete' AS _op FROM weft.t AS p "
                "WHERE EXISTS (TABLE x)"
            ),
        ),
        ("imports", "imports", " WHERE id IN (SELECT 1)", "name a stream whose on_delete is row or group"),
        ("counts", "counts", " WHERE id IN (SELECT 1)", "use INSERT with the values to take back"),
    ],
)
def test_the_hint_of_a_delete_with_a_subquery(table: Table, stream: str, part: str, rest: str, statement: str) -> None:
    given = table.schema, table.schema.stream(stream), "weft.t", part
    with pytest.raises(InvalidInput) as caught:
        check_delete(f"/* ( */ DELETE FROM weft.t.{part}{rest}", rest, *given)
    assert statement in caught.value.hint
    check_delete(f"DELETE FROM weft.t.{part} WHERE status = '(SELECT' -- (SELECT", " WHERE ...", *given)
    check_delete(f"INSERT INTO weft.t.{part} (SELECT 1)", "", *given)
    check_delete("", "", *given)


def test_columns_by_name_and_by_position(table: Table) -> None:
    stream = table.schema.stream("orders")
    assert columns_of(table.schema, stream) == ["id", "status", "ots"]
    by_name = match_columns(table.schema, stream, ["OTS", "id", "_op"], by_position=False)
    assert by_name == ["ots", "id", "_op"]
    by_position = match_columns(table.schema, stream, ["x", "ots", "x"], by_position=True)
    assert by_position == ["id", "status", "ots"]
    with pytest.raises(InvalidInput, match="the query has column 'ots' twice"):
        match_columns(table.schema, stream, ["id", "ots", "OTS"], by_position=False)
    with pytest.raises(InvalidInput, match="the query has 2 columns, and stream 'orders' 3: id, status, ots"):
        match_columns(table.schema, stream, ["a", "b"], by_position=True)
    with pytest.raises(InvalidInput, match="column 'paid' is not one of stream 'orders'"):
        match_columns(table.schema, stream, ["id", "paid"], by_position=False)
