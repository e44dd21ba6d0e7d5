"""A small table with overlays, for the tests by example."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.storage.support.damage import wrong
from tests.storage.support.shop import append, contents, new_uri
from tests.tuning import tune
from weft import Table
from weft.storage.core.log.file_refs import SliceFile

ROWS = 1000
GROUPS = ("a", "b", "c")


def config(**more: Any) -> dict[str, Any]:
    """Three groups of two columns with the same types; deletes of ``a`` hide the row."""
    columns = {f"{group}_{name}": kind for group in GROUPS for name, kind in (("v", "string"), ("t", "bigint"))}
    return {
        "key": ["id"],
        "buckets": 1,
        "columns": {"id": "bigint", **columns},
        "groups": {g: {"columns": [f"{g}_v", f"{g}_t"], "ordering": [f"{g}_t"]} for g in GROUPS},
        "streams": {g: {"groups": [g], "on_delete": "row" if g == "a" else "group"} for g in GROUPS},
        "overlays": True,
        **more,
    }


def write(table: Table, group: str, keys: range | list[int], at: int, op: str | None = None) -> None:
    keys = list(keys)
    rows: dict[str, Any] = {"id": pa.array(keys, pa.int64())}
    rows[f"{group}_v"] = [f"{group}{at}-{key}" for key in keys]
    rows[f"{group}_t"] = pa.array([at] * len(keys), pa.int64())
    append(table, pa.table(rows if op is None else {**rows, "_op": [op] * len(keys)}), group)


def small_table(monkeypatch: pytest.MonkeyPatch) -> Table:
    """One file group with a base of several row groups."""
    tune(monkeypatch, row_group_rows=128, overlay_percent=30, overlay_files=2)
    table = Table.create(new_uri(), config())
    for group in GROUPS:
        write(table, group, range(ROWS), 1)
    table.compact()
    return table


def newest(table: Table) -> SliceFile:
    (made,) = table.state().slices.values()
    return made


def groups_of(table: Table) -> list[list[int]]:
    """The groups of each overlay."""
    return [overlay.groups for overlay in newest(table).overlays]


def compact(table: Table) -> None:
    """Compact, and check that nothing but the files has changed."""
    before = contents(table)
    table.compact()
    assert contents(table) == before
    assert not wrong(table)
