"""A Spark session that answers queries: ``python -m tests.soak.real.queries TABLE``.

For each line of standard input it runs `QUERY`, and prints the answer as one line of JSON, or the
error as ``failed``. It ends with its input.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkException

import weft
from weft.storage.errors import TableError
from weft.streams.spark.session import build_session
from weft.streams.spark.settings import QUICK_START, SERIAL

QUERY: Final = """
    SELECT count(*) AS rows, coalesce(sum(visits), 0) AS visits, coalesce(sum(hits), 0) AS hits,
           count(pay_seq) AS payments, count(profile_seq) AS profiles, count(lsn) AS orders,
           coalesce(max(click_seq), 0) AS click_seq, coalesce(max(pay_seq), 0) AS pay_seq
    FROM t
"""


def main() -> int:
    settings = {
        "spark.master": "local[1]",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": f"{SERIAL} {QUICK_START}",
    }
    with tempfile.TemporaryDirectory(prefix="weft-soak-sql-") as scratch:
        spark = build_session("soak-queries", settings, scratch=Path(scratch) / "spark", quiet=True)
        weft.create_view(spark, sys.argv[1], "t")
        print(json.dumps({"ready": True}), flush=True)
        for _ in sys.stdin:
            try:
                (row,) = spark.sql(QUERY).collect()
                answer = row.asDict()
            except (PySparkException, TableError) as error:
                answer = {"failed": str(error)}
            print(json.dumps(answer), flush=True)
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
