"""Expiry: removes rows and deletes that are older than a table's time to live, beside live writers (MERGE.md).

    limits ─▶ compact what ─▶ find slices with ─▶ per part: PLAN ─▶ BASE(rewrites) without
    from a    waits in logs   overdue rows                          what is older than the limits
    clock     for too long    (statistics, then the columns that say how old a row is)

The limits are recorded in each BASE: what is gone follows from the log, and not from the clock of a reader. Each part
is complete in itself: an expiry may be killed at any moment, and the next one does the rest.
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
        deletes: Other rows that were removed: those of which only deletes were known, or that a delete hid.
        file_groups: File groups that were rewritten.
        skipped: File groups with overdue rows that were not, because another service published first.
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

    Without a time to live nothing is done. A file group is rewritten once it has a row or delete that is overdue: older
    than the time to live plus ``within``. All that is older than the time to live is removed from it then.

    Args:
        table_log: The table's log.
        now_ms: The time to compute ages from, in Unix milliseconds; None: now.
        execute: Runs the tasks.
        progress: Called during the work.
    """
    started = time.monotonic()
    ttl = table_log.refresh().schema.ttl
    if ttl is None:
        return ExpiryResult()
    if now_ms is None:
        now_ms = table_log.clock.now_ms()
    limits = AgeLimits.of(ttl, now_ms, LANE_BITS)
    overdue = AgeLimits.of(ttl, now_ms - ttl.within_ms, LANE_BITS)
    result = ExpiryResult()
    head = Snapshot(table_log, *snapshot_cut.newest_cut(table_log))
    waiting = _groups_waiting(head, _logs_before(ttl, now_ms))
    if waiting:
        compacted = yield from compaction_steps(table_log, head, lambda each: each.group in waiting, execute)
        result = replace(result, bytes_read=compacted.bytes_read)
        head = Snapshot(table_log, *snapshot_cut.newest_cut(table_log))
    chosen = set()
    runs = cut_tasks([each for each in head.slices if each.slice is not None], table_log.env.tuning)
    for run in counted(runs, progress, "looking for old rows", lambda: len(runs)):
        with explain_missing_file(table_log.env, head.cut):
            chosen |= _groups_with(head, run, overdue)
        yield 0
    rewriting = Rewriting(_describe(ttl, limits), WithoutExpired(limits))
    old = [each for each in head.slices if each.group in chosen]
    for part in _parts(old, table_log.env.tuning.compaction_part_bytes):
        done = _rewrite(table_log, frozenset(each.group for each in part), rewriting, execute, progress)
        result = _added(result, len(part), done)
        yield sum(each.base_bytes + each.log_bytes for each in part)
    return replace(result, seconds=time.monotonic() - started)


def _logs_before(ttl: Ttl, now_ms: int) -> int:
    """Commits from before this time may have overdue rows, which cannot be found before they are in slices."""
    if ttl.by:
        return now_ms - ttl.within_ms  # an event may be old when it is committed
    shortest = min(each for each in (ttl.rows_ms, ttl.deletes_ms) if each is not None)
    return now_ms - ttl.within_ms - shortest


def _groups_waiting(snapshot: Snapshot, before_ms: int) -> frozenset[FileGroup]:
    """The file groups with log rows from before a time."""
    aged = find_aged(snapshot, before_ms)
    return frozenset(each.group for each in snapshot.slices if np.isin(each.file, aged).any())


def _groups_with(snapshot: Snapshot, run: Sequence[FileSlice], limits: AgeLimits) -> set[FileGroup]:
    """The file groups whose slices have rows that `expired` removes. Neighbours in one file are read together."""
    env, schema = snapshot.table_log.env, snapshot.table_schema
    slices = [each.slice for each in run]
    found: set[int] = set()
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
        found |= _ordinals(rows, expired(schema, rows, limits))
    return {run[ordinal].group for ordinal in found}


def _ordinals(rows: Arrays, mask: Any) -> set[int]:
    """The positions of the slices with rows of a mask."""
    if not mask.any():
        return set()
    if names.SLICE_ORDINAL not in rows:
        return {0}
    return set(rows[names.SLICE_ORDINAL].filter(pa.array(mask)).unique().to_pylist())


def _parts(slices: Sequence[FileSlice], most_bytes: int) -> Iterator[list[FileSlice]]:
    """File groups that are published together: neighbours of up to some stored bytes."""
    sizes = [each.base_bytes + each.log_bytes for each in slices]
    return cut_by_size(slices, sizes, most_bytes)


def _rewrite(
    table_log: TableLog, groups: frozenset[FileGroup], rewriting: Rewriting, execute: Execute, progress: OnStage
) -> RewritingResult | None:
    """Rewrite file groups; None if another service published first, so that the next expiry has to."""
    if must_yield(table_log, table_log.refresh()):
        return None
    add_feature(table_log, ERASE, REWRITTEN)
    snapshot = Snapshot(table_log, *snapshot_cut.newest_cut(table_log))
    chosen = [each for each in snapshot.slices if each.group in groups]
    with contextlib.suppress(Conflict, SnapshotExpired), open_plan(table_log, snapshot.cut, len(chosen)) as plan:
        return rewrite(table_log, snapshot, plan, chosen, rewriting, execute=execute, progress=progress)
    return None


def _added(result: ExpiryResult, wanted: int, done: RewritingResult | None) -> ExpiryResult:
    if done is None or not done.entry:
        return replace(result, skipped=result.skipped + wanted)
    return replace(
        result,
        rows=result.rows + done.visible_left_out,
        deletes=result.deletes + done.hidden_left_out,
        file_groups=result.file_groups + len(done.result.done),
        skipped=result.skipped + len(done.result.skipped),
        entries=(*result.entries, done.entry),
        bytes_read=result.bytes_read + done.result.bytes_read,
    )


def _describe(ttl: Ttl, limits: AgeLimits) -> str:
    """The limits in words, for the log."""
    parts: Mapping[str, int | None] = {
        f"rows by {ttl.by or 'last event'}": limits.rows_ms,
        "deletes": limits.deletes_ms,
    }
    texts = [f"{what} before {format_time(at_ms)}" for what, at_ms in parts.items() if at_ms is not None]
    return f"time to live: {', '.join(texts)}"
