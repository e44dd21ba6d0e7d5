"""Namespaces of a catalog: folders. An empty one has a marker, because object stores have no empty folders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from weft.storage.core.names import Path
from weft.storage.store.local_store import LocalStore
from weft.storage.store.open_store import open_store

MARKER: Final = Path("_namespace")


def make_namespace(uri: str, storage_options: Mapping[str, Any] | None = None) -> None:
    """Create a namespace, unless it exists.

    Raises:
        StoreUnavailable: The store does not answer, or refuses access.
    """
    open_store(uri, storage_options).put(MARKER, b"")


def remove_namespace(uri: str, storage_options: Mapping[str, Any] | None = None) -> None:
    """Remove the marker of a namespace, and its folder if that is empty.

    Raises:
        StoreUnavailable: The store does not answer, or refuses access.
    """
    store = open_store(uri, storage_options)
    store.delete_many([MARKER])
    if isinstance(store, LocalStore):
        store.remove_empty_folders(("",))
