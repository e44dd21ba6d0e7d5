"""The checks of the soak with a real broker can fail: its oracle, answers of queries, memory, alerts. Without Spark."""

from __future__ import annotations

import queue
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from storage import Table
from tests.soak.real.alerts import Series, judge_alerts
from tests.soak.real.answers import Answers
from tests.soak.real.feed import Change, Feed, expected
from tests.soak.real.memory import WARM_UP_SECONDS, Memory
from tests.soak.real.processes import Registry
from tests.soak.real.topics import FORMATS, Encoder, table_config
from tests.soak.run import differences


class Topics:
    """Confirms each message with the next offset of its partition."""

    def __init__(self) -> None:
        self.ends: Counter[tuple[str, int]] = Counter()

    def produce(self, topic: str, *, partition: int, on_delivery: Callable[[Any, Any], None], **_: Any) -> None:
        offset = self.ends[topic, partition]
        self.ends[topic, partition] += 1
        on_delivery(None, SimpleNamespace(partition=lambda: partition, offset=lambda: offset))

    def reached(self) -> dict[str, tuple[int, dict[int, int]]]:
        return {stream: (0, {n: self.ends[stream, n] for n in range(2)}) for stream in FORMATS}


@pytest.fixture
def feeds() -> dict[str, Feed]:
    encoder = Encoder(lambda *_: 1)
    return {stream: Feed(stream, random.Random(stream), encoder) for stream in FORMATS}


def append(table: Table, feeds: dict[str, Feed], after: Counter[str]) -> None:
    """Write the events that were produced since the last call."""
    for stream, feed in feeds.items():
        rows = [one.row for one in feed.sent[after[stream] :] if one.row is not None]
        after[stream] = len(feed.sent)
        with table.writer(stream) as writer:
            columns = table_config(evolved=False)["columns"]
            kinds = {name: pa.float64() if columns.get(name) == "double" else None for name in rows[0]}
            writer.append(pa.table({name: pa.array([row[name] for row in rows], kinds[name]) for name in rows[0]}))


def test_the_oracle_equals_a_table_with_an_erase_and_a_rewrite(tmp_path: Path, feeds: dict[str, Feed]) -> None:
    table = Table.create(tmp_path / "table", table_config(evolved=False))
    topics, written, changes = Topics(), Counter[str](), []
    for keys in ((), (1, 2, 3)):
        for feed in feeds.values():
            feed.produce(800, topics.produce)
            feed.retire(keys, topics.produce)
        append(table, feeds, written)
        if keys:
            changes.append(Change(topics.reached(), keys=frozenset(keys)))
            assert table.erase(pa.table({"id": pa.array(keys, pa.int64())}), expire_snapshots=True).complete
        else:
            changes.append(Change(topics.reached(), column="method", function=lambda value: f"{value}!"))
            table.rewrite("method", lambda values: pc.binary_join_element_wise(values, "!", ""))
    for feed in feeds.values():
        feed.produce(300, topics.produce)
        feed.rest(topics.produce)
    append(table, feeds, written)
    rows = table.snapshot().to_arrow()
    assert differences("the table", rows, expected(feeds, changes)) == []
    assert differences("the table", rows, expected(feeds, [])) != []
    lost = feeds["clicks"].sent.pop()
    while lost.row is None:
        lost = feeds["clicks"].sent.pop()
    assert differences("the table", rows, expected(feeds, changes)) != []


def answer(**changed: Any) -> dict[str, Any]:
    return {"visits": 10, "payments": 5, "profiles": 5, "click_seq": 9, "pay_seq": 9, **changed}


class Session:
    """Answers with what is put into it."""

    def __init__(self) -> None:
        self.answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.asked = 0

    def say(self, line: str) -> None:
        assert line
        self.asked += 1


@pytest.mark.parametrize(
    ("given", "good"),
    [
        (answer(visits=10), True),
        (answer(visits=14), True),
        (answer(visits=9), False),
        (answer(visits=15), False),
        (answer(payments=4), False),
        ({"failed": "the snapshot has expired"}, True),
        ({"failed": "no such file"}, False),
    ],
)
def test_an_answer_must_be_of_a_moment_between_question_and_answer(
    given: dict[str, Any], *, good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.soak.real.answers.PAUSE_SECONDS", 0.0)
    session, answers = Session(), Answers()
    session.answers.put({"ready": True})
    answers.step(session, lambda: 10)
    session.answers.put(answer())
    answers.step(session, lambda: 10)
    session.answers.put(given)
    answers.step(session, lambda: 14)
    assert answers.count == 2
    assert session.asked == 3
    assert (answers.wrong == []) is good


def test_an_erase_explains_fewer_rows() -> None:
    answers = Answers(_low=(10, 0))
    answers.begin_erase(2, 4)
    for visits in (10, 6):
        answers.check(answer(visits=visits), 10)
    answers.end_erase()
    answers._low = (10, 4)
    answers.check(answer(visits=7), 10)
    assert len(answers.wrong) == 1


def test_growing_memory_is_found() -> None:
    memory = Memory()
    for second in range(0, round(WARM_UP_SECONDS) + 400, 5):
        roles = {1: "flat", 2: "growing"}
        memory.add(second, roles, {1: 200.0, 2: 200.0 + second})
    assert [text.partition(" ")[0] for text in memory.wrong()] == ["growing"]


def test_alerts_that_are_missing_or_without_reason_are_found() -> None:
    required = {("WeftDeadLetters", "clicks"): "it had bad messages"}
    assert (
        list(judge_alerts({("WeftDeadLetters", "clicks"), ("WeftCrashLoop", "x")}, required, {"WeftCrashLoop"})) == []
    )
    assert len(list(judge_alerts({("WeftOutage", "clicks")}, required, set()))) == 2


def test_scrapes_that_fail_are_samples_of_up(tmp_path: Path) -> None:
    series = Series()
    for text in ('weft_dead_letters_total{part="clicks"} 3.0\n', None):
        series.add(text)
    series.write_test(tmp_path / "test.yaml")
    written = (tmp_path / "test.yaml").read_text()
    assert "values: 1 0" in written
    assert "values: 3 _" in written
    assert series.values["weft_dead_letters_total", "clicks"] == 3


def test_the_registry_keeps_its_schemas(tmp_path: Path) -> None:
    with Registry(tmp_path) as registry:
        ids = [registry.register("a-value", text, "AVRO") for text in ('"long"', '"string"')]
        registry.stop()
        registry.start()
        assert [registry.register("a-value", text, "AVRO") for text in ('"long"', '"string"')] == ids
