"""Compares how long tables and the tables that they refer to keep their snapshots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from weft.storage import Table
from weft.streams.pipeline.file.model import TableLocation
from weft.streams.pipeline.file.quantities import duration


@dataclass(frozen=True, slots=True)
class SnapshotRetention:
    """How long a table keeps its snapshots, and to which tables it refers.

    Attributes:
        retain: How long it keeps its snapshots, in seconds.
        references: Locations of the referenced tables, by the name of the reference.
    """

    retain: float
    references: Mapping[str, str] = field(default_factory=dict)


def read_retention(location: TableLocation, retain: float) -> tuple[str, SnapshotRetention]:
    """Read the location of a table in its normal form, and the tables that it refers to.

    Raises:
        TableError: The table cannot be read.
    """
    table = Table.open(location.uri, storage_options=location.storage_options)
    references = {item.name: table.env.of_table(item.table).store.uri for item in table.schema.references}
    return table.uri, SnapshotRetention(retain, references)


def retention_warnings(tables: Mapping[str, SnapshotRetention]) -> Iterator[str]:
    """A warning for each reference to a table that keeps its snapshots for a shorter time.

    Args:
        tables: The retentions of tables, by location.
    """
    for uri, retention in tables.items():
        for name, other in retention.references.items():
            if other in tables and tables[other].retain < retention.retain:
                yield (
                    f"{uri} keeps its snapshots for {duration(retention.retain)}, but {other} only for "
                    f"{duration(tables[other].retain)}: older snapshots cannot show its reference {name!r}; clean "
                    "both with the same retain"
                )
