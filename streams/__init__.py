"""weft on Spark: the only package that imports pyspark.

    create_view, snapshot               read a table (`streams.read.view`)
    register, register_catalog          format("weft"), and a folder of tables as a catalog (`streams.catalog.register`)
    start_thrift_server                 these catalogs for JDBC (`streams.catalog.thrift_server`)
    write_stream, write_batch           append to a table (`streams.write.sink`, `streams.write.write_batch`)
    resume_point                        where a query continues after a restore (`streams.write.resume`)
    compact, fold, verify               services of a table on a cluster (`streams.write.cluster_services`)

Names are looked up when they are first used, so that Python workers and the command line do not import all of it.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from streams.catalog.register import register, register_catalog
    from streams.catalog.thrift_server import start_thrift_server
    from streams.read.view import create_view, snapshot
    from streams.write.cluster_services import compact, fold, verify
    from streams.write.resume import resume_point
    from streams.write.sink import write_stream
    from streams.write.write_batch import write_batch

__all__ = [
    "compact",
    "create_view",
    "fold",
    "register",
    "register_catalog",
    "resume_point",
    "snapshot",
    "start_thrift_server",
    "verify",
    "write_batch",
    "write_stream",
]

_HOMES: Final = {
    "compact": "streams.write.cluster_services",
    "create_view": "streams.read.view",
    "fold": "streams.write.cluster_services",
    "register": "streams.catalog.register",
    "register_catalog": "streams.catalog.register",
    "resume_point": "streams.write.resume",
    "snapshot": "streams.read.view",
    "start_thrift_server": "streams.catalog.thrift_server",
    "verify": "streams.write.cluster_services",
    "write_batch": "streams.write.write_batch",
    "write_stream": "streams.write.sink",
}

if "pyspark.sql.streaming.readwriter" in sys.modules:
    from streams.read.stream_mark import mark_streams

    mark_streams()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'streams' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
