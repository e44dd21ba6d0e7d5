"""How far each writer of a pipeline is behind its topics, according to the brokers, while the page is open.

The position of a writer is the one that its last commit recorded, so the writers need not run on this machine.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from weft.storage.errors import TableError
from weft.storage.services.inspect.inspect import LaneReport
from weft.storage.store.object_store import ObjectStore
from weft.storage.store.open_store import open_store
from weft.streams.kafka.options import parse_options
from weft.streams.pipeline.file.pipeline import load_pipeline
from weft.streams.pipeline.run.lag import Lag, LagMeter, kafka_offsets
from weft.streams.pipeline.run.part_states import PartState, read_parts, stored_reports
from weft.streams.pipeline.run.run import make_jobs

_EVERY_SECONDS: Final = 5.0


class SourceLag:
    """The lag of each lane. Usable from any thread."""

    def __init__(self, pipeline: str) -> None:
        """Remember the pipeline file; `measure` connects to the brokers.

        Args:
            pipeline: The pipeline file.
        """
        self._pipeline = pipeline
        self._meters: dict[str, LagMeter] | None = None
        self._running = contextlib.ExitStack()
        self._lock = threading.Lock()
        self.triggers: dict[str, float] = {}
        """Seconds from the start of one batch to the next, by lane; empty before the first measurement."""
        self.problem = ""
        """Why nothing is measured: the pipeline file is wrong, or needs an environment variable that is not set."""
        self._state: Path | None = None
        self._parts: list[str] = []
        self._store: ObjectStore | None = None
        self._stored: Mapping[str, bytes] = {}
        self._stored_until = 0.0
        self._unread: dict[str, LagMeter] = {}
        self.streams: dict[str, str] = {}
        """The stream of each lane of the pipeline; empty before the first measurement."""

    def measure(self, lanes: Sequence[LaneReport]) -> dict[str, Lag]:
        """Return the lag of the lanes whose brokers have answered; the first call starts the measurement."""
        with self._lock:
            if self._meters is None:
                self._meters = {}
                try:
                    self._start(self._meters)
                except TableError as error:
                    self.problem = error.message
            lags = {}
            for name in self._unread.keys() - {lane.lane for lane in lanes}:  # lanes without a commit
                self._unread[name].set_position({})
                if (lag := self._unread[name].lag) is not None:
                    lags[name] = lag
            for lane in lanes:
                meter = self._meters.get(lane.lane)
                if meter is not None:
                    meter.set_position(kafka_offsets(lane.source))
                    if (lag := meter.lag) is not None:
                        lags[lane.lane] = lag
            return lags

    def outages(self) -> dict[str, str]:
        """Return why brokers do not answer, by lane."""
        meters = self._meters or {}
        return {lane: meter.outage.message for lane, meter in meters.items() if meter.outage is not None}

    def parts(self) -> list[PartState]:
        """Return the state of each part of the pipeline, see `read_parts`; empty before the first measurement.

        The store of the table is read at most every `_EVERY_SECONDS`.
        """
        with self._lock:
            if self._state is None or self._store is None:
                return []
            is_due = time.monotonic() >= self._stored_until
            if is_due:
                self._stored_until = time.monotonic() + _EVERY_SECONDS
        if is_due:  # without the lock, so that other threads do not wait for a store that does not answer
            self._stored = stored_reports(self._store, self._parts)
        return read_parts(self._state, self._parts, self._stored)

    def _start(self, meters: dict[str, LagMeter]) -> None:
        from weft.streams import kafka

        pipeline = load_pipeline(self._pipeline)
        self._store = open_store(pipeline.table.uri, pipeline.table.storage_options)
        self._parts, self._state = [job.name for job in make_jobs(pipeline)], pipeline.state
        writers = pipeline.writers.values()
        self.triggers = {writer.lane: writer.trigger_seconds for writer in writers}
        self.streams = {writer.lane: writer.stream for writer in writers}
        for writer in writers:
            if writer.reader_format == kafka.FORMAT:
                options = parse_options(writer.reader_options, default_starting="latest")
                meter = self._running.enter_context(LagMeter(options, every_seconds=_EVERY_SECONDS))
                meters[writer.lane] = meter
                if options.starting == "earliest":
                    self._unread[writer.lane] = meter

    def close(self) -> None:
        """End the measurement."""
        self._running.close()
