"""Replays through a real pipeline: decoding by Spark, original positions, conditions in SQL, and a killed process."""

from __future__ import annotations

import base64
import datetime as dt
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from tests.streams.letters.rig import Place, bad, good
from tests.streams.support.pipelines import CONFIG, pipeline_file, weft
from weft import Table
from weft.storage.errors import InvalidInput
from weft.storage.store.local_store import LocalStore
from weft.streams.demo.embedded_broker import EmbeddedBroker
from weft.streams.letters.letter_folder import LetterFolder, State
from weft.streams.pipeline.file.pipeline import load_pipeline
from weft.streams.write.dead_letter import DeadLetters
from weft.streams.write.replay import replay, replayable
from weft.streams.write.replay_frame import choose_where, letters_where, messages_frame, spark_run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

PATIENCE_SECONDS = 300.0


def write_letters(store: LocalStore, sources: list[dict[str, Any]], query: str = "q", batch: int = 0) -> None:
    with DeadLetters(store, query, batch, "sa", "sa").open(0) as file:
        for source in sources:
            file.add("a reason", source, {})


def source_of(value: bytes | None, offset: int, **fields: Any) -> dict[str, Any]:
    return {
        "topic": "t",
        "partition": 3,
        "offset": offset,
        "timestamp": 1_700_000_000_000 + offset,
        "value": value,
        **fields,
    }


def test_messages_are_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    headers = [{"key": "h", "value": b"\xff"}, {"key": "h", "value": None}]
    write_letters(
        store,
        [
            source_of(b'{"id": 1}', 5, key=b"k", headers=headers, schema_id=7),
            source_of(b"\xff\x00", 6, key=b"\xfe"),
            source_of(None, 7, timestamp=None),
            source_of(b"", 8),
        ],
    )
    found = [row.asDict(recursive=True) for row in messages_frame(spark, store, {"q/0-0.jsonl": [(1, 4)]}).collect()]
    moment = dt.datetime.fromtimestamp(1_700_000_000.005, dt.UTC).replace(tzinfo=None)
    assert [row["offset"] for row in found] == [5, 6, 7, 8]
    assert found[0] == {
        "topic": "t",
        "partition": 3,
        "offset": 5,
        "timestamp": moment,
        "key": b"k",
        "value": b'{"id": 1}',
        "headers": headers,
    }
    assert [(row["key"], row["value"]) for row in found[1:]] == [(b"\xfe", b"\xff\x00"), (None, None), (None, b"")]
    assert found[2]["timestamp"] is None
    part = messages_frame(spark, store, {"q/0-0.jsonl": [(2, 2), (4, 9)], "q/5-0.jsonl": [(1, 1)]})
    assert [row["offset"] for row in part.collect()] == [6, 8]
    assert messages_frame(spark, store, {}).collect() == []


@pytest.mark.parametrize(
    ("where", "offsets"),
    [
        ("true", [2, 1, 100]),
        ("reason LIKE '%bad%' AND `offset` < 100", [2, 1]),
        ("get_json_object(value, '$.id') = '4'", [100]),
        ("timestamp > '1970-01-01 00:00:01.05'", [100]),
        ("key IS NOT NULL", []),
        ("headers['x'] = 'y' OR batch = 1", [100]),
        ("schema_id IS NULL AND letter = 'q/1-0:1'", [100]),
        ("written_at > current_timestamp() - INTERVAL 1 DAY AND topic = 't' AND query_id = 'q'", [2, 1, 100]),
    ],
)
def test_conditions(spark: SparkSession, tmp_path: Path, where: str, offsets: list[int]) -> None:
    place = Place.new(tmp_path / "place")
    place.write(good(1), bad(2), bad(3))
    place.write(bad(4))
    letters = place.letters().survey().chosen(State.WAITING)
    assert [letter.content["offset"] for letter in letters_where(spark, letters, where)] == offsets


