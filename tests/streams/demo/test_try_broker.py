"""`python -m weft.streams.demo.broker` and `weft.streams.demo.send`: Kafka for people who have none, used as they
would."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from weft.streams.demo.broker import PARTITIONS

SECONDS = 120.0
Start = Callable[..., "Running"]


class Running:
    """The broker as a process; what it says is in a file."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.said = folder / f"said-{time.monotonic_ns()}"
        with self.said.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "weft.streams.demo.broker", *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=folder,
            )

    @property
    def text(self) -> str:
        return self.said.read_text()

    def says(self, text: str) -> str:
        end = time.monotonic() + SECONDS
        while text not in self.text:
            assert time.monotonic() < end, self.text
            assert self.process.poll() is None, self.text
            time.sleep(0.05)
        return self.text

    @property
    def address(self) -> str:
        found = re.search(r"a Kafka for trying things out: (\S+)", self.says("Ctrl+C ends it."))
        assert found is not None
        return found[1]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running = []

    def begin(*options: str) -> Running:
        running.append(Running(tmp_path, "--port", "0", *options))
        return running[-1]

    yield begin
    for each in running:
        each.process.kill()
        each.process.wait()


def send(address: str, topic: str, lines: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "weft.streams.demo.send", "--brokers", address, "--topic", topic, *options],
        input=lines,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )


def received(address: str, topic: str, count: int, partitions: int = PARTITIONS) -> list[tuple[bytes | None, object]]:
    """(key, value) of the messages of a topic, in an order of their own."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "test"})
    consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in range(partitions)])
    found, end = [], time.monotonic() + SECONDS
    while len(found) < count:
        assert time.monotonic() < end, found
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            found.append((message.key(), json.loads(message.value() or b"null")))
    consumer.close()
    return sorted(found, key=str)


def test_a_file_and_another_terminal(start: Start, tmp_path: Path) -> None:
    (tmp_path / "paid.jsonl").write_text('{"order_id": 1, "paid": 9.5}\n\n{"order_id": 2, "paid": 3}\n')
    broker = start("--topic", "orders", "--file", "paid=paid.jsonl", "--key", "order_id")
    address, said = broker.address, broker.text
    assert "paid: 2 messages of paid.jsonl" in said
    assert "topics of 2 partitions: orders, paid" in said
    assert "not for production" in said
    # The line that it proposes works as it is.
    proposed = re.search(r"^  (echo .* --topic orders .*)$", said, re.MULTILINE)
    assert proposed is not None
    run = proposed[1].replace("python", sys.executable, 1)
    assert subprocess.run(run, shell=True, check=True, capture_output=True, timeout=SECONDS).stdout.startswith(
        b"1 mess"
    )
    done = send(address, "orders", '{"order_id": 5}\n{"order_id": 6}\n', "--key", "order_id")
    assert (done.returncode, done.stdout) == (0, f"2 messages sent to topic orders of {address}\n"), done.stderr
    assert received(address, "orders", 3) == [
        (None, {"order_id": 1}),
        (b"5", {"order_id": 5}),
        (b"6", {"order_id": 6}),
    ]
    assert received(address, "paid", 2) == [
        (b"1", {"order_id": 1, "paid": 9.5}),
        (b"2", {"order_id": 2, "paid": 3}),
    ]
    broker.process.send_signal(signal.SIGINT)
    assert broker.process.wait(SECONDS) == 0
    assert broker.text.endswith("The broker has ended; its messages are gone.\n")


def test_what_cannot_be_sent_is_told(start: Start) -> None:
    address = start("--topic", "orders").address
    done = send(address, "payments", "{}")
    assert done.returncode == 1
    assert done.stderr.startswith(f"{address} has no topic payments")
    assert "it has orders" in done.stderr
    done = send(address, "order", "{}")
    assert "hint: did you mean orders? it has orders; --create creates it" in done.stderr
    done = send(address, "orders", '{"order_id": 1}\n[1]\n')
    assert (done.returncode, done.stdout) == (1, "")
    assert "standard input, line 2: not a JSON object: [1]" in done.stderr


def test_a_topic_that_does_not_exist_is_created_on_demand(start: Start) -> None:
    address = start("--topic", "orders").address
    done = send(address, "paid", '{"order_id": 1}', "--create")
    sent = f"1 message sent to topic paid of {address}\n"
    assert (done.returncode, done.stdout) == (0, f"topic paid is created\n{sent}"), done.stderr
    assert send(address, "paid", '{"order_id": 2}', "--create").stdout == sent, "it exists"
    assert [value for _, value in received(address, "paid", 2, partitions=4)] == [{"order_id": 1}, {"order_id": 2}]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ([], "there is no topic"),
        (["--file", "orders.jsonl"], "--file orders.jsonl: the topic is missing"),
        (["--file", "orders=nowhere.jsonl"], "--file orders=nowhere.jsonl: No such file or directory"),
        (["--file", "orders=bad.jsonl"], "bad.jsonl, line 2: not valid JSON"),
        (["--topic", "a/b"], "'a/b' is not a topic name"),
        (["--topic", "orders", "--partitions", "0"], "--partitions 0: a topic has one or more"),
    ],
)
def test_what_is_wrong_is_told_and_nothing_started(options: list[str], problem: str, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("{}\nno\n")
    done = Running(tmp_path, "--port", "0", *options)
    assert done.process.wait(SECONDS) == 1
    assert problem in done.text
    assert "Traceback" not in done.text
    assert "a Kafka for" not in done.text


def test_a_port_that_is_taken_is_told(start: Start, tmp_path: Path) -> None:
    port = start("--topic", "orders").address.partition(":")[2]
    second = Running(tmp_path, "--topic", "orders", "--port", port)
    assert second.process.wait(SECONDS) == 1
    assert f"127.0.0.1:{port} cannot be used: Address already in use\n" in second.text
    assert "--port" in second.text


def test_a_topic_that_is_too_large_is_refused(tmp_path: Path) -> None:
    # The limit holds for compressed messages.
    with (tmp_path / "large.jsonl").open("w") as file:
        for _ in range(120):
            file.write(json.dumps({"noise": os.urandom(60_000).hex()}) + "\n")
    broker = Running(tmp_path, "--file", "large=large.jsonl", "--partitions", "1", "--port", "0")
    assert broker.process.wait(SECONDS) == 1
    found = re.search(r"has dropped (\d+) of 120 messages.*--partitions (\d+)", broker.text, re.DOTALL)
    assert found is not None, broker.text
    again = Running(tmp_path, "--file", "large=large.jsonl", "--partitions", found[2], "--port", "0")
    try:
        again.says("Ctrl+C ends it.")
    finally:
        again.process.kill()
        again.process.wait()
