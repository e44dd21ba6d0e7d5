"""Messages that cannot be stored: each becomes a dead letter exactly once, or ends the query."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import decimal
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tests.streams.kafka.faulty_broker import FaultyBroker
from tests.streams.write.sink.rig import TEST_SECONDS, WAIT_SECONDS, event, log_files, rows, run
from weft import Table
from weft.storage.core.names import Path as StorePath
from weft.storage.errors import InvalidInput
from weft.streams.kafka import register
from weft.streams.letters.letter_folder import LetterFolder, State
from weft.streams.letters.limit import LetterLimit, TooManyDeadLetters
from weft.streams.pipeline.run.error_kinds import Ending, ending_of
from weft.streams.write.dead_letter import DeadLetters, open_dead_letters
from weft.streams.write.decode import decode_messages
from weft.streams.write.sink import CommitReport
from weft.streams.write.write_batch import write_batch
from weft.streams.write.writer_job import failure_of

pytestmark = pytest.mark.timeout(TEST_SECONDS)

MESSAGE = {"id": "bigint", "status": "string", "seq": "bigint", "_op": "string"}

TOLD = {"tombstones": "dead_letter"}

_numbers = itertools.count()


def letters(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.rglob("*.jsonl")) for line in path.read_text().splitlines()]


@contextlib.contextmanager
def topic(broker: FaultyBroker, values: Sequence[Sequence[bytes | None]]) -> Iterator[str]:
    """A topic with the given messages, one list per partition."""
    name = f"sink-{next(_numbers)}"
    broker.create_topics({name: len(values)})
    producer = broker.producer()
    for partition, part in enumerate(values):
        for value in part:
            producer.produce(name, value=value, partition=partition)
    assert producer.flush(WAIT_SECONDS) == 0
    yield name
    broker.delete_topic(name)


def decoded(
    spark: SparkSession, broker: FaultyBroker, name: str, fields: dict[str, str] | None = None, **given: Any
) -> DataFrame:
    register(spark)
    source = (
        spark.readStream.format("weft_kafka")
        .option("kafka.bootstrap.servers", broker.bootstrap_servers)
        .option("subscribe", name)
        .option("startingOffsets", "earliest")
        .load()
    )
    options = {"select": None, "where": None, "keep_source": True, **TOLD, **given}
    return decode_messages(source, fields or MESSAGE, **options)


def message(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


BAD = [
    [
        message(**event(1)),
        b"{broken",
        None,
        message(**event(2)),
        message(id=3, status=b"\xff".decode("latin-1"), seq="x"),
    ],
    [
        b"\xff\xfe",
        message(id=None, status="no key", seq=1),
        message(**event(4)),
        message(id=5, status="?", seq=1, _op="merge"),
        message(id=1, _op="D"),
    ],
]

REASONS = {
    (0, 1): "the value is not one JSON object",
    (0, 2): "the message has no value (a tombstone)",
    (0, 4): "field 'seq' is not of type bigint",
    (1, 0): "the value is not UTF-8",
    (1, 1): "column 'id': NULL in a key column",
    (1, 3): "column '_op': not an operation",
    (1, 4): "column 'seq': NULL in every ordering column of a delete",
}


def test_refused_messages_are_dead_letters_exactly_once(
    spark: SparkSession, broker: FaultyBroker, table: Table, tmp_path: Path
) -> None:
    folder = tmp_path / "dead"
    reports: list[CommitReport] = []
    with topic(broker, BAD) as name:
        df = decoded(spark, broker, name)
        query = run(df, table, tmp_path, dead_letter=str(folder), on_commit=reports.append)
        assert rows(table) == [(1, "new", 1), (2, "new", 1), (4, "new", 1)]
        found = letters(folder)
        assert {(letter["partition"], letter["offset"]): letter["reason"] for letter in found} == REASONS
        assert len(found) == len(REASONS)
        for letter in found:
            raw = BAD[letter["partition"]][letter["offset"]]
            value, encoding = letter["value"], letter["encoding"]
            assert letter["topic"] == name
            assert (letter["query_id"], letter["stream"], letter["lane"]) == (query.id, "orders", "orders")
            if raw is None:
                assert (value, encoding) == (None, None)
            elif raw == b"\xff\xfe":
                assert (base64.b64decode(value), encoding) == (raw, "base64")
            else:
                assert (value.encode(), encoding) == (raw, "utf-8")
        batch = reports[-1].batch_id
        assert {letter["batch"] for letter in found} == {batch}
        assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == {
            f"{query.id}/{batch}-0.jsonl",
            f"{query.id}/{batch}-1.jsonl",
        }
        assert [report.rows_refused for report in reports] == [0] * batch + [len(REASONS)]

        # The replayed batch exists already: nothing is written again.
        for file in (f"{batch}", f".{batch}.crc"):
            (tmp_path / "checkpoint/commits" / file).unlink()
        run(df, table, tmp_path, dead_letter=str(folder), on_commit=reports.append)
        assert reports[-1].commit.replayed
        assert letters(folder) == found


def test_dead_letters_of_a_batch_that_is_run_again_are_replaced(
    spark: SparkSession, broker: FaultyBroker, table: Table, tmp_path: Path
) -> None:
    folder, crash = tmp_path / "dead", tmp_path / "crash"
    crash.touch()

    @F.udf("bigint")
    def die_late(key: int | None) -> int | None:
        deadline = time.monotonic() + WAIT_SECONDS
        while key == 4 and crash.exists():
            if list(folder.rglob("*-0.jsonl")) or time.monotonic() > deadline:
                raise RuntimeError("the task dies")
            time.sleep(0.02)
        return key

    with topic(broker, BAD) as name:
        df = decoded(spark, broker, name).withColumn("id", die_late("id"))
        with pytest.raises(StreamingQueryException, match="the task dies"):
            run(df, table, tmp_path, dead_letter=str(folder))
        [left] = folder.rglob("*.jsonl")  # task 0 had ended
        batch, _ = left.stem.split("-")
        # As if the batch had been divided into other tasks in the first run; files of other batches are kept.
        left.with_name(f"{batch}-7.jsonl").write_text('{"partition": 9, "offset": 9, "reason": "stale"}\n')
        left.with_name(f"{batch}0-7.jsonl").write_text("")
        crash.unlink()
        run(df, table, tmp_path, dead_letter=str(folder))
    found = letters(folder)
    assert {(letter["partition"], letter["offset"]): letter["reason"] for letter in found} == REASONS
    assert len(found) == len(REASONS)
    assert left.with_name(f"{batch}0-7.jsonl").exists()
    assert rows(table) == [(1, "new", 1), (2, "new", 1), (4, "new", 1)]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{broken", "the value is not one JSON object"),
        # The other reasons, which the tests above count one by one, end a query in the same way.
        pytest.param(None, "tombstone", marks=pytest.mark.nightly),
        pytest.param(
            message(id=None, status="x", seq=1), "column 'id': NULL in a key column", marks=pytest.mark.nightly
        ),
    ],
)
def test_with_on_error_stop_the_first_bad_message_fails_the_query(
    spark: SparkSession, broker: FaultyBroker, table: Table, tmp_path: Path, value: bytes | None, reason: str
) -> None:
    with topic(broker, [[message(**event(1)), value], [message(**event(2))]]) as name:
        df = decoded(spark, broker, name)
        with pytest.raises(StreamingQueryException) as caught:
            run(df, table, tmp_path, on_error="stop")
        text = str(caught.value)
        assert f"a message cannot be stored (topic {name}, partition 0, offset 1): " in text
        assert reason in text
        assert "hint: set dead_letter to a folder" in text
        assert "remove on_error: stop" in text  # the two cannot be combined
        assert rows(table) == []
        assert log_files(tmp_path) == set()
        # With a folder for dead letters the same query continues from the same checkpoint.
        run(df, table, tmp_path, dead_letter=str(tmp_path / "dead"))
        assert rows(table) == [(1, "new", 1), (2, "new", 1)]
        assert [letter["offset"] for letter in letters(tmp_path / "dead")] == [1]


def test_a_number_in_another_unit_is_a_dead_letter_in_any_column(
    spark: SparkSession, broker: FaultyBroker, tmp_path: Path
) -> None:
    config = {
        "key": ["id"],
        "columns": {"id": "bigint", "seq": "bigint", "seen": "timestamp"},
        "groups": {"g": {"columns": ["seq", "seen"], "ordering": ["seq"]}},
        "streams": {"s": {"groups": ["g"]}},
    }
    table = Table.create(tmp_path / "table", config)
    seconds = 1_772_355_600
    times = (seconds, seconds * 1000 + 123, seconds * 1_000_000 + 7, "2026-03-01T09:00:00Z", None)
    with topic(broker, [[message(id=number, seq=1, seen=at) for number, at in enumerate(times)]]) as name:
        df = decoded(spark, broker, name, {"id": "bigint", "seq": "bigint", "seen": "timestamp"})
        run(df, table, tmp_path, "s", dead_letter=str(tmp_path / "dead"))
    stored = {row["id"]: row["seen"] for row in table.snapshot().to_arrow().to_pylist()}
    moment = dt.datetime.fromtimestamp(seconds, dt.UTC)
    assert stored == {0: moment, 3: moment, 4: None}
    reasons = {letter["offset"]: letter["reason"] for letter in letters(tmp_path / "dead")}
    assert reasons.keys() == {1, 2}
    assert "column 'seen': a time outside the calendar: the number looks like milliseconds, and was" in reasons[1]
    assert "select timestamp_micros(FIELD)" in reasons[2]


def test_rows_without_a_source_are_dead_letters_too(spark: SparkSession, table: Table, tmp_path: Path) -> None:
    df = spark.createDataFrame(
        [(1, 1.5, 1.0), (None, 2.5, 1.0), (2, 3.5, float("nan"))], "id bigint, price double, priced double"
    ).coalesce(1)
    with pytest.raises(InvalidInput, match="NULL in a key column") as caught:
        write_batch(df, table.uri, "prices")
    assert "dead_letter" in caught.value.hint
    assert table.snapshot().to_arrow().num_rows == 0
    commit = write_batch(df, table.uri, "prices", dead_letter=str(tmp_path / "dead"))
    assert commit.rows == 1
    first, second = letters(tmp_path / "dead")
    assert (first["reason"], first["encoding"], first["offset"]) == ("column 'id': NULL in a key column", "row", None)
    assert json.loads(first["value"]) == {"id": None, "price": 2.5, "priced": 1.0}
    assert second["reason"] == "column 'priced': NaN in an ordering column"


def test_dead_letters_go_to_any_store(table: Table) -> None:
    store = open_dead_letters("memory://dead", table.uri, {"ignored": "for another kind of store"})
    assert store.list(StorePath("")) == []
    for attempt in ("first", "second"):
        batch = DeadLetters(store, "query", 3, "orders", "orders")
        for task in (0, 1) if attempt == "first" else (1, 2):
            with batch.open(task) as file:
                file.add(attempt, None, {"day": dt.date(2024, 2, 29), "raw": b"\xff", "price": decimal.Decimal("1.5")})
    batch.discard_others({1})
    assert [name for name, _ in store.list(StorePath(""))] == ["query/3-1.jsonl"]
    letter = json.loads(store.get(StorePath("query/3-1.jsonl")) or b"")
    assert letter["reason"] == "second"
    assert json.loads(letter["value"]) == {"day": "2024-02-29", "raw": "/w==", "price": "1.5"}


def test_a_task_that_fails_leaves_no_dead_letters(tmp_path: Path) -> None:
    batch = DeadLetters(open_dead_letters(str(tmp_path), "", None), "query", 0, "orders", "orders")
    with contextlib.suppress(ZeroDivisionError), batch.open(0) as file:
        file.add("reason", None, {})
        _ = 1 / 0
    with batch.open(1):
        pass  # without letters no file is created
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (LetterLimit(max_rate=0.5), "7 of 10 messages of a batch are dead letters (max_rate: 0.5)"),
        (LetterLimit(max_count=6), "7 dead letters since the writer started (max_count: 6)"),
    ],
)
def test_a_batch_that_exceeds_the_limit_commits_nothing(
    spark: SparkSession, broker: FaultyBroker, table: Table, tmp_path: Path, limit: LetterLimit, message: str
) -> None:
    folder = tmp_path / "dead"
    with topic(broker, BAD) as name:
        df = decoded(spark, broker, name)
        with pytest.raises(StreamingQueryException) as caught:
            run(df, table, tmp_path, dead_letter=str(folder), letter_limit=limit)
        found = failure_of(caught.value)
        assert isinstance(found, TooManyDeadLetters)
        assert message in found.message
        assert "1 x the value is not UTF-8" in found.message or "1 x the value is not one JSON object" in found.message
        assert ending_of(found) is Ending.REFUSED
        assert rows(table) == []
        assert log_files(tmp_path) == set()
        folder_of = LetterFolder.of(open_dead_letters(str(folder), table.uri, None), "orders", table, None)
        assert [state for state, _ in folder_of.survey().letters()] == [State.NOT_FINAL] * len(REASONS)
        # With a higher limit the same query continues from the same checkpoint.
        higher = LetterLimit(max_rate=0.7, max_count=7)
        run(df, table, tmp_path, dead_letter=str(folder), letter_limit=higher)
        assert rows(table) == [(1, "new", 1), (2, "new", 1), (4, "new", 1)]
        assert len(letters(folder)) == len(REASONS)
        assert [state for state, _ in folder_of.survey().letters()] == [State.WAITING] * len(REASONS)
