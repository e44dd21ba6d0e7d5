"""How soon an update of 1,000 customers is visible in all of their orders: a reference beside updates of a wide table.

    python -m tests.benchmarks.dimension_update [--keys 2000000] [--customers 200000] [--rounds 5] [--without PEER ...]

Orders have 63 columns and are compacted. *weft*: the orders refer to a table of customers; 1,000 of these are appended,
until an order of one of them, read by key, shows it. *DuckDB* and *Delta*: the orders have two more columns with the
name and the credit of their customer, and are updated: ``UPDATE wide SET ... FROM updates WHERE`` in a database file,
``MERGE ... WHEN MATCHED UPDATE`` with `deltalake`; until the same order shows it. Each customer has the same number of
orders. Medians of rounds in which all take turns; the first round is not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tests.benchmarks.dimensions import UPDATED, build, customer_rows
from tests.benchmarks.wide_table import Shape
from weft import Table

OF_CUSTOMER: Final = ("customer_name", "customer_credit")

Apply = Callable[[pa.Table, int], str]
"""Applies an update of customers, and returns the name of the customer of an order, given its key."""


@contextlib.contextmanager
def weft(orders: Table, customers: Table) -> Iterator[Apply]:
    with customers.writer("crm") as writer:

        def apply(rows: pa.Table, order: int) -> str:
            writer.append(rows)
            return str(orders.get([order], ["customer_name"]).column(0)[0])

        yield apply


@contextlib.contextmanager
def in_duckdb(folder: Path, orders: Table) -> Iterator[Apply]:
    with duckdb.connect(str(folder / "wide.duckdb")) as database:
        wide = orders.snapshot().to_reader()  # noqa: F841 - DuckDB finds it by name
        database.execute("CREATE TABLE wide AS SELECT * FROM wide")

        def apply(rows: pa.Table, order: int) -> str:
            database.register("updates", rows)
            database.execute(
                "UPDATE wide SET customer_name = u.name, customer_credit = u.credit FROM updates u WHERE wide.a0 = u.id"
            )
            ((name,),) = database.execute("SELECT customer_name FROM wide WHERE k = ?", [order]).fetchall()
            return str(name)

        yield apply


@contextlib.contextmanager
def in_delta(folder: Path, orders: Table) -> Iterator[Apply]:
    write_deltalake(str(folder / "delta"), orders.snapshot().to_reader())
    table = DeltaTable(str(folder / "delta"))

    def apply(rows: pa.Table, order: int) -> str:
        merge = table.merge(rows, predicate="t.a0 = s.id", source_alias="s", target_alias="t")
        merge.when_matched_update({"customer_name": "s.name", "customer_credit": "s.credit"}).execute()
        found = table.to_pyarrow_table(columns=["customer_name"], filters=[("k", "=", order)])
        return str(found.column(0)[0])

    yield apply


def measure(ways: Mapping[str, Apply], orders: Table, customers: int, rounds: int) -> dict[str, float]:
    """Median seconds of each way."""
    chance = np.random.default_rng(2)
    first = orders.snapshot().to_arrow(["k", "a0"]).slice(0, 1).to_pylist()[0]
    order, customer = first["k"], first["a0"]
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        others = chance.choice(customers, UPDATED, replace=False)
        rows = customer_rows(np.unique(np.append(others[others != customer][: UPDATED - 1], customer)), 3 + number)
        for name, apply in ways.items():
            started = time.perf_counter()
            shown = apply(rows, order)
            took = time.perf_counter() - started
            if shown != f"customer {customer} of {3 + number}":
                raise SystemExit(f"{name} shows {shown}")
            if number:
                seconds[name].append(took)
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=Shape.keys)
    parser.add_argument("--customers", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without", choices=["duckdb", "delta"], nargs="*", default=[])
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weft-benchmark-")))
        orders, customers, _ = build(folder, Shape(keys=arguments.keys), arguments.customers, 0.01)
        orders.compact()
        ways = {"weft, a reference": stack.enter_context(weft(orders, customers))}
        if "duckdb" not in arguments.without:
            ways["DuckDB, UPDATE of the wide table"] = stack.enter_context(in_duckdb(folder, orders))
        if "delta" not in arguments.without:
            ways["Delta, MERGE into the wide table"] = stack.enter_context(in_delta(folder, orders))
        found = measure(ways, orders, arguments.customers, arguments.rounds)
    base = next(iter(found.values()))
    per_customer = arguments.keys / arguments.customers
    print(f"{UPDATED} of {arguments.customers} customers, each with {per_customer:g} of {arguments.keys} orders")
    for name, seconds in found.items():
        print(f"  {name:36} {seconds * 1000:9.1f} ms  x {seconds / base:7.1f}")


if __name__ == "__main__":
    main()
