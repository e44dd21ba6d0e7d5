"""The only I/O seam: a folder of immutable objects on a local disk or on an object store.

What the protocol needs of a store, and nothing more (PROTOCOL.md, "Store operations"): create-if-absent that never
overwrites, whole and ranged reads, writes of uniquely named files, listing, deletion. Durability: when a write returns,
its bytes survive a crash of the machine (S7). An answer that is neither yes nor no is an exception; only `publish`
(`storage.commit_log`) may interpret one.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path as LocalPath
from typing import Any, BinaryIO, Final, Protocol
from urllib.parse import unquote, urlsplit

import fsspec
import pyarrow as pa

from storage.core.entries import FileRef
from storage.core.names import Path
from storage.errors import CorruptData, InvalidInput, StoreUnavailable, TableError

_TEMPORARY: Final = ".tmp-"
_PROBE_FOLDER: Final = "_weft/probe"
Ranges = Sequence[tuple[int, int]]
"""(offset, length) pairs in ascending order."""


class ObjectStore(Protocol):
    """A table's folder. Instances can be pickled, and opened again in another process."""

    @property
    def uri(self) -> str: ...

    def url(self, path: Path) -> str:
        """Where other engines find an object; literal, nothing percent-encoded."""
        ...

    def put_if_absent(self, path: Path, data: bytes) -> bool:
        """Create an object that is not there yet, durably and all at once; False if it is there already."""
        ...

    def put(self, path: Path, data: pa.Buffer | bytes) -> None:
        """Write an object of a name that nobody else will ever use."""
        ...

    def open_output(self, path: Path) -> contextlib.AbstractContextManager[BinaryIO]:
        """Like `put`, for an object written piece by piece. It exists once the block ends without an exception."""
        ...

    def get(self, path: Path) -> bytes | None:
        """The whole object, or None if it does not exist. Any other failure is an exception."""
        ...

    def open_input(self, path: Path, size: int, ranges: Ranges | None = None) -> pa.NativeFile:
        """Random access to an object of known size; ``ranges`` is what will be read of it, if known.

        Raises:
            CorruptData: It is missing, or not of that size.
        """
        ...

    def list(self, folder: Path) -> list[tuple[str, int]]:
        """(path below the folder, size) of every object below it; nothing where there is no such folder."""
        ...

    def delete(self, path: Path) -> None:
        """Remove an object; nothing happens if it is gone already."""
        ...


