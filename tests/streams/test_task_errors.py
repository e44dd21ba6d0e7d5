"""Errors of weft in tasks reach the driver unchanged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from storage.errors import CommitUnknown, Conflict, InvalidInput, TableError
from streams.read.table_source import WeftSource
from streams.spark.for_workers import ForWorkers, Source, for_workers, source_for_workers
from streams.spark.task_errors import error_in, noted_errors, python_problem, worker_hints

ORIGINAL = CommitUnknown("no answer\nweft-error: {not this}", hint='see "weft show"', batch=("query", 7))


def fail_at_once(_batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    raise ORIGINAL


def fail_later(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise ORIGINAL


def same(found: TableError | None) -> None:
    assert type(found) is CommitUnknown
    assert (found.message, found.hint, found.batch) == (ORIGINAL.message, ORIGINAL.hint, ORIGINAL.batch)


@pytest.mark.spark
@pytest.mark.parametrize("task", [fail_at_once, fail_later])
def test_errors_of_a_task(
    spark: SparkSession, task: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
) -> None:
    with pytest.raises(PySparkException) as failed:
        spark.range(3).mapInArrow(for_workers(task), "id long").collect()
    same(error_in(str(failed.value)))


class Reader(ForWorkers, DataSourceReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise ORIGINAL


class Failing(Source):
    @classmethod
    def name(cls) -> str:
        return "weft_test_failing"

    def schema(self) -> str:
        if "early" in self.options:
            raise ORIGINAL
        return "id long"

    def reader(self, schema: StructType) -> Reader:
        return Reader()


@pytest.mark.spark
@pytest.mark.parametrize("when", ["early", "late"])
def test_errors_of_a_data_source(spark: SparkSession, when: str) -> None:
    spark.dataSource.register(source_for_workers(Failing))
    with pytest.raises(PySparkException) as failed:
        spark.read.format("weft_test_failing").option(when, "yes").load().collect()
    same(error_in(str(failed.value)))


def test_errors_of_a_discovered_data_source() -> None:
    with pytest.raises(InvalidInput) as raised:
        WeftSource({}).schema()
    found = error_in("\n".join(raised.value.__notes__))
    assert type(found) is InvalidInput
    assert found.message == raised.value.message


def test_an_error_is_noted_once() -> None:
    with pytest.raises(Conflict) as raised, noted_errors(), noted_errors():
        raise Conflict("a")
    assert len(raised.value.__notes__) == 1


@pytest.mark.parametrize(
    "text", ["", "weft-error:", "weft-error: 5", 'weft-error: {"code": "CONFLICT"}', "Conflict: a"]
)
def test_texts_without_a_note_have_no_error(text: str) -> None:
    assert error_in(text) is None


def test_an_unknown_error_code_keeps_message_and_hint() -> None:
    found = error_in('x\n  weft-error: {"code": "NEW", "message": "m", "hint": "h", "fields": {}} and more\n\tat y')
    assert type(found) is TableError
    assert (found.message, found.hint) == ("m", "h")
    assert not isinstance(found, InvalidInput)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'java.io.IOException: Cannot run program "./environment/bin/python": error=2, No such file or directory',
            "there is no ./environment/bin/python",
        ),
        (
            "Traceback ...\nModuleNotFoundError: No module named 'pyarrow'\n\tat org.apache.spark",
            "lacks a package: No module named 'pyarrow'",
        ),
        (
            "ImportError: a Python worker of Spark cannot import weft: No module named 'storage' (Python: python3)",
            "cannot import weft: No module named 'storage'",
        ),
        (
            "PySparkImportError: [PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be installed; however, it was ...",
            "lacks a package: PyArrow >= 18.0.0",
        ),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.13 than that in driver: 3.11, PySpark",
            "the executors have Python 3.13, and the driver has 3.11",
        ),
    ],
)
def test_a_worker_that_cannot_run_weft(text: str, message: str) -> None:
    found = python_problem(f"Job aborted due to stage failure: {text}")
    assert found is not None
    assert message in found.message
    assert "spark.pyspark.python" in found.hint


@pytest.mark.parametrize("text", ["", "No module named storage", "ValueError: pyarrow", "Cannot run the program"])
def test_other_errors_of_workers_are_not_changed(text: str) -> None:
    assert python_problem(text) is None


def test_missing_packages_of_workers_are_raised_with_a_hint() -> None:
    with pytest.raises(InvalidInput, match="lacks a package") as caught, worker_hints():
        raise RuntimeError("Job aborted: ModuleNotFoundError: No module named 'pyarrow'")
    assert "weft package" in caught.value.hint
    noted = f"No module named 'x'\nweft-error: {json.dumps(ORIGINAL.to_dict())}"
    for error in (RuntimeError("boom"), ORIGINAL, RuntimeError(f"ModuleNotFoundError: {noted}")):
        with pytest.raises(type(error)) as kept, worker_hints():
            raise error
        assert kept.value is error
