"""Compaction: merges base, shadow, folds and log files of file groups into new slices, and publishes them.

It takes no lock: writers commit to later slots meanwhile, and if two compactions merge the same file group, the slice
whose BASE is published second is dropped (PROTOCOL.md, K1 to K4; invariants S10, S11, S12). Compactions that run at the
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
from weft.storage.services.compaction.compaction_task import CompactionTask, MadeSlice
from weft.storage.services.steps.progress import OnStage, run_reported, unobserved
from weft.storage.services.steps.row_change import RowChange
from weft.storage.services.steps.service_plan import PLAN_CLOSED, ServicePlan, delete_files, must_yield, open_plan
from weft.storage.services.steps.steps import Steps
from weft.storage.services.steps.tasks import Execute, one_by_one
from weft.storage.shown import Shown

RESERVED: Final = "a rewrite or an erase has reserved the table, and ends first"
_OVERTAKEN: Final = "another compaction published a newer slice first"
_ALL_OVERTAKEN: Final = "other compactions published all of it first"
_AT_ONCE: Final = 16  # more tasks than this have begun only if their results come at once, too


@dataclass(frozen=True, slots=True)
class CompactionResult(Shown):
    """The result of a compaction.

    Attributes:
        done: File groups with a new slice.
        skipped: File groups without a new slice of this compaction, with the reason.
        rows: Visible rows in the new slices.
        bytes_read: Stored bytes of base, shadow and log files that were merged.
        bytes_written: Stored bytes of the new base and shadow files.
        bytes_dropped: Those of them that were written in vain: another compaction published its slices first.
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
    """What a rewriting has published.

    Attributes:
        result: The new slices.
        entry: Slot of the BASE; 0 if nothing was published.
        visible_left_out: Visible rows that the published slices lack.
        hidden_left_out: Other rows that they lack, such as deletes.
    """

    result: CompactionResult
    entry: int
    visible_left_out: int
    hidden_left_out: int


@dataclass(frozen=True, slots=True)
class Rewriting:
    """A change of rows that new slices contain, and the log files below them do not.

    Attributes:
        why: The request in words, which the BASE records; it has no values of rows.
        change: The change.
        whole: Publish all slices or none, because a second attempt would change rows twice.
    """

    why: str
    change: RowChange
    whole: bool = False


def compaction_steps(
    table_log: TableLog, snapshot: Snapshot, only: Callable[[FileSlice], bool], execute: Execute = one_by_one
) -> Steps[CompactionResult]:
    """Compact file groups of a snapshot, in steps: one for each task. Publish their slices as they are
    completed.

    Candidates are file groups with log files, the last file groups in shared files that are mostly unreferenced, those
    that have overlays although the table is to have none, and those with other bits than the table is to have: these
    are split or merged (PROTOCOL.md, G2). Of those that become one, all are compacted if one is.

    Args:
        table_log: The table's log.
        snapshot: A head snapshot.
        only: Whether to compact one of the candidates.
        execute: Runs the tasks.

    Raises:
        CorruptData: A file is missing or damaged. Slices that were published remain, the others are as before.
        SnapshotExpired: The snapshot has expired, or cleaning has aborted the compaction as abandoned.
    """
    started = time.monotonic()
    with_logs = [file_slice for file_slice in snapshot.slices if len(file_slice.rows)]
    chosen = [file_slice for file_slice in with_logs if only(file_slice)]
    rest = mostly_unreferenced(snapshot.slices, {file_slice.group for file_slice in chosen}, snapshot.cut.lanes)
    if not snapshot.table_schema.overlays:
        rest |= overlaid_groups(snapshot.slices, snapshot.cut.lanes) - {file_slice.group for file_slice in chosen}
    bits = snapshot.table_schema.bucket_bits
    rest |= other_bits(snapshot.slices, bits) - {each.group for each in chosen}
    remaining = [file_slice for file_slice in snapshot.slices if file_slice.group in rest and only(file_slice)]
    parts = merged_parts(snapshot.slices, (*chosen, *remaining), bits)
    chosen = as_targets(chosen, parts, bits)
    remaining = as_targets(without(remaining, {each.group for each in chosen}, bits), parts, bits)
    publisher = _Publisher(table_log, snapshot.cut.lanes, [file_slice.group for file_slice in with_logs])
    if must_yield(table_log, snapshot.state):
        publisher.skipped = {file_slice.group: RESERVED for file_slice in (*chosen, *remaining)}
    elif chosen or remaining:
        with open_plan(table_log, snapshot.cut, len(chosen) + len(remaining)) as plan:
            # Separate tasks: file groups of a mostly unreferenced file must not share a file with slices that are soon
            # replaced.
            tuning = table_log.env.tuning
            runs = [*cut_tasks(chosen, tuning), *cut_tasks(remaining, tuning)]
            runs = [part for run in runs for part in _split_at_once(table_log, snapshot, run, bits)]
            tasks = [_regrouped(_task(snapshot, plan, run, parts), run, bits) for run in runs]
            work = _Work(table_log, plan, {str(task.slices[0].group): task for task in tasks})
            while waiting := len(work.waiting):
                with contextlib.closing(_results(execute, work.take())) as results:
                    for made in results:
                        task = work.begun.popleft()
                        publisher.add(plan, work, task, made)
                        yield task.bytes
                assert len(work.waiting) < waiting, "an Execute takes the tasks"
                assert not work.begun, "an Execute gives the result of each task"
            publisher.finish(plan, work)
    return publisher.result(snapshot, started)


