"""The soak of a pipeline in operation: a real broker and a schema registry, four topics in four formats, ``weft run``.

    producers --> Kafka --> weft run --http (four writers, compaction, clean) --> table <-- SQL queries
        schema registry ------^   ^--- metrics, scraped                            ^--- erase, rewrite, alter

Good and bad messages arrive at a steady rate. Meanwhile processes are killed and restarted, and an operator changes the
table (`tests.soak.real.events`). At the end producers stop, and the table is compared with the oracle
(`tests.soak.real.judge`). A seed decides what is done and in which order (`tests.soak.real.schedule`); the outcome is
not deterministic, because processes are real.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

from tests.download_cache import Unavailable
from tests.soak.lanes import Lanes
from tests.soak.real.alerts import SCRAPE_SECONDS, Series
from tests.soak.real.answers import Answers
from tests.soak.real.events import EVENTS, OF_REGISTRY, rest
from tests.soak.real.feed import FLUSH_SECONDS, Change, Feed
from tests.soak.real.judge import LAST_AMPLIFICATION, judge
from tests.soak.real.memory import Memory
from tests.soak.real.processes import AnyRegistry, Queries, Registry, WeftRun, descendants, memory_of
from tests.soak.real.schedule import LONG, LONG_MINUTES, first_round, later_rounds
from tests.soak.real.topics import FORMATS, PARTITIONS, Encoder, write_pipeline
from tests.soak.run import Verdict, kept_folder
from tests.streams.formats.real_registry import VERSION, RealRegistry
from tests.streams.kafka.real_broker import RealBroker, start_real_broker
from weft import Table
from weft.streams.pipeline.file.pipeline import load_pipeline
from weft.streams.pipeline.run.run import open_table
from weft.streams.spark.session import check_java

STEP_SECONDS: Final = 0.2
START_SECONDS: Final = 300.0  # for the first commits of all writers: several JVMs start at once on a busy machine
END_SECONDS: Final = 60.0  # for what runs beside when the soak is ended
DRAIN_SECONDS: Final = 300.0  # without any commit, while messages remain
EVENT_SECONDS: Final = (8.0, 20.0)  # between two events
SHORT_MINUTES: Final = 5.0  # a shorter soak has shorter pauses
QUIET_SECONDS: Final = 240.0  # for compaction to do what is due at the end
_QUEUE: Final = {"queue_buffering_max_messages": 1_000_000}  # of the producer, for a long outage


@dataclass
class Soak:
    """One run.

    Attributes:
        file: The pipeline file.
        evolved, lossy: What the operator has changed in it, see `tests.soak.real.topics.write_pipeline`.
        loops: Parts that were killed again and again.
        tally: Number of each event.
        kills: Kills of each part.
        disturbed: What may have restarted each part: kills, and outages of what it needs.
        spared: Parts that are not killed any more.
        outages: Whether the broker was away for long.
        refused: Writers that stopped for good, because their topic was created again.
        wanted_events: Names of the events that must happen.
        changes: Erases and rewrites, in order.
        paused: Topics that get no messages at the moment.
        last_lag: Lag of each writer at the end, as it reports it.
        amplification: Read amplification of the table by scrape: seconds and value.
    """

    rng: random.Random
    folder: Path
    file: Path
    table: Table
    broker: RealBroker
    registry: AnyRegistry
    weft: WeftRun
    queries: Queries
    lanes: Lanes
    feeds: dict[str, Feed]
    rate: float
    say: Callable[[str], None]
    tally: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    disturbed: Counter[str] = field(default_factory=Counter)
    spared: set[str] = field(default_factory=set)
    outages: bool = False
    refused: set[str] = field(default_factory=set)
    wanted_events: tuple[str, ...] = ()
    changes: list[Change] = field(default_factory=list)
    paused: set[str] = field(default_factory=set)
    loops: set[str] = field(default_factory=set)
    evolved: bool = False
    lossy: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    last_lag: dict[str, float | None] = field(default_factory=dict)
    amplification: list[tuple[float, float]] = field(default_factory=list)
    series: Series = field(default_factory=Series)
    memory: Memory = field(default_factory=Memory)
    answers: Answers = field(default_factory=Answers)
    _started: float = field(default_factory=time.monotonic)
    _sent_at: float = 0.0
    _busy: bool = False  # with work beside, which may restart weft run
    _owed: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._producer = self.broker.producer(enable_idempotence=True, message_timeout_ms=1_200_000, **_QUEUE)

    # --- a step ------------------------------------------------------------------------------------------------------

    def step(self, rate: float) -> None:
        """Produce what is due, ask and check queries, and scrape."""
        now = time.monotonic()
        elapsed, self._sent_at = min(1.0, now - (self._sent_at or now)), now
        for stream, feed in self.feeds.items():
            if stream not in self.paused:
                owed = self._owed.get(stream, 0.0) + rate * elapsed
                self._owed[stream] = owed % 1
                feed.produce(int(owed), self.produce)
        self._producer.poll(0)
        self.lanes.refresh()
        self.answers.step(self.queries, lambda: self.lanes.events()["clicks"])
        if now >= self._started + self.series.scrapes * SCRAPE_SECONDS:
            self._scrape(now - self._started)
        if self.weft.ended is not None and not self._busy:
            raise RuntimeError(f"weft run has ended with status {self.weft.ended}: {self.states()}")
        time.sleep(STEP_SECONDS)

    def produce(self, topic: str, **message: Any) -> None:
        """Produce one message; while the queue of the client is full, wait."""
        deadline = time.monotonic() + FLUSH_SECONDS
        while True:
            try:
                self._producer.produce(topic, **message)
            except BufferError:
                if time.monotonic() >= deadline:
                    raise
                self._producer.poll(1)
            else:
                return

    def flush(self) -> None:
        """Wait until the broker has confirmed all messages.

        Raises:
            RuntimeError: It does not.
        """
        left = self._producer.flush(FLUSH_SECONDS)
        failed = [one.error for feed in self.feeds.values() for one in feed.sent if one.error]
        if left or failed:
            raise RuntimeError(f"{left} messages are not delivered; failed: {failed[:3]}")

    def fault(self, error: str) -> None:
        """Note that something went wrong; the soak goes on."""
        self.wrong.append(error)
        self.say(f"wrong: {error}")

    def states(self) -> dict[str, str]:
        return {name: f"{status['state']} {status['message']}" for name, status in self.weft.statuses.items()}

    def _scrape(self, seconds: float) -> None:
        text = None
        with contextlib.suppress(OSError, HTTPException):
            text = self.weft.scrape()
        while self.series.scrapes * SCRAPE_SECONDS <= seconds:  # a step may have taken longer
            self.series.add(text)
        found = self.series.values.get(("weft_table_read_amplification", ""))
        if found is not None:
            self.amplification.append((seconds, found))
        roles = self.roles()
        self.memory.add(seconds, roles, memory_of(roles))

    def roles(self) -> dict[int, str]:
        """What each process does, by its id."""
        parts = {status["pid"]: name for name, status in self.weft.statuses.items() if status["pid"]}
        found = {}
        for pid, name in descendants(self.weft.pid).items():
            found[pid] = f"{parts[pid]} ({name})" if pid in parts else ""
        for part, job in parts.items():
            found |= {pid: f"{job} ({name}, child)" for pid, name in descendants(part).items()}
        found |= {pid: f"queries ({name}, child)" for pid, name in descendants(self.queries.pid).items()}
        found |= {self.weft.pid: "weft run", self.registry.pid: "registry", self.queries.pid: "queries (python)"}
        return {pid: role for pid, role in found.items() if role and pid}

    # --- killing -----------------------------------------------------------------------------------------------------

    def kill(self, part: str) -> None:
        """SIGKILL for the process of a part, if it has one at the moment."""
        if self.weft.kill_part(part):
            self.kills[part] += 1
            self.disturbed[part] += 1
            self.say(f"  killed: {part}")

    def victims(self, parts: Sequence[str]) -> list[str]:
        """Those of some parts that may still be killed."""
        return [part for part in parts if part not in self.spared]

    def spare(self) -> None:
        """From now on compaction, and two writers of which one needs the registry, live as long as they can."""
        free = [[one for one in pair if one not in self.lossy] for pair in (("clicks", "orders"), OF_REGISTRY)]
        self.spared = {"compaction", *(self.rng.choice(pair) for pair in free if pair)}
        self.say(f"not killed from now on: weft run, {', '.join(sorted(self.spared))}")

    # --- waiting -----------------------------------------------------------------------------------------------------

    def until(
        self,
        done: Callable[[], bool],
        seconds: float,
        what: str,
        *,
        rate: float | None = None,
        moves: Callable[[], object] = lambda: None,
    ) -> bool:
        """Continue until a condition holds; it is an error if that takes too long.

        Args:
            done: The condition.
            seconds: The time limit. It starts again whenever ``moves`` changes.
            what: What is waited for, for the error.
            rate: Events per second and topic, by default that of the run.
            moves: Returns something that changes as long as there is progress.
        """
        deadline, moved = time.monotonic() + seconds, moves()
        while not done():
            if moves() != moved:
                deadline, moved = time.monotonic() + seconds, moves()
            if time.monotonic() >= deadline:
                self.fault(f"{what} did not come within {seconds:.0f} s: {self.states()}")
                return False
            self.step(self.rate if rate is None else rate)
        return True

    def beside(self, work: Callable[[], None], seconds: float, what: str) -> bool:
        """Do some work in a thread while messages, queries and scrapes go on.

        Returns:
            Whether it has ended without an error; an error is something wrong.
        """
        failed: list[str] = []

        def run() -> None:
            try:
                work()
            except Exception as error:
                failed.append(f"{what}: {type(error).__name__}: {error}")

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._busy = True
        try:
            ended = self.until(lambda: not thread.is_alive(), seconds, what)
        except BaseException:
            thread.join(END_SECONDS)  # it may be starting a process, which the caller must be able to end
            raise
        finally:
            self._busy = False
        for error in failed:
            self.fault(error)
        return ended and not failed

    def offsets(self, cut: dict[str, int] | None = None) -> dict[str, tuple[int, dict[int, int]]]:
        """How far each lane had read at a cut, by default now: the life of the topic, and the next offset of each
        partition.

        Args:
            cut: The last commit of each lane.
        """
        found = {}
        for stream, commits in self.lanes.live().items():
            ids: list[str] = []
            reached: dict[int, int] = {}
            for commit in commits:
                if cut is not None and commit.seq > cut.get(stream, 0):
                    break
                (parts,) = [topics[stream] for topics in commit.source["offsets"] if topics]
                if parts["topic_id"] not in ids:
                    ids.append(parts["topic_id"])
                reached = {int(number): int(offset) for number, offset in parts.items() if number.isdecimal()}
            if ids:
                found[stream] = (len(ids) - 1, reached)
        return found

    def caught_up(self, streams: Sequence[str] = tuple(FORMATS)) -> bool:
        """Whether the table has all messages of some topics."""
        reached = self.offsets()
        return all(
            stream in reached
            and reached[stream][0] == self.feeds[stream].life
            and sum(reached[stream][1].values()) == self.feeds[stream].messages()
            for stream in streams
        )

    def sent_offsets(self) -> dict[str, tuple[int, dict[int, int]]]:
        """The life of each topic, and the next offset of each partition, after `flush`."""
        found = {}
        for stream, feed in self.feeds.items():
            ends = dict.fromkeys(range(PARTITIONS), 0)
            for one in feed.sent:
                if one.life == feed.life:
                    ends[one.partition] = max(ends[one.partition], one.offset + 1)
            found[stream] = (feed.life, ends)
        return found

    def has_reached(self, wanted: dict[str, tuple[int, dict[int, int]]]) -> bool:
        """Whether the table has everything before some offsets."""
        reached = self.offsets()
        return all(
            stream in reached
            and reached[stream][0] == life
            and all(reached[stream][1].get(number, 0) >= end for number, end in ends.items())
            for stream, (life, ends) in wanted.items()
        )

    def finish(self) -> None:
        """Produce what is held back, and wait until the table has everything and every writer says so."""
        self.paused.clear()
        for feed in self.feeds.values():
            feed.rest(self.produce)
            feed.produce_bad(self.produce)
        self.flush()
        if self.until(self.caught_up, DRAIN_SECONDS, "all messages", rate=0.0, moves=lambda: self.lanes.commits):
            now = self.series.scrapes + 1  # values of a scrape that began before do not count

            def no_lag() -> bool:
                return self.series.scrapes > now and all(lag == 0 for lag in self.lags().values())

            self.until(no_lag, QUIET_SECONDS, "lag 0 of all writers", rate=0.0)
            asked = self.answers.settled
            self.until(lambda: asked(self.lanes.events()["clicks"]), QUIET_SECONDS, "a query of all events", rate=0.0)
            self.until(self.compacted, QUIET_SECONDS, "compaction of what is due", rate=0.0)
        self.last_lag = self.lags()

    def lags(self) -> dict[str, float | None]:
        """Lag of each writer, from the last scrape; None if it is unknown."""
        return {stream: self.series.values.get(("weft_lag_messages", stream)) for stream in FORMATS}

    def compacted(self) -> bool:
        """Whether the last scrape shows no more read amplification than `LAST_AMPLIFICATION`."""
        return bool(self.amplification) and self.amplification[-1][1] <= LAST_AMPLIFICATION


def run_real_soak(
    minutes: float,
    *,
    seed: int = 1,
    rate: float = 60.0,
    folder: Path | None = None,
    events: Sequence[str] | None = None,
    say: Callable[[str], None] = print,
) -> Verdict:
    """Run the soak.

    Args:
        minutes: Duration of the disturbances; start and end take additional time.
        seed: Seed of all random decisions.
        rate: Events per second and topic.
        folder: New or empty folder for all files; by default a temporary one, which is kept only if something is wrong.
        events: Names of the events, in turn; by default all, in random order, of which the long ones only in a soak of
            `LONG_MINUTES`. Each is done at least once.
        say: Called with a line about each action.

    Raises:
        Unavailable: Maven or Java is missing, or the broker cannot be fetched.
    """
    check_java()
    with kept_folder(folder) as place, contextlib.ExitStack() as stack:
        broker = stack.enter_context(start_real_broker())
        registry, kind = _start_registry(stack, place.path)
        file = write_pipeline(place.path, broker.bootstrap_servers, registry.url, evolved=False)
        broker.create_topics(dict.fromkeys(FORMATS, PARTITIONS))
        table = open_table(load_pipeline(file))
        encoder = Encoder(registry.register)
        feeds = {stream: Feed(stream, random.Random(f"{seed} {stream}"), encoder) for stream in FORMATS}
        weft = stack.enter_context(WeftRun(file, place.path / "weft-run.log"))
        queries = stack.enter_context(Queries(place.path / "table", place.path / "queries.log"))
        lanes = Lanes(table, tuple(FORMATS))
        rng = random.Random(seed)
        soak = Soak(rng, place.path, file, table, broker, registry, weft, queries, lanes, feeds, rate, say)
        place.keep = True  # unless all of it succeeds
        say(f"seed {seed}, {minutes:g} minutes, {rate:g} events per second and topic; registry: {kind}")
        _operate(soak, minutes, seed, events)
        soak.finish()
        status = weft.stop(signal.SIGTERM)
        if status != 0:
            soak.fault(f"weft run ended with status {status} after SIGTERM: {soak.states()}")
        verdict = judge(soak)
        place.keep = folder is not None or bool(verdict.wrong)
        return verdict


def _start_registry(stack: contextlib.ExitStack, folder: Path) -> tuple[AnyRegistry, str]:
    """A schema registry, and its name: a real one if it can be fetched."""
    own = folder / "registry"
    own.mkdir()
    try:
        return stack.enter_context(RealRegistry(own)), f"Apicurio {VERSION}"
    except Unavailable as why:
        return stack.enter_context(Registry(folder)), f"that of the tests, because {why}"


def _rounds(seed: int, minutes: float, events: Sequence[str] | None) -> Iterator[tuple[str, ...]]:
    """The rounds of events, endlessly."""
    if events is not None:
        yield from itertools.repeat(tuple(events))
    yield first_round(tuple(EVENTS), seed)
    yield from later_rounds(tuple(EVENTS), seed, with_long=minutes >= LONG_MINUTES)


def _operate(soak: Soak, minutes: float, seed: int, events: Sequence[str] | None) -> None:
    """Disturb and change the pipeline, while messages arrive."""
    ready = soak.until(lambda: len(soak.offsets()) == len(FORMATS), START_SECONDS, "the first commits of all writers")
    if not ready:
        return
    everything = [name for name in EVENTS if name not in LONG or minutes >= LONG_MINUTES]
    soak.wanted_events = tuple(everything if events is None else events)
    end = time.monotonic() + minutes * 60
    for number, names in enumerate(_rounds(seed, minutes, events)):
        soak.say(f"round {number + 1}: {', '.join(names)}")
        if number == 1 and events is None:
            soak.spare()
        for name in names:
            if time.monotonic() >= end and all(soak.tally[wanted] for wanted in soak.wanted_events):
                return
            soak.say(name.replace("_", " "))
            EVENTS[name](soak)
            soak.tally[name] += 1
            rest(soak, soak.rng.uniform(*EVENT_SECONDS) * min(1.0, minutes / SHORT_MINUTES))
