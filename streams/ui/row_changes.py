"""The rows that differ between two snapshots, with what they were before, for the page."""

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
    """A value of a changed row: as it is, and as it was; ``changed`` if these differ."""

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
        counts: Rows that were seen, by kind of change.
        more: Whether there are more.
        created_at_ms: When the table was created, if that was after ``since``: these are all changes since then. None
            otherwise.
    """

    columns: list[str]
    rows: list[ChangedRow]
    counts: Counter[str]
    more: bool
    created_at_ms: int | None = None


def find_changes(table: Table, since: str, until: str, limit: int, created_at_ms: int) -> RowChanges:
    """The first rows that differ.

    Args:
        table: The table.
        since: The earlier snapshot: a time, savepoint or cut. For a time before the table was created there is none,
            and every row is an insert.
        until: The later one; "" for now.
        limit: Rows at most.
        created_at_ms: When the table was created.

    Raises:
        InvalidInput: ``since`` is missing or not before ``until``.
        NotFound, OffsetExpired, OffsetInvalidated: See `weft.Table.changes`.
    """
    if not since.strip():
        raise InvalidInput("since when?", hint="a time such as 2026-11-20T10:30:00Z, a savepoint or a cut")
    begin = page_point(since)
    is_young = isinstance(begin, dt.datetime) and begin.timestamp() * 1000 < created_at_ms
    reader = table.changes(None if is_young else begin, page_point(until), before=True)
    names = [name for name in reader.schema.names if name not in {CHANGE, CHANGED_GROUPS, BEFORE}]
    key = table.schema.key
    rows: list[ChangedRow] = []
    began = time.monotonic()
    for batch in reader:
        found = python_rows(batch.slice(0, limit + 1 - len(rows)))
        rows += [_row(dict(zip(batch.schema.names, row, strict=True)), names, key) for row in found]
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
