"""What columns of a referenced table cost a read, and how soon an update of it is visible; from one run.

    python -m tests.benchmarks.dimensions [--keys 2000000] [--customers 200000] [--changed 0.01] [--rounds 7]

Orders have 63 columns, 10 % of them updated in the log; customers have 20 columns, a share of them updated in the log.
*SQL*: an aggregate over 7 columns of the orders, and the same with 2 columns of the customers: through the view that
joins them, once while nothing changes and once right after a commit of customers (which the time includes); through a
view without references (a snapshot before they were added); and through two views that the query joins. *2 more of
its own* is the same aggregate over 2 more columns of the orders: what the additional columns cost without any join.
*patched* replaces these by values of a broadcast of as many rows as there are changed customers: what base files with
copies of the referenced columns would cost at best. Then the same with both tables compacted. *Arrow*: `to_arrow` of
the same columns. *Update*: 1,000 customers, from the append until one of their orders, read by key, shows it. Medians
of rounds in which all ways take turns; the ratios matter, the seconds depend on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

import weft
from tests.benchmarks.snapshot import QUERY
from tests.benchmarks.spark_session import session
from tests.benchmarks.wide_table import GROUPS, Shape, batches
from weft import Table

COLUMNS = ["k", "a0", "a1", "b0", "b1", "c0", "c1"]
OF_CUSTOMER = ["customer_name", "customer_credit"]
JOINED = ", sum(customer_credit) credit, max(customer_name) name FROM"
OWN = ", sum(a2) credit, max(a3) name FROM"
PATCHED = ", sum(if(p.id IS NULL, a2, p.credit)) credit, max(if(p.id IS NULL, a3, p.name)) name FROM"
UPDATED = 1_000
ATTRIBUTES = 16

Way = Callable[[], Any]


def customer_rows(keys: np.ndarray[Any, Any], version: int) -> pa.Table:
    """Customers with these keys; values follow from key and version."""
    columns: dict[str, pa.Array] = {"id": pa.array(keys)}
    columns["name"] = pa.array([f"customer {key} of {version}" for key in keys.tolist()])
    columns["credit"] = pa.array(keys % 1000 + version)
    columns |= {f"d{i}": pa.array(keys * (i + 1)) for i in range(ATTRIBUTES)}
    return pa.table(columns | {"version": pa.array(np.full(len(keys), version))})


def build(folder: Path, shape: Shape, customers: int, changed: float) -> tuple[Table, Table, str]:
    """Orders, customers, and the cut of the orders before they referred to customers."""
    columns = {"id": "bigint", "name": "string", "credit": "bigint", **{f"d{i}": "bigint" for i in range(ATTRIBUTES)}}
    of_group = [*list(columns)[1:], "version"]
    config = {
        "key": ["id"],
        "columns": {**columns, "version": "bigint"},
        "groups": {"crm": {"columns": of_group, "ordering": ["version"]}},
        "streams": {"crm": {"groups": ["crm"]}},
    }
    dimension = Table.create(folder / "customers", config)
    keys = np.arange(customers)
    with dimension.writer("crm") as writer:
        writer.append(customer_rows(keys, 1))
        dimension.compact()
        writer.append(customer_rows(np.random.default_rng(1).permutation(keys)[: int(customers * changed)], 2))
    orders = Table.create(folder / "orders", shape.config())
    with contextlib.ExitStack() as stack:
        writers = {group: stack.enter_context(orders.writer(group)) for group in GROUPS}
        compacted = False
        for group, commit, rows in batches(shape):
            if commit and not compacted:
                orders.compact()
                compacted = True
            if group == "a":
                foreign_key = pa.array(np.asarray(rows["a0"]) % customers)
                rows = rows.set_column(rows.schema.get_field_index("a0"), "a0", foreign_key)  # noqa: PLW2901
            writers[group].append(rows)
    alone = str(orders.snapshot().cut)
    orders.add_reference("customer", "../customers", "a0", columns=["name", "credit"])
    return orders, dimension, alone


def measure(ways: Mapping[str, Way], rounds: int) -> dict[str, tuple[float, str]]:
    """Median seconds and the answer of each way."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    answers = {}
    for number in range(rounds + 2):  # the first two warm up
        for name, way in ways.items():
            start = time.perf_counter()
            answers[name] = str(way())
            if number >= 2:
                seconds[name].append(time.perf_counter() - start)
    return {name: (statistics.median(values), answers[name]) for name, values in seconds.items()}


def report(title: str, found: Mapping[str, tuple[float, str]], same: tuple[str, ...]) -> None:
    """Print medians and ratios to the first way; the ways in ``same`` must have one answer."""
    if len({found[name][1] for name in same}) > 1:
        raise SystemExit(f"answers differ: {[found[name][1] for name in same]}")
    base = next(iter(found.values()))[0]
    print(title)
    for name, (seconds, _) in found.items():
        print(f"  {name:44} {seconds * 1000:8.1f} ms  x {seconds / base:5.2f}")


