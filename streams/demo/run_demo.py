"""Runs the demo: broker, pipeline, messages, a killed writer, and the comparison with Spark.

    messages --> embedded broker --> four writer processes --> table <-- compaction process
                       |                                         |
                       |---> this process, without Spark ---> customers, which the table refers to
                       |                                         |
                       +--> Spark: dedupe + joins ====== ? == live view

The demo uses what users use: a pipeline file, `streams.pipeline.run`, the supervisor, a view. It ends when the table
has all messages, not after some time: only if nothing is done any more for a while, it gives up. However it ends, also
by Ctrl-C, it says what is missing, and no process is left, and no file unless the user wants to keep them.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console

from storage import Table
from storage.errors import InvalidInput
from streams.cli.display import show_jobs
from streams.demo import shop
from streams.demo.broker import EmbeddedBroker
from streams.demo.customers import CustomersWriter
from streams.demo.feed import Feed, TableProgress
from streams.demo.outcome import DemoFailed, Unfinished, Verdict, missing_messages, unfinished
from streams.demo.samples import Samples
from streams.demo.watch import Interrupted, Watch, watch_signals
from streams.demo.workload import Topic, plan_customers, plan_topics
from streams.demo.write_report import write_report
from streams.pipeline.pipeline import Pipeline, load_pipeline
from streams.pipeline.run import COMPACTION, make_jobs, open_table
from streams.pipeline.supervisor import ENDED, JobStatus, Supervisor
from streams.spark.session import check_java

VICTIM: Final = "orders"
"""The writer that is killed. Its deletes hide whole rows."""

KILL_AT: Final = 0.5
"""Share of its topic that the writer must have committed before it is killed."""
HOLD_BACK_AT: Final = 0.75
"""Share of the messages that is produced before the kill; the rest follows after it."""
PART_SECONDS: Final = 0.5
"""Pause between two parts of the messages, so that messages arrive while the writers work."""
POLL_SECONDS: Final = 0.1
MID_BATCH_SECONDS: Final = 3.0
"""Seconds to wait for a batch of the writer before it is killed anyway; it starts one every two seconds."""
STALL_SECONDS: Final = 120.0
"""The demo gives up if nothing is committed or computed for this time. An idle machine with two cores takes one and a
half minutes for all of the default size."""
STALL_ROWS_PER_SECOND: Final = 5_000
"""A larger run has larger batches and tasks, and gets additional time at this rate."""


@dataclass(frozen=True, slots=True)
class Kill:
    """The state at the kill: messages that the writer had committed, and messages that its topic had."""

    committed: int
    produced: int


def run_demo(
    rows: int, console: Console, *, keep: Path | None = None, seed: int = 1, report: Path | None = None
) -> bool:
    """Run the demo; returns whether the table equals Spark's join.

    Args:
        rows: Number of messages of the four topics of the wide table together.
        console: Where progress and results are printed.
        keep: A new or empty folder for table, pipeline file and logs; None: a temporary folder, which is deleted.
        seed: Seed of the messages.
        report: A file for the verdict as a page.

    Raises:
        InvalidInput: An argument is invalid; nothing was started.
        NotFound: Java is not installed.
        DemoFailed: A process of the demo failed and was not restarted.
        Unfinished: A signal has come, or nothing was done any more for a while; the message says what is missing.
        TableError: The table cannot be read.
    """
    if report is not None and not report.absolute().parent.is_dir():  # known now, not at the end
        raise InvalidInput(f"--report {report}: there is no such folder", hint="give a file in a folder that exists")
    topics, customers = plan_topics(rows, seed), plan_customers(rows, seed)
    check_java()
    notes = _Notes()
    verdict = Verdict(equal=False, text="failed")
    with watch_signals(STALL_SECONDS + rows / STALL_ROWS_PER_SECOND) as watch, _folder(keep) as folder:
        try:
            with EmbeddedBroker() as broker:
                verdict = _run(folder, broker, topics, customers, _Around(console, watch, notes))
        except Interrupted as error:
            verdict = Verdict(equal=False, text=unfinished(str(error), notes.missing()))
            raise Unfinished(verdict.text) from None
        except Exception as error:
            verdict = Verdict(equal=False, text=f"failed: {str(error).partition(chr(10))[0]}")
            raise
        finally:
            if report is not None:
                messages = f"{rows + customers.rows:,}"
                settings = {"messages": messages, "seed": str(seed), "topics": ", ".join((*topics, customers.name))}
                write_report(report, verdict, notes.samples, notes.seconds, list(topics), settings)
        return verdict.equal


@dataclass(slots=True)
class _Notes:
    """What is known of a run, however it ends.

    Attributes:
        samples: What was measured.
        complete_seconds: Seconds until the tables had all messages; None before.
        missing: Says what is missing, besides the comparison.
    """

    samples: Samples = field(default_factory=Samples)
    complete_seconds: float | None = None
    missing: Callable[[], list[str]] = lambda: ["all messages"]

    @property
    def seconds(self) -> float:
        """Seconds that the streams took, or have run."""
        return self.samples.seconds if self.complete_seconds is None else self.complete_seconds


@dataclass(frozen=True, slots=True)
class _Around:
    """What every part of the run needs."""

    console: Console
    watch: Watch
    notes: _Notes


def _run(
    folder: Path, broker: EmbeddedBroker, topics: Mapping[str, Topic], customers: Topic, around: _Around
) -> Verdict:
    feed = Feed(broker, {**topics, customers.name: customers})
    table = Table.create(folder / shop.CUSTOMERS, shop.CUSTOMERS_CONFIG)
    pipeline = load_pipeline(shop.write_pipeline(folder, broker.bootstrap_servers, customers=True))
    open_table(pipeline)
    messages = sum(topic.rows for topic in (*topics.values(), customers))
    around.console.print(
        f"{messages} messages for {len(topics) + 1} topics of an embedded Kafka broker at "
        f"{broker.bootstrap_servers}; {len(topics)} writer processes and compaction on one table, and a writer "
        "without Spark on the table of customers that it refers to"
    )
    with CustomersWriter(table, broker.bootstrap_servers, customers) as writer:
        progress = TableProgress(table.uri, {customers.name: customers})
        _run_streams(pipeline, feed, topics, _Customers(writer, progress), around)
    # Not before now: a Spark session in this process would slow the writers down.
    from streams.demo.verdict import judge

    return judge(pipeline, broker.bootstrap_servers, messages, around.console, around.watch)


@dataclass(frozen=True, slots=True)
class _Customers:
    """The writer of the customers, and how much of its topic it has committed."""

    writer: CustomersWriter
    progress: TableProgress

    def step(self) -> None:
        """Commit what has arrived."""
        self.writer.write_batch()
        self.progress.refresh()


def _run_streams(
    pipeline: Pipeline, feed: Feed, topics: Mapping[str, Topic], customers: _Customers, around: _Around
) -> None:
    """Run the writers until both tables have every message, and kill one of them in between."""
    progress = TableProgress(Path(pipeline.table.uri), topics)
    supervisor = Supervisor(make_jobs(pipeline))
    console, notes = around.console, around.notes
    notes.samples = samples = Samples()
    stages = _Stages(feed, progress, customers, supervisor, console)
    notes.missing = stages.missing
    try:
        supervisor.start()
        with show_jobs(console) as show_statuses:
            while not stages.step():
                show_statuses(supervisor.statuses)
                if samples.due:
                    _measure(samples, feed, progress, supervisor, stages)
                around.watch.check(stages.done)
            notes.complete_seconds = samples.seconds
            _measure(samples, feed, progress, supervisor, stages)
        statuses = supervisor.stop()
    finally:
        supervisor.stop(at_once=True)
    _check_ends(statuses)
    progress.refresh()
    for each in (progress, customers.progress):
        if each.events != each.messages:
            # The comparison with the join would not find it: an event of a `latest` group that is written twice changes
            # no row.
            raise DemoFailed(f"the lanes have {each.events} events, but the topics have {each.messages} messages")
    kill, status = stages.kill, {status.name: status for status in statuses}
    assert kill is not None, "the run ends only after the kill"
    console.print(
        f"all {progress.total + customers.progress.total} messages are in the tables, each once, "
        f"after {notes.seconds:.1f} s; "
        f"{status[COMPACTION].report.commits} compactions meanwhile\n"
        f"writer {VICTIM!r} was killed when it had committed {kill.committed} of {kill.produced} messages of its topic "
        f"({topics[VICTIM].rows} in the end);\nafter restart {status[VICTIM].restarts}, with claim "
        f"{progress.claims[VICTIM]} of its lane, it continued exactly there"
    )


def _measure(samples: Samples, feed: Feed, progress: TableProgress, supervisor: Supervisor, stages: _Stages) -> None:
    """Add a sample, and the kill if it has happened since the last one."""
    if stages.kill is not None and not samples.events:
        samples.happened(f"kill -9 {VICTIM}")
    complete = {status.name: status.report.complete_at_ms for status in supervisor.statuses}
    produced = {name: feed.messages(name) for name in progress.messages}
    samples.add(produced, progress.messages, {name: complete.get(name) for name in produced})


class _Stages:
    """The stages of the demo: first messages, all writers work, half of the messages, the kill, the rest."""

    def __init__(
        self, feed: Feed, progress: TableProgress, customers: _Customers, supervisor: Supervisor, console: Console
    ) -> None:
        self.kill: Kill | None = None
        self._feed, self._progress, self._customers = feed, progress, customers
        self._supervisor, self._console = supervisor, console
        self._next_part = time.monotonic()
        self._kill_until: float | None = None
        self._compacted, self._restarts = False, 0

    def step(self) -> bool:
        """Do the next step if it is due; returns whether the demo is complete."""
        statuses = self._supervisor.poll(POLL_SECONDS)
        _check_alive(statuses)
        self._progress.refresh()
        self._customers.step()
        now = time.monotonic()
        due = self.kill is None and self._progress.share(VICTIM) >= KILL_AT
        behind = self._feed.messages(VICTIM) > self._progress.messages[VICTIM]
        # After the first part wait until all writers have started. Before the kill hold the rest of the messages back,
        # so that enough are written after it; but produce more if the writer would otherwise have no batch to be
        # killed in.
        hold = self._feed.sent > 0 and not all(self._progress.messages.values())
        hold |= self.kill is None and self._feed.share >= HOLD_BACK_AT and not (due and not behind)
        if not self._feed.finished and now >= self._next_part and not hold:
            self._feed.send_part()
            self._next_part = now + PART_SECONDS
        elif due and behind:
            self._kill_until = self._kill_until or now + MID_BATCH_SECONDS
            self._kill(next(status for status in statuses if status.name == VICTIM), at_once=now >= self._kill_until)
        self._compacted = any(status.name == COMPACTION and status.report.commits for status in statuses)
        self._restarts = sum(status.restarts for status in statuses)
        return self._feed.finished and not self.missing()

    @property
    def done(self) -> object:
        """All that was done so far; what writers report while they wait does not count."""
        tables = (self._progress, self._customers.progress)
        commits = [(dict(table.claims), dict(table.messages)) for table in tables]
        return commits, self._feed.sent, self.kill, self._compacted, self._restarts

    def missing(self) -> list[str]:
        """What is missing, in words."""
        found = [
            part
            for table in (self._progress, self._customers.progress)
            for part in missing_messages(table.wanted, table.messages)
        ]
        if self.kill is None:
            found.append(f"the kill of writer {VICTIM!r}")
        return found if self._compacted else [*found, "a compaction"]

    def _kill(self, victim: JobStatus, *, at_once: bool) -> None:
        """Send SIGKILL to the writer, its JVM and its workers, if it is in a batch or ``at_once``."""
        if victim.pid is None or not (at_once or victim.report.doing == "running"):
            return
        self.kill = Kill(self._progress.messages[VICTIM], self._feed.messages(VICTIM))
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
    """The folder of the demo: ``keep``, or a temporary one that is removed at the end.

    Raises:
        InvalidInput: ``keep`` cannot be created, or is not empty.
    """
    if keep is None:
        folder = Path(tempfile.mkdtemp(prefix="weft-demo-"))
        try:
            yield folder
        finally:
            # Errors are ignored, because a JVM that is ending may remove files at the same time.
            shutil.rmtree(folder, ignore_errors=True)
        return
    keep = keep.expanduser().absolute()
    try:
        keep.mkdir(parents=True, exist_ok=True)
        occupied = any(keep.iterdir())
    except OSError as error:
        raise InvalidInput(f"--keep {keep}: {error.strerror}", hint="give a folder that can be created") from error
    if occupied:
        raise InvalidInput(f"--keep {keep}: the folder is not empty", hint="give a new folder; nothing is overwritten")
    yield keep
