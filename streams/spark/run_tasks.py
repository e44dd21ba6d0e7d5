"""Runs tasks of the services of `storage` on a Spark cluster; implements `weft.storage.services.steps.tasks.Execute`.

Executors read and write the files, and return only descriptions of them, so the memory of the driver does not depend on
the number of rows. Spark repeats a failed task; that is harmless, because only the driver publishes.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from weft.storage.services.steps.tasks import Execute, Shared, Task
from weft.streams.spark.for_workers import for_workers
from weft.streams.spark.task_errors import raise_task_errors
from weft.streams.spark.task_jobs import plan_jobs

if TYPE_CHECKING:
    from pyspark import Broadcast, SparkContext

T = TypeVar("T")


def spark_executor(spark: SparkSession, description: str) -> Execute:
    """Return an `Execute` that runs tasks as jobs of a session.

    Args:
        spark: A session with a Spark context (not Spark Connect).
        description: Description of the work for the Spark UI, such as "compact s3://lake/orders_wide".
    """
    context = spark.sparkContext

    def execute(all_tasks: Iterable[Task[T]], /) -> Iterator[T]:
        tasks, started = list(all_tasks), 0
        with _Broadcasts(context) as broadcasts:
            for bundles in plan_jobs([task.bytes for task in tasks], context.defaultParallelism):
                payloads = [broadcasts.dump([tasks[position] for position in bundle]) for bundle in bundles]
                last = started + sum(map(len, bundles))
                text = f"{description}: tasks {started + 1} to {last} of {len(tasks)}"
                with raise_task_errors(), _describe(context, text):
                    answers = _run_job(context, payloads, tuple(broadcasts.shared))
                results: dict[int, T] = {}
                for bundle, answer in zip(bundles, answers, strict=True):
                    results.update(zip(bundle, answer, strict=True))
                started = last
                yield from (results[position] for position in sorted(results))

    return execute


def _run_job(context: SparkContext, bundles: Sequence[bytes], shared: Sequence[Broadcast[Any]]) -> list[list[Any]]:
    run = for_workers(_run_bundle)
    return context.parallelize(bundles, len(bundles)).map(lambda bundle: run(bundle, shared)).collect()


def _run_bundle(bundle: bytes, shared: Sequence[Broadcast[Any]]) -> list[Any]:
    return [task.run() for task in _Unpickler(bundle, shared).load()]


@contextmanager
def _describe(context: SparkContext, text: str) -> Iterator[None]:
    """Set the description of the Spark jobs that are started in the block."""
    context.setJobDescription(text)
    try:
        yield
    finally:
        context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]  # None removes it


class _Broadcasts:
    """Broadcasts values that tasks share (`weft.storage.services.steps.tasks.Shared`), and frees them afterwards."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._numbers: dict[int, int] = {}
        self._kept: list[Shared[Any]] = []
        self.shared: list[Broadcast[Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for broadcast in self.shared:
            broadcast.destroy()

    def dump(self, value: Any) -> bytes:
        """Pickle a value; `Shared` values in it are replaced by the numbers of their broadcasts."""
        file = io.BytesIO()
        _Pickler(file, self._number).dump(value)  # type: ignore[no-untyped-call]
        return file.getvalue()

    def _number(self, shared: Shared[Any]) -> int:
        if id(shared) not in self._numbers:
            self._numbers[id(shared)] = len(self.shared)
            self._kept.append(shared)  # keeps it alive, so that no other object gets its id
            self.shared.append(self._context.broadcast(cloudpickle.dumps(shared)))  # type: ignore[no-untyped-call]
        return self._numbers[id(shared)]


class _Pickler(cloudpickle.Pickler):
    def __init__(self, file: io.BytesIO, number: Any) -> None:
        super().__init__(file)  # type: ignore[no-untyped-call]
        self._number = number

    def persistent_id(self, value: Any) -> int | None:
        return self._number(value) if isinstance(value, Shared) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, shared: Sequence[Broadcast[Any]]) -> None:
        super().__init__(io.BytesIO(data))
        self._shared = shared

    def persistent_load(self, number: int) -> Any:
        return pickle.loads(self._shared[number].value)  # noqa: S301
