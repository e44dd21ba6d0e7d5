"""Operators: savepoints, restores, undo, closing and fencing of lanes, while all other actors run.

An action is one method: it acts, accepts the errors with which it may be refused, and checks what must hold after
success.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tests.simulation.actors import Worker
from tests.simulation.history import TABLE
from tests.simulation.scheduler import Process
from weft.storage.core.log.cut import Cut, parse_cut
from weft.storage.core.names import TABLE_LANE
from weft.storage.errors import Conflict, InvalidInput, NotFound, SnapshotExpired
from weft.storage.log.checkpoint_store import list_checkpoints
from weft.storage.publish.delta import publish_delta
from weft.storage.table import Table

RETENTIONS = [dt.timedelta(0), dt.timedelta(0), dt.timedelta(seconds=1), dt.timedelta(days=1)]
BUCKETS = [1, 2, 4, 8]
MAX_TRIES = 3  # of one action


@dataclass(eq=False)
class Operator(Worker):
    """Runs actions one after the other; after a failure half of them are retried."""

    todo: list[str]
    tries: int = 0

    @property
    def busy(self) -> bool:
        return bool(self.todo)

    def work(self, process: Process, table: Table) -> None:
        action = self.todo[0]
        self.tries += 1
        self.simulation.scheduler.log(process, f"begins {action}")
        if self.tries == MAX_TRIES or self.simulation.chance.random() < 1 / 2:
            self._next()  # whatever its result
        try:
            ACTIONS[action](self, table)
        except (Conflict, NotFound, SnapshotExpired, InvalidInput) as error:
            if not isinstance(error, REFUSALS[action]):
                raise
            self.simulation.note(process, error)
        if self.tries:
            self._next()

    def _next(self) -> None:
        self.todo.pop(0)
        self.tries = 0

    def _savepoint(self, table: Table) -> None:
        simulation = self.simulation
        name = f"sp{simulation.chance.randrange(1_000_000)}"
        as_of = simulation.chance.choice([None, *simulation.kept])
        made = table.savepoint(name, as_of)
        if as_of is None:
            simulation.judge.check_moment(made.cut)
        simulation.kept.append(name)
        # It may have been released while its creator was frozen.
        released = any(e["kind"] == "RELEASE" and e["name"] == name for e in simulation.history.lanes[TABLE])
        kept = released or simulation.judge.is_promised(made.cut) or simulation.judge.is_erased()
        assert kept, f"{name}: {made.cut} is not kept"

    def _release(self, table: Table) -> None:
        # A name with a point is that of a savepoint that a table with references has made here.
        known = [each for each in table.savepoints() if "." not in each.name]
        if known:
            name = self.simulation.chance.choice(known).name
            self.simulation.published.given_up.add(name)
            table.release_savepoint(name)

    def _restore(self, table: Table) -> None:
        simulation = self.simulation
        if not simulation.kept or simulation.chance.random() < 1 / 4:
            result = table.restore(_time(simulation.judge.draw_moment(simulation.chance)))
            simulation.judge.check_restored(result.entry, None)
        else:
            to = simulation.chance.choice(simulation.kept)
            result = table.restore(to)
            simulation.judge.check_restored(result.entry, to)
        simulation.resume_jobs()

    def _undo(self, table: Table) -> None:
        simulation = self.simulation
        stream = simulation.chance.choice(list(simulation.judge.config["streams"]))
        since = _time(simulation.judge.draw_moment(simulation.chance))
        before = simulation.judge.heads()
        result = table.undo(stream, since)
        simulation.judge.check_undone(result.entry, stream, since, before)
        simulation.resume_jobs()

    def _close(self, table: Table) -> None:
        lane = self._lane()
        head = table.close_lane(lane)
        assert self.simulation.history.table.closed.get(lane, 0) >= head, f"lane {lane} is not closed at {head}"

    def _fence(self, table: Table) -> None:
        lane = self._lane()
        seq = table.fence(lane)
        entry = self.simulation.history.lanes[lane][seq - 1]
        assert entry["kind"] == "CLAIM", f"lane {lane} was fenced by {entry['kind']}"

    def _schema(self, table: Table) -> None:
        simulation = self.simulation
        if simulation.plan.changes:
            change = simulation.chance.choice(simulation.plan.changes)
            try:
                made = getattr(table, change.method)(**change.arguments)
            except NotFound:
                if change.method != "drop_reference":
                    raise
                return
            assert made.rev in simulation.history.table.configs, f"{made} is no revision"

    def _clean(self, table: Table) -> None:
        chance = self.simulation.chance
        result = table.clean(
            chance.choice(RETENTIONS),
            chance.choice([None, None, 1, 2]),
            dry_run=chance.random() < 1 / 8,
            abandon_after=chance.choice([None, *RETENTIONS]),
        )
        assert result.foreign_files == 0 or self.simulation.judge.damaged, f"{result.foreign} are not foreign"

    def _publish(self, table: Table) -> None:
        """Publish, most often after a compaction of some file groups, which leaves unused rows in shared files."""
        chance = self.simulation.chance
        if share := chance.choice([0, 0.5, 0.5, 1]):
            table.compact(lambda _: chance.random() < share)
        result = publish_delta(table)
        self.simulation.published.check_rows()
        if result.is_moment:
            state = table.snapshot(result.cut, references=False).state
            self.simulation.published.check_moment(Cut(state.head, state.covered))

    def _mark(self, table: Table) -> None:
        """After a mark, all earlier times are settled."""
        until = table.mark()
        asked = _time(min(self.simulation.judge.draw_moment(self.simulation.chance), round(until.timestamp() * 1000)))
        snapshot = table.snapshot(asked, settled=True)
        self.simulation.judge.check_time(round(asked.timestamp() * 1000), snapshot.cut, settled=True)

    def _verify(self, table: Table) -> None:
        """A verification that runs beside other processes finds no error."""
        damaged = self.simulation.judge.damaged
        report = table.verify(deep=self.simulation.chance.random() < 1 / 2)
        self.simulation.judge.check_report(report, damaged)

    def _erase(self, table: Table) -> None:
        chance = self.simulation.chance
        note, keys = self.simulation.draw_erase()
        if not keys:
            return
        expires, releases = chance.random() < 3 / 4, chance.random() < 3 / 4
        self.simulation.published.erases |= releases
        table.erase(sorted(keys), expire_snapshots=expires, release_savepoints=releases, note=note)

    def _rewrite(self, table: Table) -> None:
        simulation = self.simulation
        note, column, value = simulation.draw_rewrite()
        if column:
            kind = table.schema.column(column).type
            result = table.rewrite(column, lambda values: pa.array([value] * len(values), kind), note=note)
            if result.entry:
                simulation.judge.check_rewritten(result.entry, parse_cut(result.cut))

    def _forget(self, table: Table) -> None:
        note, group, before = self.simulation.draw_forgetting()
        if group:
            table.forget_deletes(group, before, note=note)

    def _expire(self, table: Table) -> None:
        note, column, before = self.simulation.draw_expiry()
        if column:
            table.expire_rows(column, before, note=note)

    def _ttl(self, table: Table) -> None:
        """Expire rows and deletes that are older than a time to live; what is old is in the log."""
        settings, now = self.simulation.draw_ttl()
        if settings:
            table.set_ttl(**settings, within=dt.timedelta(0))
            table.apply_ttl(_time(now))

    def _delete_checkpoints(self, table: Table) -> None:
        """They only save reading: a snapshot that was opened with one is the same without it, beside a newer one."""
        snapshot = table.snapshot()
        table.env.store.delete_many([path for _, path, _ in list_checkpoints(table.env.store, TABLE_LANE)])
        other = Table(table.env, table._table_log.stamps)
        other.compact()
        other._table_log.save_checkpoint()
        self.simulation.judge.check_answer(snapshot.cut, snapshot.to_arrow())

    def _split(self, table: Table) -> None:
        """Change the number of buckets, up or down, while writers go on that know another one; then maybe fold."""
        buckets = self.simulation.chance.choice(BUCKETS)
        before = len(self.simulation.history.lanes[TABLE])
        assert table.split(buckets).buckets == buckets
        entries = self.simulation.history.lanes[TABLE]
        known = [entry for entry in entries if entry["kind"] in {"CREATE", "SCHEMA"}]
        latest = known[-1]["table_schema"]["bucket_bits"]
        assert known[-1]["seq"] > before or 1 << latest == buckets, f"the table has {1 << latest} buckets"
        if self.simulation.chance.random() < 1 / 2:
            table.fold()

    def _lane(self) -> str:
        batches = (name for name in self.simulation.history.table.streams if "-batches-" in name)
        return self.simulation.chance.choice([*self.simulation.plan.lanes, *batches])


def _time(milliseconds: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)


ACTIONS: Final[Mapping[str, Callable[[Operator, Table], None]]] = {
    "savepoint": Operator._savepoint,
    "release": Operator._release,
    "restore": Operator._restore,
    "undo": Operator._undo,
    "close": Operator._close,
    "fence": Operator._fence,
    "schema": Operator._schema,
    "clean": Operator._clean,
    "verify": Operator._verify,
    "mark": Operator._mark,
    "erase": Operator._erase,
    "rewrite": Operator._rewrite,
    "forget": Operator._forget,
    "expire": Operator._expire,
    "ttl": Operator._ttl,
    "publish": Operator._publish,
    "delete checkpoints": Operator._delete_checkpoints,
    "split": Operator._split,
}

REFUSALS: Final[Mapping[str, tuple[type[Exception], ...]]] = {
    "savepoint": (NotFound, SnapshotExpired),
    "release": (NotFound,),
    "restore": (NotFound, SnapshotExpired, InvalidInput),
    "undo": (NotFound, SnapshotExpired),
    "close": (NotFound, Conflict),
    "fence": (NotFound, Conflict),
    "schema": (),
    "clean": (),
    "verify": (),
    "mark": (SnapshotExpired, InvalidInput),
    "erase": (Conflict,),
    "rewrite": (Conflict,),
    "forget": (Conflict,),
    "expire": (Conflict,),
    "ttl": (Conflict, SnapshotExpired),
    "publish": (Conflict, SnapshotExpired, InvalidInput),
    "delete checkpoints": (Conflict, SnapshotExpired),
    "split": (Conflict, SnapshotExpired),
}
"""NotFound: it does not exist yet, or not any more. InvalidInput: a time before the table was created, or
base files that do not show what the table shows."""
