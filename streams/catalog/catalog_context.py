"""The context that all parts of a catalog share: its session, its name there, and its folder of tables."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.streams.catalog.catalog_jvm import CatalogJvm
from weft.streams.catalog.lake import Lake, Names


@dataclass(frozen=True, slots=True)
class CatalogContext:
    """A catalog of one session.

    Attributes:
        jvm: The session.
        name: Name of the catalog in the session.
        lake: The folder of tables.
        replaced: Tables that a running REPLACE TABLE statement will drop when it creates the new table.
    """

    jvm: CatalogJvm
    name: str
    lake: Lake
    replaced: set[Names] = field(default_factory=set)
