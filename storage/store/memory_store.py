"""Objects in the memory of this process, for tests and examples. They are lost when the process ends.

Instances with the same URI share their objects. A pickled instance finds them only in the same process.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterator
from typing import BinaryIO, Final

import pyarrow as pa

from weft.storage.core.names import Path
from weft.storage.store.object_store import ObjectStore, Ranges, check_create_size, missing, wrong_size

_folders: Final[dict[str, dict[Path, bytes]]] = {}
_lock: Final = threading.Lock()


class MemoryStore(ObjectStore):
    """A dict of objects. A lock makes every operation atomic."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    @property
    def uri(self) -> str:
        return self._uri

    def folders(self) -> list[str] | None:
        """Names of the folders in this one, sorted; None if there is no object in it."""
        prefix = f"{self._uri}/"
        with _lock:
            paths = [f"{uri}/{path}" for uri, objects in _folders.items() for path in objects]
        below = [path.removeprefix(prefix) for path in paths if path.startswith(prefix)]
        return sorted({path.partition("/")[0] for path in below if "/" in path}) if below else None

    def put_if_absent(self, path: Path, data: bytes) -> bool:
        check_create_size(path, data)
        with _lock:
            if path in self._objects:
                return False
            self._objects[path] = bytes(data)
            return True

    def put(self, path: Path, data: pa.Buffer | bytes) -> None:
        with _lock:
            self._objects[path] = bytes(data)

    @contextlib.contextmanager
    def open_output(self, path: Path) -> Iterator[BinaryIO]:
        file = io.BytesIO()
        yield file
        self.put(path, file.getvalue())

    def get(self, path: Path) -> bytes | None:
        return self._objects.get(path)

    def open_input(self, path: Path, size: int, ranges: Ranges | None = None) -> pa.NativeFile:
        del ranges
        data = self._objects.get(path)
        if data is None:
            raise missing(path)
        if len(data) != size:
            raise wrong_size(path, len(data), size)
        return pa.BufferReader(data)

    def list(self, folder: Path) -> list[tuple[str, int]]:
        prefix = f"{folder}/" if folder else ""
        with _lock:
            objects = [
                (path.removeprefix(prefix), len(o)) for path, o in self._objects.items() if path.startswith(prefix)
            ]
        return sorted(objects)

    def delete(self, path: Path) -> None:
        with _lock:
            self._objects.pop(path, None)

    @property
    def _objects(self) -> dict[Path, bytes]:
        return _folders.setdefault(self._uri, {})
