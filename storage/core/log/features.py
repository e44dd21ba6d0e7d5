"""Features of a table: what a version must know to read or write it (FORMAT.md, "Entries")."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from weft.storage.core.modes import known_features
from weft.storage.core.schema.table_schema import REFERENCES, TableSchema

WRITER_FEATURES: Final = frozenset({"lanes"})
"""Writer features of every table that this version creates."""

ERASE: Final = "erase"
"""Reader and writer feature of a table from which keys were erased (PROTOCOL.md, "Erase")."""

REWRITTEN: Final = "rows may be rewritten"
"""Describes, for messages, what a table with the feature `ERASE` may have."""

TTL: Final = "ttl"
"""Writer feature of a table with a time to live, which a schema change by a version without it would drop."""

OVERLAYS: Final = "overlays"
"""Reader and writer feature of a table whose slices may have overlays (FORMAT.md, "Overlays")."""

INDEX: Final = "index"
"""Writer feature of a table with indexed columns, which a schema change by a version without it would drop."""

BUCKETS: Final = "buckets"
"""Reader and writer feature of a table whose number of buckets was changed (PROTOCOL.md, "Splits")."""

FINISH: Final = "finish"
"""Reader and writer feature of a table whose lanes may have entries that finish them (PROTOCOL.md, W10)."""

RETIRE: Final = "retire"
"""Reader and writer feature of a table that no longer lists some closed lanes (PROTOCOL.md, C6)."""


def readable_features() -> frozenset[str]:
    """The reader features that this version knows."""
    return known_features() | {BUCKETS, ERASE, FINISH, OVERLAYS, REFERENCES, RETIRE}


def writable_features() -> frozenset[str]:
    """The writer features that this version knows."""
    return WRITER_FEATURES | {BUCKETS, ERASE, FINISH, INDEX, OVERLAYS, RETIRE, TTL}


def reader_features(schema: TableSchema, writer_features: Collection[str]) -> list[str]:
    """The reader features of a table with this schema and these writer features, sorted."""
    return sorted({*schema.reader_features, *{BUCKETS, ERASE, FINISH, OVERLAYS, RETIRE}.intersection(writer_features)})


def writer_features(schema: TableSchema, previous: Collection[str] = WRITER_FEATURES) -> list[str]:
    """The writer features of a table with this schema, sorted. A table never loses one.

    Args:
        schema: The schema.
        previous: Its writer features so far.
    """
    settings = ((TTL, schema.ttl is not None), (OVERLAYS, schema.overlays), (INDEX, bool(schema.index)))
    features = {feature for feature, has in settings if has}
    return sorted({*previous, *features})
