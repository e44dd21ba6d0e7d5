"""Compaction: merges base, shadow, folds and log files of file groups into new slices, and publishes them.

It takes no lock: writers commit to later slots meanwhile, and if two compactions merge the same file group, the slice
whose BASE is published second is dropped (PROTOCOL.md, "Compaction", K1 to K6). Compactions that run at the
same time divide the file groups between them (`weft.storage.core.plan.share_work`), so that this is rare. Before a task
begins, the table lane is read again, and file groups that others have compacted meanwhile are left out.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from weft.storage.core import names
from weft.storage.core.log import cut
from weft.storage.core.log.entries import Abort, Base
from weft.storage.core.log.file_refs import FileGroup, FileRef, SliceFile
from weft.storage.core.log.regroup import may_follow, overlapping
from weft.storage.core.log.table_state import TableState
from weft.storage.core.names import Path
from weft.storage.core.plan.covered import covered_up_to
from weft.storage.core.plan.memory_cost import cut_by_size, group_bytes
from weft.storage.core.plan.mostly_unreferenced import mostly_unreferenced
from weft.storage.core.plan.overlaid import overlaid_groups
from weft.storage.core.plan.regroup_slices import as_targets, in_order, merged_parts, other_bits, without
from weft.storage.core.plan.share_work import next_share, sharing_plans
from weft.storage.core.plan.slices import FileSlice
from weft.storage.environment import Tuning
from weft.storage.log.table_log import TableLog
from weft.storage.read.snapshot import Snapshot
from weft.storage.services.compaction.compaction_task import CompactionTask, NewSlice
from weft.storage.services.steps.progress import OnStage, run_reported, unobserved
from weft.storage.services.steps.row_change import RowChange
from weft.storage.services.steps.service_plan import PLAN_CLOSED, ServicePlan, delete_files, must_yield, open_plan
from weft.storage.services.steps.steps import Steps
from weft.storage.services.steps.tasks import Execute, one_by_one
from weft.storage.shown import Shown

RESERVED: Final = "a rewrite or an erase has reserved the table, and ends first"
_OVERTAKEN: Final = "another compaction published a newer slice first"
_ALL_OVERTAKEN: Final = "other compactions published all of it first"
_AT_ONCE: Final = 16  # more tasks than this are running only on a cluster, where their results come together


@dataclass(frozen=True, slots=True)
class CompactionResult(Shown):
    """The result of a compaction.

    Attributes:
        done: File groups with a new slice.
        skipped: File groups without a new slice of this compaction, with the reason.
        rows: Visible rows in the new slices.
        bytes_read: Stored bytes of base, shadow and log files that were merged.
        bytes_written: Stored bytes of the new base and shadow files.
        bytes_dropped: Part of ``bytes_written`` that was wasted, because another compaction published its slices first.
        overflows: Number of rows that show NULL because the aggregate does not fit its column, by column.
        seconds: Wall-clock time.
    """

    done: tuple[FileGroup, ...]
    skipped: Mapping[FileGroup, str]
    rows: int
    bytes_read: int
    bytes_written: int
    bytes_dropped: int
    overflows: Mapping[str, int]
    seconds: float


@dataclass(frozen=True, slots=True)
class RewritingResult:
    """What `rewrite` has published.

    Attributes:
        result: The new slices.
        entry: Slot of the BASE; 0 if nothing was published.
        visible_left_out: Visible rows that the change removed from the published slices.
        hidden_left_out: Other rows that it removed from them, such as deletes.
    """

    result: CompactionResult
    entry: int
    visible_left_out: int
    hidden_left_out: int


@dataclass(frozen=True, slots=True)
class Rewriting:
    """A change of rows that new slices contain, and the log files below them do not.

    Attributes:
        description: The request in words, recorded in the BASE; without values of rows.
        change: The change.
        all_or_nothing: Publish all slices or none, because a second attempt would change rows twice.
    """

    description: str
    change: RowChange
    all_or_nothing: bool = False


def compaction_steps(
    table_log: TableLog, snapshot: Snapshot, only: Callable[[FileSlice], bool], execute: Execute = one_by_one
) -> Steps[CompactionResult]:
    """Compact file groups of a snapshot, one task in each step, and publish their slices as they are completed.

    Candidates are file groups with log files, those in a shared file that is mostly unreferenced, those with overlays
    if the table is set to have none, and those with another number of bits than the table, which are split or merged
    (PROTOCOL.md, G2). File groups that become one are compacted together, if any of them is.

    Args:
        table_log: The table's log.
        snapshot: A head snapshot.
        only: Selects the candidates to compact.
        execute: Runs the tasks.

    Raises:
        CorruptData: A file is missing or damaged. Slices that were published remain; the others are unchanged.
        SnapshotExpired: The snapshot has expired, or cleaning has aborted the compaction as abandoned.
    """
    start_time = time.monotonic()
    with_logs = [file_slice for file_slice in snapshot.slices if len(file_slice.rows)]
    selected = [file_slice for file_slice in with_logs if only(file_slice)]
    groups = {file_slice.group for file_slice in selected}
    others = mostly_unreferenced(snapshot.slices, groups, snapshot.cut.lanes)
    if not snapshot.table_schema.overlays:
        others |= overlaid_groups(snapshot.slices, snapshot.cut.lanes) - groups
    bits = snapshot.table_schema.bucket_bits
    others |= other_bits(snapshot.slices, bits) - groups
    remaining = [file_slice for file_slice in snapshot.slices if file_slice.group in others and only(file_slice)]
    parts = merged_parts(snapshot.slices, (*selected, *remaining), bits)
    selected = as_targets(selected, parts, bits)
    remaining = as_targets(without(remaining, {file_slice.group for file_slice in selected}, bits), parts, bits)
    publisher = _Publisher(table_log, snapshot.cut.lanes, [file_slice.group for file_slice in with_logs])
    if must_yield(table_log, snapshot.state):
        publisher.skipped = {file_slice.group: RESERVED for file_slice in (*selected, *remaining)}
    elif selected or remaining:
        with open_plan(table_log, snapshot.cut, len(selected) + len(remaining)) as plan:
            # Separate tasks: file groups of a mostly unreferenced file must not share a file with slices that are
            # replaced soon.
            tuning = table_log.env.tuning
            runs = [*cut_tasks(selected, tuning), *cut_tasks(remaining, tuning)]
            runs = [part for run in runs for part in _split_at_once(table_log, snapshot, run, bits)]
            tasks = [_regroup(_task(snapshot, plan, run, parts), run, bits) for run in runs]
            work = _Work(table_log, plan, {str(task.slices[0].group): task for task in tasks})
            while pending := len(work.pending):
                with contextlib.closing(_results(execute, work.take())) as results:
                    for new_slices in results:
                        task = work.running.popleft()
                        publisher.add(plan, work, task, new_slices)
                        yield task.bytes
                assert len(work.pending) < pending, "an Execute takes the tasks"
                assert not work.running, "an Execute gives the result of each task"
            publisher.finish(plan, work)
    return publisher.result(snapshot, start_time)


def rewrite(
    table_log: TableLog,
    snapshot: Snapshot,
    plan: ServicePlan,
    file_slices: Sequence[FileSlice],
    rewriting: Rewriting,
    *,
    execute: Execute = one_by_one,
    progress: OnStage = unobserved,
) -> RewritingResult:
    """Write new slices with changed rows, and publish them in one BASE (PROTOCOL.md, "Erase" and "Rewrite").

    Args:
        table_log: The table's log.
        snapshot: A head snapshot.
        plan: An open plan of the snapshot.
        file_slices: File groups of the snapshot, in order; at least one.
        rewriting: The change.
        execute: Runs the tasks.
        progress: Called during the work.

    Raises:
        CorruptData: A file is missing or damaged; the table is unchanged.
        SnapshotExpired: Cleaning has aborted the plan as abandoned.
    """
    start_time = time.monotonic()
    with_logs = [file_slice.group for file_slice in snapshot.slices if len(file_slice.rows)]
    publisher = _Publisher(table_log, snapshot.cut.lanes, with_logs, rewriting=rewriting)
    runs = cut_tasks(file_slices, table_log.env.tuning)
    tasks = [replace(_task(snapshot, plan, run), change=rewriting.change) for run in runs]
    for task, new_slices in zip(tasks, run_reported(tasks, execute, progress, "rewriting"), strict=True):
        publisher.add(plan, None, task, new_slices)
    publisher.finish(plan, None)
    return RewritingResult(publisher.result(snapshot, start_time), publisher.entry, *publisher.left_out())


def cut_tasks(slices: Sequence[FileSlice], tuning: Tuning) -> list[list[FileSlice]]:
    """Divide file groups, in order, into tasks: small neighbours share a task and its files."""
    limit = tuning.shared_file_bytes
    sizes = [file_slice.base_bytes + file_slice.log_bytes for file_slice in slices]
    sizes = [size if size < tuning.small_group_bytes else limit + 1 for size in sizes]  # large ones stay alone
    return list(cut_by_size(slices, sizes, limit))


def _split_at_once(
    table_log: TableLog, snapshot: Snapshot, run: list[FileSlice], bits: int
) -> Iterator[list[FileSlice]]:
    """Divide the file groups of a task further if some are split and the task does not merge all of them in one step.

    In order, parts of one file group are between parts of another, and a file has its slices in order.
    """
    if all(file_slice.group.bits >= bits for file_slice in run):
        yield run
        return
    sizes = [group_bytes(snapshot.table_schema, file_slice) for file_slice in run]
    yield from cut_by_size(run, sizes, table_log.env.tuning.merge_together_bytes)


def _task(
    snapshot: Snapshot,
    plan: ServicePlan,
    run: Sequence[FileSlice],
    parts: Mapping[FileGroup, Sequence[FileSlice]] = MappingProxyType({}),
) -> CompactionTask:
    """The task of a run of file groups. A file group with ``parts`` is the merge of these."""
    slices = [part for file_slice in run for part in parts.get(file_slice.group, (file_slice,))]
    return CompactionTask.of(snapshot, plan, slices, rev=snapshot.schema_rev)


def _regroup(task: CompactionTask, run: Sequence[FileSlice], bits: int) -> CompactionTask:
    """The task with the table's number of bits. A large file group is split into separate files."""
    is_large = len(run) == 1 and task.bytes >= task.env.tuning.small_group_bytes
    apart = is_large and run[0].group.bits < bits
    return replace(task, slices=tuple(in_order(task.slices, bits)), bits=bits, apart=apart)


