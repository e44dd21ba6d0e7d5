"""The actors: writers, compactors and readers. Each behaves like a program that uses `storage`.

An actor's process may crash, freeze or fail at any call; the actor then starts another one, as a cluster would. A
process may end with the errors in `FAILURES` and those of its actor; any other error is a failure of the schedule.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from tests.simulation.faults import Fault
from tests.simulation.history import TABLE, Batch
from tests.simulation.judge import Visible
from tests.simulation.scheduler import Crash, Process, Violation
from tests.simulation.tables import draw_finish, draw_lateness
from tests.simulation.two_tables import references_of
from tests.storage.support.world import to_arrow
from weft.storage.core.log.cut import Cut
from weft.storage.errors import (
    CommitUnknown,
    Conflict,
    CorruptData,
    Fenced,
    InvalidInput,
    SnapshotExpired,
    StoreUnavailable,
)
from weft.storage.read.references.bound_rows import BoundRows
from weft.storage.read.references.joined_scan import JoinedScan
from weft.storage.read.snapshot import Snapshot
from weft.storage.services.due_work import Only
from weft.storage.services.steps.tasks import Execute, Task, one_by_one
from weft.storage.table import Table
from weft.storage.write.write_task import write_rows
from weft.storage.write.writer import Commit, Writer

if TYPE_CHECKING:
    from tests.simulation.run import Simulation

T = TypeVar("T")

FAILURES = (StoreUnavailable, CommitUnknown, OSError)
"""Errors that a fault of the store may cause for a caller."""
PIN = dt.timedelta(hours=6)
HOW = ["at once", "task by task", "bound", "bound"]  # rows are joined
MAX_INCARNATIONS = 20  # after the last fault; a job that needs more does not make progress


PAUSES_SECONDS = [0, 0.3, 1, 2]  # of actors that act from time to time; a step takes milliseconds
MUCH_LATER_SECONDS = [3, 10, 30]


@dataclass(eq=False)
class Worker:
    """Does its work in parts; after a failure a new process continues."""

    simulation: Simulation
    name: str

    @property
    def busy(self) -> bool:
        """Whether there is more to do."""
        raise NotImplementedError

    def work(self, process: Process, table: Table) -> None:
        """Do one part of the work, which counts as done once it has begun, even if it fails."""
        raise NotImplementedError

    def start(self) -> None:
        self.simulation.start(self.name, self._live)

    def _live(self, process: Process) -> None:
        try:
            table = self.simulation.table(process)
            while self.busy:
                self._pause(process)
                self.work(process, table)
                if self.simulation.plan.verified and not isinstance(self, OneShot):
                    self.simulation.check_verified(process)
        except CorruptData as error:
            self.simulation.judge.excuse(error)
        except (Crash, *FAILURES) as error:
            if self.simulation.scheduler.failure is not None:
                raise
            self.simulation.note(process, error)
            if self.busy:
                self.start()

    def _pause(self, process: Process) -> None:
        self.simulation.scheduler.sleep(process, self.simulation.chance.choice(PAUSES_SECONDS))


@dataclass(eq=False)
class Job:
    """A streaming query: its batches, the number of batches it has recorded as done, and the processes that run its
    writer.

    ``noted`` corresponds to Spark's checkpoint. Two processes may run at once: a cluster may replace a frozen process,
    and the old one later continues as a zombie. After a restore the job continues where its lane ends.
    """

    simulation: Simulation
    lane: str
    batches: list[Batch]
    noted: int = -1
    started: int = 0
    started_late: int = 0
    running: int = 0
    ended: bool = field(default=False)

    @property
    def done(self) -> bool:
        return self.ended or self.noted == len(self.batches) - 1

    def start(self) -> None:
        """Start a process."""
        self.started += 1
        self.running += 1
        self.simulation.start(f"{self.lane}.{self.started}", self._live, self._impatient)

    def resume(self) -> None:
        """Check, after a restore, whether batches must be sent again."""
        if not self.ended and self.running == 0:
            self.start()

    def _impatient(self) -> None:
        if not self.done and self.simulation.chance.random() < 2 / 3:
            self.start()

    def _live(self, process: Process) -> None:
        simulation = self.simulation
        try:
            self._write(process)
        except CorruptData as error:
            simulation.judge.excuse(error)
            self.ended = True
        except (*FAILURES, Fenced) as error:
            simulation.note(process, error)
        except Conflict as error:
            simulation.note(process, error)
            if self.lane not in simulation.history.table.closed:
                raise
            self.ended = True
        except Crash:
            if simulation.scheduler.failure is not None:
                raise
        self.running -= 1
        if not self.done and self.running == 0:
            self.started_late += not simulation.faults.active(simulation.scheduler.step)
            assert self.started_late < MAX_INCARNATIONS, f"job {self.lane} does not finish"
            self.start()

    def _write(self, process: Process) -> None:
        simulation = self.simulation
        judge = simulation.judge
        stream, query = self.batches[0].stream, self.batches[0].query
        older_than = judge.newest_stamp(self.lane, stream)
        table = simulation.table(process)
        lateness = draw_lateness(simulation.plan.seed, simulation.plan.config, self.lane, stream)
        entered = table.writer(stream, lane=self.lane, owner=process.name, query_id=query, lateness=lateness)
        with entered as writer:
            last = writer.last_batch(query)
            judge.check_resumed(self.lane, writer.epoch, last)
            self.noted = min(self.noted, -1 if last is None else last)
            # Spark replays its last batch, done or not.
            number = max(self.noted + simulation.chance.choice([0, 1]), 0)
            while number < len(self.batches):
                batch = self.batches[number]
                if batch.change is not None:
                    table.add_column(**batch.change.arguments)
                commit, visible = self._append(writer, batch)
                judge.acknowledge(batch, commit, older_than, visible)
                simulation.scheduler.log(process, f"acknowledged {number} as {commit.seq}")
                simulation.scheduler.pause(process)
                self.noted = max(self.noted, number)
                number += 1
            if draw_finish(simulation.plan.seed, self.lane):
                writer.finish()
                judge.check_left_lane(self.lane, writer.epoch)

    def _append(self, writer: Writer, batch: Batch) -> tuple[Commit, Visible]:
        """Append or repeat a batch; after a failure half of the jobs retry with the same writer.

        Returns the commit, and the newest stamps of competing commits that were visible before.
        """
        name, source = (batch.query, batch.number), {"id": batch.id}
        rows = to_arrow(batch.config, batch.rows, batch.stream)
        chance, history, judge = self.simulation.chance, self.simulation.history, self.simulation.judge
        visible = judge.newest_rivals(self.lane, batch.stream)
        history.begin(batch.id, writer.epoch)
        try:
            if chance.random() < 2 / 3:
                return writer.append(rows, batch=name, source=source), visible
            begun = writer.begin(name)
            if isinstance(begun, Commit):
                return begun, visible
            half = len(rows) // 2
            parts = [write_rows(begun, part, task=task) for task, part in enumerate((rows[:half], rows[half:]))]
            visible = visible.after(judge.newest_contested(self.lane, batch.stream))
            if (seen := self.simulation.seen) is None:
                return writer.commit(begun, parts, source=source), visible
            history.follow(batch.id, writer.epoch, {TABLE: seen.table, **seen.lanes})
            commit = writer.commit(begun, parts, source=source, seen=str(seen))
            return commit, visible.after(judge.newest_of(seen))
        except StoreUnavailable:
            if chance.random() < 1 / 2:
                raise
        history.begin(batch.id, writer.epoch)
        return writer.append(rows, batch=name, source=source), visible


@dataclass(eq=False)
class Query(Job):
    """A query that closes its lane after its last batch, and sends the batch again much later, which is refused."""

    def _write(self, process: Process) -> None:
        super()._write(process)
        self.simulation.table(process).close_lane(self.lane)
        self.simulation.scheduler.sleep(process, self.simulation.chance.choice(MUCH_LATER_SECONDS))
        super()._write(process)
        raise Violation(f"C6: query {self.lane!r} writes again, although its lane was closed")


@dataclass(eq=False)
class OneShot(Worker):
    """Sends batches without a query id, each with a new writer. It repeats only what was certainly not stored."""

    batches: list[Batch]

    @property
    def busy(self) -> bool:
        return bool(self.batches)

    def work(self, process: Process, table: Table) -> None:
        batch = self.batches.pop(0)
        try:
            self._write(process, table, batch)
        except (Fenced, StoreUnavailable) as error:
            self.simulation.note(process, error)
            if self.simulation.chance.random() < 1 / 2:
                self.batches.insert(0, batch)

    def _write(self, process: Process, table: Table, batch: Batch) -> None:
        simulation, chance = self.simulation, self.simulation.chance
        judge = simulation.judge
        if batch.change is not None:
            table.add_column(**batch.change.arguments)
        older_than = judge.newest_stamp("", batch.stream)
        # Some batches of a lane have a lateness, and others not.
        lateness = draw_lateness(simulation.plan.seed, simulation.plan.config, str(batch.id), batch.stream)
        rows = to_arrow(batch.config, batch.rows, batch.stream)
        with table.batch_writer(batch.stream, owner=process.name, lateness=lateness) as writer:
            simulation.history.begin(batch.id, writer.epoch)
            visible = judge.newest_rivals(writer.lane, batch.stream)
            begun = writer.begin()
            assert not isinstance(begun, Commit), "a batch without a number was never committed before"
            parts = [write_rows(begun, rows)] if chance.random() < 7 / 8 else []
            simulation.scheduler.pause(process)
            visible = visible.after(judge.newest_contested(writer.lane, batch.stream))
            commit = writer.commit(begun, parts, source={"id": batch.id})
        if commit.rows:
            judge.acknowledge(batch, commit, older_than, visible)
            simulation.scheduler.log(process, f"acknowledged {batch.id} as {commit.seq} of {commit.lane}")
        judge.check_left_lane(commit.lane, writer.epoch)


def all_at_once(tasks: Iterable[Task[T]], /) -> Iterator[T]:
    """Take all tasks, then run them."""
    return one_by_one(list(tasks))


@dataclass(eq=False)
class Compactor(Worker):
    """Compacts some file groups, or folds, several times."""

    runs: int

    @property
    def busy(self) -> bool:
        return self.runs > 0

    def work(self, process: Process, table: Table) -> None:
        self.runs -= 1
        chance = self.simulation.chance
        share = chance.choice([1.0, 1.0, 0.5])
        try:
            folds = chance.random() < 1 / 3
            # A cluster takes all tasks before it runs one, so it sees late what others have compacted meanwhile.
            execute: Execute = chance.choice([one_by_one, all_at_once])
            only: Only = lambda _: chance.random() < share  # noqa: E731
            result = table.fold(execute=execute) if folds else table.compact(only, execute=execute)
        except (Conflict, SnapshotExpired) as error:
            if not self.simulation.history.table.disturbed:
                raise
            self.simulation.note(process, error)
        else:
            self.simulation.scheduler.log(process, f"{result.done} done, {result.skipped} skipped")


@dataclass(eq=False)
class Watcher(Worker):
    """Takes the newest snapshot, or that of a time, again and again, and reads no rows.

    It hands some snapshots to the writers, which then follow what it has seen.
    """

    runs: int

    @property
    def busy(self) -> bool:
        return self.runs > 0

    def work(self, process: Process, table: Table) -> None:
        self.runs -= 1
        chance, judge = self.simulation.chance, self.simulation.judge
        if chance.random() < 1 / 8:
            self._read_time(table)
            return
        moment = chance.random() < 1 / 4
        snapshot = table.snapshot(references=self.simulation.referenced is not None, moment=moment)
        if snapshot.table_is_moment:
            judge.check_moment(snapshot.cut)
        elif moment:
            raise Violation(f"S31 OneMoment: {snapshot.cut} is no moment")
        if snapshot.references and snapshot.is_moment:
            judge.check_together(snapshot.cut)
        if chance.random() < 1 / 4:
            self.simulation.seen = snapshot.cut

    def _read_time(self, table: Table) -> None:
        judge = self.simulation.judge
        time_ms = judge.draw_moment(self.simulation.chance)
        if time_ms < judge.history.lanes[TABLE][0]["committed_at_ms"]:
            return
        time = dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC)
        snapshot = table.snapshot(time, references=False, moment=True)
        judge.check_moment(snapshot.cut)
        judge.check_time_moment(time_ms, snapshot.cut, settled=snapshot.settled)

    def _pause(self, process: Process) -> None:
        self.simulation.scheduler.pause(process)


@dataclass(eq=False)
class Reader(Worker):
    """Reads the head, times, and earlier cuts; compares every result.

    ``bound``: what its process keeps of referenced tables.
    """

    runs: int
    bound: BoundRows = field(default_factory=BoundRows)

    def start(self) -> None:
        self.bound = BoundRows()
        super().start()

    @property
    def busy(self) -> bool:
        return self.runs > 0

    def work(self, process: Process, table: Table) -> None:
        self.runs -= 1
        try:
            self._read(process, table)
        except SnapshotExpired as error:
            if not self.simulation.judge.may_expire():
                raise
            self.simulation.note(process, error)

    def _read(self, process: Process, table: Table) -> None:
        simulation = self.simulation
        chance, judge = simulation.chance, simulation.judge
        kind = chance.choice(["head", "head", "kept", "time", "moment"])
        if kind == "kept" and simulation.kept:
            simulation.check_kept(table, chance.choice(simulation.kept))
        elif kind == "time":
            moment = judge.draw_moment(chance)
            if judge.settled and chance.random() < 1 / 3:
                moment = chance.choice(list(judge.settled))
            try:
                cut = self._compare(process, table, dt.datetime.fromtimestamp(moment / 1000, dt.UTC))
            except InvalidInput:
                created = judge.history.lanes[TABLE][0]["committed_at_ms"]
                assert moment < created, f"the table was created at {created}, so it must exist at {moment}"
            else:
                simulation.kept.append(str(cut))
        else:
            is_moment, table_lane = kind == "moment", len(judge.history.lanes[TABLE])
            before = {**(judge.visible_before(table_lane) if is_moment else judge.acked), TABLE: table_lane}
            cut = self._compare(process, table, None, moment=is_moment)
            judge.check_complete(before, cut)
            if simulation.plan.shots:
                judge.check_watermarks(cut, table.snapshot(str(cut), references=False).watermarks())
            simulation.kept.append(str(cut))

    def _compare(self, process: Process, table: Table, as_of: dt.datetime | str | None, *, moment: bool = False) -> Cut:
        chance, judge = self.simulation.chance, self.simulation.judge
        snapshot = table.snapshot(as_of, moment=moment)
        if moment and not snapshot.table_is_moment:
            raise Violation(f"S31 OneMoment: {snapshot.cut} is no moment, and was not refused")
        if snapshot.table_is_moment:
            judge.check_moment(snapshot.cut)
        if snapshot.references and snapshot.is_moment:
            judge.check_together(snapshot.cut)
        if isinstance(as_of, dt.datetime):
            judge.check_time(round(as_of.timestamp() * 1000), snapshot.cut, settled=snapshot.settled)
        config = judge.history.table.config(snapshot.cut.table)
        groups = [*config["groups"], *references_of(config)]
        require = [] if chance.random() < 3 / 4 else chance.sample(groups, chance.randint(1, len(groups)))
        self._pause(process)
        if chance.random() < 1 / 2:
            judge.check_answer(snapshot.cut, self._rows(snapshot, require), require)
            return snapshot.cut
        with snapshot.pinned(PIN):
            for _ in range(chance.choice([1, 2, 3])):
                try:
                    judge.check_answer(snapshot.cut, self._rows(snapshot, require), require)
                except SnapshotExpired as error:
                    # If clocks differ by a year, a pin expires at once. An erase may remove pins.
                    excused = Fault.CLOCK in self.simulation.faults.rates or judge.is_erased()
                    if not excused and judge.names_all(snapshot.cut):
                        raise Violation(f"S16 CleanSafe: a pinned snapshot has expired: {error}") from error
                    raise
                self._pause(process)
        return snapshot.cut

    def _rows(self, snapshot: Snapshot, require: list[str]) -> pa.Table:
        """Read the snapshot.

        Raises:
            SnapshotExpired: The snapshot has expired meanwhile.
            Violation: The error says that it has expired, but it has not.
        """
        try:
            how = self.simulation.chance.choice(HOW) if snapshot.references else ""
            if how == "task by task":
                return snapshot.to_reader(require=require).read_all()
            return self._bound_rows(snapshot, require) if how == "bound" else snapshot.to_arrow(require=require)
        except SnapshotExpired as error:
            if self.simulation.judge.is_promised(snapshot.cut):
                raise Violation(f"S16 CleanSafe: {snapshot.cut} has not expired: {error}") from error
            raise

    def _bound_rows(self, snapshot: Snapshot, require: list[str]) -> pa.Table:
        """Read the snapshot as a view does: its tasks keep the rows of referenced tables for later snapshots."""
        scan = snapshot.scan(require=require)
        if not isinstance(scan, JoinedScan):
            return scan.to_arrow()
        bound = self.bound.apply(scan, snapshot.references)
        sent = bound.without_tasks()
        return pa.Table.from_batches([batch for task in bound.tasks for batch in sent.read(task)], scan.arrow)
