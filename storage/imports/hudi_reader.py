"""Reads a snapshot of a Hudi table with hudi-rs, which merges the log files of merge-on-read tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from hudi import HudiInstant, HudiReadOptions, HudiTable, HudiTableBuilder

from weft.storage.errors import InvalidInput
from weft.storage.foreign_text import parse_json
from weft.storage.imports.foreign_table import BATCH_ROWS, ForeignTable
from weft.storage.store.open_store import open_store

_PREFIX: Final = "hoodie."
_HARMLESS: Final = frozenset(
    {
        "hoodie.metadata.enable",
        "hoodie.plan.listing.parallelism",
        "hoodie.read.file.slice.read.concurrency",
        "hoodie.read.scan.max.memory.size",
    }
)
"""Options of hudi-rs that do not change which rows are read. Others do: they leave out log files, for example."""
_META: Final = frozenset(
    f"_hoodie_{name}" for name in ("commit_time", "commit_seqno", "record_key", "partition_path", "file_name")
)
"""Columns of Hudi itself, which a table declares like others if its schema was changed with schema-on-read."""
_INTERNAL_SCHEMA: Final = "latest_schema"
"""Property of a commit with the columns and their ids. It exists if the schema was changed with schema-on-read."""
_ID_FIELDS: Final = frozenset({"id", "element_id", "key_id", "value_id"})
_UNSAFE_ADVICE: Final = "Set hoodie.read."
"""Start of advice in errors of hudi-rs: to read the table with other merge rules than its own."""


def open_table(location: str, version: str | None, options: dict[str, Any]) -> ForeignTable:
    """Open a table at a commit time. ``options``: options of the store, and some of hudi-rs."""
    for name in options:
        if name.startswith(_PREFIX) and name not in _HARMLESS:
            raise InvalidInput(
                f"--source-option {name}: it would change which rows are read",
                hint=f"leave it out; options of the reader: {', '.join(sorted(_HARMLESS))}",
            )
    uri = location if "://" in location else open_store(location).uri
    text_options = {name: str(value) for name, value in options.items()}
    try:
        table = HudiTableBuilder.from_base_uri(uri).with_options(text_options).build()
        return _open_version(table, location, version)
    except Exception as error:
        raise _without_unsafe_advice(error) from error


def _without_unsafe_advice(error: Exception) -> Exception:
    """The error without advice that would make hudi-rs read other rows than Hudi's own readers."""
    text, separator, _ = str(error).partition(_UNSAFE_ADVICE)
    if not separator:
        return error
    return InvalidInput(
        f"the log files of the Hudi table cannot be merged as Hudi does it: {text.strip()}",
        hint="import a Parquet export of what Hudi's reader shows, or write its rows into a table that merges by "
        "ordering fields or commit time",
    )


