"""A Spark application that compacts a table repeatedly, for spark-submit.

    compaction_job.py URI STORAGE_OPTIONS STOP_FILE

Ends when the file exists. Its last line is the number of file groups that it compacted.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

import streams


def main(uri: str, storage_options: str, stop: str) -> None:
    spark = SparkSession.builder.appName("compaction").getOrCreate()
    done = rounds = 0
    ending = False
    while not ending:
        ending = Path(stop).exists()  # checked first, so that the last round sees everything that was committed before
        done += len(streams.compact(spark, uri, storage_options=json.loads(storage_options)).done)
        rounds += 1
        print("round", rounds, flush=True)
        time.sleep(1)
    spark.stop()
    print("compacted", done)


if __name__ == "__main__":
    main(*sys.argv[1:])
