"""A Spark application that compacts a table repeatedly, for spark-submit.

    compaction_job.py URI STORAGE_OPTIONS STOP_FILE

Ends when the file exists. Its last line is the number of file groups that it compacted. A round that the store does not
answer is printed and repeated, like a round of a scheduled job; the job ends after some of these in a row.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

import weft
from weft.storage.errors import CommitUnknown, StoreUnavailable

MAX_FAILURES = 5  # in a row; each takes at least as long as weft and Spark try again


def main(uri: str, storage_options: str, stop: str) -> None:
    spark = SparkSession.builder.appName("compaction").getOrCreate()
    done = rounds = failures = 0
    ending = False
    while not ending:
        ending = Path(stop).exists()  # checked first, so that the last round sees everything that was committed before
        try:
            done += len(weft.compact(spark, uri, storage_options=json.loads(storage_options)).done)
        except (StoreUnavailable, CommitUnknown) as error:
            failures, ending = failures + 1, False
            if failures == MAX_FAILURES:
                raise
            print("failed, and is repeated:", error, *getattr(error, "__notes__", ()), flush=True)
        else:
            failures = 0
        rounds += 1
        print("round", rounds, flush=True)
        time.sleep(1)
    spark.stop()
    print("compacted", done)


if __name__ == "__main__":
    main(*sys.argv[1:])
