"""Opens the store of a location."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from weft.storage.errors import InvalidInput
from weft.storage.store.local_store import LocalStore
from weft.storage.store.memory_store import MemoryStore
from weft.storage.store.object_store import ObjectStore

if TYPE_CHECKING:
    from weft.storage.store.remote_store import RemoteStore

REACH_SECONDS: Final = 10.0  # short, because a user or a starting job waits for the answer


def open_store(uri: str, storage_options: Mapping[str, Any] | None = None) -> LocalStore | MemoryStore | RemoteStore:
    """The store of a table: a path or ``file://`` URI for a local folder, or the URL of an object store.

    Raises:
        InvalidInput: The URI is of an unknown kind of store, or the package of the store is not installed.
    """
    if not uri:
        raise InvalidInput("the table's location is empty", hint="use a path or a URL such as s3://bucket/table")
    parts = urlsplit(uri)
    if parts.scheme in {"", "file"} or len(parts.scheme) == 1:  # one letter is a Windows drive
        path = unquote(parts.path) if parts.scheme == "file" else uri
        return LocalStore(str(Path(path).expanduser().absolute()))
    if parts.scheme == "memory":
        return MemoryStore(uri.rstrip("/"))
    # Imported on demand: cloud SDKs take long to import.
    from weft.storage.store.remote_store import RemoteStore

    return RemoteStore(uri.rstrip("/"), dict(storage_options or {}))


def open_beside(store: ObjectStore, location: str) -> ObjectStore:
    """The store of another table.

    Args:
        store: The store of a table.
        location: An absolute path or a URL, or a path relative to the location of the first table, with forward
            slashes. A store of the same kind gets the options of the first one.

    Raises:
        InvalidInput: The URI is of an unknown kind of store, or the package of the store is not installed.
    """
    here = urlsplit(store.uri)
    if not urlsplit(location).scheme and not location.startswith(("/", "~")):
        path = quote(location) if here.scheme == "file" else location
        location = urlunsplit(here._replace(path=posixpath.normpath(posixpath.join(here.path or "/", path))))
    options: Mapping[str, Any] | None = None
    if here.scheme not in {"file", "memory"} and urlsplit(location).scheme == here.scheme:
        from weft.storage.store.remote_store import RemoteStore

        options = store.options if isinstance(store, RemoteStore) else None
    return open_store(location, options)


def list_folders(uri: str, storage_options: Mapping[str, Any] | None = None) -> list[str] | None:
    """Names of the folders in a location, sorted; None if the location is empty. Does not look into these folders.

    Args:
        uri: A path or URL, as in `open_store`.
        storage_options: Options of the store.

    Raises:
        InvalidInput: See `open_store`.
        StoreRefused, StoreUnavailable: The store does not list its objects.
    """
    return open_store(uri, storage_options).folders()


def is_empty_prefix(uri: str, storage_options: Mapping[str, Any] | None = None) -> bool:
    """Whether a location is an empty prefix of an existing bucket: object stores have no empty folders.

    False for a local folder. Arguments and errors are those of `list_folders`.
    """
    store = open_store(uri, storage_options)
    if isinstance(store, LocalStore) or store.folders() is not None:
        return False
    return isinstance(store, MemoryStore) or store.has_bucket()


def check_reachable(
    uri: str, storage_options: Mapping[str, Any] | None = None, *, within_seconds: float = REACH_SECONDS
) -> None:
    """Check that a store answers within a time limit; the SDKs of stores would retry for minutes.

    Raises:
        InvalidInput: See `open_store`.
        StoreRefused: The store refuses access, or there are no credentials.
        StoreUnavailable: The store does not answer in time, or its host does not exist.
    """
    store = open_store(uri, storage_options)
    if not isinstance(store, LocalStore | MemoryStore):
        store.check_reachable(within_seconds)
