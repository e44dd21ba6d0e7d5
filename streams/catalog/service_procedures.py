"""Procedures that work on a table as a whole: compaction, cleaning, savepoints, restore, lanes, verification."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from storage import verify_table
from storage.config_file import parse_fields
from storage.engine import (
    CompactionResult,
    Execute,
    FoldResult,
    RestoreResult,
    one_by_one,
    parse_names,
)
from storage.errors import InvalidInput
from streams.catalog.procedure import Row, Session, check_confirmed, open_table, procedure
from streams.pipeline.model import CleanSection, CompactionSection
from streams.pipeline.services import clean_table
from streams.read.as_of import check_clocks, parse_point
from streams.spark.run_tasks import spark_executor

if TYPE_CHECKING:
    from storage.publish.publication import Published

_WORK: Final = {
    "work": "string",
    "file_groups": "bigint",
    "rows": "bigint",
    "bytes_read": "bigint",
    "bytes_written": "bigint",
    "seconds": "double",
    "skipped": "map<string,string>",
}
_ROLLBACK: Final = {
    "lane": "string",
    "kept_up_to": "bigint",
    "rolled_back": "bigint",
    "in_doubt": "array<bigint>",
    "entry": "bigint",
}


def _execute(session: Session, what: str, *, on_cluster: bool) -> Execute:
    return spark_executor(session.spark, f"weft {what}") if on_cluster else one_by_one


def _work(what: str, result: CompactionResult | FoldResult) -> Row:
    return {
        "work": what,
        "file_groups": len(result.done),
        "rows": result.rows,
        "bytes_read": result.bytes_read,
        "bytes_written": result.bytes_written,
        "seconds": round(result.seconds, 3),
        "skipped": [(str(group), why) for group, why in result.skipped.items()],
    }


@procedure(_WORK)
def compact(
    session: Session,
    table: str,
    min_commits: int | None = None,
    max_log_ratio: float | None = None,
    max_read_amplification: float | None = None,
    max_age: str | None = None,
    *,
    on_cluster: bool = False,
) -> list[Row]:
    """Merge logs into base files: all of them, or with one of the settings only what is due."""
    given = {
        "min_commits": min_commits,
        "max_log_ratio": max_log_ratio,
        "max_read_amplification": max_read_amplification,
        "max_age": max_age,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    policy = parse_fields(CompactionSection, chosen, {}).policy if chosen else None
    target, execute = open_table(session, table), _execute(session, "compact", on_cluster=on_cluster)
    rows = [_work("compact", target.compact(policy=policy, execute=execute))]
    return rows if policy is None else [*rows, _work("fold", target.fold(policy=policy, execute=execute))]


@procedure(_WORK)
def fold(session: Session, table: str, *, on_cluster: bool = False) -> Row:
    """Merge small log files; base files stay as they are."""
    target = open_table(session, table)
    return _work("fold", target.fold(execute=_execute(session, "fold", on_cluster=on_cluster)))


@procedure(
    {
        "buckets": "bigint",
        "before": "bigint",
        "file_groups": "bigint",
        "rows": "bigint",
        "bytes_read": "bigint",
        "bytes_written": "bigint",
        "seconds": "double",
    }
)
def split(session: Session, table: str, buckets: int, *, on_cluster: bool = False) -> Row:
    """Change the number of buckets while writers go on: rewrites each file group once."""
    execute = _execute(session, "split", on_cluster=on_cluster)
    return asdict(open_table(session, table).split(buckets, execute=execute))


@procedure({"kind": "string", "files": "bigint", "bytes": "bigint", "oldest_retained": "bigint", "reason": "string"})
def clean(
    session: Session,
    table: str,
    retain: str = "24 hours",
    versions: int | None = None,
    abandon_after: str = "24 hours",
    *,
    dry_run: bool = False,
    close_after: str | None = None,
) -> list[Row]:
    """Delete files that no retained snapshot needs, and what dead processes left; archive old log entries."""
    given = {"retain": retain, "versions": versions, "abandon_after": abandon_after, "close_after": close_after}
    section = parse_fields(CleanSection, given, {})
    result = clean_table(open_table(session, table), section, dry_run=dry_run)
    kept = {"oldest_retained": result.oldest_retained, "reason": result.reason}
    total = {"kind": "total", "files": result.files, "bytes": result.bytes, **kept}
    return [
        *({"kind": kind, "files": tally.files, "bytes": tally.bytes, **kept} for kind, tally in result.deleted.items()),
        total,
    ]


@procedure({"name": "string", "cut": "string", "made_at": "timestamp", "note": "string"})
def savepoint(session: Session, table: str, name: str, as_of: str | None = None, note: str = "") -> Row:
    """Keep a snapshot under a name, until it is released."""
    made = open_table(session, table).savepoint(name, parse_point(as_of), note)
    made_at = dt.datetime.fromtimestamp(made.made_at_ms / 1000, dt.UTC)
    return {"name": made.name, "cut": str(made.cut), "made_at": made_at, "note": made.note}


@procedure({"name": "string"})
def release(session: Session, table: str, name: str) -> Row:
    """Release a savepoint: cleaning may delete its files."""
    open_table(session, table).release_savepoint(name)
    return {"name": name}


@procedure(_ROLLBACK)
def restore(session: Session, table: str, to: str, *, confirm: bool = False) -> list[Row]:
    """Restore a table to a savepoint, a time or a cut. Fences all writers, deletes nothing."""
    point = parse_point(to)
    target = open_table(session, table)
    target.snapshot(point)  # reports a wrong name before it asks
    check_confirmed(f"Restore {table} to {to}? Every writer is fenced.", confirm=confirm)
    return _rollback(target.restore(point))


@procedure(_ROLLBACK)
def undo(session: Session, table: str, stream: str, since: str, *, confirm: bool = False) -> list[Row]:
    """Roll back what one stream has committed since a time, a cut or a savepoint; other streams continue."""
    point = parse_point(since)
    target = open_table(session, table)
    if isinstance(point, dt.datetime):
        if point > dt.datetime.now(dt.UTC):
            raise InvalidInput(f"nothing can have been committed since {since}", hint="give a time in the past")
        check_clocks(target)
    else:
        target.snapshot(point)  # reports a wrong name before it asks
    check_confirmed(f"Undo {stream} since {since} in {table}? Its writer is fenced.", confirm=confirm)
    return _rollback(target.undo(stream, point))


def _rollback(result: RestoreResult) -> list[Row]:
    """One row per lane. The last entry that is rolled back is the fencing claim, which is not counted."""
    return [
        {
            "lane": lane,
            "kept_up_to": slot,
            "rolled_back": max(result.rolled_back[lane] - 1, 0),
            "in_doubt": list(result.in_doubt[lane]) if lane in result.in_doubt else None,
            "entry": result.entry,
        }
        for lane, slot in result.kept.items()
    ]


@procedure({"settled": "timestamp"})
def mark(session: Session, table: str) -> Row:
    """Record what is committed now, so that the snapshot at any time up to now cannot change any more."""
    return {"settled": open_table(session, table).mark()}


@procedure({"lane": "string", "entry": "bigint"})
def fence(session: Session, table: str, lane: str, *, confirm: bool = False) -> Row:
    """Stop the writer of a lane that seems to be dead. If it was only slow, it loses nothing."""
    target = open_table(session, table)
    check_confirmed(f"Fence the writer of lane {lane} of {table}?", confirm=confirm)
    return {"lane": lane, "entry": target.fence(lane)}


@procedure({"lane": "string", "last_entry": "bigint"})
def close(session: Session, table: str, lane: str, *, confirm: bool = False) -> Row:
    """Close a lane permanently; its rows stay."""
    target = open_table(session, table)
    check_confirmed(f"Close lane {lane} of {table} permanently?", confirm=confirm)
    return {"lane": lane, "last_entry": target.close_lane(lane)}


@procedure(
    {"severity": "string", "rule": "string", "place": "string", "problem": "string", "hint": "string", "cut": "string"},
    reads=True,
)
def verify(session: Session, table: str, *, deep: bool = True, on_cluster: bool = False) -> list[Row]:
    """Check log, files, keys and statistics: one row for each problem, or one row ``ok``. Changes nothing."""
    location = session.locate(table)
    execute = _execute(session, "verify", on_cluster=True) if on_cluster else None
    report = verify_table(location.uri, storage_options=location.storage_options, deep=deep, execute=execute)
    found: list[Row] = [
        {
            "severity": finding.severity.value,
            "rule": finding.invariant,
            "place": finding.where,
            "problem": finding.what,
            "hint": finding.hint,
            "cut": report.cut,
        }
        for finding in report.findings
    ]
    if not report.ok:
        return found
    checked = ", ".join(f"{number} {what}" for what, number in report.checked.items())
    nothing = {"rule": "", "place": table, "problem": f"nothing is wrong: checked {checked}", "hint": ""}
    return [{"severity": "ok", **nothing, "cut": report.cut}, *found]


@procedure(
    {
        "published": "string",
        "cut": "string",
        "changed": "boolean",
        "files": "bigint",
        "added": "bigint",
        "removed": "bigint",
        "rows": "bigint",
    }
)
def publish(
    session: Session,
    table: str,
    iceberg: str | None = None,
    catalog: str = "default",
    catalog_options: Mapping[str, str] | None = None,
    columns: str | None = None,
    *,
    delta: bool = False,
    deletion_vectors: bool = True,
) -> Row:
    """Show the base files to other engines as an Iceberg table of that name, or with ``delta`` as a Delta table.

    Nothing is copied. Run it after ``compact``. Without ``deletion_vectors`` any reader of Delta can read the table,
    and a state with unused rows in shared files is not published.
    """
    if (iceberg is None) == (not delta):
        raise InvalidInput(
            "publish: the format is missing", hint="give either iceberg => 'namespace.table' or delta => true"
        )
    target = open_table(session, table)
    wanted: Sequence[str] | None = None if columns is None else parse_names(columns)
    if iceberg is None:
        from storage.publish.delta import publish_delta

        result = publish_delta(target, wanted, deletion_vectors=deletion_vectors)
        return _published(f"{target.uri}/base", result)
    if not deletion_vectors:
        raise InvalidInput("publish: an Iceberg table has no deletion vectors", hint="leave deletion_vectors out")
    from storage.publish.open_catalog import open_catalog

    opened = open_catalog(catalog, catalog_options or {})
    from storage.publish.iceberg import publish_iceberg

    return _published(iceberg, publish_iceberg(target, opened, iceberg, wanted))


def _published(name: str, result: Published) -> Row:
    names = ("cut", "changed", "files", "added", "removed", "rows")
    return {"published": name, **{each: getattr(result, each) for each in names}}
