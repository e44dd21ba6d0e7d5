"""Why a file is missing: given up by cleaning, or lost (rule R4).

A reader holds no lock, so cleaning may take the files of a snapshot that is not kept while it is being read. It asks
the table lane then, which takes the environment and the snapshot's name alone: tasks in other processes know no more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from storage.clock import Stamps
from storage.core.log.cut import Cut
from storage.environment import Environment
from storage.errors import MissingFile, SnapshotExpired
from storage.log.table_log import TableLog


@contextlib.contextmanager
def explain_missing_file(env: Environment, at: Cut) -> Iterator[None]:
    """Read files of a snapshot in the block.

    Raises:
        SnapshotExpired: A file is missing, and the table lane does not keep the snapshot (any more).
        CorruptData: A file is missing that must be there.
    """
    try:
        yield
    except MissingFile as error:
        state = TableLog(env, Stamps()).refresh()
        if state.keeps(at) or any(plan.at == at for plan in state.plans.values()):
            raise
        raise SnapshotExpired(
            f"snapshot {at} was given up by cleaning while it was being read: {error.message}",
            hint="read a newer snapshot; pin a snapshot that is read for long, or retain more",
        ) from error
