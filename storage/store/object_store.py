"""The only interface for I/O: a folder of immutable objects on a local disk or on an object store.

It has only what the protocol requires of a store (PROTOCOL.md, "Store operations"): create-if-absent that never
overwrites, whole and ranged reads, writes of uniquely named files, listing, deletion. When a write returns, its bytes
survive a crash of the machine (PROTOCOL.md, S7). If the outcome of an operation is unknown, it raises an exception;
only `weft.storage.log.publish_entry` handles that case. STORES.md lists the stores, and how each was
tested.

    store/object_store.py   the protocol, its errors, `check_capability`
    store/open_store.py     `open_store`: from a location to a store
    store/local_store.py    folders
    store/memory_store.py   objects in this process
    store/remote_store.py   S3, GCS, Azure
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, Final, NamedTuple, Protocol

import pyarrow as pa

from weft.storage.core.checksum import crc32
from weft.storage.core.log.file_refs import FileRef
from weft.storage.core.names import PROBES, Path
from weft.storage.errors import CorruptData, InvalidInput, MissingFile, StoreRefused, StoreUnavailable

MAX_CREATE_BYTES: Final = 32 * 1024 * 1024
"""Largest object of a conditional put: for larger ones some SDKs use several requests."""

PROBE_TRIES: Final = 2  # cleaning may delete the first probe object during the check
_HINTS: Final = {
    errno.ENOSPC: "the disk is full: free space, and try again",
    errno.EDQUOT: "the disk quota is used up: free space, and try again",
    errno.EROFS: "the file system is mounted read-only",
    errno.ENAMETOOLONG: "the path is too long for this file system: put the table into a folder with a shorter name",
    errno.ENOTDIR: "a part of the path is a file and not a folder",
}
_REFUSALS: Final = (PermissionError, NotADirectoryError, IsADirectoryError, FileNotFoundError)
"""Failures that waiting does not cure: no permission, an invalid path, a bucket that does not exist."""

Ranges = Sequence[tuple[int, int]]
"""(offset, length) pairs in ascending order."""


class ReadRequest(NamedTuple):
    """Ranges to read of one object.

    Attributes:
        path: The object.
        size: Its size in bytes.
        ranges: (offset, length) in bytes, ascending.
        lead: Free bytes to leave in memory before each range, for the reader.
    """

    path: Path
    size: int
    ranges: Ranges
    lead: int = 0


class ObjectStore(Protocol):
    """A table's folder. Instances can be pickled and used in another process.

    `put_if_absent`, `get`, `get_many` and `delete` raise an OSError (PermissionError if access is refused), because
    their callers distinguish refused access from a missing answer. All other methods raise StoreUnavailable.

    Methods with a body are defaults for stores without a faster way: they process one object after the other.
    """

    @property
    def uri(self) -> str: ...

    def url(self, path: Path) -> str:
        """URL of an object for other engines; not percent-encoded."""
        return f"{self.uri}/{path}"

    def put_if_absent(self, path: Path, data: bytes) -> bool:
        """Create an object atomically and durably; False if it already exists.

        Raises:
            InvalidInput: ``data`` is longer than `MAX_CREATE_BYTES`.
            StoreUnavailable: The store has definitely not created it, and never will.
        """
        ...

    def put(self, path: Path, data: pa.Buffer | bytes) -> None:
        """Write an object whose name no other process uses, or replace one by an equivalent object (PROTOCOL.md, X4).

        Reports of services are replaced, too; no rule depends on them. A reader sees the old object or the new one,
        never a part of one.
        """
        ...

    def open_output(self, path: Path) -> contextlib.AbstractContextManager[BinaryIO]:
        """Write an object in parts, otherwise as `put`. The object exists after the block, unless the block raises."""
        ...

    def get(self, path: Path) -> bytes | None:
        """The whole object, or None if it does not exist. Any other failure is an exception."""
        ...

    def get_many(self, paths: Sequence[Path]) -> list[bytes | None]:
        """`get` of each path, in that order; object stores read in parallel, up to a bound."""
        return [self.get(path) for path in paths]

    def open_input(self, path: Path, size: int, ranges: Ranges | None = None) -> pa.NativeFile:
        """Random access to an object of known size; ``ranges`` are the bytes that will be read, if known.

        Raises:
            CorruptData: The object is missing or shorter. It is raised here or by a read beyond its end.
        """
        ...

    def read_ranges(self, requests: Sequence[ReadRequest]) -> list[list[pa.Buffer]]:
        """Read ranges of objects: for each object one writable buffer per range, in that order.

        Object stores read in parallel, up to a bound.

        Raises:
            CorruptData: An object is missing or shorter.
        """
        return [_read(self, request) for request in requests]

    def leftovers(self) -> list[tuple[Path, Path]]:
        """(temporary file, object that it was to become) of writes that are in progress or were interrupted.

        They are not objects: `list` and `get` do not return them, `delete` removes them.
        """
        return []

    def list(self, folder: Path) -> list[tuple[str, int]]:
        """(path relative to the folder, size in bytes) of every object below it; empty if the folder does not exist."""
        ...

    def delete(self, path: Path) -> None:
        """Remove an object; a missing object is not an error."""
        ...

    def delete_many(self, paths: Sequence[Path]) -> None:
        """Remove objects; missing objects are not an error. After a failure some may be left."""
        for path in paths:
            with normalise_errors(path):
                self.delete(path)


def check_capability(store: ObjectStore, new_id: Callable[[], str]) -> None:
    """Refuse a store in which creating an object can overwrite another one: all guarantees depend on that.

    Args:
        store: The store.
        new_id: Returns a name that no other process uses.

    Raises:
        StoreRefused: The store overwrites, or refuses writes.
        StoreUnavailable: The store cannot be written for another reason.
    """
    for last in (*[False] * (PROBE_TRIES - 1), True):
        try:
            if _creates_exclusively(store, new_id()):
                return
        except OSError as error:
            # A clean may have deleted the temporary file of the probe as a leftover of a dead process: try again.
            if last or not isinstance(error, FileNotFoundError):
                raise _failure(error)(f"cannot write to {store.uri}: {error}", hint=_hint(error)) from error
    raise StoreRefused(
        f"{store.uri} does not create objects exclusively: a second create of one name was not refused",
        hint="use a store with conditional writes (If-None-Match), or switch them on",
    )


def _creates_exclusively(store: ObjectStore, name: str) -> bool:
    path = Path(f"{PROBES}/{name}")
    try:
        first = store.put_if_absent(path, b"first")
        second = store.put_if_absent(path, b"second")
        content = store.get(path)
    finally:
        with contextlib.suppress(OSError):
            store.delete(path)
    return first and not second and content == b"first"


@contextlib.contextmanager
def normalise_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of a store into an error of weft, with a hint.

    Raises:
        StoreRefused: Waiting does not help, for example because a permission is missing.
        StoreUnavailable: Any other OSError.
    """
    try:
        yield
    except OSError as error:
        raise no_answer(path, error) from error