def _results(execute: Execute, tasks: Iterator[CompactionTask]) -> Generator[list[NewSlice]]:
    """Yield the results of tasks. Closing this generator also closes that of ``execute``."""
    yield from execute(tasks)


@dataclass(slots=True)
class _Work:
    """The tasks of one compaction that are not finished.

    Attributes:
        table_log: The table's log.
        plan: The plan of the compaction.
        pending: Tasks that have not begun, by the name of their first file group.
        running: Tasks that have begun and whose results have not arrived, in the order in which they began.
        skipped: File groups that other compactions have compacted before their task began, with the reason.
        shared: Whether other plans were open when the table lane was last read.
    """

    table_log: TableLog
    plan: ServicePlan
    pending: dict[str, CompactionTask]
    running: deque[CompactionTask] = field(default_factory=deque)
    skipped: dict[FileGroup, str] = field(default_factory=dict)
    shared: bool = False
    _initial_state: TableState | None = field(init=False)

    def __post_init__(self) -> None:
        self._initial_state = self.plan.previous_state

    def take(self) -> Iterator[CompactionTask]:
        """Take tasks off ``pending``, each when its turn comes.

        Ends before the share of other plans; the next call takes that, unless these plans have done it by then. So an
        `Execute` that starts all tasks at once does not start them.
        """
        plans: frozenset[str] = frozenset()
        share: deque[str] = deque()
        while self.pending:
            state = self._refresh()
            if state is None:
                return
            if (sharing := sharing_plans(self.plan.plan_id, state.plans)) != plans:
                plans, self.shared = sharing, len(sharing) > 1
                keys = list(self.pending)
                share = deque(keys[i] for i in next_share(self.plan.plan_id, plans, keys))
            if not share:
                return
            task = self._still_needed(self.pending.pop(share.popleft()), state)
            if task is not None:
                self.running.append(task)
                yield task

    def is_last(self, state: TableState) -> bool:
        """Whether a state leaves nothing to do: other compactions have compacted all pending file groups."""
        return not self.running and not any(_is_unchanged(state, file_slice) for file_slice in self._pending_slices())

    def _pending_slices(self) -> Iterator[FileSlice]:
        return (file_slice for task in self.pending.values() for file_slice in task.slices)

    def _refresh(self) -> TableState | None:
        """Read the newest state. If the plan is closed or has to yield: skip all pending tasks, and return None."""
        if self._initial_state is not None:  # the PLAN was just published, so this is as good as the newest state
            state, self._initial_state = self._initial_state, None
            if not must_yield(self.table_log, state):
                return state
        state = self.table_log.refresh()
        is_open = self.plan.plan_id in state.plans
        if is_open and not must_yield(self.table_log, state):
            return state
        reason = RESERVED if is_open else PLAN_CLOSED
        for file_slice in self._pending_slices():
            self.skipped[file_slice.group] = reason if _is_unchanged(state, file_slice) else _OVERTAKEN
        self.pending.clear()
        return None

    def _still_needed(self, task: CompactionTask, state: TableState) -> CompactionTask | None:
        """The task without file groups that others have compacted; None if it has no others."""
        overtaken_groups = {task.target(part) for part in task.slices if not _is_unchanged(state, part)}
        if not overtaken_groups:
            return task
        remaining = tuple(part for part in task.slices if task.target(part) not in overtaken_groups)
        groups = {file_slice.group for file_slice in remaining}
        self.skipped.update((part.group, _OVERTAKEN) for part in task.slices if part.group not in groups)
        return replace(task, slices=remaining) if remaining else None


