"""The messages of the demo's workload, and what they mean: key, order and delete of each."""

from __future__ import annotations

import json
from typing import Any

from weft.streams.demo.workload import Topic, plan_topics

ROWS = 4_000


def planned(seed: int = 1) -> dict[str, Topic]:
    return plan_topics(ROWS, seed)


def events(topic: Topic) -> list[dict[str, Any]]:
    return [json.loads(value) for value in topic.part(0, 1).values]


def order_key(event: dict[str, Any]) -> int:
    return int((event["after"] or event["before"])["order_id"])


# By topic, functions of a message: its key, its ordering values, and whether it is a delete.
KEY = {"orders": order_key, "payments": lambda e: e["order"]}
ORDERING = {
    "orders": lambda e: (e["ts_ms"], e["source"]["lsn"]),
    "payments": lambda e: (e["at"], e["no"]),
    "shipments": lambda e: (e["event_at"], e["rev"]),
    "clicks": lambda e: (e["us"], e["n"]),
}
DELETES = {
    "orders": lambda e: e["op"] == "d",
    "payments": lambda e: e["event"] == "voided",
    "shipments": lambda e: e["cancelled"],
    "clicks": lambda e: e["expired"],
}


def key_of(topic: str, event: dict[str, Any]) -> int:
    return int(KEY.get(topic, lambda e: e["order_id"])(event))
