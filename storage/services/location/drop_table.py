"""Drops a table: deletes all of its objects. This cannot be undone.

The first entry of the table lane is deleted last. So after an interrupted drop a damaged table remains, and dropping it
again deletes the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from weft.storage.core.names import TABLE_LANE, Path, archive_folder, archive_path, lane_folder, slot_path
from weft.storage.errors import Conflict
from weft.storage.log.heartbeat import SILENT_AFTER_MS, newest_heartbeats
from weft.storage.log.table_log import TableLog
from weft.storage.store.local_store import LocalStore

_FOLDERS: Final = ("log", "base", "shadow", "overlay", "_weft")


@dataclass(frozen=True, slots=True)
class Dropped:
    """Number of objects that were deleted, and their size in bytes."""

    files: int
    bytes: int


def drop_table(table_log: TableLog) -> Dropped:
    """Delete all objects of a table. Other objects in its folder stay.

    Args:
        table_log: The table's log.

    Raises:
        Conflict: A writer of the table is live, or the table has savepoints. Nothing was deleted.
        StoreUnavailable: The store did not list or delete objects. Some may be deleted: drop the table again.
    """
    state = table_log.refresh()
    if state.savepoints:
        raise Conflict(
            f"the table at {table_log.store.uri} has savepoints: {', '.join(sorted(state.savepoints))}",
            hint="release them first; those named iceberg-... or delta-... keep the files of a published table",
        )
    now_ms = table_log.clock.now_ms()
    heartbeats = newest_heartbeats(table_log.store).values()
    live_lanes = sorted(heartbeat.lane for heartbeat in heartbeats if now_ms - heartbeat.at_ms <= SILENT_AFTER_MS)
    if live_lanes:
        raise Conflict(
            f"the table at {table_log.store.uri} has live writers, of the lanes {', '.join(live_lanes)}",
            hint="stop them first; fence one that seems dead: weft fence, or CALL weft.system.fence",
        )
    store = table_log.store
    sizes = {Path(f"{folder}/{path}"): size for folder in _FOLDERS for path, size in store.list(Path(folder))}
    log = [path for path in sizes if path.startswith((lane_folder(TABLE_LANE), archive_folder(TABLE_LANE)))]
    first = [path for path in log if path in {slot_path(TABLE_LANE, 1), archive_path(TABLE_LANE, 1)}]
    temporary_files = [path for path, _ in store.leftovers() if path.split("/")[0] in _FOLDERS]
    store.delete_many([*temporary_files, *sorted(sizes.keys() - log)])
    store.delete_many(sorted(set(log) - set(first)))
    store.delete_many(first)
    if isinstance(store, LocalStore):
        store.remove_empty_folders((*_FOLDERS, ""))
    return Dropped(len(sizes), sum(sizes.values()))
