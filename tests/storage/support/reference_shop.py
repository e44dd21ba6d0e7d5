"""A table of orders that refers to customers and products, in one folder."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from weft import Table

CUSTOMERS: dict[str, Any] = {
    "key": ["id"],
    "columns": {
        "id": "bigint",
        "name": "string",
        "crm_ts": "bigint",
        "tier": {"type": "string", "default": "none"},
        "tier_ts": "bigint",
    },
    "groups": {
        "crm": {"columns": ["name", "crm_ts"], "ordering": ["crm_ts"]},
        "loyalty": {"columns": ["tier", "tier_ts"], "ordering": ["tier_ts"]},
    },
    "streams": {"crm": {"groups": ["crm"], "on_delete": "row"}, "loyalty": {"groups": ["loyalty"]}},
}
PRODUCTS: dict[str, Any] = {
    "key": ["shop", "sku"],
    "columns": {"shop": "int", "sku": "string", "title": "string"},
    "groups": {"product": {"columns": ["title"]}},
    "streams": {"products": {"groups": ["product"]}},
}
ORDERS: dict[str, Any] = {
    "key": ["order_id"],
    "columns": {
        "order_id": "bigint",
        "customer_id": "bigint",
        "shop": "int",
        "sku": "string",
        "ts": "bigint",
        "paid": "double",
        "pay_ts": "bigint",
    },
    "groups": {
        "order": {"columns": ["customer_id", "shop", "sku", "ts"], "ordering": ["ts"]},
        "payment": {"columns": ["paid", "pay_ts"], "ordering": ["pay_ts"]},
    },
    "streams": {"orders": {"groups": ["order"]}, "payments": {"groups": ["payment"]}},
}
CUSTOMER = {"table": "../customers", "on": "customer_id", "columns": ["name", "tier"]}


class Shop:
    """Three tables in one folder."""

    def __init__(self, folder: Path, references: Mapping[str, Any]) -> None:
        self.folder = folder
        self.customers = Table.create(folder / "customers", CUSTOMERS)
        self.products = Table.create(folder / "products", PRODUCTS)
        self.orders = Table.create(folder / "orders", {**ORDERS, "references": references})

    def customer(self, key: int, name: str | None, ts: int = 1, op: str = "upsert") -> None:
        write(self.customers, "crm", id=[key], name=[name], crm_ts=[ts], _op=[op])

    def order(self, key: int, customer: int | None, ts: int = 1) -> None:
        write(
            self.orders,
            "orders",
            order_id=[key],
            customer_id=pa.array([customer], pa.int64()),
            **no_product(1),
            ts=[ts],
        )

    def rows(self, *columns: str, as_of: dt.datetime | str | None = None, **options: Any) -> list[Any]:
        """Rows as tuples, by order."""
        found = self.orders.snapshot(as_of).to_arrow(["order_id", *columns], **options).sort_by("order_id")
        return [tuple(row.values()) for row in found.to_pylist()]


def no_product(rows: int) -> dict[str, pa.Array]:
    return {"shop": pa.nulls(rows, pa.int32()), "sku": pa.nulls(rows, pa.string())}


def write(table: Table, stream: str, **columns: Any) -> None:
    with table.writer(stream) as writer:
        writer.append(pa.table(columns))
