"""Logs that are newer than everything compacted are merged without reading old versions, and the rows are the same."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from weft import Table
from weft.storage.core.merge.contested import contested, stored_bounds
from weft.storage.core.modes import NO_MERGERS
from weft.storage.files.log_reader import LogReader

MOMENT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
PLAIN_MOMENT = MOMENT.replace(tzinfo=None)
ORDERINGS: dict[str, list[Any]] = {
    "bigint": [-5, 3, 2**60],
    "double": [-1.5, 0.25, 1e300],
    "decimal(20,2)": [Decimal("-1.10"), Decimal("9.99"), Decimal("10.00")],
    "string": ["", "z", "é"],
    "date": [dt.date(1960, 1, 1), dt.date(2000, 1, 1), dt.date(2026, 1, 1)],
    "timestamp": [MOMENT, MOMENT + dt.timedelta(microseconds=1), MOMENT + dt.timedelta(days=1)],
    "timestamp_ntz": [PLAIN_MOMENT.replace(year=1), PLAIN_MOMENT, PLAIN_MOMENT.replace(year=9999)],
}


def create(folder: Path, kind: str = "bigint", merge: str = "latest", ordering: list[str] | None = None) -> Table:
    columns = {"k": "bigint", "v": "string", "ts": kind, "n": "bigint"}
    group = {"columns": ["v", "ts", "n"], "ordering": ["ts"] if ordering is None else ordering, "merge": merge}
    other = {"columns": ["w", "ws"], "ordering": ["ws"]}
    return Table.create(
        folder,
        {
            "key": ["k"],
            "buckets": 1,
            "columns": {**columns, "w": "string", "ws": "bigint"},
            "groups": {"g": group, "h": other},
            "streams": {"s": {"groups": ["g"], "on_delete": "row"}, "t": {"groups": ["h"]}},
        },
    )


def write(table: Table, rows: list[tuple[int, str | None, Any, int]], op: str = "U") -> None:
    keys, values, moments, numbers = zip(*rows, strict=True)
    moment_type = table.schema.field("ts").type
    with table.writer("s") as writer:
        writer.append(
            pa.table(
                {
                    "k": pa.array(keys, pa.int64()),
                    "v": pa.array(values, pa.string()),
                    "ts": pa.array(moments, moment_type),
                    "n": pa.array(numbers, pa.int64()),
                    "_op": pa.array([op] * len(rows)),
                }
            )
        )


def decided(table: Table) -> bool:
    """Whether the group g is merged without reading the versions of the slices."""
    snapshot = table.snapshot()
    schema = snapshot.table_schema
    (part,) = snapshot.slices
    wanted = {*schema.slice.names, "__weft_op"}
    reader = LogReader(snapshot.table_log.env, schema, snapshot.files, [part], [wanted], NO_MERGERS)
    logs = reader.collapse(part, schema.groups, [column.name for column in schema.columns])
    assert logs is not None
    group = schema.group_by_name["g"]
    bound = stored_bounds(schema, schema.groups, [part.slice]).get(group.id)
    return bound is not None and not contested(group, logs.registers[group.id], bound).any()


def shown(table: Table, columns: list[str] | None = None) -> list[dict[str, Any]]:
    return table.snapshot().to_arrow(columns).sort_by("k").to_pylist()


@pytest.mark.parametrize("kind", ORDERINGS)
def test_only_larger_ordering_values_are_newest(tmp_path: Path, kind: str) -> None:
    low, middle, high = ORDERINGS[kind]
    for name, later, newest in (("newer", high, True), ("tie", middle, False), ("older", low, False)):
        table = create(tmp_path / name, kind)
        write(table, [(1, "first", middle, 1), (2, "kept", low, 1)])
        table.compact()
        write(table, [(1, "second", later, 2), (3, "new", high, 2)])
        assert decided(table) is newest
        wins = later >= middle
        values = [row["v"] for row in shown(table, ["k", "v"])]
        assert values == ["second" if wins else "first", "kept", "new"]
        merged = shown(table)
        table.compact()
        assert shown(table) == merged


def test_a_row_that_was_deleted_later_is_a_version_too(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    write(table, [(1, "a", 10, 1), (2, "b", 10, 1)])
    write(table, [(1, None, 50, 1)], op="D")
    table.compact()
    write(table, [(1, "late", 20, 2), (2, "c", 20, 2)])
    assert not decided(table)
    assert [(row["k"], row["v"]) for row in shown(table)] == [(2, "c")]
    write(table, [(1, "back", 60, 2), (2, None, 60, 2)], op="U")
    assert [(row["k"], row["v"]) for row in shown(table)] == [(1, "back"), (2, None)]


def test_newer_deletes_hide_and_newer_upserts_of_deleted_rows_show(tmp_path: Path) -> None:
    table = create(tmp_path / "t")
    write(table, [(1, "a", 10, 1), (2, "b", 10, 1), (3, "c", 10, 1)])
    with table.writer("t") as writer:
        writer.append(pa.table({"k": [1, 2, 4], "w": ["x", "y", "z"], "ws": [1, 1, 1]}))
    write(table, [(3, None, 11, 1)], op="D")
    table.compact()
    write(table, [(1, None, 20, 2)], op="D")
    write(table, [(3, "again", 20, 2), (4, "first", 20, 2)])
    assert decided(table)
    expected = [(2, "b", "y"), (3, "again", None), (4, "first", "z")]
    assert [(row["k"], row["v"], row["w"]) for row in shown(table)] == expected
    assert [row["v"] for row in shown(table, ["k", "v"])] == ["b", "again", "first"]
    table.compact()
    assert [(row["k"], row["v"], row["w"]) for row in shown(table)] == expected


def test_null_is_smaller_than_every_stored_value(tmp_path: Path) -> None:
    table = create(tmp_path / "t", ordering=["ts", "n"])
    write(table, [(1, "null", None, 7), (2, "null", None, 7)])
    table.compact()
    write(table, [(1, "null again", None, 6)])
    assert not decided(table)
    write(table, [(2, "value", -9, 0)])
    assert not decided(table)
    assert [row["v"] for row in shown(table)] == ["null", "value"]
    table.compact()
    write(table, [(1, "value", -8, 0)])
    assert decided(table)
    assert [row["v"] for row in shown(table)] == ["value", "value"]


@pytest.mark.parametrize(("merge", "ordering"), [("latest_non_null", None), ("latest", [])])
def test_other_modes_and_commit_order_read_old_versions(tmp_path: Path, merge: str, ordering: list[str] | None) -> None:
    table = create(tmp_path / "t", merge=merge, ordering=ordering)
    write(table, [(1, "a", 10, 1)])
    table.compact()
    write(table, [(1, "b", 20, 2)])
    assert not decided(table)
    assert [row["v"] for row in shown(table)] == ["b"]