@contextlib.contextmanager
def answering(path: Path) -> Iterator[None]:
    """Turn a store's failure into the error that tells the caller to try later.

    Raises:
        StoreUnavailable: Instead of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise _no_answer(path, error) from error


def open_store(uri: str, storage_options: Mapping[str, Any] | None = None) -> ObjectStore:
    """The store of a table: a path or ``file://`` URI for a local folder, any other fsspec URL otherwise.

    Raises:
        InvalidInput: The URI names no file system that is installed.
    """
    if not uri:
        raise InvalidInput("the table's location is empty", hint="give a path or a URL such as s3://bucket/table")
    parts = urlsplit(uri)
    if parts.scheme in {"", "file"} or len(parts.scheme) == 1:  # one letter is a Windows drive
        path = unquote(parts.path) if parts.scheme == "file" else uri
        return LocalStore(str(LocalPath(path).expanduser().absolute()))
    try:
        return FsspecStore(uri.rstrip("/"), dict(storage_options or {}))
    except (ValueError, ImportError) as error:
        raise InvalidInput(
            f"cannot open {uri!r}: {error}", hint="install the extra for this store: weft[s3], weft[gcs] or weft[azure]"
        ) from error


def check_capability(store: ObjectStore) -> None:
    """Refuse a store that overwrites where it was asked to create: every guarantee rests on that.

    Raises:
        StoreUnavailable: It does, or it cannot be written at all.
    """
    path = Path(f"{_PROBE_FOLDER}/{uuid.uuid4().hex}")
    try:
        first = store.put_if_absent(path, b"first")
        second = store.put_if_absent(path, b"second")
        content = store.get(path)
    except OSError as error:
        raise StoreUnavailable(f"cannot write to {store.uri}: {error}", hint="check path and permissions") from error
    finally:
        with contextlib.suppress(OSError):
            store.delete(path)
    if not first or second or content != b"first":
        raise StoreUnavailable(
            f"{store.uri} does not create objects exclusively: a second create of one name was not refused",
            hint="use a store with conditional writes (If-None-Match), or switch them on",
        )


class LocalStore:
    """A local folder. Objects appear by an exclusive hard link of a synced file: never empty, never half."""

    def __init__(self, root: str) -> None:
        self._root = LocalPath(root)

    @property
    def uri(self) -> str:
        return self._root.as_uri()

    def url(self, path: Path) -> str:
        return f"file://{self._root}/{path}"

    def put_if_absent(self, path: Path, data: bytes) -> bool:
        target = self._root / path
        _make_folder(target.parent)
        temporary = target.parent / f"{_TEMPORARY}{uuid.uuid4().hex}"
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, target)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(target.parent)
        return True

    def put(self, path: Path, data: pa.Buffer | bytes) -> None:
        with self.open_output(path) as file:
            file.write(data)

    @contextlib.contextmanager
    def open_output(self, path: Path) -> Iterator[BinaryIO]:
        target = self._root / path
        temporary = target.parent / f"{_TEMPORARY}{uuid.uuid4().hex}"
        with answering(path):
            _make_folder(target.parent)
            try:
                with temporary.open("xb") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                temporary.rename(target)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            _sync_folder(target.parent)

    def get(self, path: Path) -> bytes | None:
        try:
            return (self._root / path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def open_input(self, path: Path, size: int, ranges: Ranges | None = None) -> pa.NativeFile:
        del ranges  # a local read costs no round trip
        try:
            found = (self._root / path).stat().st_size
        except FileNotFoundError:
            raise _missing(path) from None
        if found != size:
            raise _wrong_size(path, found, size)
        # Not a memory map: its pages would count as this process's memory, and a file cut short would kill it.
        return pa.OSFile(str(self._root / path))

    def list(self, folder: Path) -> list[tuple[str, int]]:
        top = self._root / folder
        return sorted(
            (file.relative_to(top).as_posix(), file.stat().st_size)
            for file in top.rglob("*")
            if file.is_file() and not file.name.startswith(_TEMPORARY)
        )

    def delete(self, path: Path) -> None:
        (self._root / path).unlink(missing_ok=True)


def _make_folder(folder: LocalPath) -> None:
    """Create a folder and make its name, and those of its parents, survive a crash."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for name in reversed(missing):
        name.mkdir(exist_ok=True)
        _sync_folder(name.parent)


def _sync_folder(folder: LocalPath) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """Let every failure of a remote store be an OSError: SDKs have errors of their own, and `publish` reads back."""
    try:
        yield
    except (OSError, TableError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


class FsspecStore:
    """Any fsspec file system whose ``pipe_file(mode="create")`` is a conditional put (S3, GCS, Azure, memory)."""

    # In-process file systems check and create in two steps; a lock makes it one. Remote stores decide by themselves,
    # and their puts stay parallel.
    _memory_lock = threading.Lock()

    def __init__(self, uri: str, options: Mapping[str, Any]) -> None:
        self._uri = uri
        self._fs, self._root = fsspec.url_to_fs(uri, use_listings_cache=False, **options)
        self._in_memory = "memory" in self._fs.protocol

    @property
    def uri(self) -> str:
        return self._uri

    def url(self, path: Path) -> str:
        return f"{self._uri}/{path}"

    def put_if_absent(self, path: Path, data: bytes) -> bool:
        with _plain_errors(), self._memory_lock if self._in_memory else contextlib.nullcontext():
            try:
                self._fs.pipe_file(self._full(path), data, mode="create")
            except FileExistsError:
                return False
        return True

    def put(self, path: Path, data: pa.Buffer | bytes) -> None:
        with answering(path), _plain_errors():
            self._fs.pipe_file(self._full(path), bytes(data))

    @contextlib.contextmanager
    def open_output(self, path: Path) -> Iterator[BinaryIO]:
        with answering(path):
            with _plain_errors():
                file = self._fs.open(self._full(path), "wb")
            try:
                yield file
            except BaseException:
                file.discard()
                # Some file systems (memory) show an object as soon as it is opened.
                with contextlib.suppress(OSError):
                    self.delete(path)
                raise
            with _plain_errors():
                file.close()

    def get(self, path: Path) -> bytes | None:
        with _plain_errors():
            try:
                return self._fs.cat_file(self._full(path))
            except FileNotFoundError:
                return None

    def open_input(self, path: Path, size: int, ranges: Ranges | None = None) -> pa.NativeFile:
        return pa.PythonFile(_RemoteFile(self._fs, self._full(path), path, size, ranges), mode="r")

    def list(self, folder: Path) -> list[tuple[str, int]]:
        top = self._full(folder)
        try:
            found = self._fs.find(top, detail=True)
        except FileNotFoundError:
            return []
        prefix = self._fs._strip_protocol(top).rstrip("/") + "/"  # noqa: SLF001 - the form in which `find` answers
        return sorted((name.removeprefix(prefix), int(info["size"])) for name, info in found.items())

    def delete(self, path: Path) -> None:
        with _plain_errors(), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._full(path))

    def _full(self, path: Path) -> str:
        return f"{self._root}/{path}"


