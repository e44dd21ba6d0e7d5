"""The soak: a real pipeline under SIGKILL, SIGSTOP and restores, then a comparison with the oracle.

    messages --> embedded broker --> writer processes (Spark) --> table <-- two compactors, two publishers, a cleaner
                                          ^ SIGKILL, SIGSTOP, zombies ^        ^ savepoints, undo, restore
                                                                       kept snapshots are read repeatedly
                                                                       other readers read the published tables

At the end, without disturbances: every message is in a live commit of its lane exactly once, the snapshot equals the
oracle, also after a compaction and a clean that retains only the newest snapshot, no kept snapshot has changed its
rows, `verify` finds nothing, and the published tables have the oracle's rows. A seed decides what is done; the outcome
is not deterministic, because the processes are real.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tests.soak.jobs import Jobs
from tests.soak.lanes import Lanes, Services, services_of
from tests.soak.published import PublishedTables
from tests.soak.shop import PARTITIONS, STREAMS, Events, expected, write_pipeline
from weft import Table
from weft.storage.errors import NotFound, SnapshotExpired
from weft.streams.demo.embedded_broker import EmbeddedBroker
from weft.streams.pipeline.file.pipeline import load_pipeline
from weft.streams.pipeline.run.run import CLEAN, COMPACTION, PUBLISH, make_jobs, open_table, service_job
from weft.streams.spark.session import check_java

STEP_SECONDS: Final = 0.2
RATE: Final = 300  # messages per second and topic; writers catch up quickly after a restart
MAX_MESSAGES: Final = 200_000  # of one topic; less than two partitions of the embedded broker keep
START_SECONDS: Final = 600.0  # for the first commits of all writers: several JVMs start at once on a busy machine
DRAIN_SECONDS: Final = 600.0  # for the remaining messages; a writer may have to restart first
CHAOS_SECONDS: Final = (3.0, 8.0)  # between two disturbances
FROZEN_SECONDS: Final = (1.0, 8.0)
LOOK_SECONDS: Final = 1.0  # between two reads of kept snapshots
KEPT: Final = 4  # number of savepoints; the oldest is released, so that cleaning deletes files
RIVALS: Final = {COMPACTION: f"{COMPACTION}-rival", PUBLISH: f"{PUBLISH}-rival"}
"""Services that run twice, and the name of the second process."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a soak.

    Attributes:
        wrong: What is wrong; empty if everything is correct.
        report: Lines for the terminal.
    """

    wrong: tuple[str, ...]
    report: tuple[str, ...]


@dataclass
class _Soak:
    """One run."""

    rng: random.Random
    table: Table
    jobs: Jobs
    lanes: Lanes
    published: PublishedTables
    events: dict[str, Events]
    send: Callable[[str, list[dict[str, Any]]], None]
    say: Callable[[str], None]
    kept: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    reads: int = 0
    undone: int = 0
    restored: int = 0
    expired: int = 0
    wrong: list[str] = field(default_factory=list)
    _sent_at: float = 0.0
    _next_look: float = 0.0
    _savepoints: int = 0

    # --- a step ------------------------------------------------------------------------------------------------------

    def step(self, rate: float) -> None:
        """Send messages that are due, restart processes, and read the table from time to time."""
        now = time.monotonic()
        elapsed, self._sent_at = now - (self._sent_at or now), now
        for name, stream_events in self.events.items():
            room = MAX_MESSAGES - len(stream_events.delivered)
            count = min(room, round(rate * min(elapsed, 1.0)))
            if count > 0:
                self.send(name, stream_events.take(count))
        self.jobs.step()
        self.lanes.refresh()
        if now >= self._next_look:
            self._next_look = now + LOOK_SECONDS
            self.look()
        time.sleep(STEP_SECONDS)

    def look(self) -> None:
        """Read the published tables, and a kept snapshot again, or keep another one."""
        self.wrong += self.published.check()
        if not self.kept or self.rng.random() < 0.3:
            self._savepoints += 1
            name = f"kept-{self._savepoints}"
            self.table.savepoint(name)
            self.kept[name] = self.rows(name)
            if len(self.kept) > KEPT:
                oldest = next(iter(self.kept))
                del self.kept[oldest]
                self.table.release_savepoint(oldest)
        self.check_kept(self.rng.choice(list(self.kept)))

    def check_kept(self, name: str) -> None:
        """Check that a kept snapshot still gives the same rows."""
        self.reads += 1
        if self.rows(name) != self.kept[name]:
            self.wrong.append(f"savepoint {name!r} has changed its answer: {self.table.savepoints()}")

    def rows(self, as_of: str | None = None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.table.snapshot(as_of).to_arrow().sort_by("id").to_pylist()
        return found

    # --- blows -------------------------------------------------------------------------------------------------------

    def blow(self, kind: str) -> bool:
        """Disturb the pipeline; returns whether there is something to disturb so."""
        writers = [name for name in self.jobs.names() if name in self.events]
        services = [name for name in self.jobs.names() if name not in self.events]
        seconds = self.rng.uniform(*FROZEN_SECONDS)
        match kind:
            case "kill writer" if writers:
                self._strike(kind, self.rng.choice(writers), self.jobs.kill)
            case "kill service" if services:
                self._strike(kind, self.rng.choice(services), self.jobs.kill)
            case "freeze" if writers or services:
                self._strike(kind, self.rng.choice([*writers, *services]), lambda name: self.jobs.freeze(name, seconds))
            case "zombie" if writers:
                self._strike(kind, self.rng.choice(writers), self.zombie)
            case "undo":
                self.undo()
            case "restore" if self.kept:
                self.restore()
            case _:
                return False
        return True

    def _strike(self, kind: str, name: str, strike: Callable[[str], None]) -> None:
        self.say(f"{kind}: {name}")
        strike(name)

    def zombie(self, name: str) -> None:
        """Freeze a writer, start a successor, and continue the frozen one when the successor has claimed the lane."""
        before = self.lanes.claims[name]
        self.jobs.replace(name, START_SECONDS)

        def claimed() -> bool:
            return self.lanes.claims[name] > before

        self.until(claimed, START_SECONDS, f"the successor of {name}")
        self.jobs.wake(name)

    def undo(self) -> None:
        """Undo the latest commits of one stream; writers of other streams must not be affected."""
        name = self.rng.choice(list(self.events))
        self.lanes.refresh()
        others = {other: self.lanes.fences[other] for other in self.events if other != name}
        since = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=self.rng.uniform(1, 6))
        self.say(f"undo: {name} since {since:%H:%M:%S}")
        try:
            result = self.table.undo(name, since)
        except SnapshotExpired:
            self.expired += 1
            return
        self.undone += 1
        self.lanes.refresh()
        if set(result.kept) != {name}:
            self.wrong.append(f"the undo of {name} has cut lanes {sorted(result.kept)}")
        for other, before in others.items():
            if self.lanes.fences[other] != before:
                self.wrong.append(f"the undo of {name} has fenced {other}")

    def restore(self) -> None:
        """Restore the table to a savepoint."""
        name = self.rng.choice(list(self.kept))
        self.say(f"restore: {name}")
        with contextlib.suppress(NotFound):  # the savepoint may have been released meanwhile
            self.table.restore(name)
            self.restored += 1

    # --- waiting -----------------------------------------------------------------------------------------------------

    def until(
        self,
        done: Callable[[], bool],
        seconds: float,
        what: str,
        *,
        rate: float = 0.0,
        moves: Callable[[], object] = lambda: None,
    ) -> bool:
        """Continue until a condition holds; it is an error if for so long ``moves`` returns the same."""
        deadline, moved = time.monotonic() + seconds, moves()
        while not done():
            if (now := moves()) != moved:
                deadline, moved = time.monotonic() + seconds, now
            if time.monotonic() >= deadline:
                self.wrong.append(f"{what} did not come within {seconds:.0f} s: {self.jobs.tally.failures}")
                return False
            self.step(rate)
        return True

    def finish(self) -> None:
        """Send the remaining messages, and wait without disturbances until the table has all of them."""
        self.jobs.calm()
        for name, stream_events in self.events.items():
            self.send(name, stream_events.rest())
        sent = {name: len(stream_events.delivered) for name, stream_events in self.events.items()}
        reached = self.lanes.reached  # on a busy machine the rest takes minutes, but it goes on
        self.until(lambda: reached() == sent, DRAIN_SECONDS, f"all of {sent} messages", moves=reached)
        self.until(self.published.current, DRAIN_SECONDS, "the newest base files in the published tables")
        self.jobs.stop()
        self.lanes.refresh()


def run_soak(
    minutes: float,
    *,
    seed: int = 1,
    writers: int = 3,
    folder: Path | None = None,
    blows: Sequence[str] | None = None,
    say: Callable[[str], None] = print,
) -> Verdict:
    """Run the soak.

    Args:
        minutes: Duration of the disturbances; start and end take additional time.
        seed: Seed of all random decisions.
        writers: 2 or 3.
        folder: New or empty folder for all files; by default a temporary one, which is kept only if something is wrong.
        blows: The disturbances, spread over the time; random ones by default.
        say: Called with a line about each action.
    """
    check_java()
    with kept_folder(folder) as place, EmbeddedBroker() as broker:
        names = STREAMS[:writers]
        pipeline = load_pipeline(write_pipeline(place.path, broker.bootstrap_servers, names))
        table = open_table(pipeline)
        broker.create_topics(dict.fromkeys(names, PARTITIONS))
        producer = broker.producer(linger_ms=5)

        def send(topic: str, events: list[dict[str, Any]]) -> None:
            for event in events:
                producer.produce(topic, json.dumps(event).encode(), partition=event["id"] % PARTITIONS)
            assert producer.flush(60) == 0, "the embedded broker does not answer"

        seconds = [(service_job(pipeline, service), name) for service, name in RIVALS.items()]
        rivals = [replace(job, name=name, log=job.log.with_name(f"{name}.log")) for job, name in seconds]
        jobs = [*make_jobs(pipeline), *rivals]
        assert {job.name for job in jobs} == {*names, *RIVALS, *RIVALS.values(), CLEAN}
        events = {name: Events(name, random.Random(f"{seed} {name}")) for name in names}
        with Jobs(jobs) as running:
            published = PublishedTables(table, place.path)
            soak = _Soak(random.Random(seed), table, running, Lanes(table, names), published, events, send, say)
            _torment(soak, minutes * 60, blows)
            soak.finish()
        verdict = _judge(soak)
        place.keep |= bool(verdict.wrong)
        return verdict


def _torment(soak: _Soak, seconds: float, blows: Sequence[str] | None) -> None:
    """Disturb the pipeline repeatedly, while messages arrive."""
    rate = min(RATE, MAX_MESSAGES / (seconds + START_SECONDS))

    def all_write() -> bool:
        return all(soak.lanes.reached().values())

    if not soak.until(all_write, START_SECONDS, "the writers' first commits", rate=rate):
        return
    end = time.monotonic() + seconds
    kinds = ["kill writer"] * 3 + ["kill service"] * 3 + ["freeze"] * 2 + ["zombie"] * 2 + ["undo", "restore"]
    todo = list(blows) if blows is not None else None
    pause = seconds / (len(todo) + 1) if todo else 0.0
    next_blow = time.monotonic() + pause
    while time.monotonic() < end or todo:
        if time.monotonic() >= next_blow and (todo is None or todo):
            struck = soak.blow(soak.rng.choice(kinds) if todo is None else todo[0])
            if struck and todo:
                del todo[0]
            if struck or todo is None:  # otherwise it is due until it can be done
                next_blow = time.monotonic() + (pause or soak.rng.uniform(*CHAOS_SECONDS))
        soak.step(rate)


def _judge(soak: _Soak) -> Verdict:
    """Compare the table with the expected result."""
    for name in soak.kept:
        soak.check_kept(name)
    table, wrong = soak.table, [*soak.wrong, *soak.jobs.tally.findings]
    sent = {name: len(stream_events.delivered) for name, stream_events in soak.events.items()}
    if soak.lanes.events() != sent:
        wrong.append(f"live commits hold {soak.lanes.events()} events of {sent} messages")
    wanted = expected(soak.events)
    wrong += differences("the table", soak.rows(), wanted)
    report = table.verify()
    wrong += [str(finding) for finding in (*report.errors, *report.warnings)]
    for name in soak.kept:
        table.release_savepoint(name)
    table.compact()
    wrong += soak.published.judge(wanted)
    table.clean(retain=dt.timedelta(0), abandon_after=dt.timedelta(0))
    wrong += soak.published.judge_cleaned()
    wrong += differences("the table, compacted and cleaned,", Table.open(table.uri).snapshot().to_arrow(), wanted)
    report = table.verify()
    wrong += [str(finding) for finding in (*report.errors, *report.warnings)]
    return Verdict(tuple(dict.fromkeys(wrong)), tuple(_report(soak, services_of(table), sent, len(wanted))))


def differences(what: str, found: Any, wanted: list[dict[str, Any]]) -> list[str]:
    rows = found if isinstance(found, list) else found.sort_by("id").to_pylist()
    if rows == wanted:
        return []
    mine, theirs = ({row["id"]: row for row in side} for side in (rows, wanted))
    differing = sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))
    examples = "; ".join(f"found {mine.get(key)}, wanted {theirs.get(key)}" for key in differing[:3])
    return [f"{what} differs from the oracle in {len(differing)} of {len(theirs)} rows: {examples}"]


def _report(soak: _Soak, done: Services, sent: dict[str, int], rows: int) -> Iterator[str]:
    tally = soak.jobs.tally
    yield (
        f"{tally.kills} SIGKILL, {tally.freezes} SIGSTOP, {tally.zombies} of them replaced while frozen; "
        f"{tally.restarts} restarts, {tally.fenced} writers fenced"
    )
    yield (
        f"{soak.lanes.commits} commits, {done.compactions} compactions, {done.folds} folds, "
        f"{done.cleaned_files} files cleaned; {soak.undone} undos ({soak.expired} refused: cleaned already), "
        f"{soak.restored} restores"
    )
    yield f"{sum(sent.values())} messages {sent}, {rows} rows; kept snapshots read {soak.reads} times"
    reads = ", ".join(f"{count} of {kind}" for kind, count in soak.published.reads.items())
    yield f"versions of published tables read: {reads}; {soak.published.overtaken} reads overtaken"
    for why, count in tally.failures.items():
        yield f"ended {count} times: {why}"


@dataclass
class _Place:
    path: Path
    keep: bool


@contextlib.contextmanager
def kept_folder(given: Path | None) -> Iterator[_Place]:
    """The folder of a soak: the given one, or a temporary one that is removed at the end unless `keep` is set."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield _Place(given.absolute(), keep=True)
        return
    place = _Place(Path(tempfile.mkdtemp(prefix="weft-soak-")), keep=False)
    try:
        yield place
    except BaseException:
        place.keep = True
        raise
    finally:
        if place.keep:
            print(f"everything is kept in {place.path}: logs in .weft/pipeline/logs; weft show {place.path}/table")
        else:
            # Errors are ignored, because a JVM that is ending may remove files at the same time.
            shutil.rmtree(place.path, ignore_errors=True)
