"""Traces of batches: spans and their times, and a collector that gets them from a writer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.streams.kafka.topics import Broker, produce, topic_numbers
from tests.streams.support.pipelines import pipeline_file
from weft.streams.write.batch_trace import BatchTimes, TaskClock, TaskTimes, batch_recorder, record_batch


def test_spans_of_a_batch() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tasks = (TaskTimes(2_100, 3e-7, 1e-7), TaskTimes(2_200, 1e-7, 0.0))
    record_batch(
        provider.get_tracer("test"), BatchTimes(1_000, 2_000, 3_000, 4_000, tasks, {"lane": "orders", "rows": 7})
    )
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert {name: (span.start_time, span.end_time) for name, span in spans.items()} == {
        "weft.batch": (1_000, 4_000),
        "weft.tasks": (2_000, 3_000),
        "weft.task": (2_200, 2_300),
        "weft.commit": (3_000, 4_000),
    }
    first = exporter.get_finished_spans()[0]
    assert (first.start_time, first.end_time) == (2_100, 2_400)
    assert dict(first.attributes or {}) == {"weft.read_and_decode_seconds": 1e-7, "weft.write_seconds": 2e-7}
    assert dict(spans["weft.batch"].attributes or {}) == {"weft.lane": "orders", "weft.rows": 7}
    parents = {name: span.parent.span_id if span.parent else None for name, span in spans.items()}
    ids = {name: span.context.span_id for name, span in spans.items()}
    assert parents == {
        "weft.batch": None,
        "weft.tasks": ids["weft.batch"],
        "weft.task": ids["weft.tasks"],
        "weft.commit": ids["weft.batch"],
    }


def test_waiting_for_rows_counts_as_reading() -> None:
    def slow() -> Iterator[int]:
        for number in range(2):
            time.sleep(0.02)
            yield number

    clock = TaskClock()
    for _ in clock.time_reading(slow()):
        time.sleep(0.01)
    times = clock.times
    assert times.read_seconds >= 0.04
    assert times.seconds - times.read_seconds >= 0.02


def test_without_an_endpoint_nothing_is_recorded() -> None:
    assert batch_recorder({}) is None
    assert batch_recorder({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}) is None


@pytest.fixture
def collector() -> Iterator[tuple[str, Queue[bytes]]]:
    """The endpoint of a collector, and the requests that it gets."""
    received: Queue[bytes] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.put(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()
    server.server_close()


@pytest.mark.extended
@pytest.mark.spark
@pytest.mark.slow
def test_a_writer_sends_its_batches(tmp_path: Path, broker: Broker, collector: tuple[str, Queue[bytes]]) -> None:
    topic = f"trace-{next(topic_numbers)}"
    broker.create_topics({topic: 1})
    produce(broker, topic, [json.dumps({"id": i, "a": "x", "at": 1}) for i in range(3)])
    source = {"type": "kafka", "topic": topic}
    writers = {"sa": {"source": source, "schema": {"id": "bigint", "a": "string", "at": "bigint"}}}
    path = pipeline_file(tmp_path, kafka={"bootstrap.servers": broker.bootstrap_servers}, writers=writers)
    endpoint, received = collector
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_COMPRESSION": "none"}
    command = [sys.executable, "-m", "weft.streams.cli.main", "run", str(path), "--only", "sa", "--once"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    spans = [
        span
        for request in iter(lambda: received.get_nowait() if not received.empty() else None, None)
        for resource in ExportTraceServiceRequest.FromString(request).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    (batch,) = (
        span
        for span in spans
        if span.name == "weft.batch" and any(a.key == "weft.rows" and a.value.int_value == 3 for a in span.attributes)
    )
    inside = {span.name for span in spans if span.trace_id == batch.trace_id}
    assert inside == {"weft.batch", "weft.tasks", "weft.task", "weft.commit"}
