"""The cost of planning a query by the name of a table in a catalog, compared with a view of `weft.create_view`.

    python -m tests.benchmarks.catalog_planning [--rounds 31]

The same aggregate over 7 of 63 columns of a table of a few rows, by a view, by a name, by a name AS OF a savepoint, and
with a metadata column; compacted and with logs. Medians of rounds in which all take turns.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import weft
from tests.benchmarks.spark_session import session
from tests.benchmarks.view_overhead import measure, plan_only, report
from tests.benchmarks.wide_table import Shape, build

ROWS = 2_000


def run(spark: SparkSession, folder: Path, rounds: int) -> None:
    """Print the median of planning by each name; the base is the view."""
    weft.register_catalog(spark, "weft", folder)
    for name in ("logs", "compacted"):
        table = build(folder / name, Shape(keys=ROWS))
        if name == "compacted":
            table.compact()
        table.savepoint("kept")
        weft.create_view(spark, table.uri, f"view_{name}")
        relation = f"weft.{name}.table"
        ways = {
            "view": f"view_{name}",
            "name in the catalog": relation,
            "AS OF a savepoint": f"{relation} VERSION AS OF 'now'",
            "with options": f"{relation} WITH ('metadata_columns' = 'true')",
        }
        plans = {title: plan_only(spark, each) for title, each in ways.items()}
        report(f"{ROWS} rows x {Shape.columns} columns, {name}: planning alone", measure(plans, rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31)
    arguments = parser.parse_args()
    spark = session()
    try:
        with tempfile.TemporaryDirectory(prefix="weft-benchmark-") as folder:
            run(spark, Path(folder), arguments.rounds)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
