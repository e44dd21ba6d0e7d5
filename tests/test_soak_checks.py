"""The checks of the soak with a real broker can fail: its oracle, answers of queries, memory, alerts. Without Spark."""

from __future__ import annotations

import itertools
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

from tests.download_cache import Unavailable
from tests.soak.real.alerts import ALERTS, Series, fired, judge_alerts
from tests.soak.real.answers import Answers
from tests.soak.real.events import EVENTS
from tests.soak.real.feed import Change, Feed, expected
from tests.soak.real.judge import (
    LAST_AMPLIFICATION,
    MAX_AMPLIFICATION,
    check_amplification,
    check_events,
    check_lag,
    check_memory,
    check_queries,
    check_scrapes,
)
from tests.soak.real.letters import Message, letter_errors
from tests.soak.real.memory import JUDGED_SECONDS, Memory
from tests.soak.real.processes import Registry
from tests.soak.real.schedule import LONG, ONLY_FIRST, first_round, later_rounds
from tests.soak.real.topics import FORMATS, Encoder, table_config
from tests.soak.run import differences
from weft import Table


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


def test_queries_must_be_answered() -> None:
    assert check_queries(Answers(count=2, expired=1)).wrong == ()
    assert check_queries(Answers(count=2, expired=2)).wrong == ("no query was answered",)
    assert check_queries(Answers(count=1, wrong=["a query has failed"])).wrong == ("a query has failed",)


def test_an_erase_explains_fewer_rows() -> None:
    answers = Answers(_low=(10, 0))
    answers.begin_erase(2, 4)
    for visits in (10, 6):
        answers.check(answer(visits=visits), 10)
    answers.end_erase()
    answers._low = (10, 4)
    answers.check(answer(visits=7), 10)
    assert len(answers.wrong) == 1


def test_rows_may_be_fewer_until_a_question_after_the_erase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.soak.real.answers.PAUSE_SECONDS", 0.0)
    session, answers = Session(), Answers()

    def ask(profiles: int) -> int:
        session.answers.put(answer(profiles=profiles))
        answers.step(session, lambda: 10)
        return len(answers.wrong)

    session.answers.put({"ready": True})
    answers.step(session, lambda: 10)
    assert ask(5) == 0
    answers.begin_erase(2, 0)
    assert ask(5) == 0  # asked before the erase
    assert ask(5) == 0  # asked before its keys were gone
    answers.end_erase()
    assert ask(3) == 0  # asked before its end
    assert ask(3) == 0
    assert ask(1) == 1  # no erase explains this


def test_growing_memory_is_found() -> None:
    memory = Memory()
    for second in range(0, round(JUDGED_SECONDS) + 60, 5):
        memory.add(second, {1: "flat", 2: "growing"}, {1: 200.0, 2: 200.0 + 4 * second})
        if second < JUDGED_SECONDS / 2:
            memory.add(second, {3: "short"}, {3: 9.0 * second})
    assert {life.role for life in memory.lives()} == {"flat", "growing"}
    check = check_memory(memory)
    assert [text.partition(" ")[0] for text in check.wrong] == ["growing"]
    assert "2 processes judged" in str(check)
    assert str(check).startswith("memory flat: NO")


def test_a_process_that_grows_at_its_start_only_is_flat() -> None:
    memory = Memory()
    for second in range(0, round(JUDGED_SECONDS) + 60, 5):
        memory.add(second, {1: "python"}, {1: 100.0 + 4 * min(second, JUDGED_SECONDS / 3)})
    assert check_memory(memory).wrong == ()


@pytest.mark.parametrize(("start", "rate", "good"), [(200.0, 1.0, True), (720.0, 0.0, False), (100.0, 4.0, False)])
def test_a_jvm_may_fill_its_heap_up_to_a_limit(start: float, rate: float, *, good: bool) -> None:
    memory = Memory()
    for second in range(0, round(JUDGED_SECONDS) + 60, 5):
        memory.add(second, {1: "clicks (java, child)"}, {1: start + rate * second})
    assert (check_memory(memory).wrong == ()) is good


def test_alerts_that_are_missing_or_without_reason_are_found() -> None:
    required = {("WeftDeadLetters", "clicks"): "it had bad messages"}
    loop = ("WeftCrashLoop", "x")
    assert list(judge_alerts({("WeftDeadLetters", "clicks"), loop}, required, {loop})) == []
    assert len(list(judge_alerts({("WeftDeadLetters", "clicks"), ("WeftCrashLoop", "y")}, required, {loop}))) == 1
    assert len(list(judge_alerts({("WeftOutage", "clicks")}, required, set()))) == 2


def scraped() -> Series:
    """A minute of scrapes: a writer has a dead letter in it, is killed again and again, and its broker is away."""
    series = Series()
    for number in range(12):
        count = float(number > 5)
        series.add(
            f'weft_dead_letters_total{{part="clicks"}} {count}\nweft_dead_letters_total{{part="orders"}} 0\n'
            f'weft_failures_in_a_row{{part="orders"}} {3 * count}\n'
            f'weft_waiting_seconds{{part="orders"}} {301 * count}\n'
        )
    return series


