"""The rows that differ between two snapshots, with their earlier values, for the page."""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from weft.storage import Table
from weft.storage.core.merge.diff import BEFORE, CHANGE, CHANGED_GROUPS
from weft.storage.core.python_values import python_rows
from weft.storage.errors import InvalidInput
from weft.streams.ui.page_times import page_point

_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class ChangedCell:
    """A value of a changed row: now, before, and whether the two differ."""

    now: Any
    before: Any
    changed: bool


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """One row that differs."""

    change: str
    groups: tuple[str, ...]
    key: dict[str, Any]
    cells: list[ChangedCell]


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Rows that differ.

    Attributes:
        columns: Names of the columns of the rows.
        rows: The rows.
        counts: Numbers of rows by kind of change.
        more: Whether more rows differ.
        created_at_ms: When the table was created, if that was after ``since``; None otherwise.
    """

    columns: list[str]
    rows: list[ChangedRow]
    counts: Counter[str]
    more: bool
    created_at_ms: int | None = None


def find_changes(table: Table, since: str, until: str, limit: int, created_at_ms: int) -> RowChanges:
    """Find the first rows that differ between two snapshots.

    Args:
        table: The table.
        since: The earlier snapshot: a time, savepoint or cut. If it is a time before the table was created, every row
            is an insert.
        until: The later snapshot; "" for now.
        limit: Largest number of rows.
        created_at_ms: When the table was created.

    Raises:
        InvalidInput: ``since`` is missing or not before ``until``.
        NotFound, OffsetExpired, OffsetInvalidated: See `weft.Table.changes`.
    """
    if not since.strip():
        raise InvalidInput("since is empty", hint="enter a time such as 2026-11-20T10:30:00Z, a savepoint or a cut")
    begin = page_point(since)
    is_young = isinstance(begin, dt.datetime) and begin.timestamp() * 1000 < created_at_ms
    reader = table.changes(None if is_young else begin, page_point(until), before=True)
    names = [name for name in reader.schema.names if name not in {CHANGE, CHANGED_GROUPS, BEFORE}]
    key = table.schema.key
    rows: list[ChangedRow] = []
    began = time.monotonic()
    for batch in reader:
        batch_rows = python_rows(batch.slice(0, limit + 1 - len(rows)))
        rows += [_row(dict(zip(batch.schema.names, row, strict=True)), names, key) for row in batch_rows]
        if len(rows) > limit or time.monotonic() - began > _SECONDS:
            break
    return RowChanges(
        names,
        rows[:limit],
        Counter(row.change for row in rows[:limit]),
        len(rows) > limit,
        created_at_ms if is_young else None,
    )


def _row(row: dict[str, Any], names: list[str], key: Any) -> ChangedRow:
    before = row[BEFORE] or {}
    change = row[CHANGE]
    cells = []
    for name in names:
        now, was = row[name], before.get(name)
        if name in key:
            cells.append(ChangedCell(now, now, changed=False))
        else:
            cells.append(ChangedCell(now, was, changed=change != "insert" and now != was))
    return ChangedRow(change, tuple(row[CHANGED_GROUPS] or ()), {name: row[name] for name in key}, cells)