def get_all(store: ObjectStore, paths: Sequence[Path]) -> Sequence[bytes | None]:
    """The content of objects, in that order. A single one is read by `ObjectStore.get`, which costs less."""
    return [store.get(path) for path in paths] if len(paths) <= 1 else store.get_many(paths)


def no_answer(path: Path, error: Exception) -> StoreUnavailable:
    """The error for a failure of the store."""
    return _failure(error)(f"no access to {path}: {error}", hint=_hint(error))


def _failure(error: Exception) -> type[StoreUnavailable]:
    """The class of the error: the store refused access, or did not answer."""
    return StoreRefused if isinstance(error, _REFUSALS) else StoreUnavailable


def _hint(error: Exception) -> str:
    number = getattr(error, "errno", None)
    if number in _HINTS:
        return _HINTS[number]
    if isinstance(error, PermissionError):
        return "check the credentials, and what they are allowed to do"
    if isinstance(error, FileNotFoundError):
        return "a folder or bucket of the path does not exist: check the location, or create it"
    return "the store did not answer: try again"


def check_create_size(path: Path, data: bytes) -> None:
    """Refuse an object that some stores cannot create in one request.

    Raises:
        InvalidInput: The data is longer than `MAX_CREATE_BYTES`.
    """
    if len(data) > MAX_CREATE_BYTES:
        raise InvalidInput(
            f"{path} would have {len(data):,} bytes; at most {MAX_CREATE_BYTES:,} can be created at once",
            hint="commit fewer files at once: fewer tasks, or smaller batches",
        )


def list_by_folder(store: ObjectStore, parent: Path) -> dict[str, list[tuple[str, int]]]:
    """List the objects in all folders of a parent with one listing: a page costs as much as one small folder.

    Returns:
        For each folder by name what `ObjectStore.list` of it returns: (path relative to the folder, size in bytes) of
        every object below it. Objects directly in the parent are left out.
    """
    by_folder: dict[str, list[tuple[str, int]]] = {}
    for name, size in store.list(parent):
        folder, separator, rest = name.partition("/")
        if separator:
            by_folder.setdefault(folder, []).append((rest, size))
    return by_folder


def _read(store: ObjectStore, request: ReadRequest) -> list[pa.Buffer]:
    parts = []
    with normalise_errors(request.path), store.open_input(request.path, request.size, request.ranges) as source:
        for offset, length in request.ranges:
            part = pa.allocate_buffer(request.lead + length)
            source.seek(offset)
            if source.readinto(memoryview(part).cast("B")[request.lead :]) != length:
                raise wrong_size(request.path, source.size(), request.size)  # it was truncated since it was opened
            parts.append(part)
    return parts


def verify_tail(source: pa.NativeFile, file: FileRef) -> None:
    """Check the footer of an open file; raises the errors of `check_tail`."""
    offset, length = tail_range(file)
    check_tail(source.read_at(length, offset), file)


def check_tail(tail: pa.Buffer | bytes, file: FileRef) -> None:
    """Check the footer of a file.

    Raises:
        CorruptData: The footer does not match its checksum.
    """
    if crc32(tail) != file.tail_crc32:
        raise damaged(file.path, "the footer")


def tail_range(file: FileRef) -> tuple[int, int]:
    """(offset, length) of the footer in bytes."""
    return file.size - file.tail_size, file.tail_size


def damaged(path: Path, part: str) -> CorruptData:
    """The error for bytes that do not match their checksum."""
    return CorruptData(f"file {path} is damaged: {part} does not match its checksum", hint="restore it from a copy")


def missing(path: Path) -> MissingFile:
    """The error for an object that must exist and does not."""
    return MissingFile(
        f"file {path} is missing, but the log refers to it",
        hint="restore it from a copy of the store; no rows were skipped, the read failed as a whole",
    )


def wrong_size(path: Path, actual: int, size: int) -> CorruptData:
    """The error for an object whose size is wrong: it was truncated or replaced."""
    return CorruptData(f"file {path} has {actual} bytes, but the log says {size}", hint="restore it from a copy")
