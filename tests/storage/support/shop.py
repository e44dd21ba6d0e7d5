"""The small table of most tests by example: two streams, one group each."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from weft import Table
from weft.storage.write.writer import Commit

SHOP: Mapping[str, Any] = {
    "key": ["id"],
    "buckets": 4,
    "columns": {"id": "bigint", "status": "string", "ots": "bigint", "paid": "double", "pts": "bigint"},
    "groups": {
        "order": {"columns": ["status", "ots"], "ordering": ["ots"]},
        "payment": {"columns": ["paid", "pts"], "ordering": ["pts"]},
    },
    "streams": {"orders": {"groups": ["order"], "on_delete": "row"}, "payments": {"groups": ["payment"]}},
}


def new_uri() -> str:
    return f"memory://shop/{uuid.uuid4().hex}"


def orders(*ids: int, status: str = "new", ts: int = 1, op: str | None = None) -> pa.Table:
    rows = {"id": pa.array(ids, pa.int64()), "status": [status] * len(ids), "ots": [ts] * len(ids)}
    return pa.table(rows if op is None else {**rows, "_op": [op] * len(ids)})


def payments(*ids: int, paid: float = 1.0, ts: int = 1) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "paid": [paid] * len(ids), "pts": [ts] * len(ids)})


def append(table: Table, rows: pa.Table, stream: str = "orders", **arguments: Any) -> Commit:
    with table.writer(stream) as writer:
        return writer.append(rows, **arguments)


def fill_with_every_state(table: Table) -> None:
    """Write base, shadow, fold and log files: events, deletes, rows that are hidden and one that comes back."""
    append(table, orders(*range(1000)))
    append(table, payments(*range(0, 1200, 3)), "payments")
    append(table, orders(*range(0, 1000, 10), op="D", ts=2))
    table.compact()
    append(table, orders(*range(500, 600), status="late", ts=3))
    table.fold()
    append(table, orders(*range(590, 640), 1500, 1501, status="later", ts=4))
    append(table, payments(10, 20, 30, paid=7.0, ts=9), "payments")  # hidden: in shadows
    append(table, orders(20, status="back", ts=9))


def contents(table: Table, columns: Sequence[str] | None = None, **arguments: Any) -> list[tuple[Any, ...]]:
    rows = table.snapshot(**arguments).to_arrow(columns).to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=repr)


def statuses(table: Table, **arguments: Any) -> dict[int, str]:
    return dict(contents(table, ["id", "status"], **arguments))