def rewrite(
    table_log: TableLog,
    snapshot: Snapshot,
    plan: ServicePlan,
    chosen: Sequence[FileSlice],
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
        chosen: File groups of the snapshot, in order; at least one.
        rewriting: The change.
        execute: Runs the tasks.
        progress: Called during the work.

    Raises:
        CorruptData: A file is missing or damaged; the table is unchanged.
        SnapshotExpired: Cleaning has aborted the plan as abandoned.
    """
    started = time.monotonic()
    with_logs = [file_slice.group for file_slice in snapshot.slices if len(file_slice.rows)]
    publisher = _Publisher(table_log, snapshot.cut.lanes, with_logs, rewriting=rewriting)
    runs = cut_tasks(chosen, table_log.env.tuning)
    tasks = [replace(_task(snapshot, plan, run), change=rewriting.change) for run in runs]
    for task, made in zip(tasks, run_reported(tasks, execute, progress, "rewriting"), strict=True):
        publisher.add(plan, None, task, made)
    publisher.finish(plan, None)
    return RewritingResult(publisher.result(snapshot, started), publisher.entry, *publisher.left_out())


def cut_tasks(slices: Sequence[FileSlice], tuning: Tuning) -> list[list[FileSlice]]:
    """Divide file groups, in order, into those that share files: neighbours, as long as they are small."""
    limit = tuning.shared_file_bytes
    sizes = [each.base_bytes + each.log_bytes for each in slices]
    sizes = [size if size < tuning.small_group_bytes else limit + 1 for size in sizes]  # the others stay alone
    return list(cut_by_size(slices, sizes, limit))


def _split_at_once(
    table_log: TableLog, snapshot: Snapshot, run: list[FileSlice], bits: int
) -> Iterator[list[FileSlice]]:
    """The file groups of a task, as several tasks if they are split and are not merged in one step.

    The parts of one file group are among those of another one, and the next read needs them in order in a file.
    """
    if all(each.group.bits >= bits for each in run):
        yield run
        return
    sizes = [group_bytes(snapshot.table_schema, each) for each in run]
    yield from cut_by_size(run, sizes, table_log.env.tuning.merge_together_bytes)


def _task(
    snapshot: Snapshot,
    plan: ServicePlan,
    run: Sequence[FileSlice],
    parts: Mapping[FileGroup, Sequence[FileSlice]] = MappingProxyType({}),
) -> CompactionTask:
    """The task of some file groups; ``parts`` are in place of what stands for several."""
    slices = [part for each in run for part in parts.get(each.group, (each,))]
    return CompactionTask.of(snapshot, plan, slices, rev=snapshot.schema_rev)


def _regrouped(task: CompactionTask, run: Sequence[FileSlice], bits: int) -> CompactionTask:
    """The task with the table's number of bits; a large file group is split into separate files."""
    is_large = len(run) == 1 and task.bytes >= task.env.tuning.small_group_bytes
    apart = is_large and run[0].group.bits < bits
    return replace(task, slices=tuple(in_order(task.slices, bits)), bits=bits, apart=apart)


def _results(execute: Execute, tasks: Iterator[CompactionTask]) -> Generator[list[MadeSlice]]:
    """The results of tasks; closing it closes what ``execute`` has returned."""
    yield from execute(tasks)


@dataclass(slots=True)
class _Work:
    """The tasks of one compaction that are not finished.

    Attributes:
        table_log: The table's log.
        plan: The plan of the compaction.
        waiting: Tasks that have not begun, by the name of their first file group.
        begun: Tasks that have begun and whose results were not taken yet, in the order in which they began.
        skipped: File groups that other compactions have compacted before their task began, with the reason.
        shared: Whether other plans were open at the last look.
    """

    table_log: TableLog
    plan: ServicePlan
    waiting: dict[str, CompactionTask]
    begun: deque[CompactionTask] = field(default_factory=deque)
    skipped: dict[FileGroup, str] = field(default_factory=dict)
    shared: bool = False
    _before: TableState | None = field(init=False)

    def __post_init__(self) -> None:
        self._before = self.plan.before

    def take(self) -> Iterator[CompactionTask]:
        """Take tasks off ``waiting``, each when its turn comes.

        It ends before the tasks of other plans, which a further call takes: until then others may do them, and an
        `Execute` that starts all tasks at once must not start these.
        """
        plans: frozenset[str] = frozenset()
        share: deque[str] = deque()
        while self.waiting:
            state = self._look()
            if state is None:
                return
            if (sharing := sharing_plans(self.plan.plan_id, state.plans)) != plans:
                plans, self.shared = sharing, len(sharing) > 1
                keys = list(self.waiting)
                share = deque(keys[i] for i in next_share(self.plan.plan_id, plans, keys))
            if not share:
                return
            task = self._still_needed(self.waiting.pop(share.popleft()), state)
            if task is not None:
                self.begun.append(task)
                yield task

    def is_last(self, state: TableState) -> bool:
        """Whether no task is left in a state: other compactions have compacted all file groups that wait."""
        return not self.begun and not any(_is_left(state, each) for each in self._slices_waiting())

    def _slices_waiting(self) -> Iterator[FileSlice]:
        return (each for task in self.waiting.values() for each in task.slices)

    def _look(self) -> TableState | None:
        """The newest state; None if nothing that waits can be published: the plan is closed, or has to yield."""
        if self._before is not None:  # the PLAN was just published, so this is as good as the newest state
            state, self._before = self._before, None
            if not must_yield(self.table_log, state):
                return state
        state = self.table_log.refresh()
        is_open = self.plan.plan_id in state.plans
        if is_open and not must_yield(self.table_log, state):
            return state
        reason = RESERVED if is_open else PLAN_CLOSED
        for each in self._slices_waiting():
            self.skipped[each.group] = reason if _is_left(state, each) else _OVERTAKEN
        self.waiting.clear()
        return None

    def _still_needed(self, task: CompactionTask, state: TableState) -> CompactionTask | None:
        """The task without file groups that others have compacted; None if nothing is left of it."""
        gone = {task.target(each) for each in task.slices if not _is_left(state, each)}
        if not gone:
            return task
        left = tuple(each for each in task.slices if task.target(each) not in gone)
        kept = {each.group for each in left}
        self.skipped.update((each.group, _OVERTAKEN) for each in task.slices if each.group not in kept)
        return replace(task, slices=left) if left else None


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
    _waiting: list[SliceFile] = field(default_factory=list)
    _left_out: dict[FileGroup, tuple[int, int]] = field(default_factory=dict)
    _waiting_bytes: int = 0
    _ended: bool = False

    def add(self, plan: ServicePlan, work: _Work | None, task: CompactionTask, made: Sequence[MadeSlice]) -> None:
        """Take the slices of one task; slices that share files are published in the same entry.

        Args:
            plan: The plan.
            work: The rest of the work; None: everything is published in one entry, by `finish`.
            task: The task.
            made: Its slices.
        """
        slices = [each.file for each in made]
        self._waiting += slices
        self._left_out |= {each.file.group: (each.visible_left_out, each.hidden_left_out) for each in made}
        files = _written(slices, plan)
        plan.unpublished.update(files)
        size = sum(file.size for file in files.values())
        self._waiting_bytes += size
        self.bytes_read += task.bytes
        self.bytes_written += size
        if work is None:
            return
        full = self._waiting_bytes >= self.table_log.env.tuning.compaction_part_bytes
        # Other compactions must see what is done. On a cluster the results of many tasks come at once, in one entry.
        seen = work.shared and len(work.begun) < _AT_ONCE
        if seen or full or not (work.waiting or work.begun):
            self._publish(plan, work)

    def finish(self, plan: ServicePlan, work: _Work | None) -> None:
        """End the plan, unless its last slices have ended it."""
        if not self._ended:
            self._publish(plan, work)
        if work is not None:
            self.skipped |= work.skipped

    def left_out(self) -> tuple[int, int]:
        """Number of rows that published slices lack because of the change: visible ones, and others."""
        counts = [self._left_out[group] for group in self.done]
        return sum(visible for visible, _ in counts), sum(hidden for _, hidden in counts)

    def result(self, snapshot: Snapshot, started: float) -> CompactionResult:
        """What was published; ``started``: the monotonic time at which the work began."""
        column_names = {column.id: column.name for column in snapshot.table_schema.columns}
        return CompactionResult(
            done=tuple(self.done),
            skipped=self.skipped,
            rows=self.rows,
            bytes_read=self.bytes_read,
            bytes_written=self.bytes_written,
            bytes_dropped=self.bytes_dropped,
            overflows={column_names[column]: count for column, count in self.overflows.items()},
            seconds=time.monotonic() - started,
        )

    def _publish(self, plan: ServicePlan, work: _Work | None) -> None:
        offered = {made.group: made for made in self._waiting}
        self._waiting, self._waiting_bytes = [], 0
        plan.unpublished.clear()  # from here on the entry may exist: only cleaning may delete files
        kept: dict[FileGroup, SliceFile] = {}
        reason = _OVERTAKEN

        def build(state: TableState) -> Base | Abort | None:
            # Rule K3: publish only slices whose parent is still the newest slice. Called again after every lost race.
            nonlocal reason
            kept.clear()
            if plan.plan_id not in state.plans:
                reason = PLAN_CLOSED
                return None
            reserved = must_yield(self.table_log, state, reserves=plan.reserves)
            reason = RESERVED if reserved else _OVERTAKEN
            if not reserved:
                kept.update(
                    (made.group, made) for made in may_follow(state.slices, state.folded_groups, list(offered.values()))
                )
            if self.rewriting is not None and self.rewriting.whole and len(kept) < len(offered):
                kept.clear()
            header = self.table_log.header(state)
            last = work is None or work.is_last(state)
            if kept:
                slices = list(kept.values())
                covered = covered_up_to(state, kept, self.with_logs, self.target) if last else {}
                return Base(
                    **header,
                    plan_id=plan.plan_id,
                    covered=covered,
                    last=last,
                    slices=slices,
                    rewrites=self.rewriting.why if self.rewriting is not None else "",
                )
            if last:
                return Abort(**header, plan_id=plan.plan_id, reason=RESERVED if reserved else _ALL_OVERTAKEN)
            return None

        entry = self.table_log.publish(build)
        self._ended = isinstance(entry, Abort) or (isinstance(entry, Base) and entry.last)
        if isinstance(entry, Base):
            self.entry = entry.seq
        for group, made in offered.items():
            if group in kept:
                self.done.append(group)
                self.rows += made.base_rows
                self.overflows.update(made.overflows)
            else:
                self.skipped[group] = reason
        published = _written(kept.values(), plan)
        dropped = {path: file for path, file in _written(offered.values(), plan).items() if path not in published}
        self.bytes_dropped += sum(file.size for file in dropped.values())
        delete_files(self.table_log.store, dropped)


def _is_left(state: TableState, file_slice: FileSlice) -> bool:
    """Whether nobody has compacted a file group since it was read."""
    made = file_slice.slice
    if made is not None:
        return state.slices.cut_of(made.group) == made.cut
    group, levels = file_slice.group, state.slices.levels
    return group not in state.slices and not any(overlapping(group, levels, state.slices.__contains__))


def _written(slices: Iterable[SliceFile], plan: ServicePlan) -> dict[Path, FileRef]:
    """The files of slices that were written for a plan, each once; not those that overlays have in common."""
    files = {file.path: file for made in slices for file in made.objects}
    return {path: file for path, file in files.items() if names.parse_plan(path) == plan.slot}
