"""Runs the dbt project beside this file over a catalog of weft tables, and prints what its models hold, as JSON.

    python -m tests.dbt.run_dbt LAKE WORK

LAKE is the folder of the tables; WORK is a folder for everything that Spark and dbt write.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import streams
from streams.spark.session import temporary_session

MODELS = ("orders_by_status", "busy_statuses")


def main(lake: str, work: str) -> int:
    from dbt.cli.main import dbtRunner  # installed in an environment of its own

    os.chdir(work)
    here = str(Path(__file__).parent)
    with temporary_session("dbt", {"spark.sql.warehouse.dir": f"{work}/warehouse"}) as spark:
        streams.register_catalog(spark, "weft", lake)
        folders = ["--project-dir", here, "--profiles-dir", here, "--target-path", f"{work}/target"]
        done = dbtRunner().invoke(["build", *folders, "--log-path", f"{work}/logs", "--no-send-anonymous-usage-stats"])
        if not done.success:
            return 1
        for name in MODELS:
            rows = [row.asDict() for row in spark.table(f"analytics.{name}").orderBy("status").collect()]
            print(json.dumps({name: rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
