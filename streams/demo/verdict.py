"""The end of the demo: queries the table in a Spark session, and compares it with Spark's join.

Shows the results of a few queries, the times of the view and of the join, and whether both are equal.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

import streams
from streams.demo import reference, shop
from streams.demo.outcome import Verdict
from streams.demo.reference import Comparison
from streams.demo.watch import Interrupted, Watch
from streams.pipeline.pipeline import Pipeline
from streams.spark.running_tasks import running_tasks
from streams.spark.session import build_session

RUNS: Final = 2
"""Number of times that each query is timed. The fastest counts: the first one includes the warm-up of the JVM."""
POLL_SECONDS: Final = 0.1
LOOK_SECONDS: Final = 1.0
CANCEL_SECONDS: Final = 30.0
"""Longest time to wait for the end of what is cancelled; a JVM that is starting has to start first."""
JVM_END_SECONDS: Final = 10.0
"""A JVM ends when its standard input is closed, usually in less than a second. After this time it is killed."""

_QUERIES: Final = {
    "Where does the money come from?": """
        SELECT customer_tier, count(*) AS orders, sum(amount) AS ordered, sum(paid) AS paid
        FROM orders_wide WHERE customer_name IS NOT NULL GROUP BY customer_tier ORDER BY ordered DESC""",
    "Which paid orders have not been shipped?": """
        SELECT pay_method, count(*) AS orders, sum(paid) AS paid, max(paid_at) AS last_paid_at
        FROM orders_wide WHERE pay_event = 'captured' AND shipped_at IS NULL
        GROUP BY pay_method ORDER BY paid DESC""",
    "Do visitors who leave at the checkout pay?": """
        SELECT last_page, count(*) AS visits, round(avg(page_views), 1) AS pages,
               round(100 * avg(if(paid_at IS NULL, 0, 1)), 1) AS percent_paid
        FROM orders_wide WHERE clicked_at IS NOT NULL GROUP BY last_page ORDER BY visits DESC""",
}


class _Cancelled(Exception):
    """The work has to end."""


class _Work:
    """What the thread of the work does, and a way to end it."""

    def __init__(self) -> None:
        self.what = "starting Spark"
        self.spark: SparkSession | None = None
        self.done: object = None
        """Changes with each step, and with each task of Spark that has ended."""
        self._cancelled = threading.Event()

    def begin(self, what: str) -> None:
        """Say what comes now. Raises `_Cancelled` if nothing shall."""
        if self._cancelled.is_set():
            raise _Cancelled
        self.what = what

    def look(self, thread: threading.Thread) -> None:
        """Look at the tasks of Spark while the thread of the work runs; in another thread, for Spark may not answer."""
        while thread.is_alive():
            stage = None if self.spark is None else running_tasks(self.spark, self.what)
            self.done = self.what, None if stage is None else (stage.done, stage.total)
            time.sleep(LOOK_SECONDS)

    def cancel(self, thread: threading.Thread) -> None:
        """End the work, or leave it alone after `CANCEL_SECONDS`."""
        self._cancelled.set()
        deadline = time.monotonic() + CANCEL_SECONDS
        while thread.is_alive() and time.monotonic() < deadline:
            if self.spark is not None:
                threading.Thread(target=self._cancel_jobs, args=(self.spark,), daemon=True).start()
            thread.join(LOOK_SECONDS)

    @staticmethod
    def _cancel_jobs(spark: SparkSession) -> None:
        with contextlib.suppress(Py4JError, OSError, AssertionError, AttributeError):  # the session is ending
            spark.sparkContext.cancelAllJobs()


def judge(pipeline: Pipeline, bootstrap_servers: str, rows: int, console: Console, watch: Watch) -> Verdict:
    """Query the table, and compare it with Spark's join over the same topics.

    Both show the columns of the customers that the table refers to. ``rows`` is the number of messages of all topics.
    Spark is used in a thread, because it cannot be interrupted in the middle of a request.

    Raises:
        Interrupted: See `Watch.check`.
        TableError: The table cannot be read.
        pyspark.errors.PySparkException: The join in Spark failed.
    """
    work = _Work()
    found: list[Verdict] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            found.append(_judge(pipeline, bootstrap_servers, rows, console, work))
        except BaseException as error:  # of the thread: raised again below
            raised.append(error)

    thread = threading.Thread(target=run, name="verdict", daemon=True)
    thread.start()
    threading.Thread(target=work.look, args=(thread,), name="progress of Spark", daemon=True).start()
    try:
        while thread.is_alive():
            thread.join(POLL_SECONDS)
            watch.check(work.done)
    except Interrupted as error:
        what = work.what
        work.cancel(thread)
        raise Interrupted(f"{error} while {what}") from None
    if raised:
        raise raised[0]
    return found[0]


def _judge(pipeline: Pipeline, bootstrap_servers: str, rows: int, console: Console, work: _Work) -> Verdict:
    folder = pipeline.state / "reference"
    with _session(pipeline.state) as spark:
        work.spark = spark
        work.begin("querying the table")
        streams.create_view(spark, pipeline.table.uri, shop.TABLE)
        for number, (question, query) in enumerate(_QUERIES.items(), 1):
            work.begin(f"running query {number} of {len(_QUERIES)}")
            _show(spark, question, query, console)
        work.begin("reading the topics with Spark")
        console.print("the same with Spark alone: reading the topics from their beginning ...")
        try:
            messages = reference.load_topics(spark, bootstrap_servers, folder)
            if messages != rows:
                text = f"the topics hold {messages} messages, not {rows}"
                console.print(text, style="bold red")
                return Verdict(equal=False, text=text, figures={})
            view, join = spark.table(shop.TABLE), reference.join_query(spark)
            work.begin("reading the whole view")
            view_seconds = _seconds(view)
            work.begin("computing the join in Spark")
            join_seconds = _seconds(join)
            _show_times(view_seconds, join_seconds, console)
            work.begin("comparing the view with the join")
            found = reference.compare(view, join)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    _show_comparison(found, console)
    figures = {
        "every row and column of the live view": f"{view_seconds:.2f} s",
        "every row and column of the join in Spark": f"{join_seconds:.2f} s",
    }
    return Verdict(found.equal, _words(found), figures)


def _words(found: Comparison) -> str:
    if not found.equal:
        return "snapshot == join: no"
    return f"snapshot == join: yes ({found.rows[0]} rows, {found.columns} columns)"


def _show(spark: SparkSession, question: str, query: str, console: Console) -> None:
    started = time.monotonic()
    answer = spark.sql(query)
    rows = answer.collect()
    seconds = time.monotonic() - started
    table = Table(title=f"{question} [dim]{seconds:.2f} s[/]", title_justify="left", title_style="bold")
    for name in answer.columns:
        table.add_column(name, justify="left" if name == answer.columns[0] else "right")
    for row in rows:
        table.add_row(*("-" if value is None else str(value) for value in row))
    console.print(table)


def _seconds(answer: DataFrame) -> float:
    """Seconds to compute every row and column of an answer, without writing them."""

    def run() -> None:
        answer.write.format("noop").mode("overwrite").save()

    return min(_timed(run) for _ in range(RUNS))


def _timed(run: Callable[[], None]) -> float:
    started = time.monotonic()
    run()
    return time.monotonic() - started


def _show_times(view: float, join: float, console: Console) -> None:
    table = Table(title=f"Every row and column, best of {RUNS}", title_justify="left", title_style="bold")
    table.add_column("how")
    table.add_column("seconds", justify="right")
    table.add_row("weft: the live view, merged as it is read", f"{view:.2f}")
    table.add_row("Spark: dedupe + 3 full outer joins + customers, topics already decoded to Parquet", f"{join:.2f}")
    console.print(table)


def _show_comparison(found: Comparison, console: Console) -> None:
    if found.equal:
        console.print(_words(found), style="bold green", highlight=False)
        return
    console.print(_words(found), style="bold red", highlight=False)
    for difference in found.schema_differences:
        console.print(f"  column {difference}", markup=False)
    console.print(
        f"  rows: {found.rows[0]} in the snapshot, {found.rows[1]} in the join; "
        f"only in the snapshot {found.only[0]}, only in the join {found.only[1]}"
    )
    for example in found.examples:
        values = example.asDict()
        copies = values.pop("_copies")
        shown = ", ".join(f"{name}={value!r}" for name, value in values.items() if value is not None)
        console.print(f"  only in the {'snapshot' if copies > 0 else 'join'}: {shown}", markup=False)


@contextlib.contextmanager
def _session(state: Path) -> Iterator[SparkSession]:
    """A Spark session in this process, whose output goes to a log. Its JVM ends with the block."""
    with _output_to(state / "logs" / "spark-sql.log"):
        spark = build_session("weft demo", {"spark.driver.memory": "2g"}, scratch=state / "scratch" / "demo")
    try:
        yield spark
    finally:
        gateway = SparkContext._gateway  # noqa: SLF001 - pyspark cannot end its JVM before Python ends
        with contextlib.suppress(Exception):  # the JVM may have ended already
            spark.stop()
        process = getattr(gateway, "proc", None)
        if isinstance(process, subprocess.Popen):
            _end_jvm(process)
            # The next session of this process must start another JVM.
            SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - see above


def _end_jvm(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    try:
        process.wait(JVM_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(JVM_END_SECONDS)


@contextlib.contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Redirect the output of processes that are started in the block to a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        saved = [(number, os.dup(number)) for number in (1, 2)]
        try:
            for number, _ in saved:
                os.dup2(file.fileno(), number)
            yield
        finally:
            for number, copy in saved:
                os.dup2(copy, number)
                os.close(copy)
