"""A process's view of the disk, and its clock: every call is a yield point, and may have a fault.

`SimStore` implements `weft.storage.store.object_store.ObjectStore` with the errors that the real backends raise: an
OSError from `put_if_absent`, `get`, `get_many` and `delete`, and `StoreUnavailable` from all others.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, TypeVar

import pyarrow as pa

from tests.simulation.disk import Disk
from tests.simulation.faults import Fault, Faults
from tests.simulation.scheduler import Process, Scheduler, Violation
from weft.storage.core.names import Path
from weft.storage.store.object_store import ObjectStore, Ranges, ReadRequest, missing, normalise_errors, wrong_size

_LEAP_MS = 121_000  # marks and readings of other lanes are due then

Answer = TypeVar("Answer")


class SimClock:
    """One process's clock."""

    def __init__(self, scheduler: Scheduler, process: Process) -> None:
        self._scheduler, self._process = scheduler, process

    def now_ms(self) -> int:
        return self._scheduler.now_ms + self._process.skew_ms

    def sleep(self, seconds: float) -> None:
        self._scheduler.sleep(self._process, seconds)


class SimStore:
    """The store of a table for one process. ``label`` is put before paths in the trace."""

    def __init__(
        self,
        scheduler: Scheduler,
        disk: Disk,
        faults: Faults,
        process: Process,
        uri: str = "sim://table",
        label: str = "",
    ) -> None:
        self._scheduler, self._disk, self._faults, self._process = scheduler, disk, faults, process
        self._uri, self._label = uri, label

    @property
    def uri(self) -> str:
        return self._uri

    def url(self, path: Path) -> str:
        return f"{self._uri}/{path}"

    def put_if_absent(self, path: Path, data: bytes) -> bool:
        return self._call("put_if_absent", path, lambda: self._disk.put_if_absent(path, data))

    def put(self, path: Path, data: pa.Buffer | bytes) -> None:
        content = bytes(data)
        with normalise_errors(path):
            self._call("put", path, lambda: self._disk.put(path, content))

    @contextlib.contextmanager
    def open_output(self, path: Path) -> Iterator[BinaryIO]:
        with normalise_errors(path):
            self._call("open_output", path, lambda: None)
            file = io.BytesIO()
            yield file
            content = file.getvalue()
            self._call("put", path, lambda: self._disk.put(path, content))

    def get(self, path: Path) -> bytes | None:
        return self._call("get", path, lambda: self._disk.objects.get(path))

    def get_many(self, paths: Sequence[Path]) -> list[bytes | None]:
        return self._in_any_order(len(paths), lambda i: self.get(paths[i]))

    def open_input(self, path: Path, size: int, ranges: Ranges | None = None) -> pa.NativeFile:
        with normalise_errors(path):
            data = self._call("open_input", path, lambda: self._disk.objects.get(path))
        if data is None:
            raise missing(path)
        if len(data) != size:
            raise wrong_size(path, len(data), size)
        return pa.BufferReader(data)

    def read_ranges(self, wanted: Sequence[ReadRequest]) -> list[list[pa.Buffer]]:
        return self._in_any_order(len(wanted), lambda i: ObjectStore.read_ranges(self, [wanted[i]])[0])

    def _in_any_order(self, count: int, ask: Callable[[int], Answer]) -> list[Answer]:
        """Run requests that are sent at the same time; they may arrive in any order."""
        answers = {i: ask(i) for i in self._faults.order(count)}
        return [answers[i] for i in range(count)]

    def list(self, folder: Path) -> list[tuple[str, int]]:
        with normalise_errors(folder):
            return self._call("list", folder, lambda: self._disk.list(folder))

    def delete(self, path: Path) -> None:
        self._call("delete", path, lambda: self._disk.delete(path))

    def delete_many(self, paths: Sequence[Path]) -> None:
        for path in paths:
            with normalise_errors(path):
                self.delete(path)

    def leftovers(self) -> list[tuple[Path, Path]]:
        """This store makes no temporary files."""
        return []

    def _call(self, call: str, path: str, effect: Callable[[], Any]) -> Any:
        """Run one request. Raises OSError if the network fails, and Crash if the process dies."""
        process, scheduler = self._process, self._scheduler
        try:
            scheduler.pause(process)
            fault = self._faults.draw(call, scheduler.step)
            if process.offline_until > scheduler.now_ms:
                fault = self._faults.draw_offline(call)
            if fault is not None:
                scheduler.log(process, f"{call} {self._label}{path}: {fault}")
                return self._faulty(fault, call, path, effect)
            return self._effect(call, path, effect)
        except Violation as violation:
            scheduler.fail(str(violation))  # record it now, because unwinding may replace the exception
            raise

    def _effect(self, call: str, path: str, effect: Callable[[], Any]) -> Any:
        result = effect()
        self._scheduler.log(self._process, f"{call} {self._label}{path} -> {_shown(result)}")
        return result

    def _faulty(self, fault: Fault, call: str, path: str, effect: Callable[[], Any]) -> Any:
        process, scheduler, faults = self._process, self._scheduler, self._faults
        match fault:
            case Fault.LOST_REQUEST:
                raise TimeoutError(f"{call} {path}: the network is down")
            case Fault.REFUSED:
                raise PermissionError(f"{call} {path}: 403")
            case Fault.LOST_ANSWER:
                self._effect(call, path, effect)
                raise ConnectionError(f"{call} {path}: the answer is lost")
            case Fault.DELAYED:
                self._defer(path, effect)
                raise TimeoutError(f"{call} {path}: no answer")
            case Fault.DOUBLED:
                self._defer(path, effect)
            case Fault.CRASH:
                raise process.kill()
            case Fault.CRASH_AFTER:
                self._effect(call, path, effect)
                raise process.kill()
            case Fault.CRASH_DELAYED:
                self._defer(path, effect)
                raise process.kill()
            case Fault.FREEZE | Fault.FREEZE_AFTER:
                result = self._effect(call, path, effect) if fault is Fault.FREEZE_AFTER else None
                process.frozen_until = scheduler.step + faults.freeze_steps()
                process.on_freeze()
                scheduler.pause(process)
                return result if fault is Fault.FREEZE_AFTER else self._effect(call, path, effect)
            case Fault.OUTAGE:
                process.offline_until = scheduler.now_ms + faults.outage_ms()
                raise TimeoutError(f"{call} {path}: the network is down")
            case Fault.CLOCK:
                process.skew_ms = faults.skew_ms()
            case Fault.LEAP:
                scheduler.now_ms += _LEAP_MS
        return self._effect(call, path, effect)

    def _defer(self, path: str, effect: Callable[[], Any]) -> None:
        process, scheduler = self._process, self._scheduler

        def late() -> None:
            scheduler.log(process, f"late request for {self._label}{path} -> {effect()}")

        self._disk.defer(scheduler.step + self._faults.late_steps(), late)


def _shown(result: Any) -> Any:
    """The result of a call for the trace, without sizes, which may differ in a replay.

    The bytes under NULLs are arbitrary, so checksums differ, and with them the sizes of entries.
    """
    if isinstance(result, bytes):
        return "found"
    if isinstance(result, list):
        return [name for name, _ in result]
    return result
