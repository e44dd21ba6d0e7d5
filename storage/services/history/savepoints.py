"""Savepoints: named snapshots whose files are kept until the savepoint is released.

A savepoint of a table with references records the cut of each referenced table, and a savepoint there that keeps its
files. The savepoints of referenced tables are made first and released last, so that a savepoint never exists without
them. A process that dies in between leaves a savepoint of a referenced table, whose note explains it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from weft.storage.core.log.cut import Cut
from weft.storage.core.log.entries import KeptReference, Release, Savepoint, joined_cut
from weft.storage.core.log.table_state import LiveSavepoint, TableState, check_promised
from weft.storage.errors import Conflict, InvalidInput, NotFound, SnapshotExpired, TableError
from weft.storage.log.table_log import TableLog
from weft.storage.read.snapshot import Snapshot
from weft.storage.read.time_travel import find_savepoint
from weft.storage.shown import Shown

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_TIME_WORDS: Final = frozenset({"now", "today", "yesterday", "tomorrow", "epoch", "earliest", "latest"})
"""Words that Spark or an option of weft reads as a time."""
_TIME: Final = re.compile(r"\d{4,}(-?W?\d{1,2}){0,2}(T[\d.]*)?")
"""A year, month, week, day or time of ISO 8601 or Spark, without ':', which a name cannot contain."""
_FOR_SAVEPOINT: Final = "for savepoint "
PUBLISHED_AS: Final = "published as "
"""Notes of savepoints that weft itself makes begin so: for the savepoint of another table, or for a publication."""
_KEPT_OF_NAME: Final = 80  # characters of the name of a savepoint in the name of a referenced table's savepoint
_RANDOM: Final = 8


@dataclass(frozen=True, slots=True)
class SavepointInfo(Shown):
    """A savepoint: name, cut of its snapshot, note, and time of its creation (Unix milliseconds)."""

    name: str
    cut: Cut
    note: str
    made_at_ms: int


def make_savepoint(table_log: TableLog, name: str, snapshot: Snapshot, note: str) -> SavepointInfo:
    """Keep a snapshot under a name.

    Raises:
        InvalidInput: The name is not allowed.
        Conflict: A savepoint of that name exists.
        SnapshotExpired: The snapshot has expired.
        TableError: The snapshot of a referenced table could not be taken, or not be kept.
    """
    _check_name(name)
    if name in table_log.refresh().savepoints:
        raise _name_conflict(name)
    created_savepoints: dict[str, tuple[TableLog, str]] = {}
    try:
        references: dict[str, KeptReference] = {}
        for bound in snapshot.references:
            other_log, cut = bound.files.table_log, bound.files.at
            if other_log.store.uri not in created_savepoints:
                # A random part, because another process may make a savepoint of the same name at the same time.
                other_name = f"{name[:_KEPT_OF_NAME]}.{table_log.env.ids.new()[:_RANDOM]}"
                _publish(other_log, other_name, cut, f"{_FOR_SAVEPOINT}{name} of {table_log.store.uri}", {})
                created_savepoints[other_log.store.uri] = (other_log, other_name)
            _, other_name = created_savepoints[other_log.store.uri]
            kept_reference = KeptReference(table=cut.table, lanes=dict(cut.lanes), savepoint=other_name)
            references[bound.reference.name] = kept_reference
    except TableError:
        _release_all(created_savepoints)
        raise
    try:
        entry = _publish(table_log, name, snapshot.at, note, references)
    except (Conflict, SnapshotExpired):
        _release_all(created_savepoints)
        raise  # after any other error the savepoint may exist, and need those of the referenced tables
    return SavepointInfo(name, snapshot.cut, note, entry.committed_at_ms)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name!r} is not a savepoint name",
            hint="use 1 to 100 letters, digits, '_', '.' or '-', starting with a letter or digit",
        )
    if name.lower() in _TIME_WORDS or _TIME.fullmatch(name):
        raise InvalidInput(
            f"{name!r} is not a savepoint name: a query could take it for a time",
            hint=f"put a word before it, for example 'before-{name}'",
        )


def _release_all(created_savepoints: Mapping[str, tuple[TableLog, str]]) -> None:
    for log, name in created_savepoints.values():
        _release(log, name)


def _publish(table_log: TableLog, name: str, cut: Cut, note: str, references: Mapping[str, KeptReference]) -> Savepoint:
    def build(state: TableState) -> Savepoint:
        if name in state.savepoints:
            raise _name_conflict(name)
        # SAVEPOINT and CLEAN_INTENT are ordered by the table lane: a snapshot that is retained when the SAVEPOINT is
        # published stays retained.
        check_promised(state, cut)
        return Savepoint(
            **table_log.header(state),
            name=name,
            table=cut.table,
            lanes=dict(cut.lanes),
            note=note,
            references=dict(references),
        )

    entry = table_log.publish(build)
    assert entry is not None, "a SAVEPOINT is published or refused"
    return entry


def _name_conflict(name: str) -> Conflict:
    return Conflict(f"the table already has a savepoint {name!r}", hint="choose another name, or release it")


def release_savepoint(table_log: TableLog, name: str) -> None:
    """Release a savepoint, see `weft.Table.release_savepoint`."""
    savepoint = find_savepoint(table_log.refresh(), name)
    # Take locations from the schema of the savepoint: a reference may have been dropped or replaced since.
    references_by_name = table_log.at(savepoint.at.table).schema.reference_by_name if savepoint.references else {}
    _release(table_log, name)
    for reference, kept_reference in savepoint.references.items():
        other_env = table_log.env.of_table(references_by_name[reference].table)
        with contextlib.suppress(NotFound):  # already released: references to one table share it
            _release(TableLog.of(other_env), kept_reference.savepoint)


def find_dependent(savepoint: LiveSavepoint) -> str | None:
    """What needs a savepoint: a savepoint of another table, or a published table; None for a user's savepoint."""
    if savepoint.note.startswith(_FOR_SAVEPOINT):
        return savepoint.note.removeprefix("for ")
    return f"the table {savepoint.note}" if savepoint.note.startswith(PUBLISHED_AS) else None


def _release(table_log: TableLog, name: str) -> None:
    def build(state: TableState) -> Release:
        find_savepoint(state, name)
        return Release(**table_log.header(state), name=name)

    table_log.publish(build)


def list_savepoints(state: TableState) -> list[SavepointInfo]:
    """All savepoints, oldest first."""
    return [
        SavepointInfo(name, joined_cut(savepoint.at, savepoint.references), savepoint.note, savepoint.committed_at_ms)
        for name, savepoint in state.savepoints.items()
    ]
