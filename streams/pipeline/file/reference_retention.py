"""Compares how long tables and the tables that they refer to keep their snapshots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from weft.storage import Table
from weft.streams.pipeline.file.model import TableLocation
from weft.streams.pipeline.file.quantities import duration


@dataclass(frozen=True, slots=True)
class Kept:
    """How long a table keeps its snapshots.

    Attributes:
        retain: Seconds.
        references: Locations of the tables that it refers to, by reference.
    """

    retain: float
    references: Mapping[str, str] = field(default_factory=dict)


def read_kept(location: TableLocation, retain: float) -> tuple[str, Kept]:
    """The location of a table in its normal form, and what it refers to.

    Raises:
        TableError: The table cannot be read.
    """
    table = Table.open(location.uri, storage_options=location.storage_options)
    references = {each.name: table.env.of_table(each.table).store.uri for each in table.schema.references}
    return table.uri, Kept(retain, references)


def shorter_retentions(tables: Mapping[str, Kept]) -> Iterator[str]:
    """For each reference to a table that keeps its snapshots for a shorter time: what follows from it, in words.

    Args:
        tables: By location.
    """
    for uri, kept in tables.items():
        for name, other in kept.references.items():
            if other in tables and tables[other].retain < kept.retain:
                yield (
                    f"{uri} keeps its snapshots for {duration(kept.retain)}, but {other} only for "
                    f"{duration(tables[other].retain)}: older snapshots cannot show its reference {name!r}; clean "
                    "both with the same retain"
                )
