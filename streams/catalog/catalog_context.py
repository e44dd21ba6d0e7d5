"""What all parts of a catalog share: its session, its name in it, and its folder of tables."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.streams.catalog.catalog_jvm import CatalogJvm
from weft.streams.catalog.lake import Lake, Names


@dataclass(frozen=True, slots=True)
class CatalogContext:
    """A catalog of one session.

    Attributes:
        jvm: The session.
        name: Its name there.
        lake: The folder.
        replaced: The tables that running REPLACE TABLE statements have yet to drop.
    """

    jvm: CatalogJvm
    name: str
    lake: Lake
    replaced: set[Names] = field(default_factory=set)
