"""weft on Spark: the only package that imports pyspark.

    create_view, snapshot               read a table (`weft.streams.read.view`)
    register, register_catalog          format("weft"), and a folder of tables as a catalog
                                        (`weft.streams.catalog.register`)
    start_thrift_server                 these catalogs for JDBC (`weft.streams.catalog.thrift_server`)
    write_stream, write_batch           append to a table (`weft.streams.write.sink`, `weft.streams.write.write_batch`)
    resume_point                        where a query continues after a restore (`weft.streams.write.resume`)
    compact, fold, verify               services of a table on a cluster (`weft.streams.write.cluster_services`)

Names are imported when they are first used, so that Python workers and the command line do not import everything.
"""

from __future__ import annotations

if __name__ == "streams":  # by its old name, from a checkout
    from weft import old_names

    old_names.replace(__name__)

import importlib
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from weft.streams.catalog.register import register, register_catalog
    from weft.streams.catalog.thrift_server import start_thrift_server
    from weft.streams.read.view import create_view, snapshot
    from weft.streams.write.cluster_services import compact, fold, verify
    from weft.streams.write.resume import resume_point
    from weft.streams.write.sink import write_stream
    from weft.streams.write.write_batch import write_batch

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
    "compact": "weft.streams.write.cluster_services",
    "create_view": "weft.streams.read.view",
    "fold": "weft.streams.write.cluster_services",
    "register": "weft.streams.catalog.register",
    "register_catalog": "weft.streams.catalog.register",
    "resume_point": "weft.streams.write.resume",
    "snapshot": "weft.streams.read.view",
    "start_thrift_server": "weft.streams.catalog.thrift_server",
    "verify": "weft.streams.write.cluster_services",
    "write_batch": "weft.streams.write.write_batch",
    "write_stream": "weft.streams.write.sink",
}
_IMPORTS: Final = threading.RLock()

if "pyspark.sql.streaming.readwriter" in sys.modules:
    from weft.streams.read.stream_mark import mark_streams

    mark_streams()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'weft.streams' has no attribute {name!r}")
    # A package whose import another thread has begun counts as imported for its modules, which that thread then imports
    # in another order. So `weft.storage` goes first, and one thread at a time imports modules that need PySpark.
    with _IMPORTS:
        importlib.import_module("weft.storage")
        return getattr(importlib.import_module(_HOMES[name]), name)
