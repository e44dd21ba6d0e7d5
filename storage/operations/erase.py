"""Erase: remove keys physically, and prove that they are gone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final

from weft.storage.operations.operation import Context, Face, Finished, Operation, Request, Row
from weft.storage.plural import counted
from weft.storage.services.erase.erase import EraseResult
from weft.storage.table import Table

MAX_LISTED_PATHS: Final = 20  # paths of each kind; --json has all


class EraseRequest(Request):
    """Remove keys physically, from every file of a table, and prove it by reading all of them back. Writers go on.

    Refused while retained snapshots, savepoints or pins need files with the keys, unless the options below allow to
    release them. If it was interrupted, run it again. Exit code 1 if an object still has a key.

    Data outside of the table is not changed: Kafka topics, dead letters, checkpoints of Spark, backups, old versions of
    objects, and published tables; publish them again. Messages with the keys that are read later are new data.
    """

    keys: Annotated[Any, Face(type=str, completes="files")]
    """The keys. For the command a file with the key columns: .parquet, .csv (with a header) or .jsonl (one object a
    line). Other columns are ignored. In SQL a query that returns the key columns.
    """
    expire_snapshots: bool = False
    """Expire all earlier snapshots, and remove pins, that have the keys."""
    release_savepoints: bool = False
    """Release savepoints that have the keys."""
    note: str = ""
    """A text for the log, such as a ticket; it must not contain keys."""


def _prepare(table: Table, request: EraseRequest, context: Context) -> EraseRequest:
    with context.naming():
        return request.model_copy(update={"keys": context.keys(request.keys, table)})


def _describe(finished: Finished[EraseRequest, EraseResult]) -> str:
    result = finished.result
    lines = [
        f"{counted(result.keys, 'key')} erased up to {result.cut}"
        if result.complete
        else f"NOT COMPLETE: {counted(len(result.remains), 'object')} with a key, or that cannot be read"
    ]
    deleted = sum(tally.files for tally in result.deleted.values())
    lines.append(
        f"{counted(result.file_groups, 'file group')} rewritten, {counted(deleted, 'file')} deleted, "
        f"key ranges removed from {counted(result.redacted, 'entry')} of the log"
    )
    lines.extend(f"savepoint {name} is released" for name in result.released)
    lines.extend(f"{dependent} cannot be read any more: it needed a released savepoint" for dependent in result.broken)
    lines.extend(f"a pin of {owner} is removed" for owner in result.unpinned)
    lines.extend(f"compaction {plan} is aborted" for plan in result.aborted)
    read_back = ", ".join(f"{tally.files:,} {kind}" for kind, tally in sorted(result.read.items()))
    total = sum(tally.bytes for tally in result.read.values())
    lines.append(f"read back: {read_back}; {total / 1e6:.1f} MB")
    lines.extend(f"still there: {remaining.path}: {remaining.why}" for remaining in result.remains[:MAX_LISTED_PATHS])
    lines.extend(
        f"newer, not erased: {path} (committed after the cut, or not committed yet)"
        for path in result.newer[:MAX_LISTED_PATHS]
    )
    lines.extend(f"not a file of the table, not read: {path}" for path in result.unread[:MAX_LISTED_PATHS])
    lines.append(
        "not part of the table: Kafka topics, dead letters, Spark's checkpoints, backups, and what the table is "
        "published as (publish it again)"
    )
    return "\n".join(lines)


def _rows(finished: Finished[EraseRequest, EraseResult]) -> Iterable[Row]:
    result = finished.result
    row = {name: getattr(result, name) for name in ("complete", "keys", "file_groups", "released", "broken")}
    deleted = sum(tally.files for tally in result.deleted.values())
    paths = {
        "remains": [str(remaining.path) for remaining in result.remains],
        "newer": [str(path) for path in result.newer],
    }
    return [{**row, "cut": str(result.cut), "files_deleted": deleted, **paths}]


ERASE: Final = Operation(
    name="erase",
    request=EraseRequest,
    prepare=_prepare,
    question=lambda request, table: f"Erase {counted(len(request.keys), 'key')} from {table}? This cannot be undone.",
    describe=_describe,
    columns="complete boolean, keys bigint, cut string, file_groups bigint, files_deleted bigint, "
    "released array<string>, broken array<string>, remains array<string>, newer array<string>",
    rows=_rows,
    examples=("weft erase lake/orders_wide --keys customers.csv --expire-snapshots --note 'ticket 12'",),
    stage="looking for the keys",
    fails=lambda result: not result.complete,
    method=Table.erase,
)
