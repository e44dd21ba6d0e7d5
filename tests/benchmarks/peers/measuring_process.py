"""The process that measures one system: ``python -m tests.benchmarks.peers.measuring_process TASK ANSWERS PROGRESS``.

It runs in the environment of the system's Spark, so it imports nothing but Python's library and pyspark, and weft for
weft. It adds a line of JSON to the answers after each part, and writes progress to the given file descriptor. A part
that fails is an answer, too, and the next one follows.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.benchmarks.peers import concurrent_writers, skewed_hour, table_story
from tests.benchmarks.peers.dataset import Dataset
from tests.benchmarks.peers.registry import system_class
from tests.benchmarks.peers.system import System
from tests.benchmarks.peers.task import TABLE, WRITERS, Outcome, Task

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REASON: Final = 300


def main() -> None:
    asked, answers, progress = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    task = Task.read(asked)
    started = time.perf_counter()
    kind = system_class(task.system)
    spark = _session(kind, task)
    try:
        for part, folder in task.data.items():

            def say(text: str, part: str = part) -> None:
                line = f"{task.system}, {part}: [{time.perf_counter() - started:4.0f} s] {text}\n"
                os.write(progress, line.encode())

            data = _opened(folder)
            before = os.getloadavg()[0]
            figures, failed = {}, ""
            try:
                figures = _measure(part, kind, spark, data, task, say)
            except Exception as error:
                traceback.print_exc()
                failed = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"[:_REASON]
            outcome = Outcome(
                system=task.system,
                part=part,
                version=task.version,
                spark=spark.version,
                keys=data.keys,
                figures=figures,
                load_average=(round(before, 1), round(os.getloadavg()[0], 1)),
                failed=failed,
            )
            with answers.open("a", encoding="utf-8") as file:
                file.write(outcome.line() + "\n")
    finally:
        spark.stop()


def _measure(
    part: str, kind: type[System], spark: SparkSession, data: Dataset, task: Task, say: Callable[[str], None]
) -> dict[str, Any]:
    folder = Path(task.folder)

    def make(name: str) -> System:
        return kind(spark, folder, data, name, task.version)

    if part == TABLE:
        if task.warm_up:
            small = kind(spark, folder, _opened(task.warm_up), "warm_up", task.version)
            table_story.measure(small, 1, lambda _text: None)
            say("warmed up")
        return table_story.measure(make("measured"), task.rounds, say)
    if part == WRITERS:
        return concurrent_writers.measure(make("written"), say)
    return skewed_hour.measure(make, task.every, task.rounds, say)


def _opened(folder: str) -> Dataset:
    data = Dataset.open(Path(folder))
    if data is None:
        raise FileNotFoundError(f"no dataset in {folder}")
    return data


def _session(kind: type[System], task: Task) -> SparkSession:
    from pyspark.sql import SparkSession

    folder = Path(task.folder)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "6g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder / 'derby'}",
        **{name: value.format(folder=folder) for name, value in kind.session_settings.items()},
    }
    if task.jars:
        settings |= {"spark.jars": ",".join(task.jars), "spark.driver.extraClassPath": os.pathsep.join(task.jars)}
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


if __name__ == "__main__":
    main()
