"""The common part of all publications: the files to publish, the savepoints that keep them, and the result."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from weft.storage.core.log import cut
from weft.storage.core.log.entries import Data
from weft.storage.core.log.file_refs import FileRef
from weft.storage.core.log.table_state import TableState
from weft.storage.core.plan.current_files import CurrentFile, check_current_values, current_files
from weft.storage.core.plan.slices import base_slices
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.environment import Environment
from weft.storage.errors import CommitUnknown, InvalidInput, NotFound, TableError
from weft.storage.files.footers import Footer, read_footers
from weft.storage.read.plan.divide_file_group import FOOTERS_AT_ONCE
from weft.storage.read.snapshot import Snapshot
from weft.storage.services.history.savepoints import make_savepoint
from weft.storage.services.steps.progress import OnStage, Stage
from weft.storage.shown import Shown
from weft.storage.table import Table

LOOK_BACK: Final = 8
"""Number of entries of a lane that are searched for its last commit. Claims follow it after restarts of a writer."""


@dataclass(frozen=True, slots=True)
class Published(Shown):
    """The result of a publication.

    Attributes:
        cut: The snapshot of the weft table whose base files the published table shows.
        snapshot_id: Id of the current snapshot of an Iceberg table, or version of a Delta table.
        changed: Whether anything was published; otherwise the published table has the same snapshot as before.
        files: Number of files of the published table.
        added: Number of files that it did not have before.
        removed: Number of files that it no longer has.
        rows: Number of rows of the published table.
        unused_rows: Number of rows in its files that are not rows of the table; it lists them as deleted.
        is_moment: Whether the published table certainly shows the table at one moment, see `is_one_moment`.
    """

    cut: str
    snapshot_id: int
    changed: bool
    files: int
    added: int
    removed: int
    rows: int
    unused_rows: int
    is_moment: bool


def is_one_moment(snapshot: Snapshot) -> bool:
    """Whether the base files of a snapshot certainly show the table at one moment (PROTOCOL.md, S31 and U6).

    They do if all file groups contain the commits up to one cut, as after a compaction of all of them, and if all these
    commits began before some entry of the table lane, and all later commits after it.

    Args:
        snapshot: The newest snapshot, taken after the state whose base files these are was read.
    """
    state = snapshot.state
    if not all(cut.within(end, state.covered) for end in state.slices.cuts()):
        return False
    starts = {lane: max(0, state.covered.get(lane, 0) - LOOK_BACK) for lane in snapshot.cut.lanes}
    tails = snapshot.table_log.commit_log.read_tails(
        {lane: (start, snapshot.cut.lanes[lane]) for lane, start in starts.items()}
    )
    # Commits of retired lanes need not be read: their lanes were closed in the state of this prefix (PROTOCOL.md, C6).
    newest, oldest_later = max(0, state.complete_from - 1), state.head + 1
    for lane, tail in tails.items():
        end = state.covered.get(lane, 0)
        commits = [entry for entry in tail if isinstance(entry, Data) and entry.seq <= end]
        later_commits = [entry for entry in tail if isinstance(entry, Data) and entry.seq > end]
        table_heads = [entry.table_seen for entry in (*commits[-1:], *later_commits[:1])]
        if None in table_heads or (starts[lane] and not commits):
            return False  # commits of an earlier version of weft, or only claims
        newest = max([newest, *(entry.table_seen or 0 for entry in commits[-1:])])
        oldest_later = min([oldest_later, *(entry.table_seen or 0 for entry in later_commits[:1])])
    return newest < oldest_later


def footers_reported(env: Environment, files: Sequence[FileRef], progress: OnStage) -> list[Footer]:
    """Read the footers of base files, see `weft.storage.files.footers.read_footers`, and report their number."""
    footers: list[Footer] = []
    for start in range(0, len(files), FOOTERS_AT_ONCE):
        footers += read_footers(env, files[start : start + FOOTERS_AT_ONCE])
        progress(Stage("publishing", len(footers), len(files), "files"))
    return footers


def columns_to_publish(schema: TableSchema, columns: Sequence[str] | None) -> list[str]:
    """Names of the published columns, in order. ``columns``: None for all columns of the table.

    Raises:
        NotFound: The table has no such column.
        InvalidInput: A key column is missing.
    """
    names = list(schema.arrow.names if columns is None else dict.fromkeys(columns))
    for name in names:
        schema.column(name)
    missing_keys = [name for name in schema.key if name not in names]
    if missing_keys:
        raise InvalidInput(
            f"the published columns lack key column {', '.join(missing_keys)}", hint="name all key columns of the table"
        )
    return names


def files_to_publish(state: TableState, columns: Sequence[str]) -> list[CurrentFile]:
    """The base files of a state.

    Raises:
        InvalidInput: Base files of an older schema have other values in a column than the table, or overlays have newer
            values of a column.
    """
    files = current_files(base_slices(state))
    check_current_values(
        state.schema,
        files,
        columns,
        overlaid_advice="; or weft alter set-overlays URI false, and publish after the next compaction",
        older_advice=", or publish again after all base files were rewritten",
    )
    return files


def describe_publication(
    snapshot: Snapshot,
    files: Mapping[str, CurrentFile],
    previous_paths: Collection[str],
    snapshot_id: int,
    *,
    changed: bool,
) -> Published:
    """Build the result of a publication.

    Args:
        snapshot: The snapshot of the weft table.
        files: The published files, by path or URL.
        previous_paths: Paths or URLs of the files that were published before.
        snapshot_id: See `Published`.
        changed: See `Published`.
    """
    unused_rows = sum(current.unused_rows for current in files.values())
    return Published(
        cut=str(snapshot.cut),
        snapshot_id=snapshot_id,
        changed=changed,
        files=len(files),
        added=len(files.keys() - previous_paths),
        removed=len(set(previous_paths) - files.keys()),
        rows=sum(current.file.rows for current in files.values()) - unused_rows,
        unused_rows=unused_rows,
        is_moment=is_one_moment(snapshot),
    )


@contextlib.contextmanager
def kept_by_savepoint(
    table: Table, name: str, snapshot: Snapshot, note: str, undo: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Keep a snapshot by a savepoint, while the block publishes it and afterwards.

    If the block certainly fails, releases the savepoint and calls ``undo``, which removes what the block has written.
    After `CommitUnknown` the savepoint stays until the next publication that succeeds, because the snapshot may be
    published. Base files have no columns of referenced tables, so only the snapshot of this table is kept.
    """
    make_savepoint(table.writable(), name, snapshot, note)
    try:
        yield
    except CommitUnknown:
        raise
    except BaseException:
        with contextlib.suppress(TableError):
            release_savepoint(table, name)
        with contextlib.suppress(Exception):  # the first error is the one to report
            undo()
        raise


def release_unneeded(table: Table, names: Iterable[str], pattern: str, in_use: Collection[str | None]) -> None:
    """Release the savepoints of earlier publications that nothing needs any more.

    Args:
        table: The weft table.
        names: Names of savepoints that existed before the published table was loaded. A publication that made one of
            them and has not committed yet will fail, because the published table has changed since.
        pattern: Regular expression that matches the whole name of a publication's savepoint.
        in_use: Savepoints to keep.
    """
    for name in names:
        if re.fullmatch(pattern, name) and name not in in_use:
            release_savepoint(table, name)


def release_savepoint(table: Table, name: str) -> None:
    """Release a savepoint, unless another publication has done it."""
    with contextlib.suppress(NotFound):
        table.release_savepoint(name)
