"""Bad input: a specific error with a hint, and an unchanged table."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path as LocalPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.storage.support.shop import SHOP, append, contents, new_uri, orders, statuses
from weft import Table
from weft.storage.core.merge.events import prepare_good
from weft.storage.core.names import Path
from weft.storage.errors import Conflict, InvalidInput, NotFound, TableError
from weft.storage.store.open_store import open_store
from weft.storage.write.writer import Writer

WIDE = {
    "key": ["id"],
    "buckets": 2,
    "columns": {
        "id": "bigint",
        "small": "smallint",
        "money": "decimal(12,2)",
        "at": "timestamp",
        "day": "date",
        "local": "timestamp_ntz",
        "rate": "double",
        "single": "float",
        "name": "string",
        "raw": "binary",
        "flag": "boolean",
        "tags": "array<string>",
        "pair": "struct<x:int,y:string>",
        "seen": "map<string,bigint>",
        "other": "string",
        "ots": "bigint",
    },
    "groups": {
        "g": {
            "columns": [
                *("small", "money", "at", "day", "local", "rate", "single", "name", "raw", "flag"),
                *("tags", "pair", "seen"),
            ],
            "ordering": ["at", "rate"],
        },
        "h": {"columns": ["other", "ots"], "ordering": ["ots"]},
    },
    "streams": {"s": {"groups": ["g"]}, "t": {"groups": ["h"]}, "both": {"groups": ["g", "h"]}},
}
NOW = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
GOOD: dict[str, pa.Array] = {
    "id": pa.array([1, 2], pa.int64()),
    "small": pa.array([1, 2], pa.int16()),
    "money": pa.array([None, None], pa.decimal128(12, 2)),
    "at": pa.array([NOW, NOW], pa.timestamp("us", "UTC")),
    "day": pa.array([None, None], pa.date32()),
    "local": pa.array([None, None], pa.timestamp("us")),
    "rate": pa.array([1.0, None], pa.float64()),
    "single": pa.array([1.0, None], pa.float32()),
    "name": pa.array(["a", None]),
    "raw": pa.array([b"a", None]),
    "flag": pa.array([True, None]),
    "tags": pa.array([["x"], None], pa.list_(pa.string())),
    "pair": pa.array([{"x": 1, "y": "b"}, None], pa.struct([("x", pa.int32()), ("y", pa.string())])),
    "seen": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
}


@pytest.fixture
def table() -> Table:
    table = Table.create(new_uri(), WIDE)
    append(table, pa.table({"id": [7], "other": ["there"], "ots": [1]}), "t")
    return table


@pytest.fixture
def writer(table: Table) -> Iterator[Writer]:
    with table.writer("s") as opened:
        yield opened


def batch(**changes: Any) -> pa.Table:
    return pa.table({name: column for name, column in {**GOOD, **changes}.items() if column is not None})


def refuse(table: Table, writer: Writer, rows: pa.Table, *words: str) -> InvalidInput:
    before = table.snapshot()
    files = open_store(table.uri).list(Path("log"))
    with pytest.raises(InvalidInput) as raised:
        writer.append(rows)
    error = raised.value
    for word in words:
        assert word in str(error)
    assert error.hint
    after = table.snapshot()
    assert str(after.cut) == str(before.cut)
    assert after.to_arrow() == before.to_arrow()
    assert open_store(table.uri).list(Path("log")) == files
    # The writer can still be used.
    assert writer.append(batch()).rows == 2
    return error


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"id": None}, ["key column 'id' is missing"]),
        ({"id": pa.array([1, None], pa.int64())}, ["'id'", "NULL in a key column in 1 of 2 rows", "row 1"]),
        ({"id": pa.array(["1", "2"])}, ["'id'", "string", "bigint"]),
        ({"id": pa.array([1.0, 2.0])}, ["'id'", "double", "bigint"]),
        ({"id": pa.array([1, 2], pa.uint64())}, ["'id'", "uint64", "bigint"]),
        ({"name": None}, ["group 'g' is incomplete", "'name'"]),
        ({"at": None, "rate": None}, ["group 'g' is incomplete", "'at'", "'rate'"]),
        ({"nope": pa.array([1, 2])}, ["no column 'nope'", "columns of this stream"]),
        ({"other": pa.array(["x", "y"])}, ["'other'", "group 'h'", "stream 's' does not write"]),
        ({"__weft_key": pa.array([b"", b""])}, ["no column '__weft_key'"]),
        ({"small": pa.array([1, 2], pa.int32())}, ["'small'", "int32", "smallint"]),
        ({"small": pa.array([1, 2], pa.uint16())}, ["'small'", "uint16", "smallint"]),
        ({"money": pa.array([1, 2], pa.int64())}, ["'money'", "int64", "decimal(12,2)"]),
        ({"money": pa.array([None, None], pa.decimal128(13, 2))}, ["'money'", "decimal128(13, 2)", "decimal(12,2)"]),
        ({"money": pa.array([None, None], pa.decimal128(12, 3))}, ["'money'", "decimal128(12, 3)"]),
        ({"at": pa.array([NOW.replace(tzinfo=None)] * 2)}, ["'at'", "timestamp", "time zone"]),
        ({"local": pa.array([NOW, NOW], pa.timestamp("us", "UTC"))}, ["'local'", "remove the time zone"]),
        ({"at": pa.array([1, 2], pa.timestamp("ns", "UTC"))}, ["'at'", "does not fit", "microsecond"]),
        ({"day": pa.array([NOW, NOW], pa.timestamp("us", "UTC"))}, ["'day'", "date"]),
        ({"rate": pa.array([float("nan"), 1.0])}, ["'rate'", "NaN in an ordering column in 1 of 2 rows", "row 0"]),
        ({"rate": pa.array([1, 2], pa.int64())}, ["'rate'", "int64", "double"]),
        ({"single": pa.array([1.0, 2.0], pa.float64())}, ["'single'", "double", "float"]),
        ({"name": pa.array([b"a", b"b"])}, ["'name'", "binary", "string"]),
        ({"raw": pa.array(["a", "b"])}, ["'raw'", "string", "binary"]),
        ({"flag": pa.array([1, 0])}, ["'flag'", "int64", "boolean"]),
        ({"tags": pa.array([[1], [2]])}, ["'tags'", "array<string>"]),
        ({"pair": pa.array([{"x": 1}, {"x": 2}])}, ["'pair'", "struct<x:int,y:string>"]),
        ({"seen": pa.array([{"a": 1}, {"a": 2}])}, ["'seen'", "map<string,bigint>"]),
        ({"_op": pa.array(["upsrt", "U"])}, ["'_op'", "not an operation in 1 of 2 rows", "'upsrt'", "upsert"]),
        ({"_op": pa.array(["", "U"])}, ["'_op'", "not an operation", "''"]),
        ({"_op": pa.array(["DELETE", "Delete"])}, ["'_op'", "in 2 of 2 rows", "'DELETE'", "'Delete'"]),
        ({"_op": pa.array([1, 2])}, ["'_op'", "int64", "string"]),
        ({"_supplied": pa.array([["name"], None], pa.list_(pa.string()))}, ["'_supplied'"]),
    ],
)
def test_a_wrong_column_type_or_row_is_named(
    table: Table, writer: Writer, changes: dict[str, pa.Array | None], words: list[str]
) -> None:
    refuse(table, writer, batch(**changes), *words)


def test_a_delete_without_any_ordering_value_is_refused(table: Table, writer: Writer) -> None:
    nothing = pa.nulls(2)
    rows = batch(at=nothing, rate=nothing, _op=pa.array(["U", "D"]))
    refuse(table, writer, rows, "'at and rate'", "NULL in every ordering column of a delete in 1 of 2 rows", "id=2")


def test_two_columns_of_one_name_are_refused(table: Table, writer: Writer) -> None:
    for name in ("name", "id", "_op"):
        twice = batch(_op=pa.array(["U", "U"])).append_column(name, pa.array(["x", "y"]))
        refuse(table, writer, twice, f"column '{name}' is in the batch twice")


def test_a_batch_with_only_key_columns_is_refused(table: Table, writer: Writer) -> None:
    refuse(table, writer, pa.table({"id": [1]}), "no column group of stream 's'")


def test_an_incomplete_group_is_refused_beside_a_complete_one(table: Table) -> None:
    with table.writer("both") as both:
        before = str(table.snapshot().cut)
        with pytest.raises(InvalidInput, match="group 'h' is incomplete: column 'ots' is missing"):
            both.append(batch(other=pa.array(["x", "y"])))
        assert str(table.snapshot().cut) == before


def test_the_type_of_an_empty_batch_is_checked_too(table: Table, writer: Writer) -> None:
    refuse(table, writer, batch(small=pa.array([1, 2], pa.int64())).slice(0, 0), "'small'", "int64")


def test_a_value_that_is_not_a_table_is_refused(table: Table, writer: Writer) -> None:
    for rows in ([{"id": 1}], {"id": [1]}, None):
        with pytest.raises((InvalidInput, TypeError, AttributeError)):
            writer.append(rows)
    assert contents(table, ["id"]) == [(7,)]


CALENDAR = [
    ("timestamp", pa.timestamp("us", "UTC"), [-(2**62), 2**62, 253_402_300_800_000_000, -62_135_596_800_000_001]),
    ("timestamp_ntz", pa.timestamp("us"), [-(2**62), 2**62, 253_402_300_800_000_000, -62_135_596_800_000_001]),
    ("date", pa.date32(), [-(2**31), 2**31 - 1, 2_932_897, -719_163]),
]


@pytest.mark.parametrize("column", ["k", "o"])
@pytest.mark.parametrize(
    ("name", "arrow_type", "value"), [(name, kind, value) for name, kind, values in CALENDAR for value in values]
)
def test_a_key_or_ordering_time_outside_the_calendar_is_refused(
    column: str, name: str, arrow_type: pa.DataType, value: int
) -> None:
    """Years 1 to 9999 have a text form in SQL and in Python; statistics and partition folders need one."""
    config = {
        "key": ["k"],
        "partition_by": ["k"],
        "columns": {"k": name, "o": name, "v": name},
        "groups": {"g": {"columns": ["o", "v"], "ordering": ["o"]}},
        "streams": {"s": {"groups": ["g"]}},
    }
    table = Table.create(new_uri(), config)
    width = pa.int32() if name == "date" else pa.int64()
    numbers = {"k": [0, 1], "o": [0, 1], "v": [0, value], column: [0, value]}
    rows = pa.table({key: pa.array(values, width).cast(arrow_type) for key, values in numbers.items()})
    with table.writer("s") as writer:
        with pytest.raises(InvalidInput, match=f"'{column}': a time outside the calendar in 1 of 2 rows") as error:
            writer.append(rows)
        assert "9999" in error.value.hint
        assert table.snapshot().to_arrow().num_rows == 0
        # A value outside keys and ordering columns is stored unchanged.
        numbers |= {column: [0, 1]}
        rows = pa.table({key: pa.array(values, width).cast(arrow_type) for key, values in numbers.items()})
        writer.append(rows)
    table.compact()
    assert table.snapshot().to_arrow(["v"]).column("v").cast(width).to_pylist() == [0, value]


MILLIS = 1_772_355_600_123


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (MILLIS, "(?s)looks like milliseconds, and was read as seconds in 1 of 2 .* select timestamp_millis"),
        (
            MILLIS * 1000 + 7,
            "(?s)looks like microseconds, and was read as seconds in 1 of 2 .* select timestamp_micros",
        ),
        (MILLIS // 2, "a time outside the calendar in 1 of 2 rows"),
        (2**62 // 1_000_000, "a time outside the calendar in 1 of 2 rows"),
    ],
)
def test_a_number_in_another_unit_is_recognized(number: int, words: str) -> None:
    """Spark multiplies a number of JSON by a million, as for seconds, and loses the upper bits of what is too large."""
    config = {
        "key": ["k"],
        "columns": {"k": "int", "at": "timestamp"},
        "groups": {"g": {"columns": ["at"], "ordering": ["at"]}},
        "streams": {"s": {"groups": ["g"]}},
    }
    table = Table.create(new_uri(), config)
    stored = (number * 1_000_000 + 2**63) % 2**64 - 2**63
    at = pa.array([stored, 0], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    with table.writer("s") as writer, pytest.raises(InvalidInput, match=words):
        writer.append(pa.table({"k": pa.array([1, 2], pa.int32()), "at": at}))


def test_a_number_in_another_unit_is_set_aside_in_any_column() -> None:
    """Among messages; other times outside the calendar, such as an infinity of Postgres, are stored as they are."""
    config = {
        "key": ["k"],
        "columns": {"k": "int", "o": "int", "seen": "timestamp", "n": "timestamp_ntz"},
        "groups": {"g": {"columns": ["o", "seen", "n"], "ordering": ["o"]}},
        "streams": {"s": {"groups": ["g"]}},
    }
    table = Table.create(new_uri(), config)
    numbers = [MILLIS, MILLIS * 1000 + 7, MILLIS // 1000, None, 2**62 // 1_000_000, -(10**11)]
    stored = [None if each is None else (each * 1_000_000 + 2**63) % 2**64 - 2**63 for each in numbers]
    seen = pa.array(stored, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    keys = pa.array(range(len(numbers)), pa.int32())
    rows = pa.table({"k": keys, "o": keys, "seen": seen, "n": pa.nulls(len(numbers), pa.timestamp("us"))})
    schema = table.schema
    events, problems = prepare_good(rows, schema, schema.stream("s"))
    assert events.rows.column("k").to_pylist() == [2, 3, 4, 5]
    assert {problem.reason.split(", ")[0].rpartition(" ")[2]: problem.rows.tolist() for problem in problems} == {
        "milliseconds": [True, False, False, False, False, False],
        "microseconds": [False, True, False, False, False, False],
    }
    assert all(problem.advises and "select timestamp_m" in problem.hint for problem in problems)
    other = rows.set_column(2, "seen", rows["n"].cast(pa.timestamp("us", tz="UTC"))).set_column(
        3, "n", seen.cast(pa.int64()).cast(pa.timestamp("us"))
    )
    assert {problem.column for problem in prepare_good(other, schema, schema.stream("s"))[1]} == {"n"}
    with table.writer("s") as writer:
        writer.append(rows)  # a program has made these times, and may mean them
    assert table.snapshot().to_arrow(["seen"])["seen"].null_count == 1


@pytest.mark.parametrize("column", ["id", "o", "v"])
def test_text_that_is_not_utf_8_is_refused(column: str) -> None:
    config = {
        "key": ["id"],
        "columns": {"id": "string", "o": "string", "v": "string"},
        "groups": {"g": {"columns": ["o", "v"], "ordering": ["o"]}},
        "streams": {"s": {"groups": ["g"]}},
    }
    table = Table.create(new_uri(), config)
    good = pa.table({"id": ["a", "b"], "o": ["a", "b"], "v": ["a", None]})
    broken = pa.array([b"ok", b"\xff\xfe"]).view(pa.string())
    rows = good.set_column(good.schema.get_field_index(column), column, broken)
    with table.writer("s") as writer, pytest.raises(InvalidInput, match="text that is not UTF-8 in 1 of 2") as error:
        writer.append(rows)
    assert f"column '{column}'" in str(error.value)
    assert "row 1" in str(error.value)
    assert table.snapshot().to_arrow().num_rows == 0


def test_text_within_a_nested_value_is_checked_too(table: Table, writer: Writer) -> None:
    broken = pa.ListArray.from_arrays([0, 1, 2], pa.array([b"ok", b"\xff"]).view(pa.string()))
    refuse(table, writer, batch(tags=broken), "'tags'", "not UTF-8 in 1 of 2 rows", "id=2")


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("id", pa.array([1, 2], pa.int8())),
        ("id", pa.array([1, 2], pa.uint32())),
        ("small", pa.array([1, 2], pa.uint8())),
        ("money", pa.array([None, None], pa.decimal128(5, 1))),
        ("money", pa.array([None, None], pa.decimal256(12, 2))),
        ("at", pa.array([NOW, NOW], pa.timestamp("s", "America/New_York"))),
        ("at", pa.array([1_000, 2_000_000], pa.timestamp("ns", "UTC"))),
        ("day", pa.array([0, 86_400_000], pa.date64())),
        ("local", pa.array([1, 2], pa.timestamp("ms"))),
        ("rate", pa.array([1, 2], pa.int32())),
        ("rate", pa.array([1.5, 2.5], pa.float32())),
        ("name", pa.array(["a", "b"], pa.large_string())),
        ("name", pa.array(["a", "b"], pa.string_view())),
        ("name", pa.array(["a", "b"]).dictionary_encode()),
        ("name", pa.nulls(2)),
        ("raw", pa.array([b"ab", b"cd"], pa.binary(2))),
        ("raw", pa.array([b"ab", b"cd"], pa.large_binary())),
        ("tags", pa.array([["a"], None], pa.large_list(pa.large_string()))),
        ("tags", pa.array([["a"], ["b"]], pa.list_(pa.string(), 1))),
        ("tags", pa.nulls(2)),
        ("pair", pa.array([{"x": 1, "y": "b"}, None], pa.struct([("x", pa.int8()), ("y", pa.large_string())]))),
        ("pair", pa.nulls(2)),
        ("seen", pa.array([[("a", 1)], None], pa.map_(pa.large_string(), pa.int32()))),
        ("seen", pa.nulls(2)),
    ],
)
def test_input_that_casts_without_loss_is_accepted(table: Table, writer: Writer, name: str, column: pa.Array) -> None:
    assert writer.append(batch(**{name: column})).rows == 2
    order = "id"
    answer = table.snapshot().to_arrow(list({name, order}), filter=pc.field("id") < 7).sort_by(order)
    given = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    assert _plain(answer.column(name)) == _plain(given)
    table.compact()
    answer = table.snapshot().to_arrow(list({name, order}), filter=pc.field("id") < 7).sort_by(order)
    assert _plain(answer.column(name)) == _plain(given)


def _plain(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    values = column.to_pylist()
    return [value.astimezone(dt.UTC) if isinstance(value, dt.datetime) and value.tzinfo else value for value in values]


def test_good_rows_can_be_kept_and_bad_ones_set_aside(table: Table) -> None:
    """The input of a dead-letter queue: per problem a mask over the input rows."""
    schema = table.schema
    rows = batch(id=pa.array([None, 2], pa.int64()), rate=pa.array([1.0, 1.0]), _op=pa.array(["U", "U"]))
    rows = pa.concat_tables([rows, batch(_op=pa.array(["x", "U"]), rate=pa.array([1.0, float("nan")])), rows.slice(1)])
    events, problems = prepare_good(rows, schema, schema.stream("s"))
    assert events.rows.column("id").to_pylist() == [2, 2]
    assert {problem.column: problem.rows.tolist() for problem in problems} == {
        "id": [True, False, False, False, False],
        "rate": [False, False, False, True, False],
        "_op": [False, False, True, False, False],
    }


def test_creating_an_existing_table_and_opening_a_missing_one_fail(tmp_path: LocalPath) -> None:
    for uri in (new_uri(), str(tmp_path / "table")):
        with pytest.raises(NotFound, match="no table at") as missing:
            Table.open(uri)
        assert "create" in missing.value.hint
        append(Table.create(uri, SHOP), orders(1))
        with pytest.raises(Conflict, match="there is already a table at") as exists:
            Table.create(uri, {**SHOP, "buckets": 16})
        assert "open" in exists.value.hint
        assert statuses(Table.open(uri)) == {1: "new"}


def test_every_error_survives_pickling() -> None:
    import pickle

    from weft.storage import errors

    for name in errors.__all__:
        kind = getattr(errors, name)
        error = pickle.loads(pickle.dumps(kind("what", hint="do this")))
        assert type(error) is kind
        assert str(error).startswith("what\n  hint: do this")
        assert isinstance(error, TableError)
    unknown = pickle.loads(pickle.dumps(errors.CommitUnknown("what", batch=("q", 7))))
    assert unknown.batch == ("q", 7)
    codes = [getattr(errors, name).code for name in errors.__all__]
    assert len(set(codes)) == len(codes)


def test_every_error_survives_json() -> None:
    import json

    from weft.storage import errors

    for name in errors.__all__:
        kind = getattr(errors, name)
        data = json.loads(json.dumps(kind("what", hint="do this").to_dict()))
        error = errors.error_from_dict(data)
        assert (error.code, error.message, error.hint) == (kind.code, "what", "do this")
        assert name == "TableError" or type(error) is kind
    unknown = errors.error_from_dict(json.loads(json.dumps(errors.CommitUnknown("what", batch=("q", 7)).to_dict())))
    assert isinstance(unknown, errors.CommitUnknown)
    assert unknown.batch == ("q", 7)


def test_an_error_of_an_unknown_class_keeps_its_message() -> None:
    from weft.storage.errors import error_from_dict

    error = error_from_dict({"code": "A_LATER_ONE", "message": "what", "hint": "do this", "fields": {}})
    assert type(error) is TableError
    assert str(error) == "what\n  hint: do this"
    with pytest.raises(KeyError):
        error_from_dict({"code": "CONFLICT"})
