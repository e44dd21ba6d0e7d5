"""Upkeep of a table by its writer: compaction in the process of the writer, and back-pressure.

A thread looks at the table after commits, with its own table object and with pauses between the looks. So neither a
slow store nor a long merge delays a batch:

- **Compaction** (``compaction: inline`` of a pipeline file) compacts file groups that are due and small enough: a step
  is planned to take at most a share of the trigger interval, and after each step the thread rests, so that it works for
  at most this share of the time.
- **Back-pressure** (`weft.streams.write.back_pressure`): the sink waits before a batch, for the time that the last look
  determined.

A failure is reported, and the next look comes later. It never fails the writer.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from weft.storage import Table
from weft.storage.core.log.file_refs import FileGroup
from weft.storage.core.plan.memory_cost import UNPACKED
from weft.storage.core.plan.read_cost import ReadCost, read_cost
from weft.storage.core.plan.slices import FileSlice
from weft.storage.planned_work import PlannedWork, plan_compaction, plan_fold
from weft.storage.plural import counted
from weft.storage.services.steps.steps import cancel
from weft.storage.table_facts import with_small_tasks
from weft.streams.pipeline.run.error_kinds import describe
from weft.streams.write.back_pressure import delay_seconds, describe_delay

if TYPE_CHECKING:
    from weft.streams.pipeline.file.model import BackPressureSection, CompactionSection, Pipeline
    from weft.streams.pipeline.run.reporter import Reporter
    from weft.streams.pipeline.run.stop_signal import StopSignal

MIB: Final = 1024 * 1024
FIRST_RATE: Final = 32 * MIB  # stored bytes per second, until the rate is measured
MIN_TASK_BYTES: Final = MIB
MEMORY_BYTES: Final = 512 * MIB  # estimated memory of a step, unless the section sets it
MAX_PAUSE_SECONDS: Final = 300.0
CLOSE_SECONDS: Final = 5.0  # the process ends soon after; an unfinished compaction is like a killed one
WAIT_SECONDS: Final = 0.2  # a wait before a batch checks this often whether it should end


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """Settings of a writer's upkeep.

    Attributes:
        compaction: Settings of compaction; None if the writer does not compact.
        back_pressure: Settings of back-pressure; None if the writer is never slowed down.
        tell: Called with a line for the status of the writer whenever the line changes; it may be empty.
        slowed: With back-pressure, called after each look with the wait before each batch in seconds, and the cost of a
            read; (0, None) if the look failed.
        waited: Called after a wait before a batch with its duration in seconds.
        stopping: Returns whether the writer has to stop; then no batch waits.
    """

    compaction: CompactionSection | None = None
    back_pressure: BackPressureSection | None = None
    tell: Callable[[str], object] = lambda _: None
    slowed: Callable[[float, ReadCost | None], object] = lambda _delay, _cost: None
    waited: Callable[[float], object] = lambda _seconds: None
    stopping: Callable[[], bool] = lambda: False

    @property
    def every(self) -> float:
        """Shortest time between two looks at the table, in seconds."""
        return min(settings.every for settings in (self.compaction, self.back_pressure) if settings is not None)


def upkeep_of(pipeline: Pipeline, reporter: Reporter, stop: StopSignal) -> Upkeep:
    """Return the upkeep of a writer of a pipeline, which reports to the status and the log of the writer."""

    def tell(line: str) -> None:
        reporter.update(note=line)
        if line:
            sys.stderr.write(f"{line}\n")

    def slowed(delay: float, cost: ReadCost | None) -> None:
        reporter.update(delay_seconds=delay, read_amplification=None if cost is None else cost.amplification)

    def waited(seconds: float) -> None:
        reporter.update(waited_seconds=round(reporter.report.waited_seconds + seconds, 3))

    return Upkeep(
        compaction=pipeline.compaction if pipeline.compacts_inline else None,
        back_pressure=pipeline.back_pressure,
        tell=tell,
        slowed=slowed,
        waited=waited,
        stopping=stop.__bool__,
    )


class UpkeepThread:
    """The thread, as a context manager; the sink calls `committed` and `wait_before_batch`."""

    def __init__(
        self, upkeep: Upkeep, uri: str, storage_options: Mapping[str, Any] | None, trigger_seconds: float
    ) -> None:
        """Remember the settings; the thread starts with the block.

        Args:
            upkeep: Settings; at least compaction or back-pressure.
            uri: The table.
            storage_options: Options of its store.
            trigger_seconds: Time between two batches.
        """
        self._upkeep, self._uri, self._options = upkeep, uri, storage_options
        self._trigger = trigger_seconds
        self._news, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="weft-upkeep", daemon=True)
        self._table: Table | None = None
        self._table_limit = 0
        self._rate: float = FIRST_RATE
        self._delay = 0.0
        self._lines = {"slow": "", "work": ""}

    def __enter__(self) -> Self:
        self._news.set()  # the table may need work already
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._news.set()
        self._thread.join(CLOSE_SECONDS)

    def committed(self) -> None:
        """Request another look at the table, after the present pause."""
        self._news.set()

    def wait_before_batch(self) -> None:
        """Wait while the table is too expensive to read, for a bounded time."""
        if not self._delay:
            return
        began = time.monotonic()
        while not self._stop.is_set() and not self._upkeep.stopping():
            remaining_seconds = began + self._delay - time.monotonic()
            if remaining_seconds <= 0:
                break
            self._stop.wait(min(remaining_seconds, WAIT_SECONDS))
        with contextlib.suppress(OSError):  # an unsent status must not fail the batch
            self._upkeep.waited(time.monotonic() - began)

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            self._news.wait()
            self._news.clear()
            if self._stop.is_set():
                return
            try:
                self._look()
                failures, pause = 0, self._upkeep.every
            except Exception as error:  # upkeep must not fail the writer
                failures += 1
                pause = min(self._upkeep.every * 2**failures, max(MAX_PAUSE_SECONDS, self._upkeep.every))
                self._table = None
                self._slow_down(0.0, None)
                self._say(slow="", work=f"upkeep of the table failed: {describe(error)}; next try in {pause:.0f} s")
                self._news.set()
            self._stop.wait(pause)

    def _look(self) -> None:
        """Measure the cost of reads, compact and fold what is due, and measure again."""
        compaction = self._upkeep.compaction
        limit = 0 if compaction is None else self._step_bytes(compaction)
        if self._table is None or limit * 2 < self._table_limit:
            table = Table.open(self._uri, storage_options=self._options)
            self._table, self._table_limit = with_small_tasks(table, limit) if limit else table, limit
        self._measure(self._table)
        if compaction is not None and self._compact(self._table, compaction, limit):
            self._measure(self._table)

    def _measure(self, table: Table) -> None:
        settings = self._upkeep.back_pressure
        if settings is None:
            return
        snapshot = table.snapshot(references=False)
        cost = read_cost(snapshot.slices, snapshot.files)
        self._slow_down(delay_seconds(settings, cost, self._trigger), cost)
        self._say(slow=describe_delay(settings, cost, self._delay) if self._delay else "")
        if self._delay:
            self._news.set()  # look again even without a commit, since writers commit less often now

    def _slow_down(self, delay: float, cost: ReadCost | None) -> None:
        self._delay = delay
        if self._upkeep.back_pressure is not None:
            with contextlib.suppress(OSError):
                self._upkeep.slowed(delay, cost)

    def _step_bytes(self, settings: CompactionSection) -> int:
        """Return the stored bytes that a step may read."""
        expected_bytes = int(self._rate * settings.share * self._trigger)
        return min(max(MIN_TASK_BYTES, expected_bytes), (settings.memory or MEMORY_BYTES) // UNPACKED)

    def _compact(self, table: Table, settings: CompactionSection, limit: int) -> bool:
        """Compact and fold what is due, in small steps; returns whether anything was due."""
        large: dict[FileGroup, int] = {}

        def fits(file_slice: FileSlice) -> bool:
            size = file_slice.base_bytes + file_slice.log_bytes
            if size > limit:
                large[file_slice.group] = size
            return size <= limit

        compaction = plan_compaction(table, settings.policy, only=fits)
        compacted = self._finish(compaction, settings.share)
        fold = plan_fold(table, settings.policy, compaction)
        folded = self._finish(fold, settings.share)
        notes = []
        if compacted is not None and compacted.done:
            notes.append(f"compacted {counted(len(compacted.done), 'file group')}, {compacted.bytes_read / 1e6:.1f} MB")
        if folded is not None and folded.done:
            notes.append(f"folded {counted(folded.commits, 'commit')}, {folded.bytes_read / 1e6:.1f} MB")
        if large:
            sizes = (
                f"{max(large.values()) / 1e6:.0f} MB are due and too large for a writer (limit {limit / 1e6:.0f} MB)"
            )
            notes.append(f"{len(large)} file groups of up to {sizes}: run weft services")
        self._say(work="; ".join(notes))
        return bool(compaction.bytes or fold.bytes)

    def _finish(self, work: PlannedWork[Any], share: float) -> Any:
        """Run work step by step, and rest after each step; returns its result, None if the writer ends first."""
        while True:
            began = time.monotonic()
            try:
                size = next(work.steps)
            except StopIteration as done:
                return done.value
            seconds = time.monotonic() - began
            if size >= MIB:
                self._rate = (self._rate + size / max(seconds, 0.001)) / 2
            if self._stop.wait(seconds * (1 / share - 1)):
                cancel(work.steps)
                return None

    def _say(self, **lines: str) -> None:
        before = self._line()
        self._lines.update(lines)
        if self._line() != before:
            with contextlib.suppress(OSError):  # an unsent status must not fail the work
                self._upkeep.tell(self._line())

    def _line(self) -> str:
        return "; ".join(filter(None, self._lines.values()))


@contextlib.contextmanager
def upkeep_thread(
    upkeep: Upkeep | None, uri: str, storage_options: Mapping[str, Any] | None, trigger_seconds: float
) -> Iterator[UpkeepThread | None]:
    """Run the thread during the block; the value is None if there is nothing to do."""
    if upkeep is None or (upkeep.compaction is None and upkeep.back_pressure is None):
        yield None
        return
    with UpkeepThread(upkeep, uri, storage_options, trigger_seconds) as thread:
        yield thread
