"""An application whose Thrift server has a catalog of weft.

    thrift_application.py ROOT FOLDER SINGLE_SESSION

ROOT is the folder of the catalog, FOLDER that of Hive's files. It prints the port of the
server, and ends when its standard input does.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import weft


def main(root: str, folder: str, single_session: str) -> None:
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
        .enableHiveSupport()
        .getOrCreate()
    )
    weft.register_catalog(spark, "weft", root)
    with socket.socket() as free:  # the last thing before the server needs it, so that no other process takes it
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spark.conf.set("hive.server2.thrift.port", port)
    weft.start_thrift_server(spark)
    print(port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
