"""The published tables of a soak, read by readers that nobody here wrote, while publishers are killed and frozen.

What a published table shows is compared with a read-optimized read of the snapshot that it says it shows. Cleaning
keeps the files of the last two publications, so a version that two others have followed during a read may miss files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlparse

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyiceberg.table import StaticTable

from weft import Table
from weft.storage.core.log.table_state import TableState
from weft.storage.core.plan.current_files import current_files
from weft.storage.core.plan.slices import base_slices
from weft.storage.errors import NotFound, SnapshotExpired
from weft.storage.publish.delta import publish_delta
from weft.storage.publish.iceberg import publish_iceberg
from weft.storage.publish.iceberg_folder import FolderCatalog

NAME: Final = "shop.wide"
WAREHOUSE: Final = "warehouse"  # beside the pipeline file
TRIES: Final = 5  # of one read, each of which publications may overtake
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Version:
    """What a published table shows.

    Attributes:
        number: Grows from version to version.
        savepoint: The savepoint of its snapshot.
        files: Names of its data files.
        read: Reads its rows.
    """

    number: int
    savepoint: str
    files: frozenset[str]
    read: Callable[[], pa.Table]


@dataclass
class PublishedTables:
    """The Iceberg table and the Delta table of a weft table.

    Attributes:
        reads: Number of versions that were compared, by format.
        overtaken: Reads that found files missing, of versions that others had followed meanwhile.
    """

    table: Table
    folder: Path
    reads: dict[str, int] = field(default_factory=lambda: {"Iceberg": 0, "Delta": 0})
    overtaken: int = 0
    _seen: dict[str, int] = field(default_factory=dict)

    def check(self) -> Iterator[str]:
        """Compare the newest version of each published table that was not compared yet; yields what is wrong."""
        for kind in self.reads:
            for _ in range(TRIES):
                newest = self._newest(kind)
                if newest is None or newest.number == self._seen.get(kind):
                    break
                if newest.number < self._seen.get(kind, -1):
                    yield f"the {kind} table went from version {self._seen[kind]} to {newest.number}"
                problem = self._compare(kind, newest)
                if problem is None:
                    self.overtaken += 1
                    continue
                self._seen[kind] = newest.number
                self.reads[kind] += 1
                yield from filter(None, [problem])
                break

    def _compare(self, kind: str, version: Version) -> str | None:
        """What is wrong with a version; None if publications have overtaken the read, or it has expired."""
        try:
            shown = rows_of(version.read())
            wanted = rows_of(self.table.snapshot(version.savepoint).read_optimized().to_arrow())
        except (OSError, DeltaError, pl.exceptions.PolarsError, NotFound, SnapshotExpired) as error:
            newest = self._newest(kind)
            assert newest is not None, "a published table does not vanish"
            if newest.number != version.number:
                return None
            return f"version {version.number} of the {kind} table cannot be read: {type(error).__name__}: {error}"
        if shown == wanted:
            return ""
        return (
            f"version {version.number} of the {kind} table has {len(shown)} rows, not the {len(wanted)} of its snapshot"
        )

    def current(self) -> bool:
        """Whether both tables show the newest base files."""
        wanted = _base_files(self.table.state())
        found = (self._newest(kind) for kind in self.reads)
        return all(version is not None and version.files == wanted for version in found)

    def judge(self, wanted: Rows) -> Iterator[str]:
        """What is wrong at the end, when nobody else publishes any more and everything is compacted."""
        publish_delta(self.table)
        publish_iceberg(self.table, FolderCatalog("default", warehouse=str(self.folder / WAREHOUSE)), NAME)
        for kind in self.reads:
            newest = self._newest(kind)
            if newest is None or rows_of(newest.read()) != wanted:
                yield f"the {kind} table does not show the oracle's rows at the end"
        if len(self.table.savepoints()) > 4:
            yield f"publications left savepoints: {self.table.savepoints()}"

    def judge_cleaned(self) -> Iterator[str]:
        """What a clean that retains nothing besides has left, and should not have."""
        state = self.table.state()
        kept = [self.table.snapshot(name).state for name in state.savepoints]
        needed = frozenset[str]().union(*map(_base_files, [state, *kept]))
        stored = {
            path.name for path in (self.folder / "table/base").rglob("*.parquet") if "_delta_log" not in path.parts
        }
        if stored != needed:
            yield f"published snapshots lack {sorted(needed - stored)}, and cleaning left {sorted(stored - needed)}"
        yield from self.check()

    def _newest(self, kind: str) -> Version | None:
        return self._newest_delta() if kind == "Delta" else self._newest_iceberg()

    def _newest_delta(self) -> Version | None:
        root = self.folder / "table/base"
        if not list(root.glob("_delta_log/0*.json")):
            return None
        found = DeltaTable(root)
        number = found.version()
        lines = (root / f"_delta_log/{number:020d}.json").read_text().splitlines()
        domains = [action["domainMetadata"] for action in map(json.loads, lines) if "domainMetadata" in action]
        (domain,) = domains
        files = frozenset(Path(unquote(urlparse(uri).path)).name for uri in found.file_uris())
        savepoint: str = json.loads(domain["configuration"])["savepoint"]
        return Version(number, savepoint, files, lambda: pl.scan_delta(found).collect().to_arrow())

    def _newest_iceberg(self) -> Version | None:
        while True:
            known = (self.folder / WAREHOUSE).joinpath(*NAME.split("."), "metadata").glob("v*.metadata.json")
            newest = max(known, key=lambda path: int(path.name[1:].split(".")[0]), default=None)
            if newest is None:
                return None
            try:
                found = StaticTable.from_metadata(str(newest))
                break
            except FileNotFoundError:  # commits have removed it meanwhile
                continue
        snapshot = found.current_snapshot()
        if snapshot is None or snapshot.summary is None or snapshot.sequence_number is None:
            return None
        savepoint = snapshot.summary.additional_properties["weft.savepoint"]
        try:
            files = frozenset(Path(urlparse(task.file.file_path).path).name for task in found.scan().plan_files())
        except FileNotFoundError:
            return self._newest_iceberg()
        return Version(snapshot.sequence_number, savepoint, files, lambda: found.scan().to_arrow())


def rows_of(table: pa.Table) -> Rows:
    """Rows by key; readers have text types of their own."""
    rows: Rows = table.sort_by("id").to_pylist()
    return rows


def _base_files(state: TableState) -> frozenset[str]:
    return frozenset(Path(current.file.path).name for current in current_files(base_slices(state)))