@pytest.mark.parametrize("where", ["nonsense = 1", "reason", "count(*) > 1", "((", "CAST('x' AS INT) = 1"])
def test_wrong_conditions_are_refused(spark: SparkSession, tmp_path: Path, where: str) -> None:
    place = Place.new(tmp_path / "place")
    place.write(bad(2))
    with pytest.raises(InvalidInput, match="--where: Spark refuses the condition"):
        place.letters().publish("drop", where, choose_where(spark, where))
    assert place.waiting() == [2]


def kafka_writer(folder: Path, **fields: Any) -> Path:
    writer = {
        "source": {"type": "kafka", "topic": "t"},
        "schema": {"id": "bigint", "a": "string", "at": "bigint"},
        **fields,
    }
    return pipeline_file(folder, kafka={"bootstrap.servers": "none:9092"}, writers={"sa": writer})


def test_a_replay_uses_the_pipeline_of_today_and_the_original_position(spark: SparkSession, tmp_path: Path) -> None:
    table = Table.create(tmp_path / "wide", CONFIG)
    path = kafka_writer(
        tmp_path,
        select={"id": "id", "a": "coalesce(a, cast(_kafka.headers[0].value AS string))", "at": "_kafka.offset"},
    )
    store = LocalStore(str(tmp_path / "wide_dead_letters/sa"))
    headers = [{"key": "h", "value": b"header"}]
    sources = [source_of(b'{"id": 1}', 5, headers=headers), source_of(b"{", 6), source_of(b'{"id": 2, "a": "b"}', 7)]
    with table.writer("sa") as writer:
        writer.append(_rows([(1, "old", 4), (2, "newer", 9)]), batch=("q", 0))
    write_letters(store, sources)
    with DeadLetters(store, "q", 0, "sa", "sa").open(1) as file:
        file.add("a row without a message", None, {"id": 3})
    folder = LetterFolder.of(store, "sa", table, None)
    run = spark_run(spark, table, load_pipeline(path).writer("sa"), store)
    [done] = replay(folder, table, "sa", run, where="x", choose=replayable)
    assert (done.letters, done.rows, done.failed) == (3, 2, 1)
    rows = sorted(tuple(row.values()) for row in table.snapshot().to_arrow(["id", "a", "at"]).to_pylist())
    assert rows == [(1, "header", 5), (2, "newer", 9)]
    waiting = list(folder.survey().chosen(State.WAITING))
    assert [(letter.content["offset"], letter.has_message) for letter in waiting] == [(None, False), (6, True)]
    assert waiting[1].content["timestamp_ms"] == 1_700_000_000_006


def test_a_pipeline_that_cannot_replay_makes_no_plan(spark: SparkSession, tmp_path: Path) -> None:
    table = Table.create(tmp_path / "wide", CONFIG)
    store = LocalStore(str(tmp_path / "letters"))
    for fields, message in (
        ({"select": {"id": "nonsense", "a": "a", "at": "at"}}, "select: column 'id'"),
        ({"select": {"id": "id", "a": "a", "at": "array(at)"}}, "at"),
    ):
        writer = load_pipeline(kafka_writer(tmp_path, **fields)).writer("sa")
        with pytest.raises(InvalidInput, match=message):
            spark_run(spark, table, writer, store)
    plain = load_pipeline(pipeline_file(tmp_path)).writer("sa")
    with pytest.raises(InvalidInput, match="contain rows of the source, which cannot be replayed"):
        spark_run(spark, table, plain, store)
    assert store.list("") == []  # type: ignore[arg-type]


def _rows(rows: list[tuple[int, str, int]]) -> Any:
    import pyarrow as pa

    return pa.table({name: [row[number] for row in rows] for number, name in enumerate(("id", "a", "at"))})


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "weft.streams.cli.main", *(str(argument) for argument in arguments)]


