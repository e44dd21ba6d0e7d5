"""The public interface for integrations: what an engine such as Spark needs besides `storage.Table`.

    plan a read   Snapshot.scan -> Scan.tasks         run Scan.read(task) anywhere; AggregatedScan: partial aggregates
    changes       plan_changes -> ChangeScan.tasks    run ChangeScan.read(task) anywhere
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

from storage.core.log.cut import is_cut
from storage.core.log.file_refs import FileGroup, FilePart, FileRef, SliceFile
from storage.core.merge.diff import BEFORE, CHANGE, CHANGED_GROUPS
from storage.core.merge.events import OP_COLUMN, Problem, count_unordered
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
from storage.log.service_reports import put_service_report, service_reports
from storage.planned_work import PlannedWork, expire_in_steps, plan_compaction, plan_fold, plan_split
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
from storage.services.inspect_references import ReferenceReport, reference_reports
from storage.services.lane_observer import LaneNews, LaneObserver
from storage.services.measure_table import TableMeasures, TableSample, measure, sample
from storage.services.namespaces import make_namespace, remove_namespace
from storage.services.parallel_tasks import in_threads
from storage.services.progress import OnStage, Stage, unobserved
from storage.services.restore import RestoreResult
from storage.services.rewrite import RewriteResult, check_rewritable
from storage.services.steps import Steps, cancel, finish
from storage.services.stream_report import StreamReport
from storage.services.tasks import Execute, Shared, Task, one_by_one
from storage.services.verify.findings import VerifyReport
from storage.shown import Shown
from storage.store.object_store import ObjectStore
from storage.store.open_store import check_reachable, is_empty_prefix, list_folders, open_store
from storage.store.probe_store import StoreProbe, probe_store
from storage.table_facts import clock_lead_ms, is_closed, open_table_unchecked, with_small_tasks
from storage.table_properties import SqlColumn, config_from_properties, parse_names, schema_properties
from storage.write.lane_progress import LaneProgress, lane_progress
from storage.write.write_task import Batch, WriteTicket, Written, check_columns, discard, find_problems, write_rows

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
    "base_slices",
    "bucket_numbers",
    "byte_ranges",
    "cancel",
    "change_schema",
    "check_columns",
    "check_lateness",
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
    "open_table_unchecked",
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
