"""Tries out a store as its users do, and leaves nothing behind: for `weft doctor`."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path as LocalPath
from typing import Final
from urllib.parse import unquote, urlsplit

from weft.storage.core.names import PROBES, Path
from weft.storage.store.local_store import LocalStore
from weft.storage.store.memory_store import MemoryStore
from weft.storage.store.object_store import ObjectStore, normalise_errors

GRANULARITY_SECONDS: Final = 1.0  # times of object stores are in whole seconds


@dataclass(frozen=True, slots=True)
class StoreProbe:
    """The abilities of a store, as measured by a probe.

    Attributes:
        exclusive: Whether the store refused a second create of one name, and changed nothing. Otherwise no table is
            safe.
        listed: Whether a listing contains the new object.
        deleted: Whether the object was deleted. If not, it still exists at ``path``.
        skew_seconds: By how much the clock of the store is ahead of this machine's, at least; 0.0 if they may agree.
            None if the store has no times.
        path: The object that was created.
    """

    exclusive: bool
    listed: bool
    deleted: bool
    skew_seconds: float | None
    path: Path


def probe_store(store: ObjectStore) -> StoreProbe:
    """Create an object in a folder, try to create it again, read, list and delete it.

    Args:
        store: The folder, for example of a table; it need not exist.

    Raises:
        StoreRefused: The store refuses one of these requests.
        StoreUnavailable: The store does not answer.
    """
    path = Path(f"{PROBES}/{uuid.uuid4().hex}")
    with _without_new_folders(store), normalise_errors(path):
        began = time.time()
        try:
            first = store.put_if_absent(path, b"first")
            end = time.time()
            exclusive = first and not store.put_if_absent(path, b"second") and store.get(path) == b"first"
            is_listed = any(path == f"{PROBES}/{name}" for name, _ in store.list(PROBES))
            modified_at = _modified_at(store, path)
        except BaseException:
            with contextlib.suppress(OSError):
                store.delete(path)
            raise
        store.delete(path)
        is_deleted = store.get(path) is None
    return StoreProbe(exclusive, is_listed, is_deleted, _skew(modified_at, began, end), path)


def _modified_at(store: ObjectStore, path: Path) -> float | None:
    if isinstance(store, LocalStore):
        return _local_path(store, path).stat().st_mtime
    if isinstance(store, MemoryStore):
        return None
    from weft.storage.store.remote_store import RemoteStore  # imports a cloud SDK

    return store.modified_at(path) if isinstance(store, RemoteStore) else None


def _skew(modified_at: float | None, began: float, end: float) -> float | None:
    if modified_at is None:
        return None
    return max(0.0, modified_at - end) - max(0.0, began - GRANULARITY_SECONDS - modified_at)


def _local_path(store: LocalStore, path: str = "") -> LocalPath:
    return LocalPath(unquote(urlsplit(store.uri).path), path)


@contextlib.contextmanager
def _without_new_folders(store: ObjectStore) -> Iterator[None]:
    """Remove the folders that the block creates on a local disk, if they are empty."""
    if not isinstance(store, LocalStore):
        yield
        return
    folder = _local_path(store, PROBES)
    new = [new_folder for new_folder in (folder, *folder.parents) if not new_folder.exists()]
    try:
        yield
    finally:
        for new_folder in new:
            with contextlib.suppress(OSError):
                new_folder.rmdir()
