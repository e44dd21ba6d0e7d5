"""A store that fails on demand, and a clock that tests control.

The store passes every call to a real one. A `Fault` names a call and a part of its path, and when it occurs: *before*
the call takes effect, or *after*, so that the call takes effect but its answer is lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

import pyarrow as pa

from weft import Table
from weft.storage.clock import Clock, Stamps
from weft.storage.core.names import Path
from weft.storage.environment import Environment
from weft.storage.store.object_store import ObjectStore, Ranges, ReadRequest, normalise_errors
from weft.storage.store.open_store import open_store

FOREVER = 1_000_000


@dataclass
class Fault:
    """The next ``times`` calls of ``call`` whose path contains ``path`` fail with ``error``.

    With an ``action`` (what other processes do at that time) and no ``error`` they succeed.
    """

    call: str
    path: str
    when: Literal["before", "after"] = "before"
    times: int = 1
    error: BaseException | None = None
    action: Callable[[], None] | None = None


class FaultyStore:
    """Wraps a store. ``faults`` are checked in order; ``calls`` records the requests as (call, path)."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.faults: list[Fault] = []
        self.calls: list[tuple[str, str]] = []

    @property
    def uri(self) -> str:
        return self.inner.uri

    def url(self, path: Path) -> str:
        return self.inner.url(path)

    def put_if_absent(self, path: Path, data: bytes) -> bool:
        return self._call("put_if_absent", path, lambda: self.inner.put_if_absent(path, data))

    def put(self, path: Path, data: pa.Buffer | bytes) -> None:
        self._call("put", path, lambda: self.inner.put(path, data))

    @contextlib.contextmanager
    def open_output(self, path: Path) -> Iterator[BinaryIO]:
        with contextlib.ExitStack() as opened:
            yield self._call("open_output", path, lambda: opened.enter_context(self.inner.open_output(path)))

    def get(self, path: Path) -> bytes | None:
        return self._call("get", path, lambda: self.inner.get(path))

    def get_many(self, paths: Sequence[Path]) -> list[bytes | None]:
        return [self.get(path) for path in paths]

    def open_input(self, path: Path, size: int, ranges: Ranges | None = None) -> pa.NativeFile:
        return self._call("open_input", path, lambda: self.inner.open_input(path, size, ranges))

    def read_ranges(self, wanted: Sequence[ReadRequest]) -> list[list[pa.Buffer]]:
        return ObjectStore.read_ranges(self, wanted)

    def leftovers(self) -> list[tuple[Path, Path]]:
        return self.inner.leftovers()

    def list(self, folder: Path) -> list[tuple[str, int]]:
        return self._call("list", folder, lambda: self.inner.list(folder))

    def delete(self, path: Path) -> None:
        self._call("delete", path, lambda: self.inner.delete(path))

    def delete_many(self, paths: Sequence[Path]) -> None:
        for path in paths:
            with normalise_errors(path):
                self.delete(path)

    def _call(self, call: str, path: Path, run: Callable[[], Any]) -> Any:
        self.calls.append((call, path))
        for fault in self.faults:
            if fault.call == call and fault.path in path and fault.times > 0:
                fault.times -= 1
                result = run() if fault.when == "after" else None
                if fault.action is not None:
                    fault.action()
                    if fault.error is None:
                        return run() if fault.when == "before" else result
                raise fault.error or OSError(f"{call} {path}: the network is down")
        return run()


class FakeClock:
    """A clock that only advances when it is set, or when the code sleeps."""

    def __init__(self, now_ms: int = 1_800_000_000_000) -> None:
        self.time_ms = now_ms
        self.slept: list[float] = []

    def now_ms(self) -> int:
        return self.time_ms

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time_ms += max(1, round(seconds * 1000))


def other_process(uri: str, clock: Clock, store: ObjectStore | None = None) -> Table:
    """The table opened by another process, with separate stamps, caches and clock."""
    return Table(Environment(store or open_store(uri), clock), Stamps())
