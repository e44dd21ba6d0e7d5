"""The public interface for integrations: what an engine such as Spark needs besides `storage.Table`.

    plan a read   Snapshot.scan -> Scan.tasks         run Scan.read(task) anywhere; AggregatedScan: partial aggregates
    changes       plan_changes -> ChangeScan.tasks    run ChangeScan.read(task) anywhere
    explain       explain_row                         why a row has its values, as a table
    write         Writer.begin -> WriteTicket         run write_rows(ticket, rows) anywhere, then Writer.commit
    services      Table.compact, fold, verify         with execute=..., which runs Task.run() anywhere: in_threads
    in steps      plan_compaction, plan_fold          other work may be done between two steps
    resume        lane_progress                       where a lane ends, without claiming it
    observe       LaneObserver, Inspection, measure   what lanes and the table hold; sizes and waiting work
    SQL           config_from_properties              the configuration in TBLPROPERTIES, and schema_properties back

Plans, tickets and tasks can be pickled: they carry the table's store, sizes and allowed mergers. An engine imports only
this module, `storage`, `storage.alter`, `storage.config`, `storage.errors`, `storage.mergers` and `storage.publish`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as LocalPath
from typing import Any, NamedTuple

import pyarrow as pa

from storage.clock import MAX_AHEAD_MS, Stamps
from storage.core.log.cut import PREFIX
from storage.core.log.entries import Claim, Data
from storage.core.log.file_refs import FileGroup, FilePart, FileRef, SliceFile
from storage.core.merge.diff import BEFORE, CHANGE, CHANGED_GROUPS
from storage.core.merge.events import OP_COLUMN, Problem, count_unordered, prepare, prepare_good
from storage.core.model import Stream, Ttl
from storage.core.names import TABLE_LANE, LaneName, Path, lane_name
from storage.core.plan.due_policy import Due, DuePolicy, Work
from storage.core.plan.memory_cost import UNPACKED
from storage.core.plan.read_cost import ReadCost, read_cost
from storage.core.plan.slices import FileSlice, LiveFile, base_slices, whole_files
from storage.core.plan.watermarks import check_lateness
from storage.core.predicate import And, Comparison, Condition, In, IsNull, Not, Operator, Or, StartsWith
from storage.core.python_values import python_rows, python_value, python_values
from storage.core.schema.evolution import widens
from storage.core.schema.state_columns import state_columns
from storage.core.schema.table_schema import TableSchema
from storage.core.types import format_type, parse_type
from storage.environment import open_environment
from storage.files.log_file import remove_log_file
from storage.log.commit_log import CommitLog
from storage.log.fencing_barrier import complete_fencing_barrier
from storage.log.service_reports import put_service_report, service_reports
from storage.log.table_log import TableLog
from storage.planned_work import PlannedWork, expire_in_steps, plan_compaction, plan_fold, plan_split, with_small_tasks
from storage.read.aggregated_scan import AggregatedScan, AggregateTask
from storage.read.bound_rows import BoundRows
from storage.read.bucket_numbers import bucket_numbers
from storage.read.change_tasks import ChangeTask
from storage.read.changes import ChangeScan, expiring
from storage.read.divide_scan import divide
from storage.read.explanation import EXPLANATION_SCHEMA, Explanation, StoredVersion
from storage.read.filter_input import parse_filter
from storage.read.first_rows import FirstRows, FirstRowsScan, SortKey, in_one_task
from storage.read.joined_changes import JoinedChangeScan, shows_references
from storage.read.joined_scan import JoinedScan, choose_joined, uses_references
from storage.read.known_aggregates import known_aggregates
from storage.read.partial_aggregates import Aggregate, AggregateKind, Aggregation
from storage.read.plan_changes import advance_cut, change_schema, follows, plan_changes, referenced_cuts
from storage.read.read_task import ReadTask
from storage.read.referenced_table import ReferencedTable
from storage.read.scan import Scan
from storage.read.scan_request import ScanRequest
from storage.read.snapshot import Snapshot
from storage.read.untouched_rows import DividedFileGroup, byte_ranges, divide_by_touch
from storage.services.clean.clean import CleanResult
from storage.services.clean.retention_policy import DEFAULT_ABANDON, DEFAULT_RETENTION
from storage.services.compaction import CompactionResult
from storage.services.compaction_task import CompactionTask
from storage.services.drop_table import drop_table
from storage.services.due_work import Only, every_group, find_due
from storage.services.erase.erase import EraseResult
from storage.services.expiry import ExpiryResult
from storage.services.fold import FoldResult
from storage.services.inspect import FileReport, Inspection, LaneReport, Overview, TimelineEntry
from storage.services.inspect_references import ReferenceReport, inspect_references
from storage.services.measure_table import TableMeasures, TableSample, measure, sample
from storage.services.namespaces import make_namespace, remove_namespace
from storage.services.parallel_tasks import in_threads
from storage.services.progress import OnStage, Stage, unobserved
from storage.services.restore import RestoreResult, check_open
from storage.services.rewrite import RewriteResult, check_rewritable
from storage.services.steps import Steps, cancel, finish
from storage.services.stream_report import StreamReport
from storage.services.tasks import Execute, Shared, Task, one_by_one
from storage.services.verify.findings import Progress, VerifyReport
from storage.shown import Shown
from storage.store.object_store import ObjectStore
from storage.store.open_store import check_reachable, is_empty_prefix, list_folders, open_store
from storage.store.probe_store import StoreProbe, probe_store
from storage.table import Table
from storage.table_properties import SqlColumn, config_from_properties, parse_names, schema_properties
from storage.write.lane_progress import first_batch, newest_rolled_back, read_lane
from storage.write.write_task import Batch, WriteTicket, Written, write_rows

__all__ = [
    "BEFORE",
    "CHANGE",
    "CHANGED_GROUPS",
    "DEFAULT_ABANDON",
    "DEFAULT_RETENTION",
    "EXPLANATION_SCHEMA",
    "OP_COLUMN",
    "TABLE_LANE",
    "UNPACKED",
    "Aggregate",
    "AggregateKind",
    "AggregateTask",
    "AggregatedScan",
    "Aggregation",
    "And",
    "Batch",
    "BoundRows",
    "ChangeScan",
    "ChangeTask",
    "CleanResult",
    "CompactionResult",
    "CompactionTask",
    "Comparison",
    "Condition",
    "DividedFileGroup",
    "Due",
    "DuePolicy",
    "EraseResult",
    "Execute",
    "ExpiryResult",
    "Explanation",
    "FileGroup",
    "FilePart",
    "FileRef",
    "FileReport",
    "FileSlice",
    "FirstRows",
    "FirstRowsScan",
    "FoldResult",
    "In",
    "Inspection",
    "IsNull",
    "JoinedChangeScan",
    "JoinedScan",
    "LaneName",
    "LaneNews",
    "LaneObserver",
    "LaneProgress",
    "LaneReport",
    "LiveFile",
    "Not",
    "ObjectStore",
    "OnStage",
    "Only",
    "Operator",
    "Or",
    "Overview",
    "Path",
    "PlannedWork",
    "Problem",
    "Progress",
    "ReadCost",
    "ReadTask",
    "ReferenceReport",
    "ReferencedTable",
    "RestoreResult",
    "RewriteResult",
    "Scan",
    "ScanRequest",
    "Shared",
    "Shown",
    "SliceFile",
    "SortKey",
    "SqlColumn",
    "Stage",
    "StartsWith",
    "Steps",
    "StoreProbe",
    "StoredVersion",
    "Stream",
    "StreamReport",
    "TableMeasures",
    "TableSample",
    "TableSchema",
    "Task",
    "TimelineEntry",
    "Ttl",
    "VerifyReport",
    "Work",
    "WriteTicket",
    "Written",
    "advance_cut",
    "base_file_groups",
    "bucket_numbers",
    "byte_ranges",
    "cancel",
    "change_schema",
    "check_columns",
    "check_lateness",
    "check_open_lane",
    "check_reachable",
    "check_rewritable",
    "choose_joined",
    "clock_lead_ms",
    "config_from_properties",
    "count_unordered",
    "discard",
    "divide",
    "divide_by_touch",
    "drop_table",
    "every_group",
    "expire_in_steps",
    "expiring",
    "explain_row",
    "file_url",
    "find_due",
    "find_problems",
    "finish",
    "follows",
    "format_type",
    "in_one_task",
    "in_threads",
    "is_closed",
    "is_cut",
    "is_empty_prefix",
    "known_aggregates",
    "lane_name",
    "lane_progress",
    "list_folders",
    "make_namespace",
    "measure",
    "one_by_one",
    "open_store",
    "parse_filter",
    "parse_names",
    "parse_type",
    "plan_changes",
    "plan_compaction",
    "plan_fold",
    "plan_split",
    "probe_store",
    "put_service_report",
    "python_rows",
    "python_value",
    "python_values",
    "read_cost",
    "reference_reports",
    "referenced_cuts",
    "referenced_locations",
    "remove_namespace",
    "sample",
    "schema_properties",
    "service_reports",
    "shows_references",
    "state_columns",
    "unobserved",
    "uses_references",
    "whole_files",
    "widens",
    "with_small_tasks",
    "write_rows",
]


def is_cut(text: str) -> bool:
    """Whether a text is in the form of a cut, as opposed to a time or the name of a savepoint."""
    return text.startswith(PREFIX)


def base_file_groups(snapshot: Snapshot) -> Sequence[FileSlice]:
    """The file groups of a snapshot as of their last compactions: without log files, in order of file group."""
    return base_slices(snapshot.state)


def file_url(snapshot: Snapshot, file: FileRef) -> str:
    """URL of a file of a snapshot, for other software; not percent-encoded."""
    return snapshot.table_log.store.url(file.path)


def explain_row(snapshot: Snapshot, key: Any, *, history: bool = False) -> pa.Table:
    """`storage.Snapshot.explain` as a table: one row per stored version, columns as in `EXPLANATION_SCHEMA`."""
    return snapshot.explain(key, history=history).to_arrow()


def reference_reports(
    uri: str | LocalPath, schema: TableSchema, storage_options: Mapping[str, Any] | None = None
) -> list[ReferenceReport]:
    """What is wrong with the references of a schema, and how complete the referenced tables are.

    Args:
        uri: The location of the table, which need not exist.
        schema: The schema of the table or of a configuration.
        storage_options: Options of the table's store.
    """
    return list(inspect_references(open_environment(uri, storage_options), schema))


def check_columns(schema: pa.Schema, table: TableSchema, stream: Stream) -> None:
    """Check the columns of input rows as `write_rows` checks them, before there are rows.

    Args:
        schema: Schema of the input.
        table: Schema of the table.
        stream: The stream that is written.

    Raises:
        InvalidInput: A column is missing, unknown, or of a type that cannot be cast to the table's.
    """
    prepare(schema.empty_table(), table, stream)


def find_problems(rows: pa.Table, table: TableSchema, stream: Stream) -> tuple[Problem, ...]:
    """What is wrong with input rows, as `write_rows` would find it; empty if all can be stored.

    Raises:
        InvalidInput: See `check_columns`.
    """
    return prepare_good(rows, table, stream)[1]


def discard(ticket: WriteTicket, written: Iterable[Written]) -> None:
    """Delete the files of an abandoned commit. If the store does not delete a file, cleaning does later."""
    for part in written:
        for file in part.files:
            remove_log_file(ticket.env.store, file)


def referenced_locations(table: Table) -> dict[str, str]:
    """The locations of the tables that a table refers to, in the form of `Table.uri`, by reference."""
    return {each.name: table.env.of_table(each.table).store.uri for each in table.schema.references}


def check_open_lane(table: Table, lane: str) -> None:
    """Refuse a lane that `Table.fence` and `Table.close_lane` refuse.

    Raises:
        NotFound: The table has no such lane.
        Conflict: The lane is closed.
    """
    check_open(table.writable(), table.state(), lane_name(lane))


def is_closed(table: Table, lane: str) -> bool:
    """Whether a lane was closed; also if the table does not list it any more. False if it was never added."""
    return table.writable().has_ended(lane_name(lane))


def clock_lead_ms(table: Table) -> int:
    """Milliseconds by which the time of the newest entry of the table lane is ahead of this machine's clock.

    0 for a lead of up to a minute, by which synchronised clocks may differ. Until this machine's clock has caught up,
    times cannot order commits.
    """
    lead = table.state().committed_at_ms - table.env.clock.now_ms()
    return lead if lead > MAX_AHEAD_MS else 0


@dataclass(frozen=True, slots=True)
class LaneProgress:
    """The end of a lane, from which a query can continue.

    Attributes:
        lane: Its name.
        query_id: The query of the last live commit; "" if the lane has none.
        source: The source position that this commit recorded; empty if it recorded none.
        batches: Number of the last live batch of each query, by query id.
        rolled_back_from: For queries without a live batch, the first batch that a restore rolled back, by query id.
        restored: Whether a restore has rolled back entries of the lane.
        fenced: The claim that fenced the lane for the newest restore; 0 if there was none.
        last_commit: The entry of the last live commit of ``query_id``; 0 if there is none.
        newest: The batch of the newest commit that has one, rolled back or not; None if there is none.
        first_source: If the lane has no live commit: the source position of its first batch, if this had no rows.
    """

    lane: LaneName
    query_id: str
    source: Mapping[str, Any]
    batches: Mapping[str, int]
    rolled_back_from: Mapping[str, int]
    restored: bool
    fenced: int
    last_commit: int
    newest: Batch | None
    first_source: Mapping[str, Any] | None


def lane_progress(uri: str | LocalPath, lane: str, storage_options: Mapping[str, Any] | None = None) -> LaneProgress:
    """Find where a lane ends, without claiming it; a restore in progress is completed first.

    Args:
        uri: The table.
        lane: The lane; it need not exist yet.
        storage_options: Options of the table's store.

    Raises:
        NotFound: There is no such table.
        InvalidInput: ``lane`` cannot be the name of a lane.
    """
    table_log, name = TableLog(open_environment(uri, storage_options), Stamps()), lane_name(lane)
    state = read_lane(table_log, name, complete_fencing_barrier(table_log).rolled_back.get(name, ()))
    first = first_batch(table_log, name, state.head) if state.rolled_back_from and not state.query_id else None
    live = (state.query_id, state.batches.get(state.query_id, 0))
    last = state.recent.get(live)
    last_commit = last.seq if last is not None else 0
    return LaneProgress(
        lane=name,
        query_id=state.query_id,
        source=state.source,
        batches=state.batches,
        rolled_back_from=state.rolled_back_from,
        restored=bool(state.rolled_back),
        fenced=state.rolled_back[-1][1] if state.rolled_back else 0,
        last_commit=last_commit,
        newest=newest_rolled_back(table_log, name, state, last_commit) or (live if state.query_id else None),
        first_source=first.source if first is not None and not first.rows + first.rows_ignored else None,
    )


class LaneNews(NamedTuple):
    """What is new in a lane: the number of claims, the input rows of commits, and the last recorded source position."""

    claims: int
    rows: int
    source: Mapping[str, Any] | None


class LaneObserver:
    """Follows lanes of a table without opening it. Reads only new entries. Not thread-safe."""

    def __init__(self, uri: str | LocalPath, storage_options: Mapping[str, Any] | None = None) -> None:
        self._log = CommitLog(open_environment(uri, storage_options))
        self._heads: dict[LaneName, int] = {}

    def news(self, lane: str) -> LaneNews:
        """What was committed to a lane since the last call, or since its beginning.

        Raises:
            CorruptData: An entry is damaged.
            StoreUnavailable: The store does not answer.
        """
        name = lane_name(lane)
        entries = self._log.read_after(name, self._heads.get(name, 0))
        commits = [entry for entry in entries if isinstance(entry, Data)]
        if entries:
            self._heads[name] = entries[-1].seq
            self._log.forget_before(name, entries[-1].seq)
        return LaneNews(
            claims=sum(isinstance(entry, Claim) for entry in entries),
            rows=sum(commit.rows + commit.rows_ignored for commit in commits),
            source=next((commit.source for commit in reversed(commits) if commit.source), None),
        )
