"""Looks at a table from time to time, for metrics. A look costs the requests of one snapshot, not of its data."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Self

from weft.storage import DuePolicy, Table
from weft.storage.services.inspect.measure import TableMeasures, TableSample, measure, sample
from weft.storage.store.open_store import check_reachable
from weft.streams.pipeline.file.model import TableLocation

MEASURE_SECONDS: Final = 30.0
SAMPLE_SECONDS: Final = 600.0  # a sample reads the log rows of a file group, and some footers


@dataclass(frozen=True, slots=True)
class TableView:
    """What is known of a table.

    Attributes:
        measures: The last measures; None if the last look failed, or there was none.
        measured_at_ms: Time of the last look that succeeded, in Unix milliseconds; None if there was none.
        sample: The last sample; None if the last one failed, or there was none.
    """

    measures: TableMeasures | None = None
    measured_at_ms: int | None = None
    sample: TableSample | None = None


class TableWatch:
    """Looks at a table in a background thread while its ``with`` block runs."""

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
            on_view: Called in the thread after each look, also after one that failed.
            measure_seconds: Time between two looks.
            sample_seconds: Time between two samples.
        """
        self._location, self._policy, self._on_view = location, policy, on_view
        self._measure_seconds, self._sample_seconds = measure_seconds, sample_seconds
        self._table: Table | None = None
        self._view = TableView()
        self._sampled = float("-inf")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="weft-table-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A look at a store that does not answer may take long; it is abandoned.
        self._ended.set()

    def look(self) -> TableView:
        """Look now. A failure is part of the result: a table that is away must not end the process."""
        try:
            self._view = self._looked()
        except Exception:
            self._table = None  # opened again by the next look
            self._view = replace(self._view, measures=None)
        return self._view

    def _looked(self) -> TableView:
        check_reachable(self._location.uri, self._location.storage_options)
        if self._table is None:
            self._table = Table.open(self._location.uri, storage_options=self._location.storage_options)
        snapshot = self._table.snapshot(references=False)
        found = TableView(measure(snapshot, self._policy), time.time_ns() // 1_000_000, self._view.sample)
        if time.monotonic() - self._sampled >= self._sample_seconds:
            self._sampled = time.monotonic()
            found = replace(found, sample=None)
            try:
                found = replace(found, sample=sample(snapshot))
            except Exception:  # cleaning may delete files of the snapshot meanwhile
                return found
        return found

    def _run(self) -> None:
        while not self._ended.is_set():
            self._on_view(self.look())
            self._ended.wait(self._measure_seconds)
