"""The end of the demo: queries the table in a Spark session, and compares it with Spark's join.

It prints the results of a few queries, the times of the view and of the join, and whether both are equal. It is a
separate process, which can be killed with its JVM in the middle of a request to Spark:

    python -m weft.streams.demo.verdict PIPELINE BOOTSTRAP_SERVERS MESSAGES
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table

from weft.streams.demo import shop
from weft.streams.demo.outcome import DemoFailed
from weft.streams.demo.watch import Watch
from weft.streams.pipeline.file.pipeline import Pipeline, load_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from weft.streams.demo.reference import Comparison

RUNS: Final = 2
"""Number of runs of each query, of which the fastest is printed: the first one includes the warm-up of the JVM."""
POLL_SECONDS: Final = 0.1
DIFFERENT: Final = 4
"""Exit code of the process if the table does not equal the join."""
_TAIL_CHARS: Final = 2_000

_QUERIES: Final = {
    "Where does the money come from?": """
        SELECT country, count(*) AS orders, sum(amount) AS ordered, sum(paid) AS paid
        FROM orders_wide WHERE order_at IS NOT NULL GROUP BY country ORDER BY ordered DESC""",
    "Which paid orders have not been shipped?": """
        SELECT pay_method, count(*) AS orders, sum(paid) AS paid, max(paid_at) AS last_paid_at
        FROM orders_wide WHERE pay_event = 'captured' AND shipped_at IS NULL
        GROUP BY pay_method ORDER BY paid DESC""",
    "Do visitors who leave at the checkout pay?": """
        SELECT last_page, count(*) AS visits, round(avg(page_views), 1) AS pages,
               round(100 * avg(if(paid_at IS NULL, 0, 1)), 1) AS percent_paid
        FROM orders_wide WHERE clicked_at IS NOT NULL GROUP BY last_page ORDER BY visits DESC""",
}


def judge(pipeline: Pipeline, bootstrap_servers: str, rows: int, console: Console, watch: Watch) -> bool:
    """Query the table, and compare it with Spark's join over the same topics; returns whether they are equal.

    ``rows`` is the number of messages of all topics.

    Raises:
        Interrupted: See `Watch.check`; every line that the process prints is progress.
        DemoFailed: The process failed, for example to read the table; the message has the end of its log.
    """
    log = pipeline.state / "logs" / "spark-sql.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = (sys.executable, "-m", __name__, str(pipeline.path), bootstrap_servers, str(rows))
    terminal = {"FORCE_COLOR": "1"} if console.is_terminal else {}
    with log.open("ab") as errors:
        process = subprocess.Popen(  # noqa: S603 - our own command
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **terminal, "COLUMNS": str(console.width), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
    assert process.stdout is not None
    lines: list[str] = []
    printing = threading.Thread(target=_show_lines, args=(process.stdout, console, lines), daemon=True)
    printing.start()
    try:
        while process.poll() is None:
            time.sleep(POLL_SECONDS)
            watch.check(len(lines))
        printing.join()
    finally:
        with contextlib.suppress(ProcessLookupError):  # the JVM has the same process group
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode not in {0, DIFFERENT}:
        tail = log.read_text(encoding="utf-8", errors="replace")[-_TAIL_CHARS:]
        raise DemoFailed(f"the comparison failed:\n{tail}\n(from {log}; --keep DIR keeps it)")
    return process.returncode == 0


def _show_lines(output: IO[str], console: Console, lines: list[str]) -> None:
    for line in output:
        lines.append(line)
        console.file.write(line)
        console.file.flush()


def _judge(pipeline: Pipeline, bootstrap_servers: str, rows: int, console: Console) -> bool:
    """Query and compare in this process."""
    import weft.streams
    from weft.streams.demo import reference
    from weft.streams.spark.session import build_session

    folder = pipeline.state / "reference"
    spark = build_session("weft demo", {"spark.driver.memory": "2g"}, scratch=pipeline.state / "scratch" / "demo")
    weft.streams.create_view(spark, pipeline.table.uri, shop.TABLE)
    for question, query in _QUERIES.items():
        _show(spark, question, query, console)
    console.print("the same with Spark alone: reading the topics from their beginning ...")
    try:
        messages = reference.load_topics(spark, bootstrap_servers, folder)
        if messages != rows:
            console.print(f"the topics have {messages} messages, not {rows}", style="bold red")
            return False
        view, join = spark.table(shop.TABLE), reference.join_query(spark)
        console.print(f"reading every row and column, best of {RUNS}")
        for how, answer in (
            ("weft: the live view, merged as it is read", view),
            ("Spark: dedupe + 3 full outer joins, topics already decoded to Parquet", join),
        ):
            seconds = min(_seconds(answer.write.format("noop").mode("overwrite").save) for _ in range(RUNS))
            console.print(f"  {seconds:6.2f} s  {how}")
        difference = reference.compare(view, join)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _show_comparison(difference, console)
    return difference.equal


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


def _seconds(run: Callable[[], None]) -> float:
    started = time.monotonic()
    run()
    return time.monotonic() - started


def _show_comparison(comparison: Comparison, console: Console) -> None:
    rows, only = comparison.rows, comparison.only
    if comparison.equal:
        text = f"snapshot == join: yes ({rows[0]} rows, {comparison.columns} columns)"
        console.print(text, style="bold green", highlight=False)
        return
    console.print("snapshot == join: no", style="bold red", highlight=False)
    for difference in comparison.schema_differences:
        console.print(f"  column {difference}", markup=False)
    console.print(
        f"  rows: {rows[0]} in the snapshot, {rows[1]} in the join; "
        f"only in the snapshot {only[0]}, only in the join {only[1]}"
    )
    for place, examples in zip(("snapshot", "join"), comparison.examples, strict=True):
        for example in examples:
            text = ", ".join(f"{name}={value!r}" for name, value in example.asDict().items() if value is not None)
            console.print(f"  only in the {place}: {text}", markup=False)


if __name__ == "__main__":
    equal = _judge(load_pipeline(sys.argv[1]), sys.argv[2], int(sys.argv[3]), Console())
    sys.exit(0 if equal else DIFFERENT)
