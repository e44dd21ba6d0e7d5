"""Runs one schedule: sets it up from the plan, runs it, lets late requests arrive, and checks the result."""

from __future__ import annotations

import datetime as dt
import hashlib
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from unittest import mock

from tests.simulation.actors import Compactor, Job, OneShot, Query, Reader, Watcher
from tests.simulation.damage import damage
from tests.simulation.disk import Disk
from tests.simulation.faults import SKEWS_MS, Fault, Faults
from tests.simulation.followers import Follower
from tests.simulation.history import TABLE, History
from tests.simulation.judge import Judge
from tests.simulation.operators import Operator
from tests.simulation.plan import FAULT_STEPS, Plan, draw_plan
from tests.simulation.published import LOG, Published
from tests.simulation.scheduler import Process, Scheduler, Violation
from tests.simulation.store import SimClock, SimStore
from tests.simulation.two_tables import check_no_savepoint_is_left, check_savepoints, kept_cut
from weft.storage.clock import Stamps
from weft.storage.core.log.cut import PREFIX, Cut, parse_cut
from weft.storage.core.names import TABLE_LANE, slot_path
from weft.storage.environment import Environment, Tuning
from weft.storage.errors import CorruptData, InvalidInput, NotFound, SnapshotExpired
from weft.storage.publish.delta import publish_delta
from weft.storage.read.references import bound_rows, reference_rows
from weft.storage.read.references.kept_rows import MAX_BYTES, KeptRows
from weft.storage.read.references.reference_rows import KeyedRows
from weft.storage.store.open_store import open_store
from weft.storage.table import Table

_NURSERY = "memory://simulation"  # tables are created here before their objects are copied to the disk
_TABLE, _REFERENCED = "table", "referenced"
_processes = itertools.count()
LOOK_UP_ROWS = [1, 1_000]  # with more foreign keys whole referenced tables are read, and kept
_CLEANED = ("log/", "base/", "shadow/", "overlay/", "_weft/index/", "_weft/probe/", "_weft/timeline/")
"""Folders in which a clean leaves nothing that is not needed."""


@dataclass(frozen=True)
class Outcome:
    """The result of a schedule.

    ``failure`` is None if every check held; ``entries`` counts entries by kind; ``theme``: the one that was asked for.
    """

    seed: int
    theme: str | None
    failure: str | None
    trace: list[str]
    steps: int
    entries: Counter[str]
    reads: int
    faults: Counter[Fault]
    seconds: float

    @property
    def trace_hash(self) -> str:
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()


