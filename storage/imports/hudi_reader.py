"""Reads a Hudi table with hudi-rs: a snapshot, with the log files of merge-on-read tables merged by its rules."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from hudi import HudiReadOptions, HudiTable, HudiTableBuilder

from storage.errors import InvalidInput
from storage.imports.foreign_table import BATCH_ROWS, ForeignTable
from storage.store.open_store import open_store

_PREFIX: Final = "hoodie."
_HARMLESS: Final = frozenset(
    {
        "hoodie.metadata.enable",
        "hoodie.plan.listing.parallelism",
        "hoodie.read.file.slice.read.concurrency",
        "hoodie.read.scan.max.memory.size",
    }
)
"""Options of hudi-rs that do not change which rows are read. Others give, for example, the rows without log files."""
_META: Final = frozenset(
    f"_hoodie_{name}" for name in ("commit_time", "commit_seqno", "record_key", "partition_path", "file_name")
)
"""Columns of Hudi itself. A table whose schema was changed with schema-on-read declares them like any other."""
_UNSAFE_ADVICE: Final = "Set hoodie.read."
"""Begins advice in errors of hudi-rs to read by rules that are not those of the table."""


def open_table(location: str, version: str | None, options: dict[str, Any]) -> ForeignTable:
    """Open a table at a commit time; ``options`` are those of the store, and some of hudi-rs."""
    for name in options:
        if name.startswith(_PREFIX) and name not in _HARMLESS:
            raise InvalidInput(
                f"--source-option {name}: it would change which rows are read",
                hint=f"leave it out; options of the reader: {', '.join(sorted(_HARMLESS))}",
            )
    uri = location if "://" in location else open_store(location).uri
    given = {name: str(value) for name, value in options.items()}
    try:
        table = HudiTableBuilder.from_base_uri(uri).with_options(given).build()
        return _opened(table, location, version)
    except Exception as error:
        raise _clearer(error) from error


def _clearer(error: Exception) -> Exception:
    """The same error without advice that would give other rows than Hudi's own readers."""
    text, found, _ = str(error).partition(_UNSAFE_ADVICE)
    if not found:
        return error
    return InvalidInput(
        f"the log files of the Hudi table cannot be merged as Hudi does it: {text.strip()}",
        hint="compact it in Hudi until no log file is left (CALL run_compaction with op => 'schedule', then 'run'), or "
        "write its rows into a table that merges by ordering fields or commit time",
    )


def _opened(table: HudiTable, location: str, version: str | None) -> ForeignTable:
    commit = table.get_timeline().get_latest_commit_timestamp()
    if commit is None:
        raise InvalidInput(f"the Hudi table at {location} has no commit", hint="there is nothing to import")
    at = commit if version is None else version
    if version is not None:
        _check_kept(table, version)

    def batches(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        asked = HudiReadOptions().with_as_of_timestamp(at).with_projection(list(columns)).with_batch_size(BATCH_ROWS)
        try:
            yield from table.read_stream(asked)
        except Exception as error:
            raise _clearer(error) from error

    return ForeignTable(
        kind="hudi",
        location=location,
        version=at,
        schema=pa.schema([field for field in table.get_schema() if field.name not in _META]),
        batches=batches,
        partition_by=list(table.get_partition_schema().names),
        options={name: value for name, value in table.hudi_options().items() if name != "hoodie.base.path"},
    )


def _check_kept(table: HudiTable, version: str) -> None:
    """Refuse a version whose files Hudi has cleaned: its file groups would be missing without an error.

    A commit after the version says of each file group that it wrote to or replaced whether that existed before.

    Raises:
        InvalidInput: The version is older than all commits in the timeline, or lacks file groups.
    """
    timeline = table.get_timeline()
    listed = (
        timeline.get_completed_commits(),
        timeline.get_completed_deltacommits(),
        timeline.get_completed_replacecommits(),
    )
    commits = {commit.timestamp: commit for some in listed for commit in some}
    oldest = min(commits)
    if version < oldest:
        raise InvalidInput(
            f"--source-version: {version} is older than the oldest commit in the timeline, {oldest}",
            hint="give the time of a commit, yyyyMMddHHmmssSSS",
        )
    here = HudiReadOptions().with_as_of_timestamp(version)
    found = {file_slice.file_id for file_slice in table.get_file_slices(here)}
    based, made, replaced = set[str](), set[str](), set[str]()
    for commit in (commits[time] for time in sorted(commits) if time > version):
        metadata = json.loads(timeline.get_instant_metadata_in_json(commit))
        for stats in (metadata.get("partitionToWriteStats") or {}).values():
            for stat in stats:
                before = stat.get("prevCommit") or "null"
                (based if before != "null" and before <= version else made).add(stat["fileId"])
        for file_ids in (metadata.get("partitionToReplaceFileIds") or {}).values():
            replaced.update(file_ids)
    needed = (based | replaced - made) - found
    if needed:
        raise InvalidInput(
            f"--source-version: Hudi has cleaned files of {version} ({len(needed)} file groups are gone)",
            hint="import the newest version, or one that Hudi still retains",
        )
