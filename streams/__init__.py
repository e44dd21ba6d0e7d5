"""weft on Spark: the only package that imports pyspark.

    create_view, snapshot, register     read a table (`streams.view`, `streams.source`)
    write_stream, write_batch           append to a table (`streams.sink`, `streams.batch`)
    resume_point                        where a query goes on after a restore (`streams.resume`)
    compact                             fold logs on a cluster (`streams.compaction`)

Names are looked up when they are first used, so that Python workers and the command line do not import all of it.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from streams.batch import write_batch
    from streams.compaction import compact
    from streams.resume import resume_point
    from streams.sink import write_stream
    from streams.source import register
    from streams.view import create_view, snapshot

__all__ = ["compact", "create_view", "register", "resume_point", "snapshot", "write_batch", "write_stream"]

_HOMES: Final = {
    "compact": "streams.compaction",
    "create_view": "streams.view",
    "register": "streams.source",
    "resume_point": "streams.resume",
    "snapshot": "streams.view",
    "write_batch": "streams.batch",
    "write_stream": "streams.sink",
}

if "pyspark.sql.streaming.readwriter" in sys.modules:
    from streams.stream_mark import mark_streams

    mark_streams()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'streams' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
