"""Cleaning with all other operations: retained snapshots always give the same rows, and in the end no garbage remains.

Hypothesis drives writers (some of which freeze), compactions and folds (some of which die), savepoints, restores, undo,
pins, the clock and cleaners with it; most steps may be killed at any call of the store, and are then repeated, as by a
supervisor. S9, S16, S17, S18 and L3 are checked.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.faulty_store import FakeClock, other_process
from tests.oracle import Oracle
from tests.storage.support.cleaning import NOW, Killed, MortalStore, killed, killed_late, stored
from tests.storage.support.shop import SHOP, new_uri, orders, payments
from tests.tuning import tune
from weft import Table
from weft.storage.core.names import Kind, Path, parse_path
from weft.storage.errors import Conflict, Fenced, GapError, NotFound, SnapshotExpired
from weft.storage.log import live_files
from weft.storage.read.snapshot import Snapshot
from weft.storage.store.open_store import open_store
from weft.storage.write.write_task import WriteTicket, Written, write_rows
from weft.storage.write.writer import Writer

MAX_STEPS = 20
MINUTE_MS = 60_000
LANES = {"orders": "orders", "orders-2": "orders", "payments": "payments"}
IDS = range(6)

Answer = list[tuple[Any, ...]]
calls = st.none() | st.integers(0, 60)
"""The call of the store at which a step is killed; None: never."""
lanes = st.sampled_from(sorted(LANES))
some_ids = st.sets(st.sampled_from(IDS), min_size=1)
versions = st.integers(1, 9)


@dataclass(frozen=True)
class Commit:
    """A commit: the rows of a stream, and the time."""

    stream: str
    ids: tuple[int, ...]
    ts: int
    delete: bool
    at_ms: int


@dataclass
class Frozen:
    """A writer that has written its files and then stopped."""

    writer: Writer
    ticket: WriteTicket
    written: Written
    batch: tuple[str, int]
    commit: Commit


@dataclass
class Model:
    """The expected table: its live commits in order of arrival."""

    live: list[Commit] = field(default_factory=list)
    batches: dict[str, int] = field(default_factory=dict)

    def answer(self) -> Answer:
        oracle = Oracle(SHOP)
        for arrival, commit in enumerate(self.live, start=1):
            oracle.append(commit.stream, rows(commit).to_pylist(), arrival)
        return ordered(oracle.read().values())


def rows(commit: Commit) -> Any:
    if commit.stream == "orders":
        op = "D" if commit.delete else "U"
        return orders(*commit.ids, status=f"s{commit.ts}", ts=commit.ts, op=op)
    return payments(*commit.ids, paid=float(commit.ts), ts=commit.ts)


def ordered(found: Any) -> Answer:
    names = list(SHOP["columns"])
    return sorted((tuple(row[name] for name in names) for row in found), key=repr)


def read(snapshot: Snapshot) -> Answer:
    return ordered(snapshot.to_arrow().to_pylist())


class CleaningMachine(RuleBasedStateMachine):
    """One table in memory, one clock, and processes that come and go."""

    cuts = Bundle("cuts")

    def __init__(self) -> None:
        super().__init__()
        self.patches = pytest.MonkeyPatch()
        tune(self.patches, table_checkpoint_every=3, lane_checkpoint_every=3)
        self.uri, self.clock = new_uri(), FakeClock()
        self.model = Model()
        self.answers: dict[str, Answer] = {}
        self.savepoints: dict[str, tuple[str, list[Commit]]] = {}
        self.frozen: dict[str, Frozen] = {}
        self.streaming: dict[str, Writer] = {}
        self.pins = contextlib.ExitStack()
        self.pinned: dict[str, tuple[Snapshot, int]] = {}
        self.number = 0

    @initialize(sidecars=st.booleans())
    def create(self, *, sidecars: bool) -> None:
        if sidecars:
            tune(self.patches, inline_index_bytes=0, inline_list_bytes=0)
        self.table = Table.create(self.uri, SHOP, clock=self.clock)

    def attempt(self, step: Callable[[Table], Any], dies_at: int | None) -> None:
        """Run a step in another process, which may be killed and is then started again."""
        self.clock.time_ms += 1
        if dies_at is not None:
            store = MortalStore(open_store(self.uri), dies_at=dies_at)
            with contextlib.suppress(Killed):
                step(other_process(self.uri, self.clock, store))
                return
        step(other_process(self.uri, self.clock))

    @rule(
        lane=lanes,
        ids=st.sets(st.sampled_from(IDS), min_size=1),
        ts=st.integers(1, 9),
        delete=st.booleans(),
        dies_at=calls,
    )
    def append(self, lane: str, ids: set[int], ts: int, dies_at: int | None, *, delete: bool) -> None:
        commit = self.commit(lane, ids, ts, delete=delete)
        batch = (lane, self.model.batches.get(lane, -1) + 1)

        def step(table: Table) -> None:
            with table.writer(LANES[lane], lane=lane) as writer:
                writer.append(rows(commit), batch=batch)

        self.attempt(step, dies_at)
        self.committed(lane, batch, commit)

    @rule(lane=lanes, ids=some_ids, ts=versions)
    def stream(self, lane: str, ids: set[int], ts: int) -> None:
        """A writer that stays open until it is fenced; then another one replaces it."""
        self.clock.time_ms += 1
        commit = self.commit(lane, ids, ts, delete=False)
        batch = (lane, self.model.batches.get(lane, -1) + 1)
        try:
            if lane not in self.streaming:
                self.streaming[lane] = other_process(self.uri, self.clock).writer(LANES[lane], lane=lane).__enter__()
            self.streaming[lane].append(rows(commit), batch=batch)
        except (Fenced, GapError):  # others have written: the slot or the number of the batch shows it
            self.streaming.pop(lane).__exit__(None, None, None)
            return
        self.committed(lane, batch, commit)

    def commit(self, lane: str, ids: set[int], ts: int, *, delete: bool) -> Commit:
        stream = LANES[lane]
        return Commit(stream, tuple(sorted(ids)), ts, delete and stream == "orders", self.clock.time_ms)

    def committed(self, lane: str, batch: tuple[str, int], commit: Commit) -> None:
        self.model.batches[lane] = batch[1]
        # Clocks decide between lanes that did not see each other; here every step is later than those before.
        self.model.live.append(replace(commit, at_ms=self.clock.time_ms))

    @precondition(lambda self: len(self.frozen) < 2)
    @rule(lane=lanes, ids=some_ids, ts=versions)
    def freeze(self, lane: str, ids: set[int], ts: int) -> None:
        """A writer stops between its files and its commit."""
        self.clock.time_ms += 1
        writer = other_process(self.uri, self.clock).writer(LANES[lane], lane=lane).__enter__()
        batch = (lane, self.model.batches.get(lane, -1) + 1)
        ticket = writer.begin(batch)
        assert isinstance(ticket, WriteTicket)
        commit = self.commit(lane, ids, ts, delete=False)
        self.frozen[lane] = Frozen(writer, ticket, write_rows(ticket, rows(commit)), batch, commit)

    @precondition(lambda self: self.frozen)
    @rule(data=st.data())
    def thaw(self, data: st.DataObject) -> None:
        """It continues, and either commits what it has written or is refused."""
        lane = data.draw(st.sampled_from(sorted(self.frozen)))
        frozen = self.frozen.pop(lane)
        self.clock.time_ms += 1
        try:
            frozen.writer.commit(frozen.ticket, [frozen.written])
        except Fenced:
            return
        finally:
            frozen.writer.__exit__(None, None, None)
        self.committed(lane, frozen.batch, frozen.commit)

    @rule(lane=lanes)
    def fence(self, lane: str) -> None:
        with contextlib.suppress(NotFound):
            self.table.fence(lane)

    @rule(chosen=st.just(frozenset(range(4))) | st.frozensets(st.integers(0, 3)), dies_at=calls)
    def compact(self, chosen: frozenset[int], dies_at: int | None) -> None:
        self.attempt(lambda table: table.compact(only=lambda file_slice: file_slice.group.bucket in chosen), dies_at)

    @rule(how=st.sampled_from([killed, killed_late]))
    def compaction_dies(self, how: Any) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            other_process(self.uri, self.clock).compact(execute=how)

    @rule(dies_at=calls)
    def fold(self, dies_at: int | None) -> None:
        self.attempt(lambda table: table.fold(), dies_at)

    @rule(target=cuts)
    def remember(self) -> Any:
        """The newest snapshot equals the model, and must do so from now on."""
        snapshot = self.table.snapshot()
        self.answers[str(snapshot.cut)] = self.model.answer()
        return str(snapshot.cut)

    @rule(dies_at=calls)
    def savepoint(self, dies_at: int | None) -> None:
        self.number += 1
        name = f"s{self.number}"

        def step(table: Table) -> None:
            with contextlib.suppress(Conflict):  # the killed process had created it
                table.savepoint(name)

        self.attempt(step, dies_at)
        cut = str(self.table.savepoints()[-1].cut)
        self.answers[cut] = self.model.answer()
        self.savepoints[name] = (cut, list(self.model.live))

    @precondition(lambda self: self.savepoints)
    @rule(data=st.data(), dies_at=calls)
    def release(self, data: st.DataObject, dies_at: int | None) -> None:
        name = data.draw(st.sampled_from(sorted(self.savepoints)))
        del self.savepoints[name]

        def step(table: Table) -> None:
            with contextlib.suppress(NotFound):
                table.release_savepoint(name)

        self.attempt(step, dies_at)

    @precondition(lambda self: self.savepoints)
    @rule(data=st.data(), dies_at=calls)
    def restore(self, data: st.DataObject, dies_at: int | None) -> None:
        name = data.draw(st.sampled_from(sorted(self.savepoints)))
        self.attempt(lambda table: table.restore(name), dies_at)
        self.restored(self.savepoints[name][1])

    def restored(self, live: list[Commit]) -> None:
        self.model.live = list(live)
        # The next writer reads from the table where it continues.
        self.model.batches = {}
        for lane, stream in LANES.items():
            if lane in self.table.state().lanes:
                with other_process(self.uri, self.clock).writer(stream, lane=lane) as writer:
                    last = writer.last_batch(lane)
                    self.model.batches |= {} if last is None else {lane: last}
        self.frozen, self.streaming = {}, {}

    @rule(stream=st.sampled_from(["orders", "payments"]), minutes=st.integers(0, 90), dies_at=calls)
    def undo(self, stream: str, minutes: int, dies_at: int | None) -> None:
        since = self.clock.time_ms - minutes * MINUTE_MS
        when = dt.datetime.fromtimestamp(since / 1000, dt.UTC)
        try:
            self.attempt(lambda table: table.undo(stream, when), dies_at)
        except (NotFound, SnapshotExpired):  # nothing was done
            return
        self.restored([event for event in self.model.live if event.stream != stream or event.at_ms < since])

    @rule(cut=cuts, minutes=st.integers(1, 120))
    def pin(self, cut: str, minutes: int) -> None:
        try:
            snapshot = Table.open(self.uri, clock=self.clock).snapshot(cut)
            self.pins.enter_context(snapshot.pinned(dt.timedelta(minutes=minutes)))
        except SnapshotExpired:
            return
        self.pinned[cut] = (snapshot, self.clock.time_ms + minutes * MINUTE_MS)

    @rule(minutes=st.sampled_from([1, 30, 120, 25 * 60]))
    def time_passes(self, minutes: int) -> None:
        self.clock.time_ms += minutes * MINUTE_MS

    @rule(
        retain=st.sampled_from([NOW, NOW, dt.timedelta(minutes=45), dt.timedelta(days=1)]),
        versions=st.none() | st.integers(1, 3),
        abandon=st.sampled_from([NOW, dt.timedelta(hours=1), None]),
        dies_at=calls,
    )
    def clean(
        self, retain: dt.timedelta, versions: int | None, abandon: dt.timedelta | None, dies_at: int | None
    ) -> None:
        self.attempt(lambda table: table.clean(retain, versions, abandon_after=abandon), dies_at)
        self.what_is_kept_answers_as_it_did()

    @invariant()
    def the_newest_snapshot_is_the_model(self) -> None:
        if hasattr(self, "table"):  # not before it is created
            assert read(self.table.snapshot()) == self.model.answer()

    def what_is_kept_answers_as_it_did(self) -> None:
        keep = self.table.state().oldest_retained
        saved = {cut for cut, _ in self.savepoints.values()}
        for cut, answer in self.answers.items():
            pinned = cut in self.pinned and self.pinned[cut][1] > self.clock.time_ms
            try:
                assert read(Table.open(self.uri, clock=self.clock).snapshot(cut)) == answer, cut
            except SnapshotExpired:
                assert int(cut.split(":")[2]) < keep, cut
                assert cut not in saved, cut
                assert not pinned, cut
        for cut, (snapshot, until) in self.pinned.items():
            if until > self.clock.time_ms:
                assert read(snapshot) == self.answers[cut], cut

    def teardown(self) -> None:
        if hasattr(self, "table"):
            self.what_is_kept_answers_as_it_did()
            self.nothing_is_left_over()
        self.patches.undo()

    def nothing_is_left_over(self) -> None:
        """L3: after all processes have ended, a clean keeps only what the newest snapshot needs, and the log."""
        self.pins.close()
        for name in self.savepoints:
            self.table.release_savepoint(name)
        for lane in self.table.state().lanes:
            self.table.fence(lane)
        self.table.compact()
        self.table.clean(NOW, abandon_after=NOW)
        self.the_newest_snapshot_is_the_model()
        snapshot = self.table.snapshot()
        state = replace(snapshot.state, folded={})  # folded event files are still needed
        wanted = {f.path for made in state.slices.values() for f in (made.base, made.shadow) if f is not None}
        wanted |= {path for fold in state.folds for file in fold.files for path in _both(file)}
        for live in live_files.live_files(self.table._table_log, state, snapshot.cut):
            wanted |= _both(live.file)
        left = stored(self.table, "log", "base", "shadow", "_weft")
        parsed_paths = {path: parse_path(Path(path)) for path in left}
        log = {Kind.ENTRY, Kind.TABLE_INDEX, Kind.CHECKPOINT}
        assert {path for path, parsed in parsed_paths.items() if parsed is None or parsed.kind not in log} == wanted
        again = self.table.clean(NOW, abandon_after=NOW)
        # The entries of the first clean may have caused a new checkpoint, which replaces older ones.
        assert (set(again.deleted) - {Kind.CHECKPOINT}, again.oldest_retained) == (set(), again.oldest_retained_before)


def _both(file: Any) -> set[str]:
    sidecar = getattr(file.index, "path", None)
    return {file.file.path, sidecar} - {None}


TestCleaning = CleaningMachine.TestCase
TestCleaning.settings = settings(stateful_step_count=MAX_STEPS, max_examples=settings().max_examples * 2)
