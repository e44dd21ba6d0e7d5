"""The compaction service of a pipeline as a Spark application: this process is the driver, and executors merge.

    python -m weft.streams.write.cluster_job PIPELINE [--once]

``weft run`` starts it if the file has ``compaction: {on: cluster}``. With spark-submit it is started by its module
name, like a writer (`weft.streams.write.writer_job`). Its rounds are those of `weft.streams.pipeline.run.services`.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from weft.storage.services.steps.tasks import Execute
from weft.streams.pipeline.file.pipeline import CommandSettings, Pipeline
from weft.streams.pipeline.run.outage import JobOutages
from weft.streams.pipeline.run.reporter import Reporter
from weft.streams.pipeline.run.services import COMPACTION, run_service
from weft.streams.pipeline.run.stop_signal import StopSignal, end_process
from weft.streams.pipeline.run.writer_outage import report_executors
from weft.streams.spark.executors import HINT, ExecutorWatch
from weft.streams.spark.run_tasks import spark_executor
from weft.streams.spark.session import build_session
from weft.streams.write.repeated_call import call_every

WATCH_SECONDS: Final = 2.0  # between two checks whether a job waits for an executor


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the service; returns the exit code of the process."""
    stop, reporter = StopSignal(ends_start=True), Reporter.from_environment()
    parser = argparse.ArgumentParser(
        prog="weft.streams.write.cluster_job", description="Compaction on a Spark cluster."
    )
    parser.add_argument("pipeline")
    parser.add_argument("--once", action="store_true", help="compact all file groups that have logs; then exit")
    options = parser.parse_args(arguments)
    return compact_on_cluster(options.pipeline, stop, reporter, once=options.once)


def compact_on_cluster(path: str, stop: StopSignal, reporter: Reporter, *, once: bool) -> int:
    """Run the compaction service with Spark tasks; see `run_service`."""
    outages = JobOutages(reporter, stop)

    @contextlib.contextmanager
    def executor(pipeline: Pipeline) -> Iterator[Execute]:
        scratch = pipeline.state / "scratch" / COMPACTION
        with (
            _session("weft compaction", pipeline.spark, scratch, quick_start=False) as spark,
            _watch_executors(spark, lambda watch: report_executors(outages, watch)),
        ):
            stop.started()
            yield spark_executor(spark, f"weft compact {pipeline.table.uri}")

    return run_service(path, COMPACTION, stop, reporter, once=once, executor=executor)


@contextlib.contextmanager
def cluster_executor(command: str, settings: CommandSettings) -> Iterator[Execute]:
    """Return an executor for the tasks of one command on the cluster; its Spark session ends with the block.

    Args:
        command: Name of the command: ``compact`` or ``verify``.
        settings: The table and the Spark settings; without a master Spark runs on this machine.

    Raises:
        NotFound: Java is not installed.
        InvalidInput, SparkNotStarted: See `weft.streams.spark.session.build_session`.
    """
    with (
        tempfile.TemporaryDirectory(prefix="weft-") as folder,
        _session(f"weft {command}", settings.spark, Path(folder, "scratch"), quick_start=True) as spark,
        _watch_executors(spark, _print_starvation()),
    ):
        yield spark_executor(spark, f"weft {command} {settings.table.uri}")


@contextlib.contextmanager
def _session(name: str, settings: Mapping[str, str], scratch: Path, *, quick_start: bool) -> Iterator[SparkSession]:
    spark = build_session(name, settings, scratch=scratch, quick_start=quick_start, quiet=quick_start)
    try:
        yield spark
    finally:
        with contextlib.suppress(Exception):  # keep the first error; the JVM ends with this process
            spark.stop()


@contextlib.contextmanager
def _watch_executors(spark: SparkSession, tell: Callable[[ExecutorWatch], object]) -> Iterator[None]:
    """Call ``tell`` every `WATCH_SECONDS` in another thread until the block ends; this thread waits for Spark."""
    watch = ExecutorWatch(spark)

    def look() -> None:
        with contextlib.suppress(Exception):  # the session may stop at any moment
            tell(watch)

    with call_every(WATCH_SECONDS, look, "weft-executors"):
        yield


def _print_starvation() -> Callable[[ExecutorWatch], None]:
    """Return a function that prints once that a job waits for an executor."""
    printed_names: list[str] = []

    def tell(watch: ExecutorWatch) -> None:
        if not printed_names and watch.starved_seconds() is not None:
            printed_names.append(watch.name)
            sys.stderr.write(f"waiting for {watch.name}: {HINT}\n")

    return tell


if __name__ == "__main__":
    end_process(main())
