"""Finds out why a file is missing: its snapshot has expired, or the file is lost (PROTOCOL.md, R4).

A reader holds no lock, so cleaning may remove files of a snapshot that is being read. The table lane says whether the
snapshot was retained. This needs only the environment and the cut, because tasks in other processes have nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from weft.storage.clock import Stamps
from weft.storage.core.log.cut import Cut
from weft.storage.environment import Environment
from weft.storage.errors import MissingFile, SnapshotExpired
from weft.storage.log.table_log import TableLog


@contextlib.contextmanager
def explain_missing_file(env: Environment, at: Cut) -> Iterator[None]:
    """Explain a missing file in a block that reads files of a snapshot.

    Raises:
        SnapshotExpired: A file is missing, and the snapshot is not retained any more.
        CorruptData: A file is missing although its snapshot is retained.
    """
    try:
        yield
    except MissingFile as error:
        state = TableLog(env, Stamps()).refresh()
        if state.keeps(at) or any(plan.at == at for plan in state.plans.values()):
            raise
        raise SnapshotExpired(
            f"snapshot {at} expired while it was being read: {error.message}",
            hint="read a newer snapshot; pin a snapshot before a long read, or use a longer retention (clean retain)",
        ) from error
