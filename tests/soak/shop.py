"""The pipeline of the soak with two or three writers, its messages, and the rows that an oracle computes.

Pure functions. Messages are out of order, late and duplicated; different messages of a key never share an ordering
value, so the result does not depend on their order. Clicks are summed: a message that is lost or stored twice changes
the sum, whereas newest-wins columns would hide it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from tests.oracle import Oracle
from tests.soak.published import NAME, WAREHOUSE
from weft.streams.spark.settings import QUICK_START, SERIAL

STREAMS: Final = ("orders", "clicks", "profiles")
"""Names of the streams, their topics, lanes and jobs; a soak with fewer writers uses the first ones."""
PARTITIONS: Final = 2
KEYS: Final = 400  # initial number; few, so that every key has many messages

CONFIG: Final[Mapping[str, Any]] = {
    "key": ["id"],
    "buckets": 4,
    "columns": {
        "id": "bigint",
        "status": "string",
        "amount": "bigint",
        "order_seq": "bigint",
        "hits": "bigint",
        "visits": "bigint",
        "click_seq": "bigint",
        "city": "string",
        "note": "string",
        "profile_seq": "bigint",
    },
    "groups": {
        "order": {"columns": ["status", "amount", "order_seq"], "ordering": ["order_seq"]},
        "click": {
            "columns": ["hits", "visits", "click_seq"],
            "ordering": ["click_seq"],
            "merge": "aggregate",
            "functions": {"hits": "sum", "visits": "count"},
        },
        "profile": {
            "columns": ["city", "note", "profile_seq"],
            "ordering": ["profile_seq"],
            "merge": "latest_non_null",
        },
    },
    "streams": {
        "orders": {"groups": ["order"], "on_delete": "row"},
        "clicks": {"groups": ["click"]},
        "profiles": {"groups": ["profile"]},
    },
}
COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    "orders": {"status": "string", "amount": "bigint", "order_seq": "bigint"},
    "clicks": {"hits": "bigint", "visits": "bigint", "click_seq": "bigint"},
    "profiles": {"city": "string", "note": "string", "profile_seq": "bigint"},
}

DELETE_SHARE: Final = 0.05
DOUBLE_SHARE: Final = 0.02
LATE_SHARE: Final = 0.03
LATE_MESSAGES: Final = 2_000  # a late message is held back for up to this many others
WINDOW: Final = 50  # number of messages within which the order is shuffled


def write_pipeline(folder: Path, bootstrap_servers: str, streams: Sequence[str]) -> Path:
    """Write the pipeline file; returns its path. Commits, compactions, folds and cleans are frequent."""
    writers = {
        name: {
            "source": {"type": "kafka", "topic": name, "starting_offsets": "earliest", "max_offsets_per_trigger": 2000},
            "schema": {"op": "string", "id": "bigint", **COLUMNS[name]},
            "select": {"_op": "op", "id": "id", **{column: column for column in COLUMNS[name]}},
            "trigger": "500 ms",
            "resume": "table",
        }
        for name in streams
    }
    pipeline = {
        "table": {"uri": "./table", "config": json.loads(json.dumps(CONFIG))},
        "kafka": {"bootstrap.servers": bootstrap_servers},
        "spark": {"spark.driver.extraJavaOptions": f"{SERIAL} {QUICK_START}", "spark.driver.memory": "512m"},
        "writers": writers,
        "compaction": {"every": "1 second", "min_commits": 6, "fold_commits": 4},
        "publish": {
            "every": "1 second",
            "delta": True,
            "iceberg": {"table": NAME, "properties": {"type": "folder", "warehouse": f"./{WAREHOUSE}"}},
        },
        "clean": {"every": "2 seconds", "retain": "10 seconds", "abandon_after": "20 seconds"},
    }
    path = folder / "pipeline.yaml"
    path.write_text(yaml.safe_dump(pipeline, sort_keys=False), encoding="utf-8")
    return path


@dataclass
class Events:
    """The messages of one topic: generates and delivers them.

    Attributes:
        delivered: The delivered messages, in order.
    """

    stream: str
    rng: random.Random
    delivered: list[dict[str, Any]] = field(default_factory=list)
    _made: int = 0
    _window: list[dict[str, Any]] = field(default_factory=list)
    _held: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    def take(self, count: int) -> list[dict[str, Any]]:
        """Generate about ``count`` more messages."""
        start = len(self.delivered)
        while len(self.delivered) - start < count:
            self._make()
            if len(self._window) >= WINDOW:
                self._deliver(self._window.pop(self.rng.randrange(len(self._window))))
            due = [event for place, event in self._held if place <= self._made]
            self._held = [(place, event) for place, event in self._held if place > self._made]
            for event in due:
                self._deliver(event)
        return self.delivered[start:]

    def rest(self) -> list[dict[str, Any]]:
        """Generated messages that were not delivered yet."""
        start = len(self.delivered)
        for event in [*self._window, *(event for _, event in self._held)]:
            self._deliver(event)
        self._window, self._held = [], []
        return self.delivered[start:]

    def _make(self) -> None:
        self._made += 1
        event = self._event(self._made)
        if self.rng.random() < LATE_SHARE:
            self._held.append((self._made + self.rng.randrange(LATE_MESSAGES), event))
        else:
            self._window.append(event)
        if self.rng.random() < DOUBLE_SHARE:
            self._held.append((self._made + self.rng.randrange(LATE_MESSAGES), event))

    def _event(self, seq: int) -> dict[str, Any]:
        rng = self.rng
        key = rng.randrange(KEYS + seq // 20)  # the table grows
        event: dict[str, Any] = {"op": "d" if rng.random() < DELETE_SHARE else "u", "id": key}
        match self.stream:
            case "orders":
                return {**event, "status": rng.choice(["new", "paid", None]), "amount": seq % 997, "order_seq": seq}
            case "clicks":
                return {**event, "hits": rng.randrange(100), "visits": rng.choice([1, None]), "click_seq": seq}
        values = {"city": rng.choice(["Köln", None]), "note": rng.choice([f"n{seq}", None])}
        return {**event, **values, "profile_seq": seq}

    def _deliver(self, event: dict[str, Any]) -> None:
        self.delivered.append(event)


def expected(events: Mapping[str, Events]) -> list[dict[str, Any]]:
    """Rows of the table that holds every delivered message once, by key."""
    oracle = Oracle(CONFIG)
    for arrival, (stream, stream_events) in enumerate(events.items()):
        rows = [
            {("_op" if name == "op" else name): value for name, value in event.items()}
            for event in stream_events.delivered
        ]
        oracle.append(stream, rows, arrival)
    return [row for _, row in sorted(oracle.read().items())]