def done(*arguments: str | Path) -> str:
    ended = subprocess.run(command(*arguments), capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


# The command line, in a process that opens no file any more once there is a plan: it does not end before it is killed.
HELD = """
import sys, time
from pathlib import Path
plans = Path(sys.argv.pop(1))
def hold(event, arguments):
    while event == "open" and list(plans.glob("[0-9]*.json")):
        time.sleep(1)
sys.addaudithook(hold)
from weft.streams.cli.main import main
main()
"""


@pytest.mark.extended
@pytest.mark.slow
def test_a_killed_replay_from_kafka_to_the_table(tmp_path: Path, broker: EmbeddedBroker) -> None:
    broker.create_topics({"letters-replay": 2})
    producer = broker.producer()
    for number in range(20):
        at = number if number % 2 else f"at {number}"
        producer.produce("letters-replay", json.dumps({"id": number, "a": "x", "at": at}).encode(), headers={"n": "1"})
    producer.produce("letters-replay", b"not json", headers={"n": "1"})
    assert producer.flush(PATIENCE_SECONDS) == 0
    path = kafka_writer(tmp_path)
    whole = yaml.safe_load(path.read_text())
    whole |= {"kafka": {"bootstrap.servers": broker.bootstrap_servers}, "compaction": False}
    whole["writers"]["sa"]["source"]["topic"] = "letters-replay"
    path.write_text(yaml.safe_dump(whole))
    done("run", path, "--once", "--json")
    counts = weft("dead-letters", "count", path, "--json").stdout.splitlines()
    assert {row["reason"]: row["letters"] for row in map(json.loads, counts)} == {
        "field 'at' is not of type bigint": 10,
        "the value is not one JSON object": 1,
    }
    [letter, *_] = map(json.loads, weft("dead-letters", "list", path, "--json").stdout.splitlines())
    shown = json.loads(weft("dead-letters", "show", path, letter["letter"], "--json").stdout)
    assert shown["headers"] == [{"key": "n", "value": "1", "encoding": "utf-8"}]

    # Today's pipeline accepts both forms.
    whole["writers"]["sa"] |= {
        "schema": {"id": "bigint", "a": "string", "at": "string"},
        "select": {"id": "id", "a": "a", "at": "CAST(replace(at, 'at ', '') AS bigint)"},
    }
    path.write_text(yaml.safe_dump(whole))
    plans = tmp_path / "wide_dead_letters/sa/_plans/sa"
    killed = subprocess.Popen(
        [sys.executable, "-c", HELD, str(plans), "dead-letters", "replay", str(path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not list(plans.glob("[0-9]*.json")):  # not its temporary file
        assert killed.poll() is None, killed.stderr and killed.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    killed.kill()
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    results = [json.loads(line) for line in done("dead-letters", "replay", path, "--json").splitlines()]
    table = Table.open(tmp_path / "wide")
    assert {row["id"]: row["at"] for row in table.snapshot().to_arrow(["id", "at"]).to_pylist()} == {
        number: number for number in range(20)
    }
    assert results[0]["resumed"]
    assert results[0]["failed"] == 1
    waiting = [json.loads(line) for line in weft("dead-letters", "list", path, "--json").stdout.splitlines()]
    assert [(row["value"], row["state"]) for row in waiting] == [("not json", "waiting")]
    dropped = json.loads(done("dead-letters", "drop", path, "--yes", "--json", "--where", "value = 'not json'"))
    assert dropped == {"dropped": 1}
    assert weft("dead-letters", "list", path, "--json").stdout == ""


def test_base64_is_only_for_bytes_that_are_not_text(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    write_letters(store, [source_of(b"\xff", 1), source_of("\u00e9".encode(), 2)])
    lines = [json.loads(line) for line in (tmp_path / "q/0-0.jsonl").read_text().splitlines()]
    assert [(line["value"], line["encoding"]) for line in lines] == [
        (base64.b64encode(b"\xff").decode(), "base64"),
        ("\u00e9", "utf-8"),
    ]