class Simulation:
    """All objects of one table in a schedule. A referenced table shares the scheduler and the faults.

    Attributes:
        chance: Random numbers for the choices of actors.
        kept: Texts of cuts that were read, and names of savepoints.
        seen: The newest snapshot that a watcher has handed to the writers; None before.
        referenced: The table that this one refers to; None if it refers to none.
    """

    def __init__(self, plan: Plan, referring: Simulation | None = None) -> None:
        self.plan, self._referring = plan, referring
        self.name = _TABLE if referring is None else _REFERENCED
        self._prefix = "" if referring is None else f"{self.name}:"
        self.ids = SeededIds(f"{self._prefix}{plan.seed}")
        self.tuning = Tuning(**plan.limits)
        self.chance = random.Random(f"actors {self._prefix}{plan.seed}")
        if referring is None:
            self.scheduler = Scheduler(random.Random(f"scheduler {plan.seed}"), plan.stickiness)
            self.faults = Faults(random.Random(f"faults {plan.seed}"), plan.mood, FAULT_STEPS)
        else:
            self.scheduler, self.faults = referring.scheduler, referring.faults
        self.disk = Disk(self._watch)
        self.history = History(self.disk.objects, plan.batches, self.tuning.archive_chunk)
        self.judge = Judge(plan.config, plan.batches, self.history, plan.distinct)
        self.published = Published(self.history, self.judge, self.disk.objects)
        self.kept: list[str] = []
        self.seen: Cut | None = None
        self.jobs: list[Job] = []
        self._damage_step = plan.damage_step
        self.referenced: Simulation | None = None
        if plan.referenced is not None:
            self.referenced = Simulation(plan.referenced, self)
            self.judge.referenced = self.referenced.judge
            self.history.look_beside = self.referenced.judge.heads
            self.referenced.history.look_beside = self.judge.heads

    @property
    def tables(self) -> list[Simulation]:
        """The table, and the one that it refers to."""
        return [self] if self.referenced is None else [self, self.referenced]

    def run(self) -> None:
        """Run to the end; `scheduler.failure` then has the result."""
        self.scheduler.on_step = self._on_step
        self._create()
        for table in self.tables:
            table.start_actors()
        self.scheduler.run()
        try:
            for table in self.tables:
                table.disk.arrive_all()
        except Violation as violation:  # caused by a late request whose caller has gone
            self.scheduler.fail(str(violation))
        for table in reversed(self.tables):
            if self.scheduler.failure is None:
                table.start("last", table.check_all)
                self.scheduler.run()

    def start_actors(self) -> None:
        """Start the processes of the plan."""
        self.jobs = [Job(self, lane, batches) for lane, batches in self.plan.lanes.items()]
        for job in self.jobs:
            job.start()
        for lane, batches in self.plan.queries.items():
            Query(self, lane, batches).start()
        for number, batches in enumerate(self.plan.shots):
            OneShot(self, f"batches{number}", list(batches)).start()
        for number, runs in enumerate(self.plan.compactions):
            Compactor(self, f"compactor{number}", runs).start()
        for number, runs in enumerate(self.plan.reads):
            Reader(self, f"reader{number}", runs).start()
        for number, runs in enumerate(self.plan.watches):
            Watcher(self, f"watcher{number}", runs).start()
        for number, runs in enumerate(self.plan.follows):
            Follower(self, f"follower{number}", runs).start()
        for number, actions in enumerate(self.plan.operators):
            Operator(self, f"operator{number}", list(actions)).start()

    def start(
        self, name: str, body: Callable[[Process], None], on_freeze: Callable[[], None] = lambda: None
    ) -> Process:
        """Start a process; its clock may differ from the others'."""
        process = Process(f"{self._prefix}{name}", body, on_freeze=on_freeze)
        if Fault.CLOCK in self.faults.rates:
            process.skew_ms = self.faults.skew_ms()
        self.scheduler.spawn(process)
        return process

    def table(self, process: Process) -> Table:
        """The table in a new process: with empty caches, and the process's stamps and clock."""
        clock = SimClock(self.scheduler, process)
        number = next(_processes)
        mergers = frozenset({"tests.mergers"})
        env = Environment(
            self._store(process), clock, self.ids, mergers, self.tuning, lambda *_: self._open_beside(process, number)
        )
        return Table(env, Stamps())

    def _open_beside(self, process: Process, number: int) -> SimStore:
        """The store of the referenced table. Its URI is new in every process, which so has stamps of its own."""
        assert self.referenced is not None, "the table has a reference"
        return self.referenced._store(process, f"sim://{number:012d}/{_REFERENCED}")

    def _store(self, process: Process, uri: str | None = None) -> SimStore:
        uri = uri or f"sim://{self.name}"
        return SimStore(self.scheduler, self.disk, self.faults, process, uri, self._prefix)

    def draw_erase(self) -> tuple[str, frozenset[tuple[Any, ...]]]:
        """A note, and some keys of the table to erase under it."""
        names = self.plan.config["key"]
        known = sorted({tuple(row[name] for name in names) for b in self.plan.batches.values() for row in b.rows})
        keys = frozenset(self.chance.sample(known, self.chance.randint(min(1, len(known)), len(known))))
        note = f"erase{self.chance.randrange(1_000_000)}"
        self.history.erasing[note] = keys
        return note, keys

    def draw_rewrite(self) -> tuple[str, str, Any]:
        """A note, a value column that can be rewritten ("" if there is none), and its new value."""
        config = self.plan.config
        columns = [
            name
            for group in config["groups"].values()
            if group.get("merge", "latest") in {"latest", "latest_non_null"}
            for name in group["columns"]
            if name not in group.get("ordering", ())
        ]
        column = self.chance.choice(columns) if columns else ""
        number = self.chance.randrange(1_000_000)
        declared = config["columns"].get(column, "")
        is_text = (declared if isinstance(declared, str) else declared["type"]) == "string"
        value = f"w{number}" if is_text else number
        self.history.rewriting[f"rewrite{number}"] = (column, value)
        return f"rewrite{number}", column, value

    def draw_expiry(self) -> tuple[str, str, int]:
        """A note, a column by which rows can expire ("" if there is none), and a limit."""
        drawn, group, limit = self.draw_forgetting()
        del self.history.forgetting[drawn]
        note = drawn.replace("forget", "expire")
        column = self.plan.config["groups"][group]["ordering"][0] if group else ""
        self.history.expiring[note] = (group, column, limit)
        return note, column, limit

    def draw_ttl(self) -> tuple[dict[str, Any], int]:
        """A time to live of which some commits are older at a time, and that time; nothing before the first commit."""
        entries = (entry for entries in self.history.lanes.values() for entry in entries)
        stamps = sorted(entry["stamp"] for entry in entries if entry["kind"] == "DATA")
        if not stamps:
            return {}, 0
        now, newer = stamps[-1] + 10_000, [*stamps[len(stamps) // 2 :], stamps[-1] + 1]
        rows = self.chance.choice([None, *newer])
        settings: dict[str, Any] = {}
        note, column, limit = self.draw_expiry()
        del self.history.expiring[note]
        if column and self.chance.random() < 1 / 2:
            rows, settings = limit, {"by": column, "unit": "milliseconds"}
        deletes = self.chance.choice(newer)
        settings |= {} if rows is None else {"rows": dt.timedelta(milliseconds=now - rows)}
        return settings | {"deletes": dt.timedelta(milliseconds=now - deletes)}, now

    def draw_forgetting(self) -> tuple[str, str, int]:
        """A note, a group with deletes that have ordering values ("" if there is none), and a limit."""
        groups = {
            name: group["ordering"][0]
            for name, group in self.plan.config["groups"].items()
            if group.get("ordering") and group.get("merge", "latest") in {"latest", "latest_non_null"}
        }
        group = self.chance.choice(list(groups)) if groups else ""
        rows = (row for batch in self.plan.batches.values() for row in batch.rows)
        known = sorted({row[groups[group]] for row in rows if row.get(groups.get(group, "")) is not None})
        limit = self.chance.choice(known) + self.chance.choice([0, 1, 1]) if known else 0
        note = f"forget{self.chance.randrange(1_000_000)}"
        self.history.forgetting[note] = (group, limit)
        return note, group, limit

    def _check_erased(self, process: Process) -> None:
        if any("erase" in actions for actions in self.plan.operators) and not self.judge.damaged:
            note, keys = self.draw_erase()
            if not keys:
                return
            table = self.table(process)
            self.published.erases = True
            result = table.erase(sorted(keys), expire_snapshots=True, release_savepoints=True, note=note)
            self.judge.check_erased(keys, result, self.disk.objects)
            self.check_read(process)
            if self._publishes:
                self._check_published_without(keys, table)

    @property
    def _publishes(self) -> bool:
        return any("publish" in actions for actions in self.plan.operators) and not self.judge.damaged

    def _check_published(self, process: Process) -> None:
        """S28: nothing that earlier publications have left behind prevents another one."""
        if not self._publishes:
            return
        table = self.table(process)
        with suppress(InvalidInput):  # base files that do not show what the table shows
            publish_delta(table)
            self.published.check_rows()
            table.compact()
            publish_delta(table)
            self.published.check_complete()

    def _check_published_without(self, keys: frozenset[tuple[Any, ...]], table: Table) -> None:
        """S26: as OPERATIONS.md says, the folder of the log is deleted, and the table is published again."""
        for path in [path for path in self.disk.objects if path.startswith(LOG)]:
            del self.disk.objects[path]
        self.published.forget()
        with suppress(InvalidInput):
            publish_delta(table)
            self.published.check_rows()
            self.published.check_without(keys)

    def resume_jobs(self) -> None:
        """After a restore, let some sources repeat the batches that it rolled back."""
        for job in self.jobs:
            if self.chance.random() < 1 / 2:
                job.resume()

    def _check_followed(self, process: Process) -> None:
        if self.plan.follows:
            Follower(self, "last", 0).look_back(process, self.table(process))

    def check_verified(self, process: Process) -> None:
        """A verification finds no error, except damage that was there when it began."""
        damaged = self.judge.damaged
        self.judge.check_report(self.table(process).verify(), damaged)

    def _check_cleaned(self, process: Process) -> None:
        """L3: a clean that retains as little as possible leaves exactly what is needed."""
        process.skew_ms = 3 * max(SKEWS_MS)  # later than all clocks, so that plans with future times are abandoned too
        nothing = dt.timedelta(0)
        table = len(self.history.lanes[TABLE])
        self.table(process).clean(nothing, abandon_after=nothing)
        for lane, entries in self.history.lanes.items():
            assert not entries[-1].get("for_batch"), f"lane {lane} of a dead batch is not finished by a clean"
        for path in self.disk.objects:
            if path.startswith(LOG):
                continue
            if path.startswith(_CLEANED):
                self.judge.check_left(path, table)

    def check_kept(self, table: Table, text: str) -> None:
        """S9: a snapshot that was read once gives the same rows again, unless it has expired."""
        try:
            kept = table.snapshot(text)
            rows = kept.to_arrow()  # an error of a referenced table, whose cut is then left out, is raised here
            if str(kept.cut) != self._cut_of(text):
                raise Violation(f"S9 SnapshotStable: {text} is {kept.cut}, and not {self._cut_of(text)}")
            self.judge.check_answer(kept.cut, rows)
        except NotFound:
            if text.startswith(PREFIX) or text in self.history.table.savepoints:
                raise
        except SnapshotExpired:
            cut = parse_cut(text) if text.startswith(PREFIX) else None
            if cut is None:
                # An erase of keys of the referenced table releases savepoints there.
                erased = self.referenced is not None and self.referenced.judge.is_erased()
                if text in self.history.table.savepoints and not erased:
                    raise
            elif self.judge.is_promised(cut):
                raise

    def _cut_of(self, text: str) -> str:
        """The text of the cut that a text of a cut, or the name of a savepoint, stands for."""
        if text.startswith(PREFIX):
            return text
        made = next(e for e in self.history.lanes[TABLE] if e["kind"] == "SAVEPOINT" and e["name"] == text)
        return kept_cut(made)

    def note(self, process: Process, error: BaseException) -> None:
        """Log an error that the process may end with."""
        self.scheduler.log(process, f"ends: {type(error).__name__}: {str(error).splitlines()[0]}")

    def _create(self) -> None:
        creator = Process("creator", lambda _: None)
        nursery, clock = open_store(f"{_NURSERY}/{self.name}"), SimClock(self.scheduler, creator)
        if self.referenced is not None:
            self.referenced._create()
        env = Environment(nursery, clock, self.ids, frozenset({"tests.mergers"}), self.tuning)
        first = slot_path(TABLE_LANE, 1)
        Table.create_in(env, self.plan.config)
        created = nursery.get(first)
        assert created is not None, "a table was created"
        self.disk.put(first, created)
        if self._referring is None:
            for table in self.tables:
                open_store(f"{_NURSERY}/{table.name}").delete(first)

    def _watch(self, path: str, before: bytes | None, now: bytes | None) -> None:
        self.history.watch(path, before, now)
        self.published.watch(path, before, now)
        referring = self._referring or self
        if referring.referenced is not None and not referring.referenced.judge.is_erased():
            check_savepoints(referring.history.table, referring.referenced.history.table)

    def _on_step(self) -> None:
        for table in self.tables:
            table.disk.arrive(self.scheduler.step)
        if self._damage_step is not None and self.scheduler.step >= self._damage_step:
            self._damage_step = None
            self._damage()

    def _damage(self) -> None:
        if self.judge.damaged or self._referring is not None:
            return  # report only the first failure, because others may follow from it
        self.faults.counts[Fault.DAMAGE] += 1
        self.judge.damaged = damage(self.chance, self.disk, self.history)
        self.scheduler.trace.append(f"{self.scheduler.step} environment: damages {self.judge.damaged}")

    def check_all(self, process: Process) -> None:
        """Check what a process without faults sees that starts after all others have ended."""
        self.faults.last_step = 0
        try:
            self.check_read(process)
            self._check_followed(process)
            self._check_published(process)
            self._check_erased(process)
            if self.referenced is not None and not self.faults.rates:
                check_no_savepoint_is_left(self.history.table, self.referenced.history.table)
            if self.chance.random() < 1 / 2:
                self.check_verified(process)
            if not self.judge.damaged and self.chance.random() < 1 / 2:
                if self.plan.follows:
                    self.table(process).compact()  # so that the logs that contain the changed keys become garbage
                self._check_cleaned(process)
                self.check_read(process)
                self._check_followed(process)
                self._damage()
                self.check_verified(process)
        except CorruptData as error:
            self.judge.excuse(error)

    def check_read(self, process: Process) -> None:
        """S4, S9: the newest snapshot has all commits, and earlier snapshots give the same rows again."""
        table = self.table(process)
        snapshot = table.snapshot()
        self.judge.check_complete(self.judge.acked, snapshot.cut)
        if {TABLE: snapshot.cut.table, **self.judge.whole(snapshot.cut)} != self.judge.heads():
            raise Violation(f"S4 AckedDurable: {snapshot.cut} is not the whole table: {self.judge.heads()}")
        self.judge.check_answer(snapshot.cut, snapshot.to_arrow())
        self.judge.check_watermarks(snapshot.cut, snapshot.watermarks())
        for text in dict.fromkeys(self.kept):
            self.check_kept(table, text)
        for time_ms in list(self.judge.settled):
            with suppress(SnapshotExpired):
                asked = dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC)
                self.judge.check_time(time_ms, table.snapshot(asked, settled=True).cut, settled=True)


class SeededIds:
    """Ids drawn from the seed. Host and process are constant, because they are stored in heartbeats and pins."""

    host, pid = "simulation", 1

    def __init__(self, seed: str) -> None:
        self._chance = random.Random(f"ids {seed}")

    def new(self) -> str:
        return f"{self._chance.getrandbits(128):032x}"


@contextmanager
def _fresh_process(look_up_rows: int) -> Iterator[None]:
    """What a schedule keeps in this process is its own; and rows are bound, however small the tables are."""
    kept: KeptRows[KeyedRows] = KeptRows(MAX_BYTES)
    with (
        mock.patch.object(bound_rows, "MOST_SHARE", 1e9),
        mock.patch.object(reference_rows, "KEPT_ROWS", kept),
        mock.patch.object(reference_rows, "LOOK_UP_ROWS", look_up_rows),
    ):
        yield


def run_seed(seed: int, theme: str | None = None) -> Outcome:
    """Run the schedule of a seed; see `draw_plan`."""
    started = time.perf_counter()
    simulation = Simulation(draw_plan(seed, theme))
    with _fresh_process(LOOK_UP_ROWS[seed % len(LOOK_UP_ROWS)]):
        simulation.run()
    lanes = [entries for table in simulation.tables for entries in table.history.lanes.values()]
    entries = Counter(entry["kind"] for lane_entries in lanes for entry in lane_entries)
    return Outcome(
        seed=seed,
        theme=theme,
        failure=simulation.scheduler.failure,
        trace=simulation.scheduler.trace,
        steps=simulation.scheduler.step,
        entries=entries,
        reads=sum(table.judge.reads for table in simulation.tables),
        faults=simulation.faults.counts,
        seconds=time.perf_counter() - started,
    )
