"""Traces of batches for OpenTelemetry, if its SDK is installed and its environment variables enable it.

    weft.batch                 from the call of the sink to the commit
        weft.tasks             the Spark job
            weft.task          one for each task; its attributes say how long it read and decoded, and how long it wrote
        weft.commit            the log entry that makes the batch visible

Spark reads and decodes in one pass, and the sink writes while rows arrive. So reading and decoding cannot be measured
separately, and they alternate with writing: their times are attributes, not spans. Spans are created after the commit,
so a batch that fails has no trace.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Final, TypeVar

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
DISABLED: Final = "OTEL_SDK_DISABLED"
_SDK: Final = "opentelemetry.sdk.trace"
FLUSH_SECONDS: Final = 5.0
_SECOND_NS: Final = 1_000_000_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TaskTimes:
    """Times of one task.

    Attributes:
        started_ns: Wall clock of its machine at the start, in Unix nanoseconds.
        seconds: Its duration.
        read_seconds: Time that it waited for rows, while Spark read and decoded them.
    """

    started_ns: int
    seconds: float
    read_seconds: float


class TaskClock:
    """Measures the times of one task."""

    def __init__(self) -> None:
        """Start now."""
        self._started_ns, self._began, self._read = time.time_ns(), time.perf_counter(), 0.0

    def time_reading(self, rows: Iterable[T]) -> Iterator[T]:
        """Yield the same rows, and count the time until each of them arrives as reading."""
        iterator = iter(rows)
        while True:
            began = time.perf_counter()
            try:
                row = next(iterator)
            except StopIteration:
                return
            finally:
                self._read += time.perf_counter() - began
            yield row

    @property
    def times(self) -> TaskTimes:
        """The times from the start until now."""
        return TaskTimes(self._started_ns, time.perf_counter() - self._began, self._read)


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """Times of one batch, in Unix nanoseconds.

    Attributes:
        began, tasks_began, tasks_ended, ended: Ascending; the commit is between the last two.
        tasks: Times of the tasks.
        attributes: Attributes of the span: stream, lane, number, rows.
    """

    began: int
    tasks_began: int
    tasks_ended: int
    ended: int
    tasks: Sequence[TaskTimes] = ()
    attributes: Mapping[str, str | int] = field(default_factory=dict)


Record = Callable[[BatchTimes], None]


def batch_recorder(environment: Mapping[str, str] = os.environ) -> Record | None:
    """Return a function that records the spans of a batch; None without the SDK, or if nothing would receive spans.

    If the process has set a tracer provider, that one is used. Otherwise a provider is created if the environment names
    an endpoint (``OTEL_EXPORTER_OTLP_ENDPOINT``). Other variables of the SDK apply, too, such as ``OTEL_SERVICE_NAME``.
    """
    endpoint = any(environment.get(name) for name in ENDPOINTS)
    if not (endpoint or _SDK in sys.modules):  # do not import the SDK needlessly
        return None
    if environment.get(DISABLED, "").lower() == "true" or find_spec("opentelemetry") is None:
        return None
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
    except ModuleNotFoundError:  # the API is installed without the SDK
        return None
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        if not endpoint:
            return None
        provider = _exporting()
        trace.set_tracer_provider(provider)
    tracer = provider.get_tracer("weft")

    def record(times: BatchTimes) -> None:
        with contextlib.suppress(Exception):  # a batch that is committed must not fail because of its trace
            record_batch(tracer, times)

    return record


def flush_traces() -> None:
    """Send pending spans, for at most `FLUSH_SECONDS`. Processes that end without running `atexit` need this."""
    if _SDK not in sys.modules:
        return
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        provider.force_flush(round(FLUSH_SECONDS * 1000))


def _exporting() -> Any:
    """Create a provider that sends spans in the background."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def record_batch(tracer: Any, times: BatchTimes) -> None:
    """Create the spans of a batch.

    Args:
        tracer: A tracer of OpenTelemetry.
        times: Times of the batch.
    """
    from opentelemetry.trace import set_span_in_context

    attributes = {f"weft.{name}": value for name, value in times.attributes.items()}
    batch = tracer.start_span("weft.batch", start_time=times.began, attributes=attributes)
    inside = set_span_in_context(batch)
    tasks = tracer.start_span("weft.tasks", inside, start_time=times.tasks_began)
    for task in times.tasks:
        durations = {
            "weft.read_and_decode_seconds": task.read_seconds,
            "weft.write_seconds": task.seconds - task.read_seconds,
        }
        span = tracer.start_span(
            "weft.task", set_span_in_context(tasks), start_time=task.started_ns, attributes=durations
        )
        span.end(task.started_ns + round(task.seconds * _SECOND_NS))
    tasks.end(times.tasks_ended)
    tracer.start_span("weft.commit", inside, start_time=times.tasks_ended).end(times.ended)
    batch.end(times.ended)
