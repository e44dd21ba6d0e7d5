"""Expiry: removes rows and deletes that are older than a table's time to live, while writers run (MERGE.md).

    limits ─▶ compact what ─▶ find slices with ─▶ per part: PLAN ─▶ BASE(rewrites) without
    from a    waits in logs   overdue rows                          what is older than the limits
    clock     for too long    (statistics, then the columns that say how old a row is)

Each BASE records the limits, so the log says which rows are gone, and readers need no clock. Each part is complete in
itself: an expiry may be killed at any moment, and the next one does the rest.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from weft.storage.clock import LANE_BITS
from weft.storage.core import names
from weft.storage.core.arrays import Arrays
from weft.storage.core.log.features import ERASE, REWRITTEN
from weft.storage.core.log.file_refs import FileGroup
from weft.storage.core.model import Ttl
from weft.storage.core.plan.memory_cost import cut_by_size
from weft.storage.core.plan.row_age import AgeLimits, expired, may_have_expired
from weft.storage.core.plan.slices import FileSlice
from weft.storage.errors import Conflict, SnapshotExpired
from weft.storage.files.base_file import SliceReader
from weft.storage.log import snapshot_cut
from weft.storage.log.schema_entry import add_feature
from weft.storage.log.table_log import TableLog
from weft.storage.read.missing_file import explain_missing_file
from weft.storage.read.snapshot import Snapshot
from weft.storage.services.compaction.compaction import Rewriting, RewritingResult, compaction_steps, cut_tasks, rewrite
from weft.storage.services.due_work import find_aged
from weft.storage.services.steps.progress import OnStage, counted, unobserved
from weft.storage.services.steps.row_change import WithoutExpired
from weft.storage.services.steps.service_plan import must_yield, open_plan
from weft.storage.services.steps.steps import Steps
from weft.storage.services.steps.tasks import Execute, one_by_one
from weft.storage.shown import Shown
from weft.storage.times import format_time


@dataclass(frozen=True, slots=True)
class ExpiryResult(Shown):
    """The result of an expiry.

    Attributes:
        rows: Visible rows that were removed.
        deletes: Hidden rows that were removed: keys with deletes only, or rows that a delete hid.
        file_groups: File groups that were rewritten.
        skipped: File groups with overdue rows that were not rewritten, because another service published first.
        entries: Slots of the BASE entries.
        bytes_read: Stored bytes of the file groups that were rewritten or compacted.
        seconds: Wall-clock time.
    """

    rows: int = 0
    deletes: int = 0
    file_groups: int = 0
    skipped: int = 0
    entries: tuple[int, ...] = ()
    bytes_read: int = 0
    seconds: float = 0.0


def expiry_steps(
    table_log: TableLog,
    now_ms: int | None = None,
    execute: Execute = one_by_one,
    progress: OnStage = unobserved,
) -> Steps[ExpiryResult]:
    """Remove rows and deletes that are older than the table's time to live, in steps.

    Does nothing without a time to live. A file group is rewritten once it has an overdue row or delete: older than the
    time to live plus ``within``. The rewrite removes everything in it that is older than the time to live.

    Args:
        table_log: The table's log.
        now_ms: The time from which ages are computed, in Unix milliseconds; None: now.
        execute: Runs the tasks.
        progress: Called during the work.
    """
    start_time = time.monotonic()
    ttl = table_log.refresh().schema.ttl
    if ttl is None:
        return ExpiryResult()
    if now_ms is None:
        now_ms = table_log.clock.now_ms()
    limits = AgeLimits.of(ttl, now_ms, LANE_BITS)
    overdue = AgeLimits.of(ttl, now_ms - ttl.within_ms, LANE_BITS)
    result = ExpiryResult()
    head = Snapshot(table_log, *snapshot_cut.newest_cut(table_log))
    groups = _groups_with_old_logs(head, _log_limit_ms(ttl, now_ms))
    if groups:
        compaction_result = yield from compaction_steps(table_log, head, lambda part: part.group in groups, execute)
        result = replace(result, bytes_read=compaction_result.bytes_read)
        head = Snapshot(table_log, *snapshot_cut.newest_cut(table_log))
    overdue_groups = set()
    runs = cut_tasks([file_slice for file_slice in head.slices if file_slice.slice is not None], table_log.env.tuning)
    for run in counted(runs, progress, "looking for old rows", lambda: len(runs)):
        with explain_missing_file(table_log.env, head.cut):
            overdue_groups |= _overdue_groups(head, run, overdue)
        yield 0
    rewriting = Rewriting(_describe(ttl, limits), WithoutExpired(limits))
    overdue_slices = [file_slice for file_slice in head.slices if file_slice.group in overdue_groups]
    for part in _parts(overdue_slices, table_log.env.tuning.compaction_part_bytes):
        outcome = _rewrite(table_log, frozenset(file_slice.group for file_slice in part), rewriting, execute, progress)
        result = _add_outcome(result, len(part), outcome)
        yield sum(file_slice.base_bytes + file_slice.log_bytes for file_slice in part)
    return replace(result, seconds=time.monotonic() - start_time)


def _log_limit_ms(ttl: Ttl, now_ms: int) -> int:
    """Time before which commits may have overdue rows, in Unix milliseconds. Such logs are compacted first."""
    if ttl.by:
        return now_ms - ttl.within_ms  # an event may be old when it is committed
    shortest = min(age_ms for age_ms in (ttl.rows_ms, ttl.deletes_ms) if age_ms is not None)
    return now_ms - ttl.within_ms - shortest


def _groups_with_old_logs(snapshot: Snapshot, before_ms: int) -> frozenset[FileGroup]:
    """File groups with log rows that were committed before a time."""
    aged_files = find_aged(snapshot, before_ms)
    return frozenset(file_slice.group for file_slice in snapshot.slices if np.isin(file_slice.file, aged_files).any())


def _overdue_groups(snapshot: Snapshot, run: Sequence[FileSlice], limits: AgeLimits) -> set[FileGroup]:
    """File groups whose slices have rows beyond the limits. File groups in the same file are read together."""
    env, schema = snapshot.table_log.env, snapshot.table_schema
    slices = [file_slice.slice for file_slice in run]
    ordinals: set[int] = set()
    visible, hidden = (
        SliceReader(
            env,
            schema,
            limits.columns(schema, visible=visible),
            functools.partial(may_have_expired, schema, limits=limits, visible=visible),
        )
        for visible in (True, False)
    )
    for rows in itertools.chain(visible.base(slices), hidden.shadow(slices)):
        ordinals |= _ordinals(rows, expired(schema, rows, limits))
    return {run[ordinal].group for ordinal in ordinals}


def _ordinals(rows: Arrays, mask: Any) -> set[int]:
    """Positions of the slices that have rows in a mask."""
    if not mask.any():
        return set()
    if names.SLICE_ORDINAL not in rows:
        return {0}
    return set(rows[names.SLICE_ORDINAL].filter(pa.array(mask)).unique().to_pylist())


def _parts(slices: Sequence[FileSlice], max_bytes: int) -> Iterator[list[FileSlice]]:
    """Divide file groups, in order, into parts of at most ``max_bytes`` stored bytes that are published together."""
    sizes = [file_slice.base_bytes + file_slice.log_bytes for file_slice in slices]
    return cut_by_size(slices, sizes, max_bytes)


def _rewrite(
    table_log: TableLog, groups: frozenset[FileGroup], rewriting: Rewriting, execute: Execute, progress: OnStage
) -> RewritingResult | None:
    """Rewrite file groups. None if another service published first: then the next expiry rewrites them."""
    if must_yield(table_log, table_log.refresh()):
        return None
    add_feature(table_log, ERASE, REWRITTEN)
    snapshot = Snapshot(table_log, *snapshot_cut.newest_cut(table_log))
    file_slices = [file_slice for file_slice in snapshot.slices if file_slice.group in groups]
    with contextlib.suppress(Conflict, SnapshotExpired), open_plan(table_log, snapshot.cut, len(file_slices)) as plan:
        return rewrite(table_log, snapshot, plan, file_slices, rewriting, execute=execute, progress=progress)
    return None


def _add_outcome(result: ExpiryResult, group_count: int, outcome: RewritingResult | None) -> ExpiryResult:
    if outcome is None or not outcome.entry:
        return replace(result, skipped=result.skipped + group_count)
    return replace(
        result,
        rows=result.rows + outcome.visible_left_out,
        deletes=result.deletes + outcome.hidden_left_out,
        file_groups=result.file_groups + len(outcome.result.done),
        skipped=result.skipped + len(outcome.result.skipped),
        entries=(*result.entries, outcome.entry),
        bytes_read=result.bytes_read + outcome.result.bytes_read,
    )


def _describe(ttl: Ttl, limits: AgeLimits) -> str:
    """The limits in words, for the log."""
    parts: Mapping[str, int | None] = {
        f"rows by {ttl.by or 'last event'}": limits.rows_ms,
        "deletes": limits.deletes_ms,
    }
    texts = [f"{subject} before {format_time(at_ms)}" for subject, at_ms in parts.items() if at_ms is not None]
    return f"time to live: {', '.join(texts)}"