class _RemoteFile(io.RawIOBase):
    """A remote object of known size: the announced ranges are fetched in one go, others as they are asked for."""

    MERGE_GAP_BYTES: Final = 1 << 16  # reading over a small gap is cheaper than another request

    def __init__(self, fs: Any, full_path: str, path: Path, size: int, ranges: Ranges | None) -> None:
        super().__init__()
        self._fs, self._full_path, self._path, self._size = fs, full_path, path, size
        self._position = 0
        self._parts: list[tuple[int, bytes]] = []
        spans: list[list[int]] = []
        for offset, length in ranges or ():
            if spans and offset - spans[-1][1] <= self.MERGE_GAP_BYTES:
                spans[-1][1] = max(spans[-1][1], offset + length)
            else:
                spans.append([offset, offset + length])
        if spans:
            data = self._fs.cat_ranges(
                [full_path] * len(spans), [s for s, _ in spans], [e for _, e in spans], on_error="return"
            )
            for (start, end), part in zip(spans, data, strict=True):
                self._parts.append((start, self._checked(part, end - start)))

    def _checked(self, part: Any, length: int) -> bytes:
        if isinstance(part, FileNotFoundError):
            raise _missing(self._path) from None
        if isinstance(part, Exception):
            raise _no_answer(self._path, part) from part
        if len(part) != length:
            raise _wrong_size(self._path, len(part), length)
        return part

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        end = self._size if size is None or size < 0 else min(self._position + size, self._size)
        start, self._position = self._position, max(end, self._position)
        if end <= start:
            return b""
        for offset, part in self._parts:
            if offset <= start and end <= offset + len(part):
                return part[start - offset : end - offset]
        try:
            return self._checked(self._fs.cat_file(self._full_path, start=start, end=end), end - start)
        except FileNotFoundError:
            raise _missing(self._path) from None
        except OSError as error:
            raise _no_answer(self._path, error) from error


def _no_answer(path: Path, error: Exception) -> StoreUnavailable:
    hint = "check the credentials" if isinstance(error, PermissionError) else "the store did not answer: try again"
    return StoreUnavailable(f"no access to {path}: {error}", hint=hint)


def verify_tail(source: pa.NativeFile, file: FileRef) -> None:
    """Check the part of a file that says where everything else is.

    Raises:
        CorruptData: It is not what was written.
    """
    tail = source.read_at(file.tail_size, file.size - file.tail_size)
    if zlib.crc32(tail) != file.tail_crc32:
        raise damaged(file.path, "the footer")


def damaged(path: Path, part: str) -> CorruptData:
    """The error for bytes that do not have their checksum."""
    return CorruptData(f"file {path} is damaged: {part} does not have its checksum", hint="restore it from a copy")


def _missing(path: Path) -> CorruptData:
    return CorruptData(
        f"file {path} is missing, but the log refers to it",
        hint="restore it from a copy of the store; nothing was skipped, and no answer was given without it",
    )


def _wrong_size(path: Path, found: int, size: int) -> CorruptData:
    return CorruptData(f"file {path} has {found} bytes, but the log says {size}", hint="restore it from a copy")