def in_sql(spark: SparkSession, orders: Table, customers: Table, alone: str) -> dict[str, Way]:
    patch = customers.snapshot().to_arrow(["id", "credit", "name"], filter=[("version", ">", 1)])
    spark.createDataFrame(patch).hint("broadcast").createOrReplaceTempView("changed")
    weft.create_view(spark, orders.uri, "orders_wide")
    weft.create_view(spark, orders.uri, "orders_alone", as_of=alone)
    weft.create_view(spark, customers.uri, "customers")
    joined = QUERY.replace(" FROM", JOINED)
    by_hand = (
        "(SELECT o.*, c.name customer_name, c.credit customer_credit FROM orders_alone o "
        "LEFT JOIN customers c ON o.a0 = c.id)"
    )
    queries = {
        "without references": QUERY.format(table="orders_alone"),
        "without, 2 more of its own": QUERY.replace(" FROM", OWN).format(table="orders_alone"),
        "without, 2 more of its own, patched": QUERY.replace(" FROM", PATCHED).format(
            table="orders_alone LEFT JOIN changed p ON a0 = p.id"
        ),
        "with, none of their columns": QUERY.format(table="orders_wide"),
        "with 2 columns": joined.format(table="orders_wide"),
        "two views, joined by the query": joined.format(table=by_hand),
    }
    ways: dict[str, Way] = {
        name: lambda query=query: spark.sql(query).collect()  # type: ignore[misc]
        for name, query in queries.items()
    }

    def after_a_commit() -> Any:
        with customers.writer("crm") as writer:
            writer.append(customer_rows(np.arange(1), 0))  # loses: answers stay equal
        return ways["with 2 columns"]()

    return {**ways, "with 2 columns, after a commit of customers": after_a_commit}


def in_arrow(orders: Table) -> dict[str, Way]:
    return {
        "to_arrow, 7 columns": lambda: orders.snapshot().to_arrow(COLUMNS).num_rows,
        "to_arrow, 7 columns and 2 of the reference": lambda: (
            orders.snapshot().to_arrow([*COLUMNS, *OF_CUSTOMER]).num_rows
        ),
    }


def update(orders: Table, customers: Table, count: int) -> Way:
    """Updates some customers, and reads the order of one of them."""
    rng = np.random.default_rng(2)
    versions = iter(range(3, 1_000_000))
    writer = customers.writer("crm").__enter__()
    found = orders.snapshot().to_arrow(["k", "a0"]).slice(0, 1).to_pylist()[0]

    def once() -> None:
        version = next(versions)
        keys = np.unique(np.append(rng.integers(0, count, UPDATED - 1), found["a0"]))
        writer.append(customer_rows(keys, version))
        (row,) = orders.get([found["k"]], ["customer_name"]).to_pylist()
        if row["customer_name"] != f"customer {found['a0']} of {version}":
            raise SystemExit(f"not visible: {row}")

    return once


def run(spark: SparkSession, folder: Path, arguments: argparse.Namespace) -> None:
    orders, customers, alone = build(folder, Shape(keys=arguments.keys), arguments.customers, arguments.changed)
    size = f"{arguments.keys} orders, {arguments.customers} customers, {arguments.changed:.1%} of them changed"
    same = ("with 2 columns", "two views, joined by the query")
    ways = in_sql(spark, orders, customers, alone)
    report(f"SQL, {size}", measure(ways, arguments.rounds), same)
    report("Arrow", measure(in_arrow(orders), arguments.rounds), ("to_arrow, 7 columns",))
    updates = {f"update of {UPDATED} customers until visible": update(orders, customers, arguments.customers)}
    report("Update", measure(updates, arguments.rounds), ())
    orders.compact()
    customers.compact()
    # A snapshot without references has to be one of before the reference, and is then compacted like the newest one.
    orders.drop_reference("customer")
    compacted = str(orders.snapshot().cut)
    orders.add_reference("customer", "../customers", "a0", columns=["name", "credit"])
    ways = in_sql(spark, orders, customers, compacted)
    report("SQL, compacted", measure(ways, arguments.rounds), same)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=Shape.keys)
    parser.add_argument("--customers", type=int, default=200_000)
    parser.add_argument("--changed", type=float, default=0.01)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="keep the tables here (default: a temporary folder)")
    arguments = parser.parse_args()
    spark = session()
    try:
        with tempfile.TemporaryDirectory(prefix="weft-benchmark-") as folder:
            run(spark, arguments.folder or Path(folder), arguments)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
