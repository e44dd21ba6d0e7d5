"""A shop with four live writers, for the browser: two hours of history, then batches twice a second.

Orders come with payments, shipments and clicks. There is what people look for on the page: payments that are missing or
late, corrections, a savepoint, dead letters, topics with messages that wait, and promises of completeness.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from tests.faulty_store import FakeClock
from tests.streams.letters.rig import SOURCE_TYPE
from tests.streams.ui.site import make_site
from weft import Table
from weft.storage.store.open_store import open_store
from weft.storage.write.write_task import WriteTicket
from weft.streams.demo.embedded_broker import EmbeddedBroker
from weft.streams.letters.letter_files import default_folder
from weft.streams.ui.site import Site
from weft.streams.ui.source_lag import SourceLag
from weft.streams.write.dead_letter import SOURCE, DeadLetters
from weft.streams.write.sink_task import write_task

STREAMS = ("orders", "payments", "shipments", "clicks")
CONFIG: dict[str, Any] = {
    "key": ["order_id"],
    "buckets": 64,
    "comment": "Orders with their payments, shipments and clicks",
    "columns": {
        "order_id": "bigint",
        "status": "string",
        "customer": "string",
        "amount": {"type": "double", "comment": "in EUR"},
        "order_ts": "timestamp",
        "paid": "double",
        "method": "string",
        "pay_ts": "timestamp",
        "carrier": "string",
        "shipped_ts": "timestamp",
        "clicks": "bigint",
        "last_page": "string",
        "click_ts": "timestamp",
    },
    "groups": {
        "order": {"columns": ["status", "customer", "amount", "order_ts"], "ordering": ["order_ts"]},
        "payment": {"columns": ["paid", "method", "pay_ts"], "ordering": ["pay_ts"]},
        "shipment": {"columns": ["carrier", "shipped_ts"], "ordering": ["shipped_ts"]},
        "click": {
            "columns": ["clicks", "last_page", "click_ts"],
            "ordering": ["click_ts"],
            "merge": "aggregate",
            "functions": {"clicks": "sum", "last_page": "last"},
        },
    },
    "streams": {
        "orders": {"groups": ["order"], "on_delete": "row"},
        "payments": {"groups": ["payment"]},
        "shipments": {"groups": ["shipment"]},
        "clicks": {"groups": ["click"], "on_delete": "ignore"},
    },
}
LATENESS = {name: dt.timedelta(minutes=minutes) for name, minutes in zip(STREAMS, (1, 5, 30, 2), strict=True)}
_LONG_STEPS, _SHORT_STEPS = 100, 150
_LONG_MS, _SHORT_MS = 60_000, 6_000
_STEPS = _LONG_STEPS + _SHORT_STEPS
_CUSTOMERS = ("Ann", "Bob", "Cem", "Dana", "Eve", "Finn", "Gül", "Hugo")
_PAGES = ("/cart", "/search", "/item/17", "/checkout", "/help")


class Traffic:
    """Batches of the four streams; the same for the same seed and times."""

    def __init__(self) -> None:
        self._random = random.Random(7)
        self.orders = 1_000

    def batch(self, stream: str, at_ms: int) -> pa.Table:
        """What a stream sends at a time."""
        pick = self._random
        if stream == "orders":
            self.orders += 6
            rows = [self._order(number, at_ms) for number in range(self.orders - 6, self.orders)]
            rows.append({**self._order(pick.randrange(1_000, self.orders), at_ms), "status": "changed"})
        elif stream == "payments":
            rows = [
                {
                    "order_id": self._some_order(),
                    "paid": round(pick.uniform(5, 200), 2),
                    "method": pick.choice(("card", "invoice", "paypal")),
                    "pay_ts": _moment(at_ms - pick.choice((1_000, 9_000, 240_000))),
                }
                for _ in range(4)
            ]
        elif stream == "shipments":
            carrier = ("DHL", "UPS", "Post")
            rows = [
                {"order_id": self._some_order(), "carrier": pick.choice(carrier), "shipped_ts": _moment(at_ms - 60_000)}
                for _ in range(2)
            ]
        else:
            rows = [
                {
                    "order_id": self._some_order(),
                    "clicks": 1,
                    "last_page": pick.choice(_PAGES),
                    "click_ts": _moment(at_ms - pick.randrange(60_000)),
                }
                for _ in range(12)
            ]
        return pa.Table.from_pylist(rows)

    def _some_order(self) -> int:
        return self._random.randrange(max(1_000, self.orders - 300), self.orders)

    def _order(self, number: int, at_ms: int) -> dict[str, Any]:
        pick = self._random
        return {
            "order_id": number,
            "status": pick.choice(("new", "new", "packed")),
            "customer": pick.choice(_CUSTOMERS),
            "amount": round(pick.uniform(5, 200), 2),
            "order_ts": _moment(at_ms - pick.randrange(20_000)),
        }


def _moment(at_ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC)


def history(uri: str, traffic: Traffic) -> Table:
    """A table with two hours of commits, compactions, folds, a savepoint and a mark."""
    now_ms = int(time.time() * 1000)
    clock = FakeClock(now_ms - _ago_ms(-1))
    table = Table.create(uri, CONFIG, clock=clock)
    with contextlib.ExitStack() as stack:
        writers = {
            name: stack.enter_context(table.writer(name, query_id=name, lateness=LATENESS[name])) for name in STREAMS
        }
        for step in range(_STEPS):
            # What services do with a clock that sleeps moves it, too: the steps are at their own times.
            clock.time_ms = max(clock.time_ms, now_ms - _ago_ms(step))
            for name, writer in writers.items():
                if name != "shipments" or step % 3 == 0:
                    number = 0 if (last := writer.last_batch(name)) is None else last + 1
                    batch = traffic.batch(name, clock.time_ms)
                    writer.append(batch, batch=(name, number), source=_source(name, number))
            if step % 16 == 10 and step < _LONG_STEPS:
                table.fold()
            if step in {40, 90, 180}:
                _compact(table, clock)
            if step == 60:
                table.savepoint("before-sale")
            if step == 100:
                table.mark()
    return table


def _ago_ms(step: int) -> int:
    """How long ago a step of the history was: long steps first, then short ones."""
    short = min(_SHORT_STEPS, _STEPS - step)
    return short * _SHORT_MS + (_STEPS - step - short) * _LONG_MS


def _compact(table: Table, clock: FakeClock) -> None:
    """A compaction that takes a while."""

    def execute(works: Any) -> Any:
        for work in works:
            clock.time_ms += 20_000
            yield work.run()

    table.compact(execute=execute)


def _source(stream: str, step: int) -> dict[str, Any]:
    return {"offsets": [{stream: {"0": step * 5}}]}


def bury(uri: str, number: int) -> None:
    """A batch of orders of which some messages cannot be stored."""
    table = Table.open(uri)
    reasons = ("amount: 'twelve' is not a double", "the message is not JSON", "order_id: is missing")
    values = (
        b'{"order_id": 77, "amount": "twelve", "status": "new"}',
        b'{"order_id": 78, "amount": 12.5, "sta',
        b'{"amount": 3.5, "status": "packed", "customer": "Ann"}',
    )
    with table.writer("orders", query_id="orders", takeover=True) as writer:
        last = writer.last_batch("orders") or 0
        ticket = writer.begin(("orders", last + 1))
        assert isinstance(ticket, WriteTicket)
        letters = DeadLetters(open_store(default_folder(uri, "orders")), "orders", last + 1, "orders", "orders")
        rows = [
            {
                "order_id": 500 + place,
                "status": None,
                "customer": None,
                "amount": None,
                "order_ts": None,
                SOURCE: {
                    "topic": "orders",
                    "partition": 0,
                    "offset": 790 + place,
                    "timestamp": int(time.time() * 1000) - 60_000,
                    "key": str(500 + place).encode(),
                    "value": values[place % 3],
                    "reason": reasons[place % 3],
                },
            }
            for place in range(number)
        ]
        columns = [
            pa.field("order_id", pa.int64()),
            pa.field("status", pa.string()),
            pa.field("customer", pa.string()),
            pa.field("amount", pa.float64()),
            pa.field("order_ts", pa.timestamp("us", "UTC")),
            pa.field(SOURCE, SOURCE_TYPE),
        ]
        report = write_task(ticket, letters, 0, [pa.RecordBatch.from_pylist(rows, schema=pa.schema(columns))])
        assert report.refused is None
        letters.discard_others({0})
        writer.commit(ticket, [report.written], source=_source("orders", _STEPS - 12))


def write_live(table: Table, stream: str, traffic: Traffic, stop: threading.Event) -> None:
    """A writer that appends until it is told to stop."""
    with table.writer(stream, query_id=stream, takeover=True, lateness=LATENESS[stream]) as writer:
        step = (writer.last_batch(stream) or 0) + 1
        while not stop.is_set():
            writer.append(
                traffic.batch(stream, int(time.time() * 1000)), batch=(stream, step), source=_source(stream, step)
            )
            step += 1
            stop.wait(0.5)


def pipeline_file(folder: Path, brokers: str) -> Path:
    """The pipeline file of the shop."""
    messages = {
        "orders": {"order_id": "bigint", "status": "string", "customer": "string", "amount": "double"},
        "payments": {"order_id": "bigint", "paid": "double", "method": "string"},
        "shipments": {"order_id": "bigint", "carrier": "string"},
        "clicks": {"order_id": "bigint", "clicks": "bigint", "last_page": "string"},
    }
    times = {"orders": "order_ts", "payments": "pay_ts", "shipments": "shipped_ts", "clicks": "click_ts"}
    whole = {
        "table": {"uri": "./orders_wide"},
        "kafka": {"bootstrap.servers": brokers},
        "writers": {
            name: {"source": {"type": "kafka", "topic": name}, "schema": {**messages[name], times[name]: "timestamp"}}
            for name in STREAMS
        },
    }
    path = folder / "shop.yaml"
    path.write_text(yaml.safe_dump(whole, sort_keys=False), encoding="utf-8")
    return path


@contextlib.contextmanager
def busy_shop(folder: Path, *, write: bool = False) -> Iterator[Site]:
    """The page over the shop while four writers write.

    Args:
        folder: An empty folder.
        write: Whether the page may replay.
    """
    uri, traffic, stop = str(folder / "orders_wide"), Traffic(), threading.Event()
    history(uri, traffic)
    bury(uri, 7)
    with EmbeddedBroker() as broker:
        broker.create_topics(dict.fromkeys(STREAMS, 1))
        producer = broker.producer()
        for name in STREAMS:
            for number in range(1_000):
                producer.produce(name, json.dumps({"order_id": number}).encode(), partition=0)
        producer.flush()
        pipeline = pipeline_file(folder, broker.bootstrap_servers)
        site = make_site(uri, pipeline=pipeline, write=write)
        site.lag = SourceLag(str(pipeline))
        writers = [
            threading.Thread(target=write_live, args=(Table.open(uri), name, traffic, stop))
            for name in STREAMS
            if name != "shipments"
        ]
        for writer in writers:
            writer.start()
        try:
            yield site
        finally:
            stop.set()
            for writer in writers:
                writer.join()
            site.lag.close()
