"""JDBC connections to Spark's Thrift server, with the driver that Spark brings."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

import weft
from tests.streams.catalog.shop_lake import make_shop
from weft.storage.errors import InvalidInput

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

APPLICATION = Path(__file__).with_name("thrift_application.py")
DRIVER = "org.apache.hive.jdbc.HiveDriver"
ORDERS = "weft.shop.orders_wide"


class Connection:
    """A JDBC connection."""

    def __init__(self, spark: SparkSession, port: int) -> None:
        self.jvm: Any = spark.sparkContext._jvm
        driver = getattr(self.jvm, DRIVER)()
        self.java = driver.connect(f"jdbc:hive2://127.0.0.1:{port}/default", self.jvm.java.util.Properties())

    def ask(self, sql: str) -> list[list[str | None]]:
        """The rows of an answer as texts."""
        statement = self.java.createStatement()
        try:
            return self.rows(statement.getResultSet()) if statement.execute(sql) else []
        finally:
            statement.close()

    @staticmethod
    def rows(found: Any) -> list[list[str | None]]:
        rows, columns = [], found.getMetaData().getColumnCount()
        while found.next():
            rows.append([found.getString(column) for column in range(1, columns + 1)])
        return rows


@contextmanager
def server(tmp_path: Path, single_session: str) -> Iterator[int]:
    """The port of a server over the tables of `shop_lake`."""
    make_shop(tmp_path / "lake")
    folder = tmp_path / "hive"
    folder.mkdir()
    command = [sys.executable, str(APPLICATION), str(tmp_path / "lake"), str(folder), single_session]
    paths = os.pathsep.join([str(APPLICATION.parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])])
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": paths},
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = process.stdout.readline().strip()
        assert port, (tmp_path / "log").read_text()[-4_000:]
        yield int(port)
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(240)
        finally:
            process.kill()


@pytest.fixture(autouse=True)
def _driver() -> None:
    jars = Path(pyspark.__file__).with_name("jars")
    if not list(jars.glob("hive-jdbc-*.jar")) or not list(jars.glob("spark-hive-thriftserver*.jar")):
        pytest.skip(f"NO JDBC: this Spark has no Thrift server or no driver of it: {jars}")


def test_each_connection_has_the_catalog_and_a_session_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    with server(tmp_path, "false") as port:
        one, other = Connection(spark, port), Connection(spark, port)
        assert ["shop", "orders_wide", "false"] in one.ask("SHOW TABLES IN weft.shop")
        sent = [["1", "sent"], ["4", "sent"]]
        assert one.ask(f"SELECT order_id, status FROM {ORDERS} WHERE status = 'sent' ORDER BY 1") == sent
        one.ask("USE weft.shop")
        assert one.ask("SELECT count(*) FROM customers") == [["2"]]
        assert other.ask("SELECT current_catalog(), current_database()") == [["spark_catalog", "default"]]
        other.ask(f"INSERT INTO {ORDERS}.payments (order_id, paid, pay_ts) VALUES (3, 5.0, 99)")
        assert one.ask("SELECT paid FROM orders_wide WHERE order_id = 3") == [["5.0"]]
        with pytest.raises(Py4JJavaError, match="UNRESOLVED_COLUMN"):
            one.ask("SELECT nothing FROM customers")
        with pytest.raises(Py4JJavaError, match="UPDATE"):
            one.ask("UPDATE customers SET name = 'x'")
        assert one.ask("SELECT count(*) FROM customers") == [["2"]], "the connection goes on after an error"
        listed = other.java.getMetaData().getTables(None, "%", "%", None)
        assert Connection.rows(listed) == [], "JDBC asks Spark's own catalog only, as the document says"


@pytest.mark.nightly
def test_connections_share_a_session_if_asked_to(spark: SparkSession, tmp_path: Path) -> None:
    with server(tmp_path, "true") as port:
        one, other = Connection(spark, port), Connection(spark, port)
        one.ask("USE weft.shop")
        assert other.ask("SELECT count(*) FROM customers") == [["2"]]


def test_a_session_without_hive_has_no_server(spark: SparkSession) -> None:
    with pytest.raises(InvalidInput, match="needs Hive support") as caught:
        weft.start_thrift_server(spark)
    assert "enableHiveSupport" in caught.value.hint
