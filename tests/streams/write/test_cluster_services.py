"""Compaction, fold and verify with Spark tasks give the same results as in one process."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import weft
from tests.storage.support.damage import Damage, shop
from tests.storage.support.shop import append, contents, orders, payments
from tests.tuning import tune
from weft import DuePolicy, Table
from weft.storage.core.names import Path as StorePath
from weft.storage.errors import CorruptData, NotFound
from weft.storage.services.verify.findings import VerifyReport
from weft.streams.spark.run_tasks import spark_executor
from weft.streams.spark.task_errors import TasksFailed

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """A table for which each service has several tasks, because no file group is small enough to share a file."""
    tune(monkeypatch, small_group_bytes=1, fold_file_bytes=1)
    return shop(str(tmp_path / "spread"))


def copied(table: Table) -> Table:
    folder = table.uri.removeprefix("file://")
    shutil.copytree(folder, f"{folder}-here")
    return Table.open(f"{folder}-here")


def same(spread: VerifyReport, here: VerifyReport) -> VerifyReport:
    assert (spread.findings, spread.omitted, spread.cut) == (here.findings, here.omitted, here.cut)
    assert spread.checked == here.checked
    return spread


def slices(table: Table) -> list[tuple[Any, ...]]:
    """What compaction writes, except random names and stored sizes."""
    return [
        (group, made.cut, made.base_rows, made.shadow_rows, made.ordering_max)
        for group, made in sorted(table.state().slices.items())
    ]


def test_a_compaction_gives_the_slices_that_one_process_gives(spark: SparkSession, table: Table) -> None:
    other, before = copied(table), contents(table)
    spread, here = weft.compact(spark, table.uri), other.compact()
    assert len(spread.done) > 1
    assert (spread.done, spread.rows, spread.bytes_read) == (here.done, here.rows, here.bytes_read)
    assert slices(table) == slices(other)
    assert contents(table) == before
    assert weft.compact(spark, table.uri).done == ()


def test_a_fold_gives_the_registers_that_one_process_gives(spark: SparkSession, table: Table) -> None:
    other, before = copied(table), contents(table)
    spread, here = weft.fold(spark, table.uri), other.fold()
    assert len(spread.done) > 1
    assert (spread.done, spread.commits, spread.rows) == (here.done, here.commits, here.rows)
    assert [len(fold.files) for fold in table.state().folds] == [len(fold.files) for fold in other.state().folds]
    assert contents(table) == before


def test_the_policy_and_the_filter_decide_what_is_done(spark: SparkSession, table: Table) -> None:
    patient = DuePolicy(min_commits=3, max_log_ratio=1e9, fold_commits=3)
    assert weft.compact(spark, table.uri, patient).done == ()
    assert weft.fold(spark, table.uri, patient).done == ()
    append(table, payments(1), "payments")
    (due,) = weft.compact(spark, table.uri, patient).done
    assert due in {file_slice.group for file_slice in table.snapshot().slices if not len(file_slice.rows)}
    other = next(file_slice.group for file_slice in table.snapshot().slices if len(file_slice.rows))
    assert weft.compact(spark, table.uri, only=lambda file_slice: file_slice.group == other).done == (other,)


def test_verify_finds_nothing_wrong_with_a_sound_table(spark: SparkSession, table: Table) -> None:
    table.fold()
    table.savepoint("before")
    append(table, orders(*range(30), ts=9))
    table.compact()
    report = same(weft.verify(spark, table.uri), table.verify())
    assert report.ok, str(report)
    assert report.checked["slices"] > 4


def test_verify_finds_the_same_damage(spark: SparkSession, table: Table) -> None:
    """Every kind of file is damaged (events, registers, base and shadow): its bytes, its rows, or its entry."""
    table.savepoint("before")
    append(table, orders(*range(30), ts=9))
    table.fold()
    damage = Damage(table)
    (fold,) = table.state().folds
    damage.flip(fold.files[0].file.path)
    damage.flip(damage.paths("shadow")[0])
    damage.remove(damage.paths("base")[0])
    damage.edit_slice(lambda slice_: slice_.update(ordering_max={"1": 77}), number=3)
    damage.rewrite("base", lambda rows: rows.take(list(reversed(range(len(rows))))), number=2)
    damage.rewrite_log(lambda rows: rows.take(list(reversed(range(len(rows))))), number=2)
    report = same(weft.verify(spark, table.uri), table.verify())
    assert {"S7", "S12", "S15"} <= {finding.invariant for finding in report.errors}
    assert len(report.errors) >= 6, str(report)


class Tasks(list[Any]):
    """Tasks of which the second fails with an error that weft does not know."""

    def __init__(self, tasks: Iterable[Any]) -> None:
        first, _, *others = tasks

        class Failing:
            bytes = 0

            def run(self) -> None:
                raise RuntimeError("no room on the executor")

        super().__init__([first, Failing(), *others])


def test_a_failed_job_ends_the_compaction_and_leaves_only_garbage(spark: SparkSession, table: Table) -> None:
    before, execute = contents(table), spark_executor(spark, "test")
    with pytest.raises(TasksFailed, match="RuntimeError: no room on the executor"):
        table.compact(execute=lambda tasks: execute(Tasks(tasks)))
    assert not table.state().plans
    table.clean(dt.timedelta(0))
    used = {stored.path for made in table.state().slices.values() for stored in made.objects}
    folders = (StorePath("base"), StorePath("shadow"))
    assert {f"{folder}/{name}" for folder in folders for name, _ in table.env.store.list(folder)} == used
    assert table.verify().ok
    assert contents(table) == before


def test_an_error_of_a_task_is_raised_with_its_type(spark: SparkSession, table: Table) -> None:
    file = table.snapshot().files[-1].file.file
    table.env.store.delete(StorePath(file.path))
    with pytest.raises(CorruptData, match=rf"{file.path} is missing"):
        weft.compact(spark, table.uri)
    assert not Table.open(table.uri).state().plans, "the plan was aborted"
    with pytest.raises(CorruptData, match=rf"{file.path} is missing"):
        weft.fold(spark, table.uri)
    with pytest.raises(NotFound):
        weft.verify(spark, f"{table.uri}-none")
