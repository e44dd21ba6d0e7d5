"""A Spark application that queries the demo's table while it is written, and compares it at the end, for spark-submit.

    query_job.py PIPELINE STOP_FILE MESSAGES FOLDER

The comparison is with a join by Spark alone over the topics (`weft.streams.demo.reference`). The last line has the
number of queries, and whether the table equals the join.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

import weft
from weft.streams.demo import reference
from weft.streams.pipeline.file.pipeline import load_pipeline


def main(file: str, stop: str, messages: str, folder: str) -> None:
    pipeline = load_pipeline(file)
    spark = SparkSession.builder.appName("queries").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    weft.create_view(spark, pipeline.table.uri, "wide", storage_options=pipeline.table.storage_options)
    counts = []
    while not Path(stop).exists():
        counts.append(spark.sql("SELECT count(order_id), sum(page_views) FROM wide").first()[0])
        print("query", len(counts), flush=True)
        time.sleep(1)
    servers = pipeline.writers["orders"].reader_options["kafka.bootstrap.servers"]
    found = reference.load_topics(spark, servers, Path(folder))
    compared = reference.compare(spark.table("wide"), reference.join_query(spark))
    spark.stop()
    facts = {"queries": len(counts), "topics": found == int(messages), "equal": compared.equal, "rows": compared.rows}
    print(json.dumps({**facts, "examples": [str(row) for row in compared.examples]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
