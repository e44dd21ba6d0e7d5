"""Runs the demo: broker, pipeline, messages, a killed writer, and the comparison with Spark.

    messages --> embedded broker --> four writer processes --> table <-- compaction process
                       |                                         |
                       +--> Spark: dedupe + joins ====== ? == live view

The demo uses the parts that users use: a pipeline file, `weft.streams.pipeline.run.run`, the supervisor, a view. It
ends when the table has all messages, not after a fixed time; without any progress for a while it gives up. However it
ends, also by Ctrl-C, it says what is missing, and leaves no process, and no file unless the user asked to keep them.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console

from weft.storage.errors import InvalidInput
from weft.streams.cli.display import show_jobs
from weft.streams.demo import shop
from weft.streams.demo.embedded_broker import EmbeddedBroker
from weft.streams.demo.feed import Feed, TableProgress
from weft.streams.demo.outcome import DemoFailed, Unfinished, missing_messages, unfinished
from weft.streams.demo.verdict import judge
from weft.streams.demo.watch import Interrupted, Watch, watch_signals
from weft.streams.demo.workload import plan_topics
from weft.streams.pipeline.file.pipeline import Pipeline, load_pipeline
from weft.streams.pipeline.run.run import COMPACTION, make_jobs, open_table
from weft.streams.pipeline.run.supervisor import ENDED, JobStatus, Supervisor
from weft.streams.spark.session import check_java

VICTIM: Final = "orders"
"""The writer that is killed. Its deletes hide whole rows."""

KILL_AT: Final = 0.5
"""Share of its topic that the writer must have committed before it is killed."""
HOLD_BACK_AT: Final = 0.75
"""Share of the messages that are produced before the kill; the others follow after it."""
PART_SECONDS: Final = 0.5
"""Pause between two parts of the messages, so that messages arrive while the writers work."""
POLL_SECONDS: Final = 0.1
MID_BATCH_SECONDS: Final = 3.0
"""Seconds to wait for a batch of the writer before it is killed anyway; it starts one every two seconds."""
STALL_SECONDS: Final = 120.0
"""The demo gives up if nothing is committed or computed for this time. An idle machine with two cores takes one and a
half minutes for a whole demo of the default size."""
STALL_ROWS_PER_SECOND: Final = 5_000
"""A larger run has larger batches and tasks, and gets additional time at this rate."""


def run_demo(rows: int, console: Console, *, keep: Path | None = None, seed: int = 1) -> bool:
    """Run the demo; returns whether the table equals Spark's join.

    Args:
        rows: Number of messages of the four topics together.
        console: Prints progress and results.
        keep: A new or empty folder for table, pipeline file and logs; by default a temporary folder, which is deleted.
        seed: Seed of the messages.

    Raises:
        InvalidInput: An argument is invalid; nothing was started.
        NotFound: Java is not installed.
        DemoFailed: A process of the demo failed and was not restarted.
        Unfinished: A signal has come, or there was no progress for a while; the message says what is missing.
        TableError: The table cannot be read.
    """
    topics = plan_topics(rows, seed)
    messages = sum(topic.rows for topic in topics.values())  # rounded in each topic
    check_java()
    stall_seconds = STALL_SECONDS + rows / STALL_ROWS_PER_SECOND
    with watch_signals(stall_seconds) as watch, _folder(keep) as folder, EmbeddedBroker() as broker:
        pipeline = load_pipeline(shop.write_pipeline(folder, broker.bootstrap_servers))
        open_table(pipeline)
        progress = TableProgress(pipeline.table.uri, topics)
        stages = _Stages(pipeline, Feed(broker, topics), progress, console)
        console.print(
            f"{messages} messages for {len(topics)} topics of an embedded Kafka broker at {broker.bootstrap_servers}; "
            f"{len(topics)} writer processes and compaction on one table\n"
            f"watch it in a browser meanwhile: weft ui {pipeline.path}",
            soft_wrap=True,
            highlight=False,
        )
        try:
            stages.run(watch)
            return judge(pipeline, broker.bootstrap_servers, messages, console, watch)
        except Interrupted as error:
            raise Unfinished(unfinished(str(error), stages.missing())) from None


class _Stages:
    """The stages of the demo: first messages, all writers run, three quarters of the messages, the kill, the others."""

    def __init__(self, pipeline: Pipeline, feed: Feed, progress: TableProgress, console: Console) -> None:
        self._feed, self._progress, self._console = feed, progress, console
        self._supervisor = Supervisor(make_jobs(pipeline))
        self._next_part = self._started = time.monotonic()
        self._kill_until: float | None = None
        self._killed: tuple[int, int] | None = None  # messages that the writer had committed, and that its topic had
        self._compacted, self._restarts = False, 0

    def run(self, watch: Watch) -> None:
        """Run the writers until the table has every message, and kill one of them in between."""
        try:
            self._supervisor.start()
            with show_jobs(self._console) as show_statuses:
                while not self._step():
                    show_statuses(self._supervisor.statuses)
                    watch.check(self._done)
            seconds = time.monotonic() - self._started
            statuses = {status.name: status for status in self._supervisor.stop()}
        finally:
            self._supervisor.stop(at_once=True)
        progress = self._progress
        progress.refresh()
        _check_ends(tuple(statuses.values()))
        if progress.events != progress.messages:
            # The comparison with the join cannot detect this: an event of a `latest` group that is written twice
            # changes no row.
            raise DemoFailed(
                f"the lanes have {progress.events} events, but the topics have {progress.messages} messages"
            )
        assert self._killed is not None, "the run ends only after the kill"
        committed, produced = self._killed
        self._console.print(
            f"all {progress.total} messages are in the table, each once, after {seconds:.1f} s; "
            f"{statuses[COMPACTION].report.commits} compactions meanwhile\n"
            f"writer {VICTIM!r} was killed when it had committed {committed} of {produced} messages of its topic "
            f"({progress.expected[VICTIM]} in the end);\nafter restart {statuses[VICTIM].restarts}, with claim "
            f"{progress.claims[VICTIM]} of its lane, it continued exactly there"
        )

    def _step(self) -> bool:
        """Do the next step if it is due; returns whether the streams are complete."""
        statuses = self._supervisor.poll(POLL_SECONDS)
        _check_alive(statuses)
        self._progress.refresh()
        now = time.monotonic()
        is_kill_due = self._killed is None and self._progress.share(VICTIM) >= KILL_AT
        is_behind = self._feed.messages(VICTIM) > self._progress.messages[VICTIM]
        # After the first part, wait until all writers have started. Before the kill, hold back the last messages, so
        # that enough are written after it; but produce more if the writer would otherwise have no batch in which it can
        # be killed.
        holds_back = self._feed.parts_sent > 0 and not all(self._progress.messages.values())
        holds_back |= self._killed is None and self._feed.share >= HOLD_BACK_AT and not (is_kill_due and not is_behind)
        if not self._feed.finished and now >= self._next_part and not holds_back:
            self._feed.send_part()
            self._next_part = now + PART_SECONDS
        elif is_kill_due and is_behind:
            self._kill_until = self._kill_until or now + MID_BATCH_SECONDS
            self._kill(next(status for status in statuses if status.name == VICTIM), at_once=now >= self._kill_until)
        self._compacted = any(status.name == COMPACTION and status.report.commits for status in statuses)
        self._restarts = sum(status.restarts for status in statuses)
        return self._feed.finished and not self.missing()

    @property
    def _done(self) -> object:
        """State that changes with any progress, but not with reports of writers that wait."""
        commits = dict(self._progress.claims), dict(self._progress.messages)
        return commits, self._feed.parts_sent, self._killed, self._compacted, self._restarts

    def missing(self) -> list[str]:
        """Describe what is missing."""
        missing = missing_messages(self._progress.expected, self._progress.messages)
        if self._killed is None:
            missing.append(f"the kill of writer {VICTIM!r}")
        return missing if self._compacted else [*missing, "a compaction"]

    def _kill(self, victim: JobStatus, *, at_once: bool) -> None:
        """Send SIGKILL to the writer, its JVM and its workers, if it is in a batch or ``at_once``."""
        if victim.pid is None or not (at_once or victim.report.doing == "running"):
            return
        self._killed = self._progress.messages[VICTIM], self._feed.messages(VICTIM)
        self._console.print(f"kill -9 writer {VICTIM!r} (process group {victim.pid})")
        os.killpg(victim.pid, signal.SIGKILL)  # every job is the leader of a process group


def _check_alive(statuses: tuple[JobStatus, ...]) -> None:
    for status in statuses:
        if status.phase in ENDED:
            raise DemoFailed(_failure_message(status))


def _check_ends(statuses: tuple[JobStatus, ...]) -> None:
    for status in statuses:
        if status.phase != "stopped":
            raise DemoFailed(_failure_message(status))
        if status.report.dead_letters:
            raise DemoFailed(f"{status.name} refused {status.report.dead_letters} messages; see its dead letters")


def _failure_message(status: JobStatus) -> str:
    lines = (
        f"{status.name} {status.phase}: {status.message}",
        *status.tail,
        f"(from {status.log}; --keep DIR keeps it)",
    )
    return "\n  ".join(lines)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    """Create the folder of the demo: ``keep``, or a temporary one that is removed at the end.

    Raises:
        InvalidInput: ``keep`` cannot be created, or is not empty.
    """
    if keep is None:
        folder = Path(tempfile.mkdtemp(prefix="weft-demo-"))
        try:
            yield folder
        finally:
            # Errors are ignored, because a JVM that ends may remove files at the same time.
            shutil.rmtree(folder, ignore_errors=True)
        return
    keep = keep.expanduser().absolute()
    try:
        keep.mkdir(parents=True, exist_ok=True)
        occupied = any(keep.iterdir())
    except OSError as error:
        raise InvalidInput(f"--keep {keep}: {error.strerror}", hint="give a folder that can be created") from error
    if occupied:
        raise InvalidInput(f"--keep {keep}: the folder is not empty", hint="give a new or empty folder")
    yield keep
