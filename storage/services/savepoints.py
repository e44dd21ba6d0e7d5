"""Savepoints: named snapshots whose files are kept until the savepoint is released."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from storage.core.log.cut import Cut
from storage.core.log.entries import Release, Savepoint
from storage.core.log.table_state import TableState
from storage.errors import Conflict, InvalidInput
from storage.log.table_log import TableLog, check_promised
from storage.read.time_travel import find_savepoint

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, slots=True)
class SavepointInfo:
    """A savepoint: its name, the cut of its snapshot, a note, and when it was made (ms since 1970 UTC)."""

    name: str
    cut: Cut
    note: str
    made_at_ms: int


def make_savepoint(table_log: TableLog, name: str, at: Cut, note: str) -> SavepointInfo:
    """Keep a snapshot under a name.

    Raises:
        InvalidInput: The name is not allowed.
        Conflict: A savepoint of that name exists.
        SnapshotExpired: The snapshot has expired.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name!r} is not a savepoint name",
            hint="1 to 100 letters, digits, '_', '.' or '-', starting with a letter or digit",
        )

    def build(state: TableState) -> Savepoint:
        if name in state.savepoints:
            raise Conflict(f"the table already has a savepoint {name!r}", hint="choose another name, or release it")
        # SAVEPOINT and CLEAN_INTENT are ordered by the table lane: a snapshot that is retained when the SAVEPOINT is
        # published stays retained.
        check_promised(state, at)
        return Savepoint(**table_log.header(state), name=name, table=at.table, lanes=dict(at.lanes), note=note)

    made = table_log.publish(build)
    assert made is not None, "a SAVEPOINT is published or refused"
    return SavepointInfo(name, at, note, made.committed_at_ms)


def release_savepoint(table_log: TableLog, name: str) -> None:
    """Release a savepoint; cleaning may delete its files from then on.

    Raises:
        NotFound: There is no savepoint of that name.
    """

    def build(state: TableState) -> Release:
        find_savepoint(state, name)
        return Release(**table_log.header(state), name=name)

    table_log.publish(build)


def list_savepoints(state: TableState) -> list[SavepointInfo]:
    """All savepoints, oldest first."""
    return [SavepointInfo(name, kept.at, kept.note, kept.committed_at_ms) for name, kept in state.savepoints.items()]