def test_promtool_evaluates_the_rules_on_the_scrapes(tmp_path: Path) -> None:
    try:
        found = fired(scraped(), tmp_path)
    except Unavailable as why:
        pytest.skip(str(why))
    assert found == {("WeftDeadLetters", "clicks"), ("WeftCrashLoop", "orders"), ("WeftOutage", "orders")}


def test_an_alert_whose_rule_is_broken_is_missing(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(ALERTS.read_text().replace("increase(weft_dead_letters_total[10m]) > 0", "vector(0) > 1"))
    try:
        found = fired(scraped(), tmp_path, rules)
    except Unavailable as why:
        pytest.skip(str(why))
    required = {("WeftDeadLetters", "clicks"): "it had bad messages"}
    allowed = {("WeftCrashLoop", "orders"), ("WeftOutage", "orders")}
    assert len(list(judge_alerts(found, required, allowed))) == 1


def letter(**changed: Any) -> dict[str, Any]:
    position = {"key": "bad-1", "topic": "clicks", "partition": 1, "offset": 7}
    return {**position, "value": "//4=", "encoding": "base64", "reason": "the value is not UTF-8", **changed}


@pytest.mark.parametrize(
    "letters",
    [
        [],
        [letter(), letter()],
        [letter(offset=8)],
        [letter(value="+/4=")],
        [letter(), letter(key="good")],
        [letter(reason="")],
    ],
)
def test_a_bad_message_must_be_exactly_one_dead_letter(letters: list[dict[str, Any]]) -> None:
    sent = [Message("bad-1", "clicks", 1, 7, b"\xff\xfe")]
    assert list(letter_errors([letter()], sent)) == []
    assert list(letter_errors(letters, sent)) != []


def test_bad_messages_are_expected_where_the_broker_has_put_them(feeds: dict[str, Feed]) -> None:
    topics = Topics()
    feeds["orders"].produce(20, topics.produce)
    feeds["orders"].produce_bad(topics.produce)
    last = feeds["orders"].bad[-1]
    assert last.topic == "orders"
    assert last.offset == topics.ends["orders", last.partition] - 1
    assert last.value in feeds["orders"].encoder.bad_values("orders")


def test_read_amplification_must_be_bounded_and_low_at_the_end() -> None:
    assert check_amplification([1.0, MAX_AMPLIFICATION, 1.0]).wrong == ()
    assert check_amplification([1.0, MAX_AMPLIFICATION + 1, 1.0]).wrong != ()
    assert check_amplification([1.0, LAST_AMPLIFICATION + 1]).wrong != ()
    assert check_amplification([]).wrong != ()


def test_lag_that_is_unknown_or_not_0_is_found() -> None:
    assert check_lag(dict.fromkeys(FORMATS, 0.0)).wrong == ()
    assert check_lag({**dict.fromkeys(FORMATS, 0.0), "orders": 1.0}).wrong != ()
    assert check_lag({**dict.fromkeys(FORMATS, 0.0), "orders": None}).wrong != ()


def test_scrapes_that_are_not_answered_are_found() -> None:
    assert check_scrapes(100, 10).wrong == ()
    assert check_scrapes(100, 90).wrong != ()
    assert check_scrapes(0, 0).wrong != ()


def test_an_event_that_did_not_happen_is_found() -> None:
    assert check_events({"erase_keys": 1}, ["erase_keys"], []).wrong == ()
    assert check_events({"erase_keys": 1}, ["erase_keys", "outage"], []).wrong == ("outage has not happened",)
    assert check_events({"erase_keys": 1}, ["erase_keys"], ["weft erase: failed"]).wrong == ("weft erase: failed",)


def test_the_order_of_events_has_each_of_them_and_depends_on_the_seed() -> None:
    names = tuple(EVENTS)
    first = first_round(names, 1)
    assert set(first) == set(names) - set(LONG)
    assert first == first_round(names, 1)
    assert first != first_round(names, 2)
    second, third = itertools.islice(later_rounds(names, 1, with_long=True), 2)
    assert set(second) - set(third) == set(LONG)
    assert not set(third) & set(ONLY_FIRST)


def test_scrapes_that_fail_are_samples_of_up(tmp_path: Path) -> None:
    series = Series()
    for text in ('weft_dead_letters_total{part="clicks"} 3.0\n', None):
        series.add(text)
    series.write_test(tmp_path / "test.yaml")
    written = (tmp_path / "test.yaml").read_text()
    assert "values: 1 0" in written
    assert "values: 3 _" in written
    assert series.values["weft_dead_letters_total", "clicks"] == 3
    assert series.unanswered == 1


def test_the_registry_keeps_its_schemas(tmp_path: Path) -> None:
    with Registry(tmp_path) as registry:
        ids = [registry.register("a-value", text, "AVRO") for text in ('"long"', '"string"')]
        registry.stop()
        registry.start()
        assert [registry.register("a-value", text, "AVRO") for text in ('"long"', '"string"')] == ids