def _open_version(table: HudiTable, location: str, version: str | None) -> ForeignTable:
    newest_commit = table.get_timeline().get_latest_commit_timestamp()
    if newest_commit is None:
        raise InvalidInput(
            f"the Hudi table at {location} has no commit", hint="check the location: there is nothing to import"
        )
    commit_time = newest_commit if version is None else version
    _check_names(table)
    if version is not None:
        _check_kept(table, version)

    def batches(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        query = HudiReadOptions().with_as_of_timestamp(commit_time)
        query = query.with_projection(list(columns)).with_batch_size(BATCH_ROWS)
        try:
            yield from table.read_stream(query)
        except Exception as error:
            raise _without_unsafe_advice(error) from error

    return ForeignTable(
        kind="hudi",
        location=location,
        version=commit_time,
        schema=pa.schema([field for field in table.get_schema() if field.name not in _META]),
        batches=batches,
        partition_by=list(table.get_partition_schema().names),
        options={name: value for name, value in table.hudi_options().items() if name != "hoodie.base.path"},
    )


def _check_kept(table: HudiTable, version: str) -> None:
    """Refuse a version with files that Hudi has cleaned: their rows would be missing without an error.

    Each commit after the version records whether the file groups that it wrote or replaced existed before.

    Raises:
        InvalidInput: The version is older than all commits in the timeline, or lacks file groups.
    """
    timeline, commits = table.get_timeline(), _commits(table)
    oldest = min(commits)
    if version < oldest:
        raise InvalidInput(
            f"--source-version: {version} is older than the oldest commit in the timeline, {oldest}",
            hint="give the time of a commit, yyyyMMddHHmmssSSS",
        )
    query = HudiReadOptions().with_as_of_timestamp(version)
    present_ids = {file_slice.file_id for file_slice in table.get_file_slices(query)}
    earlier_ids, later_ids, replaced_ids = set[str](), set[str](), set[str]()
    for commit in (commits[time] for time in sorted(commits) if time > version):
        metadata = parse_json(timeline.get_instant_metadata_in_json(commit))
        for stats in (metadata.get("partitionToWriteStats") or {}).values():
            for stat in stats:
                previous = stat.get("prevCommit") or "null"
                (earlier_ids if previous != "null" and previous <= version else later_ids).add(stat["fileId"])
        for file_ids in (metadata.get("partitionToReplaceFileIds") or {}).values():
            replaced_ids.update(file_ids)
    missing_ids = (earlier_ids | replaced_ids - later_ids) - present_ids
    if missing_ids:
        raise InvalidInput(
            f"--source-version: Hudi has cleaned files of {version} ({len(missing_ids)} file groups are gone)",
            hint="import the newest version, or one that Hudi still retains",
        )


def _commits(table: HudiTable) -> dict[str, HudiInstant]:
    """Completed commits of all kinds in the timeline, by time."""
    timeline = table.get_timeline()
    timelines = (
        timeline.get_completed_commits(),
        timeline.get_completed_deltacommits(),
        timeline.get_completed_replacecommits(),
    )
    return {commit.timestamp: commit for commits in timelines for commit in commits}


def _check_names(table: HudiTable) -> None:
    """Refuse a table in which a column was renamed or dropped with schema-on-read.

    Hudi finds columns in older files by id, but hudi-rs by name. So a renamed column would be NULL, and a new column
    with the name of a dropped one would have its values.

    Raises:
        InvalidInput: A column was renamed or dropped.
    """
    timeline, commits = table.get_timeline(), _commits(table)
    names: dict[int, set[str]] = {}
    newest: dict[str, Any] = {}
    for time in sorted(commits):
        metadata = parse_json(timeline.get_instant_metadata_in_json(commits[time]))
        text = (metadata.get("extraMetadata") or {}).get(_INTERNAL_SCHEMA)
        if not text:
            continue
        newest = parse_json(text)
        for field in newest["fields"]:
            names.setdefault(field["id"], set()).add(field["name"])
    if not newest:
        return
    text = table.hudi_options().get("hoodie.table.create.schema") or "{}"
    # The schema is escaped as in a properties file.
    created_fields = parse_json(re.sub(r"\\(.)", r"\1", text)).get("fields", [])
    column_names = [field["name"] for field in created_fields if field["name"] not in _META]
    for number, name in enumerate(column_names, len(_META)):
        names.setdefault(number, set()).add(name)
    renames = sorted(" -> ".join(sorted(old_names)) for old_names in names.values() if len(old_names) > 1)
    dropped_ids = set(range(newest["max_column_id"] + 1)) - _ids(newest)
    if renames or dropped_ids:
        raise InvalidInput(
            "columns were renamed or dropped with schema-on-read, so hudi-rs would read old files wrongly: "
            f"{', '.join(renames) or 'dropped'}",
            hint="import a Parquet export of what Hudi's reader shows",
        )


def _ids(kind: Any) -> set[int]:
    """All ids in a part of Hudi's internal schema, including elements, keys and values of nested types."""
    if isinstance(kind, list):
        return set[int]().union(*map(_ids, kind))
    if not isinstance(kind, dict):
        return set()
    own_ids = {number for name, number in kind.items() if name in _ID_FIELDS}
    return own_ids.union(*map(_ids, kind.values()))
