"""A message that ends the process that decodes it is found, and stops no stream."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.streams.support.killing_format import CANNOT_SAY, FAILS, KILLS, RESULT, decode
from tests.streams.write.sink.rig import TEST_SECONDS, run
from weft import Table
from weft.streams import formats
from weft.streams.formats.isolated_decoder import decode_isolated
from weft.streams.write.decode import decode_messages

DIED = "it ended the worker: killed by SIGSEGV"


def test_values_that_end_the_process_are_found_among_the_others() -> None:
    values = [str(number).encode() for number in range(200)]
    killers = set(random.Random(5).sample(range(200), 3))
    given = pa.array([KILLS if place in killers else value for place, value in enumerate(values)], pa.binary())
    found = decode_isolated(decode, given, RESULT).to_pylist()
    assert [row["reason"] for row in found] == [DIED if place in killers else None for place in range(200)]
    assert [row["message"] and row["message"]["id"] for row in found] == [
        None if place in killers else place for place in range(200)
    ]


@pytest.mark.parametrize("values", [[], [b"1"], [KILLS], [KILLS, KILLS]])
def test_small_batches(values: list[bytes]) -> None:
    found = decode_isolated(decode, pa.array(values, pa.binary()), RESULT)
    assert found.type == RESULT
    assert [row["reason"] for row in found.to_pylist()] == [DIED if value == KILLS else None for value in values]


def test_an_error_of_the_decoder_is_raised_and_not_a_dead_letter() -> None:
    with pytest.raises(LookupError, match="the registry is away"):
        decode_isolated(decode, pa.array([b"1", FAILS], pa.binary()), RESULT)


def test_an_error_that_cannot_be_pickled_keeps_its_text() -> None:
    with pytest.raises(RuntimeError, match="CannotPickle: the registry is away"):
        decode_isolated(decode, pa.array([b"1", CANNOT_SAY], pa.binary()), RESULT)


@pytest.mark.spark
@pytest.mark.timeout(TEST_SECONDS)
def test_a_stream_goes_on_after_a_message_that_ends_its_worker(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    added = {**formats.FORMATS, "killing": "tests.streams.support.killing_format:KillingFormat"}
    monkeypatch.setattr(formats, "FORMATS", MappingProxyType(added))
    table = Table.create(
        tmp_path / "table",
        {
            "key": ["id"],
            "buckets": 1,
            "columns": {"id": "bigint", "seen": "bigint"},
            "groups": {"g": {"columns": ["seen"], "ordering": ["seen"]}},
            "streams": {"s": {"groups": ["g"]}},
        },
    )
    (tmp_path / "in").mkdir()
    values = [str(number) for number in range(40)]
    values[17] = KILLS.decode()
    (tmp_path / "in" / "messages.txt").write_text("\n".join(values))
    messages = spark.readStream.text(str(tmp_path / "in"))
    events = decode_messages(
        messages,
        {"id": "bigint"},
        message_format="killing",
        select={"id": "id", "seen": "id"},
        where=None,
        keep_source=True,
    )
    run(events, table, tmp_path, "s", dead_letter=str(tmp_path / "letters"))
    shown = table.snapshot().to_arrow(["id"]).column("id").to_pylist()
    assert sorted(shown) == [number for number in range(40) if number != 17]
    (letters,) = (tmp_path / "letters").rglob("*.jsonl")
    (letter,) = letters.read_text().splitlines()
    assert (json.loads(letter)["reason"], json.loads(letter)["value"]) == (DIED, KILLS.decode())
    assert "workers have died 2 times" in caplog.text
