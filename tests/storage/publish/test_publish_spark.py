"""Published tables read by Spark with the jars of Delta and Iceberg, which also try to write and to vacuum.

They run in a process of their own, because the jars are published for certain versions of Spark only. All is fetched
once per machine.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.tools import python_packages
from tests.download_cache import Unavailable
from tests.lake_releases import DELTA_4_1, ICEBERG
from tests.maven import maven_jars
from tests.storage.support.published_types import DAYS, check_rows, published_in_both_formats, rows_of, run

pytestmark = [pytest.mark.integration, pytest.mark.extended, pytest.mark.timeout(900)]

_SPARK = """
import json, sys
from pyspark.sql import SparkSession
given = json.loads(sys.argv[1])
settings = {
    "spark.jars": given["jars"],
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    "spark.databricks.delta.vacuum.parallelDelete.enabled": "false",
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.sql.parquet.enableVectorizedReader": "false",  # that of Spark 4.1 lacks the encoding BYTE_STREAM_SPLIT
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
    "spark.sql.catalog.lake.warehouse": given["warehouse"],
}
builder = SparkSession.builder.master("local[1]")
for name, value in settings.items():
    builder = builder.config(name, value)
session = builder.getOrCreate()
for source, written in given["copies"]:
    session.sql(f"SELECT * FROM {source}").write.parquet(written)
answers = [session.sql(query).collect()[0][0] for query in given["queries"]]
errors = []
for statement in given["refused"]:
    try:
        session.sql(statement).collect()
        errors.append("")
    except Exception as error:
        errors.append(str(error))
print(json.dumps({"answers": answers, "errors": errors}))
"""


def test_spark_shows_the_rows_of_both_formats_and_refuses_to_write_and_to_vacuum(
    tmp_path: Path,
) -> None:
    places = published_in_both_formats(tmp_path)
    try:
        packages = python_packages(*ICEBERG.spark)
        folders = [maven_jars(release.folder, release.jars, alone=True) for release in (DELTA_4_1, ICEBERG)]
    except Unavailable as missing:
        pytest.skip(f"no Spark with Delta and Iceberg: {missing}")
    copies, checks, sources = [], [], []
    for table in (places.every_type, places.unused_rows):
        for source in (f"delta.`{places.root(table)}`", f"lake.{places.name(table)}"):
            written = tmp_path / f"{len(copies)}.parquet"
            copies.append((source, str(written)))
            checks.append((rows_of(table), written))
            sources.append(source)
    newer = places.unused_rows
    newer.compact()  # its files are not published yet
    root = f"delta.`{places.root(newer)}`"
    given = {
        "jars": ",".join(str(jar) for folder in folders for jar in sorted(folder.glob("*.jar"))),
        "warehouse": str(places.warehouse),
        "copies": copies,
        "queries": [f"SELECT count(*) FROM {source} WHERE double > 1" for source in sources[:2]]
        + [f"SELECT count(*) FROM {source} WHERE price = 3.1234 AND day = '{DAYS[3]}'" for source in sources[:2]],
        "refused": [f"VACUUM {root} RETAIN 0 HOURS", f"DELETE FROM {root} WHERE id = 3"],
    }
    answers = run(_SPARK, given, packages, SPARK_HOME=str(packages / "pyspark"))
    for expected, written in checks:
        check_rows(expected, written)
    assert answers["answers"] == [len(DAYS), len(DAYS), 1, 1]
    assert all("weftPublished" in error for error in answers["errors"])
    assert rows_of(newer).num_rows == 40
