"""Spark's Thrift server, for JDBC and beeline: each of its connections has the catalogs of the application.

Spark creates the session of each connection in the JVM. Here the server gets a parent session that calls Python for
each new session before the connection uses it, and then `weft.streams.catalog.register` adds the catalogs.
"""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from weft.storage.errors import InvalidInput
from weft.streams.catalog.catalog_jvm import CatalogJvm
from weft.streams.read.relation.callbacks import Callback
from weft.streams.read.relation.jvm import UnsupportedSessionError
from weft.streams.spark.java_classes import CannotCompile, new_object
from weft.streams.spark.sql_text import error_text

_SERVER = "org.apache.spark.sql.hive.thriftserver.HiveThriftServer2"
_SHARED = "spark.sql.hive.thriftServer.singleSession"


def start_thrift_server(spark: SparkSession) -> None:
    """Start Spark's Thrift server in this process; it ends with the process.

    The settings ``hive.server2.thrift.bind.host`` and ``hive.server2.thrift.port`` of the session determine where it
    listens. Each connection has its own session, unless `spark.sql.hive.thriftServer.singleSession` is true: then all
    connections share this one.

    Args:
        spark: A classic session with ``enableHiveSupport()``, and with the catalogs of `register_catalog`.

    Raises:
        InvalidInput: The session has no Hive support, is one of Spark Connect, or is of another version of Spark; or
            the server cannot listen there.
    """
    if spark.conf.get("spark.sql.catalogImplementation") != "hive":
        raise InvalidInput(
            "Spark's Thrift server needs Hive support", hint="create it with SparkSession.builder.enableHiveSupport()"
        )
    try:
        jvm = CatalogJvm.connect(spark)
        session: Any = spark._jsparkSession  # noqa: SLF001 - no public way to the JVM
        if str(spark.conf.get(_SHARED, "false")).lower() != "true":
            prepare = jvm.some(_NewSession(jvm)).get()  # as an object of the JVM
            session = new_object(spark.sparkContext, "weft.streams.read", "ConnectionSessions", session, prepare)
            for name in ("hive.server2.thrift.bind.host", "hive.server2.thrift.port"):
                if (value := spark.conf.get(name, None)) is not None:
                    session.conf().set(name, value)
        gateway: Any = spark.sparkContext._jvm  # noqa: SLF001 - as above
        getattr(gateway, _SERVER).startWithSparkSession(session, False)
    except (CannotCompile, UnsupportedSessionError) as error:
        raise InvalidInput(
            f"Spark's Thrift server cannot have catalogs of weft: {error}", hint="use a classic session of Spark 4.3"
        ) from error
    except (Py4JJavaError, PySparkException) as error:
        raise InvalidInput(
            f"Spark's Thrift server does not start: {error_text(error)}",
            hint="check that hive.server2.thrift.port is free",
        ) from error


class _NewSession(Callback, java=("java.util.function.Consumer",)):
    """Creates the Python object of a new session of the JVM. For Java it is a `Consumer<SparkSession>`."""

    def __init__(self, jvm: CatalogJvm) -> None:
        super().__init__(jvm, f"sessions of connections {id(self)}")

    def accept(self, session: Any) -> None:
        SparkSession(self.jvm.spark.sparkContext, session)  # `weft.streams.catalog.register` has patched it
