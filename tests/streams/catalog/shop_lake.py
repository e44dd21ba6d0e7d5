"""The tables that the SQL scripts use: the same in every run, except for times and random names."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa

from weft import Table

ORDERS = {
    "comment": "orders and payments",
    "key": ["order_id"],
    "buckets": 2,
    "columns": {
        "order_id": "bigint",
        "status": {"type": "string", "default": "unknown"},
        "order_ts": "bigint",
        "paid": {"type": "double", "comment": "in EUR"},
        "pay_ts": "bigint",
    },
    "groups": {
        "order": {"columns": ["status", "order_ts"], "ordering": ["order_ts"]},
        "payment": {"columns": ["paid", "pay_ts"], "ordering": ["pay_ts"], "merge": "latest_non_null"},
    },
    "streams": {"orders": {"groups": ["order"], "on_delete": "row"}, "payments": {"groups": ["payment"]}},
}
CUSTOMERS = {
    "key": ["id"],
    "columns": {"id": "bigint", "name": "string"},
    "groups": {"g": {"columns": ["name"]}},
    "streams": {"crm": {"groups": ["g"]}},
}
WITH_CUSTOMERS = {
    "key": ["order_id"],
    "columns": {"order_id": "bigint", "customer_id": "bigint"},
    "groups": {"g": {"columns": ["customer_id"]}},
    "streams": {"s": {"groups": ["g"]}},
    "references": {"customer": {"table": "../customers", "on": "customer_id", "columns": ["name"]}},
}
SMALL = {
    "key": ["id"],
    "columns": {"id": "bigint", "a": "string"},
    "groups": {"g": {"columns": ["a"]}},
    "streams": {"s": {"groups": ["g"]}},
}


def make_shop(root: Path) -> Table:
    """Create the tables below ``root``; returns `shop.orders_wide`."""
    shop = root / "shop"
    table = Table.create(shop / "orders_wide", ORDERS)
    with table.writer("orders") as orders, table.writer("payments") as payments:
        orders.append(pa.table({"order_id": [1, 2, 3], "status": ["new"] * 3, "order_ts": [10, 11, 12]}))
        table.savepoint("first", note="orders only")
        table.compact()
        payments.append(pa.table({"order_id": [1, 2], "paid": [9.5, 1.0], "pay_ts": [12, 13]}))
        orders.append(pa.table({"order_id": [1, 4], "status": ["sent", "sent"], "order_ts": [20, 21]}))
    customers = Table.create(shop / "customers", CUSTOMERS)
    with customers.writer("crm") as crm:
        crm.append(pa.table({"id": [7, 8], "name": ["Ann", "Bob"]}))
        with_customers = Table.create(shop / "orders_with_customers", WITH_CUSTOMERS)
        with with_customers.writer("s") as writer:
            writer.append(pa.table({"order_id": [1, 2, 3], "customer_id": [7, 9, 8]}))
        with_customers.savepoint("before_rename")
        crm.append(pa.table({"id": [7], "name": ["Anna"]}))
    nested = Table.create(shop / "eu" / "2024-orders", SMALL)
    expired = Table.create(shop / "expired", SMALL)
    for each in (nested, expired):
        with each.writer("s") as writer:
            writer.append(pa.table({"id": [1], "a": ["x"]}))
        each.compact()
    expired.clean(dt.timedelta(0))
    return table
