"""The demo from beginning to end: broker, pipeline, messages, a kill, and Spark's opinion of what came out.

    messages --> embedded broker --> four writer processes --> table <-- compaction process
                       |                                         |
                       +--> Spark: dedupe + outer joins == ? == live view

What runs is what a user runs (a pipeline file, `streams.pipeline.run`, the supervisor, a view); the
end is decided by what the table's lanes say, never by time; whatever happens, Ctrl-C and the time limit included, no
process and, unless it is to be kept, no file stays behind.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from rich.console import Console

from storage.errors import InvalidInput
from streams.cli.display import show_jobs
from streams.demo import shop
from streams.demo.broker import EmbeddedBroker
from streams.demo.feed import Feed, Landed
from streams.demo.workload import Topic, plan_topics
from streams.pipeline.pipeline import Pipeline, load_pipeline
from streams.pipeline.run import COMPACTION, make_jobs, open_table
from streams.pipeline.supervisor import ENDED, JobStatus, Supervisor
from streams.spark.session import check_java

VICTIM: Final = "orders"
"""The writer that is killed: the one whose deletes hide rows."""

KILL_AT: Final = 0.5
"""Share of its topic that the victim has committed when it is killed."""
HOLD_BACK_AT: Final = 0.75
"""Share of the messages after which the rest waits for the kill."""
PART_SECONDS: Final = 0.5
"""From one part of the messages to the next, so that they come while the writers work."""
POLL_SECONDS: Final = 0.1
MID_BATCH_SECONDS: Final = 3.0
"""How long to wait, once there are messages to write, for the victim to begin; it looks every two seconds."""
LIMIT_SECONDS: Final = 600.0
"""For a whole run of the default size; it takes about one and a half minutes on two cores."""
LIMIT_ROWS_PER_SECOND: Final = 2_000
"""What a larger run may take in addition; an idle machine with two cores does ten times as many."""

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)


class DemoFailed(Exception):
    """The demo could not be brought to its end; the message says what happened, with the last lines of a log."""


class Interrupted(KeyboardInterrupt):
    """A signal or the time limit. No ordinary exception: py4j would take that for trouble with its connection."""


@dataclass(frozen=True, slots=True)
class Kill:
    """How the victim stood when it was killed: messages that it had committed, of those that its topic had."""

    committed: int
    produced: int


def run_demo(rows: int, console: Console, *, keep: Path | None = None, seed: int = 1) -> bool:
    """Run the demo; returns whether the table equals Spark's join.

    Args:
        rows: Messages of all topics together.
        console: Where to tell of it.
        keep: Folder, new or empty, that keeps table, pipeline file and logs; by default nothing is kept.
        seed: Of the messages.

    Raises:
        InvalidInput: The arguments cannot be; nothing was started.
        NotFound: There is no Java.
        DemoFailed: A process of the demo failed for good.
        Interrupted: A signal, or the time limit.
        TableError: Something is wrong with the table: a finding.
    """
    topics = plan_topics(rows, seed)
    check_java()
    with _limited(LIMIT_SECONDS + rows / LIMIT_ROWS_PER_SECOND), _folder(keep) as folder, EmbeddedBroker() as broker:
        feed = Feed(broker, topics)
        pipeline = load_pipeline(shop.write_pipeline(folder, broker.bootstrap_servers))
        open_table(pipeline)
        console.print(
            f"{rows} messages for {len(topics)} topics of an embedded Kafka broker at {broker.bootstrap_servers}; "
            f"{len(topics)} writer processes and compaction on one table"
        )
        _run_streams(pipeline, feed, topics, console)
        # Not before now: a second Spark would take its time from the writers.
        from streams.demo.verdict import judge

        return judge(pipeline, broker.bootstrap_servers, rows, console)


def _run_streams(pipeline: Pipeline, feed: Feed, topics: Mapping[str, Topic], console: Console) -> None:
    """From the start of the writers until the table holds every message; the victim is killed on the way."""
    landed = Landed(Path(pipeline.table.uri), topics)
    supervisor = Supervisor(make_jobs(pipeline))
    started = time.monotonic()
    stages = _Stages(feed, landed, supervisor, console)
    try:
        supervisor.start()
        with show_jobs(console) as show_statuses:
            while not stages.step():
                show_statuses(supervisor.statuses)
            seconds = time.monotonic() - started
        statuses = supervisor.stop()
    finally:
        supervisor.stop(at_once=True)
    _check_ends(statuses)
    landed.refresh()
    if landed.events != landed.messages:
        # The comparison would not see it: to write an event of a `latest` group twice changes no answer.
        raise DemoFailed(f"events in the lanes are not the messages of the topics: {landed.events}, {landed.messages}")
    kill, status = stages.kill, {status.name: status for status in statuses}
    assert kill is not None, "the last stage comes after the kill"
    console.print(
        f"all {landed.total} messages are in the table, each once, after {seconds:.1f} s; "
        f"{status[COMPACTION].report.commits} compactions meanwhile\n"
        f"{VICTIM!r} was killed with {kill.committed} messages committed of {kill.produced} that were there and "
        f"{topics[VICTIM].rows} in all;\nrestart {status[VICTIM].restarts}, claim {landed.claims[VICTIM]} of its lane, "
        "went on exactly there"
    )


class _Stages:
    """What happens when: first messages, all writers at work, half of the messages, a kill, the rest, all landed."""

    def __init__(self, feed: Feed, landed: Landed, supervisor: Supervisor, console: Console) -> None:
        self.kill: Kill | None = None
        self._feed, self._landed, self._supervisor, self._console = feed, landed, supervisor, console
        self._next_part = time.monotonic()
        self._kill_until: float | None = None

    def step(self) -> bool:
        """Do what is due; returns whether everything is done."""
        statuses = self._supervisor.poll(POLL_SECONDS)
        _check_alive(statuses)
        self._landed.refresh()
        now = time.monotonic()
        due = self.kill is None and self._landed.share(VICTIM) >= KILL_AT
        behind = self._feed.messages(VICTIM) > self._landed.messages[VICTIM]
        # After the first part the writers start up; before the kill enough is held back to be written after it, except
        # what the victim needs to have something in hand when it is killed.
        hold = self._feed.sent > 0 and not all(self._landed.messages.values())
        hold |= self.kill is None and self._feed.share >= HOLD_BACK_AT and not (due and not behind)
        if not self._feed.finished and now >= self._next_part and not hold:
            self._feed.send_part()
            self._next_part = now + PART_SECONDS
        elif due and behind:
            self._kill_until = self._kill_until or now + MID_BATCH_SECONDS
            self._kill(next(status for status in statuses if status.name == VICTIM), at_once=now >= self._kill_until)
        compacted = any(status.name == COMPACTION and status.report.commits for status in statuses)
        return self._feed.finished and self.kill is not None and self._landed.everything and compacted

    def _kill(self, victim: JobStatus, *, at_once: bool) -> None:
        """SIGKILL for the writer, its JVM and its workers, best in the middle of a batch."""
        if victim.pid is None or not (at_once or victim.report.doing == "running"):
            return
        self.kill = Kill(self._landed.messages[VICTIM], self._feed.messages(VICTIM))
        self._console.print(f"kill -9 writer {VICTIM!r} (process group {victim.pid})")
        os.killpg(victim.pid, signal.SIGKILL)  # every job leads a group of its own


def _check_alive(statuses: tuple[JobStatus, ...]) -> None:
    for status in statuses:
        if status.phase in ENDED:
            raise DemoFailed(_obituary(status))


def _check_ends(statuses: tuple[JobStatus, ...]) -> None:
    for status in statuses:
        if status.phase != "stopped":
            raise DemoFailed(_obituary(status))
        if status.report.dead_letters:
            raise DemoFailed(f"{status.name} refused {status.report.dead_letters} messages; see its dead letters")


def _obituary(status: JobStatus) -> str:
    told = (
        f"{status.name} {status.phase}: {status.message}",
        *status.tail,
        f"(from {status.log}; --keep DIR keeps it)",
    )
    return "\n  ".join(told)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Where everything is kept: a folder of the user's, or one that is removed at the end.

    Raises:
        InvalidInput: The user's folder cannot be made, or has something in it.
    """
    if keep is None:
        folder = Path(tempfile.mkdtemp(prefix="weft-demo-"))
        try:
            yield folder
        finally:
            # Ignored: a JVM that is just ending may still remove files of its own.
            shutil.rmtree(folder, ignore_errors=True)
        return
    keep = keep.expanduser().absolute()
    try:
        keep.mkdir(parents=True, exist_ok=True)
        occupied = any(keep.iterdir())
    except OSError as error:
        raise InvalidInput(f"--keep {keep}: {error.strerror}", hint="name a folder that can be made") from error
    if occupied:
        raise InvalidInput(f"--keep {keep}: the folder is not empty", hint="name a new one; nothing is overwritten")
    yield keep


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """End the block with `Interrupted` on a signal or when time is up.

    Only once: what cleans up afterwards has bounds of its own and must not be cut short by an impatient second Ctrl-C.
    """

    def interrupt(number: int, _: FrameType | None) -> NoReturn:
        for other in _SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        if number == signal.SIGALRM:
            raise Interrupted(f"the demo did not end within {seconds:.0f} s")
        raise Interrupted(f"stopped by {signal.Signals(number).name}")

    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
