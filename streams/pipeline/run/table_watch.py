"""Measures a table periodically, for metrics. A measurement opens a snapshot, and reads no rows."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Self

from weft.storage import DuePolicy, Snapshot, Table
from weft.storage.errors import TableError
from weft.storage.services.inspect.measure import TableMeasures, TableSample, measure, sample
from weft.storage.store.open_store import check_reachable
from weft.streams.pipeline.file.model import TableLocation

MEASURE_SECONDS: Final = 30.0
SAMPLE_SECONDS: Final = 600.0  # a sample reads the log rows of a file group, and some footers


@dataclass(frozen=True, slots=True)
class TableView:
    """The last measures and the last sample of a table.

    Attributes:
        measures: The last measures; None if the last measurement failed, or there was none.
        measured_at_ms: Time of the last successful measurement, in Unix milliseconds; None if there was none.
        sample: The last sample; None if the last one failed, or there was none.
    """

    measures: TableMeasures | None = None
    measured_at_ms: int | None = None
    sample: TableSample | None = None

    def of(
        self, snapshot: Snapshot, policy: DuePolicy | None, *, take_sample: bool, watermarks: bool = True
    ) -> TableView:
        """Measure a snapshot. What is not measured is taken over from this earlier view.

        Args:
            snapshot: A head snapshot.
            policy: Decides what is due.
            take_sample: Take a sample, which reads files.
            watermarks: Count late events, which takes a request for each lane.

        Raises:
            StoreUnavailable: The store does not answer.
        """
        measures = measure(snapshot, policy, watermarks=watermarks)
        if not watermarks and self.measures is not None:
            measures = replace(measures, late=self.measures.late)
        view = TableView(measures, time.time_ns() // 1_000_000, None if take_sample else self.sample)
        if take_sample:
            with contextlib.suppress(TableError):  # a clean may delete files of the snapshot meanwhile
                view = replace(view, sample=sample(snapshot))
        return view


class TableWatch:
    """Measures a table in a background thread while its ``with`` block runs."""

    def __init__(
        self,
        location: TableLocation,
        policy: DuePolicy | None,
        on_view: Callable[[TableView], None],
        *,
        measure_seconds: float = MEASURE_SECONDS,
        sample_seconds: float = SAMPLE_SECONDS,
    ) -> None:
        """Open nothing yet.

        Args:
            location: Where the table is; it need not exist yet.
            policy: Decides what is due.
            on_view: Called in the thread after each measurement, also after a failed one.
            measure_seconds: Time between two measurements.
            sample_seconds: Time between two samples.
        """
        self._location, self._policy, self._on_view = location, policy, on_view
        self._measure_seconds, self._sample_seconds = measure_seconds, sample_seconds
        self._table: Table | None = None
        self._view = TableView()
        self._sampled_at = float("-inf")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="weft-table-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A request to a store that does not answer may take long; the thread is not awaited.
        self._ended.set()

    def look(self) -> TableView:
        """Measure now. A failure is part of the result: a table that cannot be read must not end the process."""
        try:
            self._view = self._measure()
        except Exception:
            self._table = None  # the next measurement opens it again
            self._view = replace(self._view, measures=None)
        return self._view

    def _measure(self) -> TableView:
        check_reachable(self._location.uri, self._location.storage_options)
        if self._table is None:
            self._table = Table.open(self._location.uri, storage_options=self._location.storage_options)
        snapshot = self._table.snapshot(references=False)
        take_sample = time.monotonic() - self._sampled_at >= self._sample_seconds
        if take_sample:
            self._sampled_at = time.monotonic()
        return self._view.of(snapshot, self._policy, take_sample=take_sample)

    def _run(self) -> None:
        while not self._ended.is_set():
            self._on_view(self.look())
            self._ended.wait(self._measure_seconds)
