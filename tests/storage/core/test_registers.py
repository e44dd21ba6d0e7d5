"""Registers as rows of folds: read back and merged in any order they equal the registers of all events (S13, M3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.storage.support.world import canonical, to_arrow
from tests.strategies import Append, Story, stories
from weft.storage import mergers
from weft.storage.config.table_config import build_schema, load_config
from weft.storage.core import keys, names
from weft.storage.core.merge.collapse import KeyDirectory, LogRange, collapse_group
from weft.storage.core.merge.events import prepare
from weft.storage.core.merge.registers import group_registers, merge_registers, register_rows
from weft.storage.core.merge.stitch import LogState
from weft.storage.core.model import Group
from weft.storage.core.modes import NO_MERGERS, Mergers, Registers
from weft.storage.core.schema.table_schema import TableSchema

KEYS = 3


# No files are written, so many more histories can be tried.
@settings(max_examples=settings().max_examples * 4)
@given(stories(max_steps=10, max_rows=6, max_groups=2), st.data())
def test_folds_merged_in_any_order_equal_the_fold_of_all_commits(story: Story, data: st.DataObject) -> None:
    mergers.allow("tests.mergers")
    schema = build_schema(load_config(story.config))
    loaded = mergers.load(schema, mergers.allowed())
    ranges = [
        log_range for i, append in enumerate(story.appends) for log_range in _ranges(schema, story, append, i + 1)
    ]
    if not ranges:
        return
    parts: list[list[LogRange]] = [[] for _ in range(data.draw(st.integers(1, 4), label="folds"))]
    for log_range in ranges:
        parts[data.draw(st.integers(0, len(parts) - 1), label="fold")].append(log_range)
    folds = [_folded(schema, part, data, loaded) for part in data.draw(st.permutations(parts), label="order") if part]
    for group in schema.groups:
        whole = collapse_group(ranges, schema, group, group.columns, loaded)
        wanted = schema.slice.names
        found = [group_registers(fold, schema, group, wanted) for fold in folds]
        known = [registers for registers in found if registers is not None]
        merged = merge_registers(schema, group, known, loaded) if known else None
        assert _shown(group, merged) == _shown(group, whole)


def _ranges(schema: TableSchema, story: Story, append: Append, arrival: int) -> list[LogRange]:
    """One commit, with keys numbered in order of arrival, modulo a small number."""
    batch = prepare(to_arrow(story.config, append.rows, append.stream), schema, schema.stream(append.stream))
    rows = batch.rows
    if len(rows) == 0:
        return []
    vector = np.arange(len(rows), dtype=np.int64) % KEYS
    order = keys.stable_order(vector)
    columns = {name: keys.one_array(rows.column(name)).take(pa.array(order)) for name in rows.column_names}
    arrivals = np.full(len(rows), arrival, np.int64)
    return [LogRange(vector[order], [group.id for group in batch.groups], columns, arrivals)]


def _folded(schema: TableSchema, ranges: Sequence[LogRange], data: st.DataObject, loaded: Mergers) -> list[LogRange]:
    """The rows of a fold's file, divided into random blocks."""
    vector = keys.union([log_range.keys for log_range in ranges])
    found = {group.id: collapse_group(ranges, schema, group, group.columns, loaded) for group in schema.groups}
    registers = {group: columns for group, columns in found.items() if columns is not None}
    groups = [group for group in schema.groups if group.id in registers]
    columns = {"key": pa.array(vector)}
    rows = register_rows(schema, groups, LogState(KeyDirectory(vector, columns), registers))
    for name in rows.columns:
        if name != "key":
            assert rows.columns[name].type == schema.slice.field(name).type
    kept = np.asarray(rows.columns["key"])
    middle = data.draw(st.integers(0, len(kept)), label="block")
    return [
        LogRange(
            kept[start:stop],
            list(registers),
            {name: column.slice(start, stop - start) for name, column in rows.columns.items()},
        )
        for start, stop in ((0, middle), (middle, len(kept)))
    ]


def _shown(group: Group, registers: Registers | None) -> dict[int, dict[str, Any]]:
    """What a reader would see, by key: values if the group is present, otherwise whether the row is hidden."""
    result: dict[int, dict[str, Any]] = {}
    if registers is None:
        return result
    for row, key in enumerate(np.asarray(registers.keys).tolist()):
        present = registers.columns[names.arrival(group.id)][row].is_valid
        kind = registers.columns.get(names.floor_kind(group.id))
        hides = kind[row].as_py() if kind is not None and not present else None
        if present:
            result[key] = {name: canonical(registers.columns[name][row].as_py()) for name in group.columns}
        elif hides is not None:
            result[key] = {"hides": hides}
    return result


def test_a_row_counts_as_a_delete_if_any_of_its_groups_may_be_absent() -> None:
    schema = build_schema(
        load_config(
            {
                "key": ["id"],
                "buckets": 1,
                "columns": {"id": "bigint", "a": "string", "ats": "bigint", "b": "string", "n": "bigint"},
                "groups": {
                    "one": {"columns": ["a", "ats"], "ordering": ["ats"]},
                    "sum": {"columns": ["n"], "merge": "aggregate", "functions": {"n": "sum"}, "ordering": []},
                    "two": {"columns": ["b"], "merge": "latest_non_null", "ordering": []},
                },
                "streams": {"all": {"groups": ["one", "sum", "two"]}},
            }
        )
    )
    stream = schema.stream("all")

    def log_range(arrival: int, key: int, ats: int | None, number: int | None, op: str) -> LogRange:
        row = {"id": [key], "a": ["x"], "ats": pa.array([ats], pa.int64()), "b": ["y"], "_op": [op]}
        batch = prepare(pa.table({**row, "n": pa.array([number], pa.int64())}), schema, stream)
        columns = {name: keys.one_array(batch.rows.column(name)) for name in batch.rows.column_names}
        return LogRange(np.array([key]), [group.id for group in batch.groups], columns, np.array([arrival]))

    ranges = [
        log_range(1, 1, 1, 1, "U"),  # plain
        log_range(2, 2, 1, 1, "U"),
        log_range(3, 2, 1, 1, "D"),  # deleted in all groups except the sum, which is present
        log_range(4, 3, 1, 1, "D"),
        log_range(5, 3, 2, 1, "U"),  # all present again, above floors
        log_range(6, 4, None, None, "-U"),  # a retraction of nothing
    ]
    directory = KeyDirectory.of(ranges, schema)
    found = {group.id: collapse_group(ranges, schema, group, group.columns, NO_MERGERS) for group in schema.groups}
    state = LogState(directory, {group: columns for group, columns in found.items() if columns is not None})
    rows = register_rows(schema, schema.groups, state)
    assert rows.columns["id"].to_pylist() == [1, 2, 3]
    assert rows.deletes.tolist() == [False, True, True]
