"""Binds referenced rows to an earlier snapshot: processes keep its rows, and a read sends them later changes.

Worker processes keep the rows of a referenced table between queries (`weft.storage.read.references.kept_rows`). If each
commit to that table made them read all of its rows again, a large table with frequent updates would be read for every
query. So the driver chooses an earlier snapshot, the *bound* one. For each later snapshot it finds the keys in the
commits between both, reads the rows of these keys, and sends them along with the scan. The workers replace these rows.

The result equals that of the rows of the later snapshot alone (MERGE.md, M11). This works only if commits contain all
changed keys (PROTOCOL.md, D1 and D2): the bound snapshot is retained, and part of the later one; and no restore, undo,
rewrite, erase or schema change lies between, because these change rows without a commit. Otherwise, or if much has
changed, the later snapshot becomes the bound one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from weft.storage.bounded_cache import BoundedCache
from weft.storage.core.arrays import Arrays
from weft.storage.core.keys import KeyVector
from weft.storage.core.log import cut
from weft.storage.core.log.cut import Cut
from weft.storage.core.log.file_refs import FileGroup
from weft.storage.errors import MissingFile
from weft.storage.log import live_files
from weft.storage.read.plan.log_slices import keys_of_commits, log_slices, start_of
from weft.storage.read.references.joined_scan import Join, JoinedScan
from weft.storage.read.references.reference_rows import Newer, Since
from weft.storage.read.references.referenced_table import ReferencedTable
from weft.storage.read.request.scan_request import ScanRequest
from weft.storage.read.scan.plan_scan import plan_scan
from weft.storage.read.scan.scan import Scan
from weft.storage.read.snapshot_files import SnapshotFiles

MOST_ROWS: Final = 20_000
"""Maximum number of rows of commits since the bound snapshot. The driver reads them, and sends them with each task."""
MOST_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of these rows in memory."""
MOST_SHARE: Final = 0.1
"""Maximum share of these rows in the stored rows of the referenced table."""
MAX_BOUND: Final = 16
"""Maximum number of bound snapshots in the cache, one for each referenced table and list of columns."""


@dataclass(frozen=True)
class _Bound:
    """A bound snapshot with the changes since then that were read last.

    Attributes:
        scan: Scan of all rows of the bound snapshot.
        identity: Identity of these rows.
        since: The changes until ``at``; None before the first later snapshot.
        at: The cut of the later snapshot.
    """

    scan: Scan
    identity: str
    since: Since | None = None
    at: Cut | None = None

    def until(self, later: SnapshotFiles) -> _Bound | None:
        """A copy with the changes until a snapshot; None if they cannot be determined, or are too many."""
        columns = self.scan.projection.columns
        newer: Newer | None = None
        if self.since is not None and self.at is not None and has_all_changed_keys(self.scan.at, later):
            newest = rows_since(self.at, later, columns)  # only the commits since the last read
            newer = None if newest is None else self.since.newer.followed_by(newest)
            newer = None if newer is None or len(newer.ordered) > most_rows(later) else newer
        if newer is None:
            newer = rows_since(self.scan.at, later, columns)
        if newer is None or newer.rows.nbytes > MOST_BYTES:
            return None
        return replace(self, since=Since(self.scan, self.identity, newer), at=later.at)


class BoundRows:
    """The bound snapshots of the tables that one table refers to. Thread-safe."""

    def __init__(self) -> None:
        self._bound: BoundedCache[tuple[str, str, tuple[str, ...]], _Bound] = BoundedCache(MAX_BOUND, lambda _: 1)

    def apply(self, joined: JoinedScan, tables: Sequence[ReferencedTable]) -> JoinedScan:
        """Let a scan use the rows of bound snapshots of the referenced tables.

        Args:
            joined: A scan of all rows, not of base files alone.
            tables: The references of its snapshot.
        """
        files = {
            table.reference.name: table.files for table in tables if isinstance(table.snapshot_or_error, SnapshotFiles)
        }
        joins = tuple(self._bind(join, files[join.reference.name]) for join in joined.joins)
        return replace(joined, joins=joins)

    def _bind(self, join: Join, later: SnapshotFiles) -> Join:
        key = (join.rows.scan.env.store.uri, join.reference.table_id, join.rows.scan.projection.columns)
        bound = self._bound.find(key)
        if bound is not None and bound.identity != join.identity and bound.at != later.at:
            bound = bound.until(later)
        if bound is None:
            bound = _Bound(join.rows.scan, join.identity)
        self._bound.put(key, bound)
        if bound.identity == join.identity:
            return join
        return replace(join, rows=replace(join.rows, since=bound.since))


def rows_since(bound: Cut, later: SnapshotFiles, columns: Sequence[str]) -> Newer | None:
    """Read the rows of the keys that may differ between two snapshots, from the later one.

    Args:
        bound: The cut of the earlier snapshot.
        later: The later snapshot.
        columns: The columns to read, with the key.

    Returns:
        The rows; None if the keys cannot be determined, or are too many.
    """
    if not has_all_changed_keys(bound, later):
        return None
    try:
        changed = _changed_keys(bound, later, most_rows(later))
    except MissingFile:  # a clean has removed a log file since the check
        return None
    if changed is None:
        return None
    key_columns, keys = changed
    scan = plan_scan(later, ScanRequest(list(columns), keys=keys))
    return Newer.of(later.table_schema, key_columns, scan.to_arrow())


def most_rows(later: SnapshotFiles) -> int:
    """The maximum number of changed rows to send with a scan."""
    return min(MOST_ROWS, int(MOST_SHARE * sum(part.stored_rows for part in later.slices)))


def has_all_changed_keys(bound: Cut, later: SnapshotFiles) -> bool:
    """Whether log files contain all keys that differ between two snapshots, and these files exist."""
    state = later.state
    return (
        bound.table <= later.at.table
        and cut.within(start_of(bound, state), later.at.lanes)
        and max(state.restored, state.rewritten, state.schema_rev) <= bound.table
        and later.table_log.refresh().oldest_retained <= bound.table
    )


def _changed_keys(bound: Cut, later: SnapshotFiles, most: int) -> tuple[Arrays, dict[FileGroup, KeyVector]] | None:
    """The keys of the commits after a cut: their columns, and by file group; None for more than ``most`` rows."""
    state = later.state
    files = live_files.committed_files(later.table_log, state, start_of(bound, state), later.at.lanes)
    if sum(sum(live.index.blocks.rows) for live in files) > most:
        return None
    return keys_of_commits(later.table_log.env, later.table_schema, files, log_slices(state, files), state.levels)
