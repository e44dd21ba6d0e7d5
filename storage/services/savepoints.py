"""Savepoints: snapshots that keep their files, by name, until they are released."""

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
    """A savepoint: its snapshot, what its maker said, and when it was made."""

    name: str
    cut: Cut
    note: str
    made_at_ms: int


def make_savepoint(table_log: TableLog, name: str, at: Cut, note: str) -> SavepointInfo:
    """Keep a snapshot under a name.

    Raises:
        InvalidInput: The name is none.
        Conflict: There is a savepoint of that name.
        SnapshotExpired: Cleaning has given the snapshot up.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name!r} is not a savepoint name",
            hint="1 to 100 letters, digits, '_', '.' or '-', starting with a letter or digit",
        )

    def build(state: TableState) -> Savepoint:
        if name in state.savepoints:
            raise Conflict(f"there is a savepoint {name!r} already", hint="choose another name, or release it first")
        # The table lane orders this against every CLEAN_INTENT: what is kept when it is published stays.
        check_promised(state, at)
        return Savepoint(**table_log.header(state), name=name, table=at.table, lanes=dict(at.lanes), note=note)

    made = table_log.publish(build)
    assert made is not None, "a SAVEPOINT is published or refused"
    return SavepointInfo(name, at, note, made.committed_at_ms)


def release_savepoint(table_log: TableLog, name: str) -> None:
    """Let a savepoint go; cleaning may then take its files.

    Raises:
        NotFound: There is none of that name.
    """

    def build(state: TableState) -> Release:
        find_savepoint(state, name)
        return Release(**table_log.header(state), name=name)

    table_log.publish(build)


def list_savepoints(state: TableState) -> list[SavepointInfo]:
    """All savepoints, oldest first."""
    return [SavepointInfo(name, kept.at, kept.note, kept.committed_at_ms) for name, kept in state.savepoints.items()]
