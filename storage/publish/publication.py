"""What publications of all formats have in common: the files to list, the savepoints that keep them, and the result."""

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
from weft.storage.files.base_file import read_footers
from weft.storage.files.footers import Footer
from weft.storage.read.plan.divide_file_group import FOOTERS_AT_ONCE
from weft.storage.read.snapshot import Snapshot
from weft.storage.services.history.savepoints import make_savepoint
from weft.storage.services.steps.progress import OnStage, Stage
from weft.storage.shown import Shown
from weft.storage.table import Table

LOOK_BACK: Final = 8
"""Entries of a lane in which its last commit is looked for: claims follow it if its writer was often restarted."""


@dataclass(frozen=True, slots=True)
class Published(Shown):
    """The result of a publication.

    Attributes:
        cut: The snapshot of the weft table whose base files the published table shows.
        snapshot_id: Id of the current snapshot of an Iceberg table, or version of a Delta table.
        changed: Whether there was anything to publish; otherwise the published table has the same snapshot as before.
        files: Files of the published table.
        added: Files that it did not have before.
        removed: Files that it no longer has.
        rows: Rows of the published table.
        unused_rows: Rows of the files that are not rows of the table: the published table lists them as deleted.
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
    """Whether the base files of a snapshot certainly show the table at one moment (S31, U6).

    They do if all file groups contain the commits up to one cut, as after a compaction of all of them, and if all
    commits in it began before some entry of the table lane, and all later ones after that.

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
    # Commits of retired lanes are not looked at. Their lanes were closed in the state of this prefix (PROTOCOL.md, C6).
    newest, oldest_later = max(0, state.complete_from - 1), state.head + 1
    for lane, tail in tails.items():
        end = state.covered.get(lane, 0)
        within = [entry for entry in tail if isinstance(entry, Data) and entry.seq <= end]
        later = [entry for entry in tail if isinstance(entry, Data) and entry.seq > end]
        table_heads = [entry.table_seen for entry in (*within[-1:], *later[:1])]
        if None in table_heads or (starts[lane] and not within):
            return False  # commits of an earlier version, or claims alone
        newest = max([newest, *(entry.table_seen or 0 for entry in within[-1:])])
        oldest_later = min([oldest_later, *(entry.table_seen or 0 for entry in later[:1])])
    return newest < oldest_later


def footers_reported(env: Environment, files: Sequence[FileRef], progress: OnStage) -> list[Footer]:
    """The footers of base files, see `weft.storage.files.base_file.read_footers`; reports how many were read."""
    footers: list[Footer] = []
    for start in range(0, len(files), FOOTERS_AT_ONCE):
        footers += read_footers(env, files[start : start + FOOTERS_AT_ONCE])
        progress(Stage("publishing", len(footers), len(files), "files"))
    return footers


def columns_to_publish(schema: TableSchema, columns: Sequence[str] | None) -> list[str]:
    """The names of the published columns, in order; None means all.

    Raises:
        NotFound: The table has no such column.
        InvalidInput: A key column is missing.
    """
    names = list(schema.arrow.names if columns is None else dict.fromkeys(columns))
    for name in names:
        schema.column(name)
    without = [name for name in schema.key if name not in names]
    if without:
        raise InvalidInput(
            f"the published columns lack key column {', '.join(without)}", hint="name all key columns of the table"
        )
    return names


def files_to_publish(state: TableState, columns: Sequence[str]) -> list[CurrentFile]:
    """The base files of a state.

    Raises:
        InvalidInput: Some of them have an older schema, in which one of the columns does not show what the table shows;
            or overlays have newer values of a column.
    """
    files = current_files(base_slices(state))
    check_current_values(
        state.schema,
        files,
        columns,
        overlaid_advice="; or weft alter set-overlays URI false, and publish after the next compaction",
        older_advice=", or publish again when all base files were written anew",
    )
    return files


def describe_publication(
    snapshot: Snapshot, files: Mapping[str, CurrentFile], before: Collection[str], snapshot_id: int, *, changed: bool
) -> Published:
    """The result of a publication.

    Args:
        snapshot: The snapshot of the weft table.
        files: The published files by their place.
        before: The places of the files that were published before.
        snapshot_id: See `Published`.
        changed: See `Published`.
    """
    unused_rows = sum(current.unused_rows for current in files.values())
    return Published(
        cut=str(snapshot.cut),
        snapshot_id=snapshot_id,
        changed=changed,
        files=len(files),
        added=len(files.keys() - before),
        removed=len(set(before) - files.keys()),
        rows=sum(current.file.rows for current in files.values()) - unused_rows,
        unused_rows=unused_rows,
        is_moment=is_one_moment(snapshot),
    )


@contextlib.contextmanager
def kept_by_savepoint(
    table: Table, name: str, snapshot: Snapshot, note: str, undo: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Keep a snapshot by a savepoint while the block publishes it, and after that, unless the block certainly failed.

    Then ``undo`` removes what the block has written. After `CommitUnknown` the savepoint stays until the next
    publication that succeeds: if it was published, it needs it. Base files have no columns of referenced tables, so the
    snapshot of this table alone is kept.
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


def release_unneeded(table: Table, listed: Iterable[str], pattern: str, in_use: Collection[str | None]) -> None:
    """Release the savepoints of earlier publications that nothing needs any more.

    Args:
        table: The weft table.
        listed: Names of savepoints that existed before the published table was loaded. Whoever made one of them, and
            has not committed yet, will fail, because the published table has changed since.
        pattern: Regular expression of the whole names of these publications' savepoints.
        in_use: Savepoints to keep.
    """
    for name in listed:
        if re.fullmatch(pattern, name) and name not in in_use:
            release_savepoint(table, name)


def release_savepoint(table: Table, name: str) -> None:
    """Release a savepoint, unless another publication has done it."""
    with contextlib.suppress(NotFound):
        table.release_savepoint(name)
