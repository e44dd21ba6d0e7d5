"""What a delete leaves in storage, after compaction and cleaning: MERGE.md, "What deletes leave"."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from weft import Table

SECRET = "secret"
OTHER = "other"
MODES: Mapping[str, Mapping[str, Any]] = {
    "latest": {"columns": ["a_t", "ts"], "ordering": ["ts"]},
    "latest in commit order": {"columns": ["a_t"]},
    "latest_non_null": {"columns": ["a_t", "b_t", "ts"], "ordering": ["ts"], "merge": "latest_non_null"},
}


def create(tmp_path: Path, group: Mapping[str, Any], on_delete: str) -> Table:
    """A group that is deleted, and another one of the same row."""
    types = {"a_t": "string", "b_t": "string", "ts": "bigint"}
    columns = {"id": "bigint", **{name: types[name] for name in group["columns"]}, "o": "string"}
    groups = {"g": dict(group), "h": {"columns": ["o"]}}
    streams = {"s": {"groups": ["g"], "on_delete": on_delete}, "u": {"groups": ["h"]}}
    return Table.create(tmp_path / "table", {"key": ["id"], "columns": columns, "groups": groups, "streams": streams})


def write(table: Table, group: Mapping[str, Any], value: str | None, ts: int, op: str | None = None) -> None:
    row: dict[str, Any] = {name: [value] for name in group["columns"] if name != "ts"}
    if "ts" in group["columns"]:
        row["ts"] = [ts]
    with table.writer("s") as writer:
        writer.append(pa.table({"id": [1], **row, "_op": pa.array([op], pa.string())}))


def write_other(table: Table) -> None:
    with table.writer("u") as writer:
        writer.append(pa.table({"id": [1], "o": [OTHER]}))


def stored(table: Table) -> str:
    """All values in all files of the table, and the bytes of all others."""
    text = []
    for path in Path(table.uri.removeprefix("file://")).rglob("*"):
        if path.suffix == ".parquet":
            text.append(str(pq.read_table(path).to_pylist()))
        elif path.suffix == ".arrow":
            text.append(str(pa.ipc.open_file(path.read_bytes()).read_all().to_pylist()))
        if path.is_file():
            text.append(path.read_bytes().decode("latin-1"))
    return "\n".join(text)


def settle(table: Table) -> None:
    table.compact()
    table.clean(dt.timedelta(0))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("on_delete", ["group", "row"])
@pytest.mark.parametrize("first", ["together", "compacted first", "folded first"])
def test_values_of_the_deleted_group_are_gone(tmp_path: Path, mode: str, on_delete: str, first: str) -> None:
    group = MODES[mode]
    table = create(tmp_path, group, on_delete)
    write(table, group, SECRET, 5)
    write_other(table)
    if first == "compacted first":
        table.compact()
    elif first == "folded first":
        table.fold()
    assert SECRET in stored(table)
    write(table, group, SECRET, 6, "D")  # a delete may repeat the values
    settle(table)
    assert SECRET not in stored(table)


@pytest.mark.parametrize("mode", [mode for mode in MODES if "ts" in MODES[mode]["columns"]])
def test_values_that_come_after_a_newer_delete_are_gone(tmp_path: Path, mode: str) -> None:
    group = MODES[mode]
    table = create(tmp_path, group, "row")
    write(table, group, None, 9, "D")
    settle(table)
    write(table, group, SECRET, 5)
    settle(table)
    assert SECRET not in stored(table)


def test_partial_updates_keep_only_what_is_newer_than_the_delete(tmp_path: Path) -> None:
    group = MODES["latest_non_null"]
    table = create(tmp_path, group, "group")
    write(table, group, SECRET, 5)
    write(table, group, None, 6, "D")
    with table.writer("s") as writer:
        writer.append(pa.table({"id": [1], "a_t": ["newer"], "ts": [7]}))
    settle(table)
    assert table.snapshot().to_arrow().column("a_t").to_pylist() == ["newer"]
    assert SECRET not in stored(table)


def test_values_of_other_groups_of_a_hidden_row_stay_because_the_row_may_return(tmp_path: Path) -> None:
    group = MODES["latest"]
    table = create(tmp_path, group, "row")
    write(table, group, SECRET, 5)
    write_other(table)
    write(table, group, None, 6, "D")
    settle(table)
    assert table.snapshot().to_arrow().num_rows == 0
    assert OTHER in stored(table)
    write(table, group, "back", 7)
    assert table.snapshot().to_arrow().column("o").to_pylist() == [OTHER]


def test_values_of_other_groups_of_a_hidden_row_end_with_an_erase(tmp_path: Path) -> None:
    group = MODES["latest"]
    table = create(tmp_path, group, "row")
    write(table, group, SECRET, 5)
    write_other(table)
    write(table, group, None, 6, "D")
    settle(table)
    assert table.erase([1], expire_snapshots=True).complete
    assert OTHER not in stored(table)


def test_a_delete_of_a_group_keeps_the_values_of_others_visible(tmp_path: Path) -> None:
    group = MODES["latest"]
    table = create(tmp_path, group, "group")
    write(table, group, SECRET, 5)
    write_other(table)
    write(table, group, None, 6, "D")
    settle(table)
    assert table.snapshot().to_arrow().select(["id", "a_t", "o"]).to_pylist() == [{"id": 1, "a_t": None, "o": OTHER}]
    assert SECRET not in stored(table)
