"""Local folders as object stores: after a crash or on a full disk an object exists completely or not at all.

An object is written under a temporary name and synced before it gets its final name. An object is created by a hard
link, which is exclusive and exposes only complete files (`open("x")` exposes empty files, and check-then-rename is a
race). Then the folder is synced, which makes the name durable. A temporary name ends with the final name, so that
cleaning can tell which object an interrupted write was for.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path as LocalPath
from typing import BinaryIO, Final

import pyarrow as pa

from weft.storage.core.names import Path
from weft.storage.errors import StoreRefused
from weft.storage.store.object_store import (
    ObjectStore,
    Ranges,
    ReadRequest,
    check_create_size,
    missing,
    normalise_errors,
    wrong_size,
)

_TEMPORARY: Final = ".tmp-"
_TEMPORARY_NAME: Final = re.compile(r"\.tmp-[0-9a-f]{32}-(.+)", re.DOTALL)
# Errors of `link` on FAT, exFAT and some network and FUSE file systems.
_NO_HARD_LINKS: Final = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}

_durable_folders: Final[set[tuple[LocalPath, LocalPath]]] = set()
"""(root of a store, folder in it): this process has synced the names of the folder and its parents below the root."""


class LocalStore(ObjectStore):
    """A local folder. Objects appear by an exclusive hard link of a synced file: never empty, never partial."""

    def __init__(self, root: str) -> None:
        self._root = LocalPath(root)

    @property
    def uri(self) -> str:
        return self._root.as_uri()

    def url(self, path: Path) -> str:
        return f"file://{self._root}/{path}"

    def folders(self) -> list[str] | None:
        """Names of the folders in this one, sorted; None if it does not exist."""
        with normalise_errors(Path(str(self._root))):
            try:
                with os.scandir(self._root) as entries:
                    return sorted(entry.name for entry in entries if entry.is_dir())
            except (FileNotFoundError, NotADirectoryError):
                return None

    def put_if_absent(self, path: Path, data: bytes) -> bool:
        check_create_size(path, data)
        target = self._root / path
        try:
            self._make_folder(target.parent)
            temporary = _temporary(target)
            try:
                with temporary.open("xb") as file:
                    file.write(data)
                    _sync_file(file)
                created = self._link(temporary, target)
            finally:
                temporary.unlink(missing_ok=True)
            # Even if the object existed: its creator may not have synced the folder yet.
            _sync_folder(target.parent)
        except OSError as error:
            if error.errno == errno.EROFS:
                # Access is refused: retrying does not help.
                raise PermissionError(error.errno, error.strerror, error.filename) from error
            raise
        return created

    def _link(self, temporary: LocalPath, target: LocalPath) -> bool:
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in _NO_HARD_LINKS:
                # Earlier tries cannot have succeeded either, so it is certain that the object was not created.
                raise StoreRefused(
                    f"the file system of {self._root} does not support hard links ({error.strerror}), "
                    "which weft needs to create objects exclusively",
                    hint="use a local disk (ext4, XFS, Btrfs, APFS, NTFS), NFS, or an object store",
                ) from error
            raise
        return True

    def put(self, path: Path, data: pa.Buffer | bytes) -> None:
        with self.open_output(path) as file:
            file.write(data)

    @contextlib.contextmanager
    def open_output(self, path: Path) -> Iterator[BinaryIO]:
        target = self._root / path
        temporary = _temporary(target)
        with normalise_errors(path):
            self._make_folder(target.parent)
            try:
                with temporary.open("xb") as file:
                    yield file
                    _sync_file(file)
                temporary.rename(target)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            _sync_folder(target.parent)

    def get(self, path: Path) -> bytes | None:
        try:
            with io.FileIO(self._full(path)) as file:  # a lane has many small entries: half the time of a path object
                return file.readall()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _full(self, path: Path) -> str:
        """The path of an object as text: for many small files, path objects cost more than opening."""
        return f"{self._root}/{path}"

    def open_input(self, path: Path, size: int, ranges: Ranges | None = None) -> pa.NativeFile:
        del ranges  # local reads cost no round trip
        full = self._full(path)
        with normalise_errors(path):
            try:
                actual_size = os.stat(full).st_size  # noqa: PTH116 - see `_full`
            except (FileNotFoundError, NotADirectoryError):
                raise missing(path) from None
            if actual_size != size:
                raise wrong_size(path, actual_size, size)
            # Not a memory map: its pages would count as memory of this process, and a truncated file would kill the
            # process.
            return pa.OSFile(full)

    def read_ranges(self, requests: Sequence[ReadRequest]) -> list[list[pa.Buffer]]:
        return [self._read_ranges(request) for request in requests]

    def _read_ranges(self, request: ReadRequest) -> list[pa.Buffer]:
        parts = []
        with normalise_errors(request.path), self._open_raw(request) as file:
            for offset, length in request.ranges:
                part = pa.allocate_buffer(request.lead + length)
                rest = memoryview(part)[request.lead :]
                file.seek(offset)
                while rest:
                    count = file.readinto(rest)
                    if not count:  # truncated meanwhile
                        raise wrong_size(request.path, offset + length - len(rest), request.size)
                    rest = rest[count:]
                parts.append(part)
        return parts

    def _open_raw(self, request: ReadRequest) -> io.FileIO:
        """The file without a buffer: many small files are read, and what is read is read once."""
        try:
            file = io.FileIO(self._full(request.path))
        except (FileNotFoundError, NotADirectoryError):
            raise missing(request.path) from None
        actual_size = os.fstat(file.fileno()).st_size
        if actual_size != request.size:
            file.close()
            raise wrong_size(request.path, actual_size, request.size)
        return file

    def leftovers(self) -> list[tuple[Path, Path]]:
        pairs = []
        with normalise_errors(Path(".")):
            for file, _ in _walk(self._root):
                name_match = _TEMPORARY_NAME.fullmatch(file.name)
                if name_match is not None:
                    temporary = file.relative_to(self._root)
                    final = temporary.with_name(name_match.group(1))
                    pairs.append((Path(temporary.as_posix()), Path(final.as_posix())))
        return sorted(pairs)

    def list(self, folder: Path) -> list[tuple[str, int]]:
        top = self._root / folder
        with normalise_errors(folder):
            return sorted(
                (file.relative_to(top).as_posix(), size)
                for file, size in _walk(top)
                if not file.name.startswith(_TEMPORARY)
            )

    def delete(self, path: Path) -> None:
        with contextlib.suppress(NotADirectoryError):
            (self._root / path).unlink(missing_ok=True)

    def remove_empty_folders(self, folders: Iterable[str]) -> None:
        """Remove folders of the table, and the folders in them, if they contain no files.

        Args:
            folders: Paths relative to the root; the empty path is the root itself.
        """
        for top in (self._root / folder for folder in folders):
            with normalise_errors(Path(".")):
                inside = sorted((path for path in top.rglob("*") if path.is_dir()), reverse=True)
                for path in (*inside, top):
                    if path.is_dir() and not any(path.iterdir()):
                        path.rmdir()

    def _make_folder(self, folder: LocalPath) -> None:
        """Create a folder and sync it and its parents, so that their names survive a crash."""
        if (self._root, folder) in _durable_folders and folder.is_dir():
            return
        created = []
        parent = folder
        while not parent.is_dir():
            created.append(parent)
            parent = parent.parent
        for name in reversed(created):
            try:
                name.mkdir(exist_ok=True)
            except FileExistsError:
                raise NotADirectoryError(errno.ENOTDIR, "not a folder", str(name)) from None
            _sync_folder(name.parent)
        # An existing folder may have just been created by a process that has not synced it yet.
        durable = set()
        for name in (folder, *folder.parents):
            if name not in created and (self._root, name) not in _durable_folders:
                with contextlib.suppress(PermissionError):  # above the root a folder may be searchable but not readable
                    _sync_folder(name.parent)
            durable.add((self._root, name))
            if name == self._root:
                break
        _durable_folders.update(durable)


def _temporary(target: LocalPath) -> LocalPath:
    return target.with_name(f"{_TEMPORARY}{uuid.uuid4().hex}-{target.name}")


def _walk(top: LocalPath) -> Iterator[tuple[LocalPath, int]]:
    """Files below a folder with their sizes; files that are deleted meanwhile are left out."""
    try:
        entries = list(os.scandir(top))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir():
            yield from _walk(LocalPath(entry.path))
        else:
            with contextlib.suppress(FileNotFoundError):
                yield LocalPath(entry.path), entry.stat().st_size


def _sync_file(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: LocalPath) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
