"""weft: one wide table, kept up to date by several streams.

    import weft

    Table                               a table: create, open, write, read, services (`weft.storage.table`)
    Snapshot, Writer, Commit            what a table gives
    TableConfig, DuePolicy              how a table is made, and what a service does
    verify_table                        checks a table that may be damaged
    create_view, snapshot               read a table with Spark (`weft.streams.read.view`)
    register, register_catalog          format("weft"), and a folder of tables as a catalog of Spark
    start_thrift_server                 these catalogs for JDBC
    write_stream, write_batch           append a DataFrame to a table
    resume_point                        where a query continues after a restore
    compact, fold, verify               services of a table on a cluster

Names are looked up when they are first used: `import weft` imports neither Arrow nor Spark. Everything else is in
`weft.storage`, which does not need Spark, and `weft.streams`, which is weft on Spark.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Final

from weft import old_names

if TYPE_CHECKING:
    from weft.storage import Commit, DuePolicy, Snapshot, Table, TableConfig, Writer, verify_table
    from weft.streams import (
        compact,
        create_view,
        fold,
        register,
        register_catalog,
        resume_point,
        snapshot,
        start_thrift_server,
        verify,
        write_batch,
        write_stream,
    )

__all__ = [
    "Commit",
    "DuePolicy",
    "Snapshot",
    "Table",
    "TableConfig",
    "Writer",
    "compact",
    "create_view",
    "fold",
    "register",
    "register_catalog",
    "resume_point",
    "snapshot",
    "start_thrift_server",
    "verify",
    "verify_table",
    "write_batch",
    "write_stream",
]

_PACKAGES: Final = ("storage", "streams")
_IN_STORAGE: Final = ("Commit", "DuePolicy", "Snapshot", "Table", "TableConfig", "Writer", "verify_table")

old_names.install()
if "pyspark.sql.streaming.readwriter" in sys.modules:
    importlib.import_module("weft.streams")  # it lets Spark tell the source that it is read as a stream


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"weft.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    return getattr(importlib.import_module("weft.storage" if name in _IN_STORAGE else "weft.streams"), name)
