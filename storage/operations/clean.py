"""Clean: delete what no retained snapshot needs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Annotated, Final

from pydantic import Field

from weft.storage.operations.operation import TEXT, Context, Duration, Face, Finished, Operation, Request, Row
from weft.storage.plural import counted
from weft.storage.services.clean.clean import CleanResult
from weft.storage.services.clean.retention_policy import DEFAULT_ABANDON, DEFAULT_RETENTION
from weft.storage.table import Table


class RetentionSettings(Request):
    """What cleaning keeps, also in the section ``clean`` of a pipeline file."""

    retain: Annotated[Duration, TEXT] = DEFAULT_RETENTION.total_seconds()
    """Keep every snapshot that was the newest within this time: 0, 7 days; default 24 hours."""
    versions: Annotated[int | None, Field(ge=1)] = None
    """Keep the snapshots of this many last compactions."""
    abandon_after: Annotated[Duration, TEXT] = DEFAULT_ABANDON.total_seconds()
    """Abort open compactions that are older than this; default 24 hours."""
    close_after: Annotated[Duration | None, Face(type=str, last=True), Field(gt=0)] = None
    """Close the lanes of query ids that have written nothing for this time; default never."""


class CleanRequest(RetentionSettings):
    """Delete what no retained snapshot needs, and what dead writers and compactions left. Blocks no reader or writer.

    Also archives old log entries, and retires closed lanes. With a pipeline file, its section clean says what is
    kept; flags override it. Dead letters are deleted after the time that their writer declares: dead_letter: {keep:
    30 days}.
    """

    dry_run: bool = False
    """Only print what would be deleted."""


def _run(table: Table, request: CleanRequest, context: Context) -> CleanResult:
    return clean_table(table, request, dry_run=request.dry_run, context=context)


def clean_table(
    table: Table, settings: RetentionSettings, *, dry_run: bool = False, context: Context | None = None
) -> CleanResult:
    """Run `Table.clean` with settings, for example those of a pipeline file."""
    return table.clean(
        retain=dt.timedelta(seconds=settings.retain),
        versions=settings.versions,
        dry_run=dry_run,
        abandon_after=dt.timedelta(seconds=settings.abandon_after),
        close_after=None if settings.close_after is None else dt.timedelta(seconds=settings.close_after),
        progress=(context or Context()).progress,
    )


def _describe(finished: Finished[CleanRequest, CleanResult]) -> str:
    result, dry_run = finished.result, finished.request.dry_run
    lines = [f"{'would delete' if dry_run else 'deleted'} {counted(result.files, 'file')}, {result.bytes / 1e6:.1f} MB"]
    lines.extend(
        f"  {kind}: {counted(tally.files, 'file')}, {tally.bytes / 1e6:.1f} MB"
        for kind, tally in result.deleted.items()
    )
    lines.extend(f"  {path}" for path in result.listed)
    if result.archived:
        verb = "would move" if dry_run else "moved"
        lines.append(
            f"{verb} {counted(result.archived, 'entry')} of the log into {counted(result.archives, 'archive')}"
        )
    if result.retired:
        verb = "would retire" if dry_run else "retired"
        lines.append(f"{verb} {counted(len(result.retired), 'closed lane')}, whose rows are in slices")
    lines.append(f"snapshots from entry {result.oldest_retained} of the table lane on are kept: {result.reason}")
    lines.extend(f"also kept by {holder.what} {holder.name}: {holder.cut}" for holder in result.held)
    lines.extend(f"aborted as abandoned: compaction {plan}" for plan in result.aborted)
    lines.extend(f"not deleted, because it is not a file of weft: {path}" for path in result.foreign)
    if result.foreign_files > len(result.foreign):
        lines.append(f"  and {result.foreign_files - len(result.foreign)} more")
    return "\n".join(lines)


def _rows(finished: Finished[CleanRequest, CleanResult]) -> Iterable[Row]:
    result = finished.result
    retained = {"oldest_retained": result.oldest_retained, "reason": result.reason}
    for kind, tally in result.deleted.items():
        yield {"kind": kind, "files": tally.files, "bytes": tally.bytes, **retained}
    yield {"kind": "total", "files": result.files, "bytes": result.bytes, **retained}


CLEAN: Final = Operation(
    name="clean",
    request=CleanRequest,
    run=_run,
    describe=_describe,
    columns="kind string, files bigint, bytes bigint, oldest_retained bigint, reason string",
    rows=_rows,
    examples=("weft clean lake/orders_wide --retain '7 days' --dry-run", "weft clean shop/pipeline.yaml"),
    stage="cleaning",
    section="clean",
    method=Table.clean,
)
