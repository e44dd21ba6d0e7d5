"""Features of a table: what a version must know to read or write it (FORMAT.md, "Entries")."""

from __future__ import annotations

from collections.abc import Collection

from weft.storage.core.log.entries import BUCKETS, ERASE, FINISH, INDEX, OVERLAYS, RETIRE, TTL, WRITER_FEATURES
from weft.storage.core.modes import known_features
from weft.storage.core.schema.table_schema import REFERENCES, TableSchema


def readable_features() -> frozenset[str]:
    """The reader features that this version knows."""
    return known_features() | {BUCKETS, ERASE, FINISH, OVERLAYS, REFERENCES, RETIRE}


def writable_features() -> frozenset[str]:
    """The writer features that this version knows."""
    return WRITER_FEATURES | {BUCKETS, ERASE, FINISH, INDEX, OVERLAYS, RETIRE, TTL}


def reader_features(schema: TableSchema, writer_features: Collection[str]) -> list[str]:
    """The reader features of a table with this schema and these writer features, sorted."""
    return sorted({*schema.reader_features, *{BUCKETS, ERASE, FINISH, OVERLAYS, RETIRE}.intersection(writer_features)})


def writer_features(schema: TableSchema, before: Collection[str] = WRITER_FEATURES) -> list[str]:
    """The writer features of a table with this schema, sorted. A table never loses one.

    Args:
        schema: The schema.
        before: Its writer features so far.
    """
    settings = ((TTL, schema.ttl is not None), (OVERLAYS, schema.overlays), (INDEX, bool(schema.index)))
    features = {feature for feature, has in settings if has}
    return sorted({*before, *features})
