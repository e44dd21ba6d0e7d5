"""Sends JSON lines to a topic of Kafka, such as a topic of the embedded broker.

echo '{"order_id": 1, "status": "new"}' | python -m weft.streams.demo.send --topic orders
python -m weft.streams.demo.send --topic orders --key order_id orders.jsonl
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import typer
from confluent_kafka import KafkaException, Producer

from weft.storage.errors import Conflict, InvalidInput, NotFound, StoreUnavailable, TableError
from weft.storage.foreign_text import parse_json
from weft.storage.plural import counted
from weft.streams.demo.external_broker import BROKER_DEFAULT, ExternalBroker, Unsupported
from weft.streams.kafka.closest_topic import ask_for_closest

ADDRESS: Final = "127.0.0.1:9092"
"""Default address of `python -m weft.streams.demo.broker`."""
SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Message:
    """A message for Kafka."""

    value: bytes
    key: str | None


def parse_line(line: str, place: str, key: str | None = None) -> Message:
    """Parse a line with a JSON object to a message.

    Args:
        line: The line.
        place: Position of the line, for errors.
        key: The field that becomes Kafka's key; None for no key.

    Raises:
        InvalidInput: The line is not a JSON object, or does not have the field.
    """
    text = line.strip()
    try:
        content = parse_json(text)
    except ValueError as error:
        raise InvalidInput(f"{place}: not valid JSON: {error}", hint="write one JSON object per line") from None
    if not isinstance(content, dict):
        raise InvalidInput(f"{place}: not a JSON object: {text[:60]}", hint='write an object such as {"order_id": 1}')
    if key is not None and key not in content:
        raise InvalidInput(f"{place}: there is no field {key} for --key", hint=f"use one of {', '.join(content)}")
    value = None if key is None else content[key]
    return Message(text.encode(), value if value is None or isinstance(value, str) else json.dumps(value))


def parse_lines(lines: Iterable[str], name: str, key: str | None = None) -> Iterator[Message]:
    """Parse lines with JSON objects to messages; empty lines are skipped.

    Raises:
        InvalidInput: A line is not a JSON object, or does not have the field.
    """
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield parse_line(line, f"{name}, line {number}", key)


def send(producer: Producer, topic: str, messages: Iterable[Message]) -> int:
    """Send messages to a topic, and return their number when the broker has acknowledged all of them.

    Raises:
        StoreUnavailable: The broker did not accept all of them in time.
    """
    count = 0
    for message in messages:
        producer.produce(topic, message.value, message.key)
        producer.poll(0)
        count += 1
    if unsent := producer.flush(SECONDS):
        raise StoreUnavailable(
            f"the broker did not accept {counted(unsent, 'message')} of topic {topic} within {SECONDS:.0f} s"
        )
    return count


def _send_to(address: str, topic: str, names: Sequence[str], key: str | None, *, create: bool) -> int:
    broker = ExternalBroker(address)
    producer = broker.producer(log_level=2)
    try:
        topics = sorted(name for name in producer.list_topics(timeout=SECONDS).topics if not name.startswith("__"))
    except KafkaException:
        raise StoreUnavailable(
            f"there is no Kafka at {address}",
            hint="start one with python -m weft.streams.demo.broker --topic NAME",
        ) from None
    if topic not in topics:
        if not create:
            hint = f"{ask_for_closest(topic, topics)}it has {', '.join(topics) or 'none'}; --create creates it"
            raise NotFound(f"{address} has no topic {topic}", hint=hint)
        with contextlib.suppress(
            Conflict, Unsupported
        ):  # it was created meanwhile, or the first message will create it
            broker.create_topics({topic: BROKER_DEFAULT})
        typer.echo(f"topic {topic} is created")
    if not names:
        return send(producer, topic, parse_lines(sys.stdin, "standard input", key))
    total = 0
    for name in names:
        try:
            with Path(name).open(encoding="utf-8") as lines:
                total += send(producer, topic, parse_lines(lines, name, key))
        except OSError as error:
            raise NotFound(f"{name}: {error.strerror}") from None
    return total


def main() -> None:
    """Parse the command line, and send the messages."""
    parser = argparse.ArgumentParser(
        prog="python -m weft.streams.demo.send",
        description="Send JSON lines from files or standard input to a topic of Kafka.",
    )
    parser.add_argument("file", nargs="*", help="files with one JSON object a line; default: standard input")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--key", metavar="FIELD", help="the field of the object that becomes Kafka's key")
    parser.add_argument("--brokers", default=ADDRESS, metavar="HOST:PORT", help=f"default: {ADDRESS}")
    parser.add_argument("--create", action="store_true", help="create the topic if it does not exist")
    arguments = parser.parse_args()
    try:
        count = _send_to(arguments.brokers, arguments.topic, arguments.file, arguments.key, create=arguments.create)
    except TableError as error:
        sys.exit(str(error))
    typer.echo(f"{counted(count, 'message')} sent to topic {arguments.topic} of {arguments.brokers}")


if __name__ == "__main__":
    main()
