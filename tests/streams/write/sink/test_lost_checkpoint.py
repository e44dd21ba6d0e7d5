"""A writer that resumes from the table loses its checkpoint, at every kind of moment; each message is stored once.

Spark's MicroBatchExecution gives the moments, with the requests of the sink between its own files:

    start     nothing        CLAIMED the lane        metadata: STARTED
    batch n   offsets/n: PLANNED     tasks write files: WRITING     all have: WRITTEN     lane entry: COMMITTED
              commits/n: FINISHED

What a writer leaves besides its checkpoint is in the store: claims, log files, dead letters and commits. A kill at each
moment, with a real process, is in `tests.streams.write.test_killed_without_checkpoint`. Here queries end with an error
at the moments that an error can hit, the rest is what may happen to table and topic between two lives of a writer.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import weft
from tests.stores.moto_server import Fault, Faulty, moto_server
from tests.streams.kafka.faulty_broker import FaultyBroker
from tests.streams.kafka.real_broker import RealBroker
from tests.streams.write.sink.conftest import CONFIG
from tests.streams.write.sink.rig import TEST_SECONDS, WAIT_SECONDS
from tests.streams.write.sink.writer_of_topic import LANE, WriterOfTopic
from weft import Table
from weft.storage.errors import Fenced, GapError
from weft.streams.write.sink import CommitReport
from weft.streams.write.writer_job import failure_of

# The full loop has a smaller set of these moments in test_resume.py, the extended one kills processes at some of them
# (test_killed_without_checkpoint.py).
pytestmark = [pytest.mark.timeout(TEST_SECONDS), pytest.mark.nightly]


@pytest.fixture
def writer(spark: SparkSession, broker: FaultyBroker, table: Table, tmp_path: Path) -> WriterOfTopic:
    """With a table on the local disk."""
    return WriterOfTopic(spark, broker, table, tmp_path)


@pytest.fixture
def requests() -> Faulty:
    return Faulty()


@pytest.fixture
def s3_writer(spark: SparkSession, broker: FaultyBroker, tmp_path: Path, requests: Faulty) -> Iterator[WriterOfTopic]:
    """With a table on S3, whose requests can be made to fail."""
    with moto_server(requests) as backend:
        place = backend.new_place()
        table = Table.create(place.uri, CONFIG, storage_options=place.options)
        yield WriterOfTopic(spark, broker, table, tmp_path, place.options)


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def dying(df: DataFrame, key: int, folder: Path) -> DataFrame:
    """The frame with a task that fails at the message of a key, once another task has written its log file."""
    files = str(folder / "table/log")

    @F.udf("string")
    def die(found: int) -> str:
        deadline = time.monotonic() + WAIT_SECONDS
        while found == key:
            if len(list(Path(files).rglob("*.arrow"))) > before or time.monotonic() > deadline:
                raise RuntimeError("the task dies")
            time.sleep(0.02)
        return "new"

    before = len(list(Path(files).rglob("*.arrow")))
    return df.withColumn("status", die("id"))


@contextlib.contextmanager
def dies(reason: str) -> Iterator[None]:
    with pytest.raises(StreamingQueryException, match=reason):
        yield


# --- moments of a batch ----------------------------------------------------------------------------------------------


def test_before_the_first_start(writer: WriterOfTopic) -> None:
    writer.send(30)
    writer.lose_checkpoints()
    assert not writer.run().anew
    writer.check()


def test_claimed(writer: WriterOfTopic) -> None:
    """Before the first batch of all, and before the first batch of a resumed query."""
    for _ in range(2):
        with writer.table.writer("orders", takeover=True):
            pass
        writer.lose_checkpoints()
        writer.send(30)
        writer.run()
        writer.check()


def test_planned(writer: WriterOfTopic) -> None:
    def no_task_runs(df: DataFrame) -> DataFrame:
        return df.withColumn("status", F.raise_error(F.lit("the task dies")).cast("string"))

    writer.send(30)
    for _ in range(2):  # the second time it is a resumed query
        with dies("the task dies"):
            writer.run(no_task_runs)
        assert Path(writer.point().checkpoint, "offsets/1").exists(), "planned"
        writer.lose_checkpoints()
    writer.run()
    writer.check()


def test_writing(writer: WriterOfTopic, tmp_path: Path) -> None:
    writer.send(30)
    writer.run()
    writer.send(20)
    with dies("the task dies"):
        writer.run(lambda df: dying(df, key=writer.good[-1], folder=tmp_path))
    writer.lose_checkpoints()
    assert writer.run().anew
    writer.check()


def test_written(s3_writer: WriterOfTopic, requests: Faulty) -> None:
    s3_writer.send(30)
    s3_writer.run()
    s3_writer.send(20)
    entry = f"/lanes/{LANE}/{s3_writer.commits()[-1].seq + 2:020d}.json"  # after the claim of the next run
    requests.faults.append(Fault(entry, "403 Forbidden", "AccessDenied", times=1_000))
    with dies("no access to"):
        s3_writer.run()
    requests.faults.clear()
    assert len(s3_writer.letters()) == len(s3_writer.bad), (
        "the dead letters of the batch are written, its commit is not"
    )
    s3_writer.lose_checkpoints()
    assert s3_writer.run().anew
    s3_writer.check()


def test_committed(writer: WriterOfTopic) -> None:
    def die(report: CommitReport) -> None:
        if report.commit.rows:
            raise RuntimeError("the driver dies")

    writer.send(30)
    for _ in range(2):  # the second time it is a resumed query
        with dies("the driver dies"):
            writer.run(on_commit=die)
        writer.lose_checkpoints()
    assert writer.run().anew
    writer.check()


def test_finished(writer: WriterOfTopic) -> None:
    """Between batches; and twice in a row, once with messages in between and once without."""
    writer.send(30)
    writer.run()
    for more in (20, 0, 20):
        writer.lose_checkpoints()
        writer.send(more)
        assert writer.run().anew
        writer.check()


def test_while_the_query_runs(writer: WriterOfTopic) -> None:
    """Spark goes on writing, into folders that lack the rest, and refuses these when it starts again."""

    def lose_after(batch: int) -> Callable[[CommitReport], None]:
        def on_commit(report: CommitReport) -> None:
            if report.batch_id == batch:
                writer.lose_checkpoints()

        return on_commit

    writer.send(50)
    for batch in (0, 1):
        with contextlib.suppress(StreamingQueryException):
            writer.run(on_commit=lose_after(batch))
        writer.send(20)
    writer.run()
    writer.check()


# --- a checkpoint that is there, but not as Spark left it ------------------------------------------------------------


def test_an_older_copy_of_the_checkpoint_is_not_used(writer: WriterOfTopic, tmp_path: Path) -> None:
    """Spark would plan the batches after it again, with other messages, and the lane would take them for repeated."""
    writer.send(30)
    writer.run()
    shutil.copytree(writer.checkpoint, tmp_path / "copy")
    writer.send(50)
    writer.run()
    writer.lose_checkpoints()
    shutil.copytree(tmp_path / "copy", writer.checkpoint)
    writer.send(10)
    assert writer.run().anew
    writer.check()


@pytest.mark.parametrize(
    "part",
    [
        "offsets",
        "commits/3 offsets/3",
        # Nightly: other files of the same folder, of which the extended loop removes those that tell where to go on.
        *(pytest.param(part, marks=pytest.mark.nightly) for part in ("metadata", "commits", "offsets commits")),
    ],
)
def test_a_checkpoint_that_lost_a_part(writer: WriterOfTopic, part: str) -> None:
    """As programs that delete old files leave it."""
    writer.send(30)
    writer.run()
    writer.send(50)
    writer.run()
    for name in part.split():
        gone = Path(writer.checkpoint, name)
        if gone.is_dir():
            shutil.rmtree(gone)
        else:
            gone.unlink()
            gone.with_name(f".{gone.name}.crc").unlink(missing_ok=True)
    writer.send(10)
    writer.run()
    writer.check()


def test_without_resume_an_older_copy_is_refused(writer: WriterOfTopic, tmp_path: Path) -> None:
    writer.send(30)
    writer.run()
    shutil.copytree(writer.checkpoint, tmp_path / "copy")
    writer.send(50)
    writer.run()
    before = writer.table.snapshot().cut
    with pytest.raises(GapError, match=r"has batches of this query up to \d, but checkpoint .* older copy") as caught:
        weft.write_stream(
            writer.frame("earliest"), writer.table.uri, "orders", checkpoint=str(tmp_path / "copy"), once=True
        )
    assert "resume: table" in caught.value.hint
    assert writer.table.snapshot().cut == before, "nothing was claimed"


# --- what may happen between two lives of a writer -------------------------------------------------------------------


def test_a_start_dies_after_its_claim_and_after_its_first_commit(writer: WriterOfTopic) -> None:
    def die(_: CommitReport) -> None:
        raise RuntimeError("the driver dies")

    writer.send(30)
    writer.run()
    writer.send(20)
    for _ in range(3):  # each commits only the start of its query
        writer.lose_checkpoints()
        with dies("the driver dies"):
            writer.run(on_commit=die)
    writer.lose_checkpoints()
    with writer.table.writer("orders", takeover=True):
        pass
    writer.run()
    writer.check()


@pytest.mark.parametrize("take_back", ["undo", "restore"])
def test_after_an_undo_and_after_a_restore(writer: WriterOfTopic, take_back: str) -> None:
    writer.send(30)
    writer.run()
    cut, since, letters = str(writer.table.snapshot().cut), now(), writer.letters()
    writer.send(40)
    writer.run()
    if take_back == "undo":
        writer.table.undo("orders", since)
    else:
        writer.table.restore(cut)
    writer.lose_checkpoints()
    writer.send(10)
    assert writer.run().anew
    found = sorted(writer.table.snapshot().to_arrow(["id"]).column("id").to_pylist())
    assert (found, writer.live_rows()) == (writer.good, len(writer.good))
    # The letters of commits that were rolled back stay: the restore itself can be taken back.
    twice = [letter for letter in writer.bad if writer.letters().count(letter) == 2]
    assert sorted(set(writer.letters())) == sorted(writer.bad)
    assert set(twice).isdisjoint(letters)
    assert len(writer.letters()) == len(writer.bad) + len(twice)


def test_after_compaction_and_cleaning(writer: WriterOfTopic) -> None:
    writer.send(30)
    writer.run(per_batch=8)
    for _ in range(2):
        writer.table.compact()
        writer.table.clean(dt.timedelta(0))
        writer.lose_checkpoints()
        writer.send(20)
        assert writer.run(per_batch=8).anew
        writer.check()


def test_after_the_topic_got_new_partitions(
    spark: SparkSession, real_broker: RealBroker, table: Table, tmp_path: Path
) -> None:
    """On a real broker, because the embedded one cannot do it."""
    writer = WriterOfTopic(spark, real_broker, table, tmp_path)
    writer.send(30)
    writer.run()
    real_broker.add_partitions(writer.topic, 4)
    writer.send(40, partitions=4)
    writer.lose_checkpoints()
    writer.run()
    writer.check()


def test_after_the_topic_was_created_again(writer: WriterOfTopic) -> None:
    writer.send(30)
    writer.run()
    writer.recreate()
    writer.lose_checkpoints()
    before = writer.live_rows()
    with dies(r"topic resumed-\d+ has id"):
        writer.run()
    assert writer.live_rows() == before
    writer.send(40)
    writer.lose_checkpoints()
    writer.run(strict=False)
    found = sorted(writer.table.snapshot().to_arrow(["id"]).column("id").to_pylist())
    assert (found, writer.live_rows()) == (writer.good, len(writer.good))
    assert sorted(writer.letters()) == sorted(writer.bad)


def test_after_the_lane_was_fenced(writer: WriterOfTopic) -> None:
    def fence(_: CommitReport) -> None:
        writer.table.fence("orders")

    writer.send(30)
    with pytest.raises(StreamingQueryException) as caught:
        writer.run(on_commit=fence)
    assert isinstance(failure_of(caught.value), Fenced)
    writer.lose_checkpoints()
    writer.run()
    writer.check()
