"""An application whose Thrift server has a catalog of weft.

    thrift_application.py ROOT FOLDER PORT SINGLE_SESSION

ROOT is the folder of the catalog, FOLDER that of Hive's files. It ends when its standard input does.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import streams


def main(root: str, folder: str, port: str, single_session: str) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(Path(folder, "warehouse")))
        .config(
            "spark.hadoop.javax.jdo.option.ConnectionURL", f"jdbc:derby:;databaseName={folder}/metastore;create=true"
        )
        .config("spark.sql.hive.thriftServer.singleSession", single_session)
        .config("hive.server2.thrift.bind.host", "127.0.0.1")
        .config("hive.server2.thrift.port", port)
        .enableHiveSupport()
        .getOrCreate()
    )
    streams.register_catalog(spark, "weft", root)
    streams.start_thrift_server(spark)
    print("started", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
