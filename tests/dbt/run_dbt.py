"""Runs a dbt project over a catalog of weft tables, and prints what its models hold, as JSON.

    python -m tests.dbt.run_dbt PROJECT LAKE WORK

PROJECT is ``outside``, whose models are tables and views of Spark, or ``inside``, whose models are tables of weft: it
is run twice, and then the columns of its documentation are printed, too. LAKE is the folder of the tables; WORK is a
folder for everything that Spark and dbt write.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import weft
from weft.streams.spark.session import temporary_session

HERE = Path(__file__).parent
FOLDERS = {"outside": HERE, "inside": HERE / "in_catalog"}
MODELS = {"outside": ("orders_by_status", "busy_statuses"), "inside": ("orders_by_status", "orders_so_far")}


def main(project: str, lake: str, work: str) -> int:
    from dbt.cli.main import dbtRunner  # installed in an environment of its own

    os.chdir(work)
    here = str(FOLDERS[project])
    folders = ["--project-dir", here, "--profiles-dir", here, "--target-path", f"{work}/target"]
    options = [*folders, "--log-path", f"{work}/logs", "--no-send-anonymous-usage-stats"]
    commands = [["build"]] if project == "outside" else [["build"], ["build"], ["docs", "generate"]]
    with temporary_session("dbt", {"spark.sql.warehouse.dir": f"{work}/warehouse"}) as spark:
        weft.register_catalog(spark, "weft", lake)
        if project == "inside":
            spark.sql("USE weft")
        for command in commands:
            if not dbtRunner().invoke([*command, *options]).success:
                return 1
        for name in MODELS[project]:
            rows = [row.asDict() for row in spark.table(f"analytics.{name}").orderBy("status").collect()]
            print(json.dumps({name: rows}))
    if project == "inside":
        shown = json.loads(Path(work, "target", "catalog.json").read_text(encoding="utf-8"))
        for kind in ("nodes", "sources"):
            print(json.dumps({kind: {name: list(of["columns"]) for name, of in shown[kind].items()}}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
