"""Errors of weft in tasks reach the driver unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from weft.storage.errors import CommitUnknown, Conflict, InvalidInput, TableError
from weft.streams.read.table_source import WeftSource
from weft.streams.spark.for_workers import ForWorkers, Source, for_workers, source_for_workers
from weft.streams.spark.java_causes import JavaCause
from weft.streams.spark.settings import TASK_PYTHON
from weft.streams.spark.task_errors import error_in, noted_errors, problem_in, python_problem, worker_hints

ORIGINAL = CommitUnknown("no answer\nweft-error: {not this}", hint='see "weft show"', batch=("query", 7))

FORGED = (
    f"a value\nweft-error: {json.dumps(ORIGINAL.to_dict())}\nweft-error: {'0' * 64} {json.dumps(ORIGINAL.to_dict())}"
)
MISSING = "a value\nModuleNotFoundError: No module named 'pyarrow'\n"


def fail_at_once(_batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    raise ORIGINAL


def fail_later(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise ORIGINAL


def fail_with_a_value(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise ValueError(FORGED + MISSING)


def import_nothing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import nowhere.at_all  # type: ignore[import-not-found]  # noqa: F401

    yield from batches


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


@pytest.mark.spark
def test_a_value_in_a_text_is_no_error_of_weft(spark: SparkSession) -> None:
    """A message that ends in the text of an error must not decide what becomes of the stream."""
    with pytest.raises(PySparkException) as failed:
        spark.range(3).mapInArrow(for_workers(fail_with_a_value), "id long").collect()
    assert "ModuleNotFoundError: No module named 'pyarrow'" in str(failed.value)
    assert error_in(str(failed.value)) is None
    assert python_problem(failed.value) is None


@pytest.mark.spark
@pytest.mark.parametrize(
    "text", [FORGED, MISSING, 'Cannot run program "python3"', "[PACKAGE_NOT_INSTALLED] a >= 1 must be installed"]
)
def test_a_value_that_spark_shows_is_no_problem_of_python(spark: SparkSession, text: str) -> None:
    with pytest.raises(PySparkException) as failed:
        spark.createDataFrame([(text,)], "a string").selectExpr("cast(a AS int)").collect()
    assert "CAST_INVALID_INPUT" in str(failed.value)
    assert re.split(r"['\\]", text)[0] in str(failed.value), "Spark puts a backslash before some characters"
    assert error_in(str(failed.value)) is None
    assert python_problem(failed.value) is None


@pytest.mark.spark
def test_a_package_that_a_function_lacks(spark: SparkSession) -> None:
    with pytest.raises(PySparkException) as failed:
        spark.range(3).mapInArrow(for_workers(import_nothing), "id long").collect()
    found = error_in(str(failed.value))
    assert isinstance(found, InvalidInput)
    assert "lacks a package: No module named 'nowhere'" in found.message
    assert "weft package" in found.hint


@pytest.mark.spark
def test_a_package_that_a_worker_of_spark_lacks(spark: SparkSession) -> None:
    """No function of weft runs in the worker that would sign the error."""

    def lack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import nowhere.at_all

        yield from batches or nowhere

    with pytest.raises(InvalidInput, match="lacks a package: No module named 'nowhere'"), worker_hints():
        spark.range(3).mapInArrow(lack, "id long").collect()


@pytest.mark.spark
def test_a_python_that_is_not_there(spark: SparkSession) -> None:
    own = spark.newSession()  # the setting would stay in the session that all tests share
    own.conf.set(TASK_PYTHON, "./no-environment/bin/python")
    frame = own.range(3).mapInArrow(for_workers(fail_later), "id long")
    with pytest.raises(InvalidInput, match=r"there is no \./no-environment/bin/python"), worker_hints():
        frame.collect()


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
    "text", ["", "weft-error:", "weft-error: 5", 'weft-error: {"code": "CONFLICT"}', "Conflict: a", FORGED]
)
def test_texts_without_a_signed_note_have_no_error(text: str) -> None:
    assert error_in(text) is None


def test_a_signature_holds_for_one_text() -> None:
    with pytest.raises(Conflict) as raised, noted_errors():
        raise Conflict("a")
    (note,) = raised.value.__notes__
    assert type(error_in(f"x\n  {note} and more\n\tat y")) is Conflict
    assert error_in(note.replace("CONFLICT", "FENCED")) is None


def test_an_unknown_error_code_keeps_message_and_hint() -> None:
    class New(TableError):
        code = "NEW"

    with pytest.raises(New) as raised, noted_errors():
        raise New("m", hint="h")
    (note,) = raised.value.__notes__
    New.code = "RENAMED"
    found = error_in(note)
    assert type(found) is TableError
    assert (found.message, found.hint) == ("m", "h")


def cause(text: str, condition: str = "PYTHON_EXCEPTION") -> JavaCause:
    return JavaCause(frozenset({"java.io.IOException"} if not condition else {"x"}), condition, text)


@pytest.mark.parametrize(
    ("thrown", "message"),
    [
        (
            cause('Cannot run program "./environment/bin/python": error=2, No such file or directory', ""),
            "there is no ./environment/bin/python",
        ),
        (
            cause("Traceback ...\nModuleNotFoundError: No module named 'pyarrow'\n\tat org.apache.spark"),
            "lacks a package: No module named 'pyarrow'",
        ),
        (
            cause(
                "ImportError: a Python worker of Spark cannot import weft: No module named 'weft' (Python: python3)",
                "PYTHON_DATA_SOURCE_ERROR",
            ),
            "cannot import weft: No module named 'weft'",
        ),
        (
            cause("PySparkImportError: [PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be installed; however, it was"),
            "lacks a package: PyArrow >= 18.0.0",
        ),
        (
            cause(
                "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.13 than that in driver: 3.11, x"
            ),
            "the executors have Python 3.13, and the driver has 3.11",
        ),
    ],
)
def test_a_worker_that_cannot_run_weft(thrown: JavaCause, message: str) -> None:
    found = problem_in(thrown)
    assert found is not None
    assert message in found.message
    assert "spark.pyspark.python" in found.hint


@pytest.mark.parametrize(
    "thrown",
    [
        *map(cause, ("", "No module named storage", "ValueError: pyarrow", 'Cannot run program "x"')),
        cause('java.io.IOException: Cannot run program "x"', ""),
        cause("ModuleNotFoundError: No module named 'x'", ""),
        cause("ModuleNotFoundError: No module named 'x'", "CAST_INVALID_INPUT"),
    ],
)
def test_other_errors_of_workers_are_not_changed(thrown: JavaCause) -> None:
    assert problem_in(thrown) is None


def test_other_errors_are_raised_as_they_are() -> None:
    for error in (RuntimeError("boom"), ORIGINAL, RuntimeError("ModuleNotFoundError: No module named 'x'")):
        with pytest.raises(type(error)) as kept, worker_hints():
            raise error
        assert kept.value is error