@dataclass(slots=True)
class _Publisher:
    """Publishes the new slices of one plan in BASE entries.

    Attributes:
        table_log: The table's log.
        target: Cut of the new slices.
        with_logs: All file groups that had log files in the snapshot.
        rewriting: The change of rows, if there is one.
        entry: Slot of the newest BASE that was published; 0 if there is none.
    """

    table_log: TableLog
    target: cut.Seqs
    with_logs: Sequence[FileGroup]
    rewriting: Rewriting | None = None
    done: list[FileGroup] = field(default_factory=list)
    skipped: dict[FileGroup, str] = field(default_factory=dict)
    rows: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    bytes_dropped: int = 0
    overflows: Counter[int] = field(default_factory=Counter)
    entry: int = 0
    _pending: list[SliceFile] = field(default_factory=list)
    _left_out: dict[FileGroup, tuple[int, int]] = field(default_factory=dict)
    _pending_bytes: int = 0
    _plan_ended: bool = False

    def add(self, plan: ServicePlan, work: _Work | None, task: CompactionTask, new_slices: Sequence[NewSlice]) -> None:
        """Add the slices of one task. Slices that share files are published in the same entry.

        Args:
            plan: The plan.
            work: The remaining work; None: `finish` publishes everything in one entry.
            task: The task.
            new_slices: Its slices.
        """
        slices = [part.file for part in new_slices]
        self._pending += slices
        self._left_out |= {part.file.group: (part.visible_left_out, part.hidden_left_out) for part in new_slices}
        files = _written_files(slices, plan)
        plan.unpublished.update(files)
        size = sum(file.size for file in files.values())
        self._pending_bytes += size
        self.bytes_read += task.bytes
        self.bytes_written += size
        if work is None:
            return
        is_full = self._pending_bytes >= self.table_log.env.tuning.compaction_part_bytes
        # Other compactions must see what is done. On a cluster the results of many tasks come together: one entry.
        publish_now = work.shared and len(work.running) < _AT_ONCE
        if publish_now or is_full or not (work.pending or work.running):
            self._publish(plan, work)

    def finish(self, plan: ServicePlan, work: _Work | None) -> None:
        """End the plan, unless its last slices have ended it."""
        if not self._plan_ended:
            self._publish(plan, work)
        if work is not None:
            self.skipped |= work.skipped

    def left_out(self) -> tuple[int, int]:
        """Number of visible and of other rows that the change removed from published slices."""
        counts = [self._left_out[group] for group in self.done]
        return sum(visible for visible, _ in counts), sum(hidden for _, hidden in counts)

    def result(self, snapshot: Snapshot, start_time: float) -> CompactionResult:
        """What was published; ``start_time``: the monotonic time at which the work began."""
        column_names = {column.id: column.name for column in snapshot.table_schema.columns}
        return CompactionResult(
            done=tuple(self.done),
            skipped=self.skipped,
            rows=self.rows,
            bytes_read=self.bytes_read,
            bytes_written=self.bytes_written,
            bytes_dropped=self.bytes_dropped,
            overflows={column_names[column]: count for column, count in self.overflows.items()},
            seconds=time.monotonic() - start_time,
        )

    def _publish(self, plan: ServicePlan, work: _Work | None) -> None:
        offered_slices = {slice_file.group: slice_file for slice_file in self._pending}
        self._pending, self._pending_bytes = [], 0
        plan.unpublished.clear()  # from here on an entry may name the files: only cleaning may delete them
        accepted_slices: dict[FileGroup, SliceFile] = {}
        reason = _OVERTAKEN

        def build(state: TableState) -> Base | Abort | None:
            # Rule K3: publish only slices whose parent is still the newest slice. Called again after every lost race.
            nonlocal reason
            accepted_slices.clear()
            if plan.plan_id not in state.plans:
                reason = PLAN_CLOSED
                return None
            is_reserved = must_yield(self.table_log, state, reserves=plan.reserves)
            reason = RESERVED if is_reserved else _OVERTAKEN
            if not is_reserved:
                followers = may_follow(state.slices, state.folded_groups, list(offered_slices.values()))
                accepted_slices.update((slice_file.group, slice_file) for slice_file in followers)
            all_or_nothing = self.rewriting is not None and self.rewriting.all_or_nothing
            if all_or_nothing and len(accepted_slices) < len(offered_slices):
                accepted_slices.clear()
            header = self.table_log.header(state)
            last = work is None or work.is_last(state)
            if accepted_slices:
                slices = list(accepted_slices.values())
                covered = covered_up_to(state, accepted_slices, self.with_logs, self.target) if last else {}
                return Base(
                    **header,
                    plan_id=plan.plan_id,
                    covered=covered,
                    last=last,
                    slices=slices,
                    rewrites=self.rewriting.description if self.rewriting is not None else "",
                )
            if last:
                return Abort(**header, plan_id=plan.plan_id, reason=RESERVED if is_reserved else _ALL_OVERTAKEN)
            return None

        entry = self.table_log.publish(build)
        self._plan_ended = isinstance(entry, Abort) or (isinstance(entry, Base) and entry.last)
        if isinstance(entry, Base):
            self.entry = entry.seq
        for group, slice_file in offered_slices.items():
            if group in accepted_slices:
                self.done.append(group)
                self.rows += slice_file.base_rows
                self.overflows.update(slice_file.overflows)
            else:
                self.skipped[group] = reason
        published_files = _written_files(accepted_slices.values(), plan)
        offered_files = _written_files(offered_slices.values(), plan)
        dropped_files = {path: file for path, file in offered_files.items() if path not in published_files}
        self.bytes_dropped += sum(file.size for file in dropped_files.values())
        delete_files(self.table_log.store, dropped_files)


def _is_unchanged(state: TableState, file_slice: FileSlice) -> bool:
    """Whether no other compaction has published a slice of a file group since it was read."""
    slice_file = file_slice.slice
    if slice_file is not None:
        return state.slices.cut_of(slice_file.group) == slice_file.cut
    group, levels = file_slice.group, state.slices.levels
    return group not in state.slices and not any(overlapping(group, levels, state.slices.__contains__))


def _written_files(slices: Iterable[SliceFile], plan: ServicePlan) -> dict[Path, FileRef]:
    """Files of slices that were written for a plan, by path; not older files that the slices still refer to."""
    files = {file.path: file for slice_file in slices for file in slice_file.objects}
    return {path: file for path, file in files.items() if names.parse_plan(path) == plan.slot}
