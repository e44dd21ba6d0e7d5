"""The pipeline file of the demo.

It is text, because users read it: ``weft demo --keep DIR`` leaves it in the folder, and all commands accept it. The
four topics have four conventions for deletes, times and money (`streams.demo.messages`); an SQL expression in the file
handles each.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from streams.spark.settings import QUICK_START

TABLE: Final = "orders_wide"
CUSTOMERS: Final = "customers"
"""The table that the wide table refers to; also the name of its stream, its lane and its topic."""
PIPELINE_FILE: Final = "pipeline.yaml"
CUSTOMERS_CONFIG: Final[Mapping[str, Any]] = {
    "key": ["id"],
    "buckets": 1,
    "columns": {
        "id": "bigint",
        "name": "string",
        "tier": "string",
        "credit": "decimal(12,2)",
        "changed_at": "timestamp",
        "version": "bigint",
    },
    "groups": {
        "customer": {
            "columns": ["name", "tier", "credit", "changed_at", "version"],
            "ordering": ["changed_at", "version"],
        }
    },
    "streams": {CUSTOMERS: {"groups": ["customer"], "on_delete": "row"}},
}

STREAMS: Final = ("orders", "payments", "shipments", "clicks")
"""Names of the streams, which are also the names of their topics and lanes."""

_PIPELINE: Final = """\
# One wide table from four topics, each written by its own process.
table:
  uri: ./orders_wide
  config:
    key: [order_id]
    buckets: {buckets}
    columns:
      order_id: bigint
      customer_id: bigint
      order_status: string
      country: string
      currency: string
      amount: decimal(12,2)
      skus: array<string>
      gift: boolean
      ordered_on: date
      order_at: timestamp
      order_lsn: bigint
      pay_event: string
      pay_method: string
      paid: decimal(12,2)
      pay_fee: double
      paid_at: timestamp
      pay_no: bigint
      carrier: string
      tracking: string
      address: struct<city:string,zip:string>
      weight_kg: double
      delivered: boolean
      promised_on: date
      shipped_at: timestamp
      ship_rev: int
      page_views: {{type: bigint, default: 0}}
      seconds_on_site: double
      last_page: string
      devices: array<string>
      bounced: boolean
      clicked_at: timestamp
      click_no: bigint
    groups:
      order:
        columns: [customer_id, order_status, country, currency, amount, skus, gift, ordered_on, order_at, order_lsn]
        ordering: [order_at, order_lsn]
      payment:
        columns: [pay_event, pay_method, paid, pay_fee, paid_at, pay_no]
        ordering: [paid_at, pay_no]
      shipment:
        columns: [carrier, tracking, address, weight_kg, delivered, promised_on, shipped_at, ship_rev]
        ordering: [shipped_at, ship_rev]
      click:
        columns: [page_views, seconds_on_site, last_page, devices, bounced, clicked_at, click_no]
        ordering: [clicked_at, click_no]
    streams:
      orders: {{groups: [order], on_delete: row}}           # a deleted order hides the row
      payments: {{groups: [payment], on_delete: group}}     # a voided payment deletes only the columns of its group
      shipments: {{groups: [shipment], on_delete: group}}
      clicks: {{groups: [click], on_delete: ignore}}
{references}kafka:
  bootstrap.servers: "{bootstrap_servers}"
spark:                              # for writers that run for a minute; leave this out for those that run for days
  spark.driver.extraJavaOptions: "{java_options}"
writers:
  orders:                                                 # change events in the format of Debezium
    source: {{type: kafka, topic: orders, format: json, starting_offsets: earliest}}
    schema:
      op: string
      ts_ms: bigint
      source: struct<lsn:bigint>
      before: struct<order_id:bigint>
      after: >-
        struct<order_id:bigint,customer_id:bigint,status:string,country:string,currency:string,amount:decimal(12,2),
        skus:array<string>,gift:boolean,ordered_on:date>
    select:
      _op: op
      order_id: coalesce(after.order_id, before.order_id)
      customer_id: after.customer_id
      order_status: after.status
      country: after.country
      currency: after.currency
      amount: after.amount
      skus: after.skus
      gift: after.gift
      ordered_on: after.ordered_on
      order_at: timestamp_millis(ts_ms)
      order_lsn: source.lsn
    trigger: {trigger}
    dead_letter: ./dead_letters/orders
  payments:
    source: {{type: kafka, topic: payments, format: json, starting_offsets: earliest}}
    schema:
      order: bigint
      event: string
      "no": bigint
      at: timestamp
      method: string
      amount: decimal(12,2)
      fee: double
    select:
      _op: CASE WHEN event = 'voided' THEN 'delete' END     # no operation means upsert
      order_id: "`order`"
      pay_event: event
      pay_method: method
      paid: amount
      pay_fee: fee
      paid_at: at
      pay_no: "`no`"
    trigger: {trigger}
    dead_letter: ./dead_letters/payments
  shipments:
    source: {{type: kafka, topic: shipments, format: json, starting_offsets: earliest}}
    schema:
      order_id: bigint
      rev: int
      event_at: timestamp
      cancelled: boolean
      carrier: string
      tracking: string
      address: struct<city:string,zip:string>
      weight_kg: double
      delivered: boolean
      promised: date
    select:
      _op: if(cancelled, 'D', 'U')
      order_id: order_id
      carrier: carrier
      tracking: tracking
      address: address
      weight_kg: weight_kg
      delivered: delivered
      promised_on: promised
      shipped_at: event_at
      ship_rev: rev
    trigger: {trigger}
    dead_letter: ./dead_letters/shipments
  clicks:
    source: {{type: kafka, topic: clicks, format: json, starting_offsets: earliest}}
    schema:
      order_id: bigint
      n: bigint
      us: bigint
      expired: boolean
      views: bigint
      seconds: double
      page: string
      devices: array<string>
      bounce: boolean
    select:
      _op: if(expired, 'delete', 'upsert')
      order_id: order_id
      page_views: views
      seconds_on_site: seconds
      last_page: page
      devices: devices
      bounced: bounce
      clicked_at: timestamp_micros(us)
      click_no: n
    trigger: {trigger}
    dead_letter: ./dead_letters/clicks
compaction: {{every: {compact_every}, min_commits: 8, max_log_ratio: 0.5}}
"""

_REFERENCES: Final = """\
    references:                                             # customer_name, ... are those of today: no copy, no rewrite
      customer: {table: ../customers, on: customer_id, columns: [name, tier, credit]}
"""


def write_pipeline(
    folder: Path,
    bootstrap_servers: str,
    *,
    buckets: int = 4,
    trigger: str = "2 seconds",
    compact_every: str = "5 seconds",
    java_options: str = QUICK_START,
    customers: bool = False,
) -> Path:
    """Write the pipeline file of a demo whose files are all in ``folder``; returns its path.

    With ``customers`` the orders refer to the table `CUSTOMERS` beside the wide table, which has to exist.
    """
    path = folder / PIPELINE_FILE
    path.write_text(
        _PIPELINE.format(
            bootstrap_servers=bootstrap_servers,
            buckets=buckets,
            trigger=trigger,
            compact_every=compact_every,
            java_options=java_options,
            references=_REFERENCES if customers else "",
        ),
        encoding="utf-8",
    )
    return path
