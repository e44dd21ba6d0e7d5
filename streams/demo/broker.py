"""``python -m weft.streams.demo.broker``: the embedded broker for users who have no Kafka, until Ctrl+C."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import os
import queue
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import typer
from confluent_kafka import Consumer, TopicPartition

from weft.storage.errors import Conflict, InvalidInput, NotFound, TableError
from weft.storage.plural import counted
from weft.streams.demo.embedded_broker import EmbeddedBroker
from weft.streams.demo.send import ADDRESS, Message, parse_lines, send

HOST: Final = "127.0.0.1"
PORT: Final = int(ADDRESS.rpartition(":")[2])
PARTITIONS: Final = 2
BUFFER_BYTES: Final = 1 << 16
SECONDS: Final = 30.0
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""Valid name of a topic in Kafka."""


class _Front:
    """Listens at a port that the user chose, and forwards connections to the broker, whose port cannot be chosen.

    Clients get the broker's own address in the first response, so only the first requests are forwarded.
    """

    def __init__(self, port: int, broker: str) -> None:
        self._port, self._broker = port, broker
        self._loop = asyncio.new_event_loop()

    def bind(self) -> str:
        """Bind the port, and return the address. Clients cannot connect yet.

        Raises:
            Conflict: Something else listens there.
        """
        server = asyncio.start_server(self._accept, HOST, self._port, start_serving=False)
        try:
            self._server = self._loop.run_until_complete(server)
        except OSError as error:
            raise Conflict(
                f"{HOST}:{self._port} cannot be used: {os.strerror(error.errno or 0)}",
                hint="choose another --port, or 0 for any free port; perhaps a Kafka is already running there",
            ) from None
        return f"{HOST}:{self._server.sockets[0].getsockname()[1]}"

    def open(self) -> None:
        """Serve clients in a thread."""
        self._loop.run_until_complete(self._server.start_serving())
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._broker.rpartition(":")
        broker_reader, broker_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(_copy(reader, broker_writer), _copy(broker_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(BUFFER_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()


def _files(arguments: Sequence[str], key: str | None) -> Iterator[tuple[str, str, list[Message]]]:
    """Yield (topic, path, messages) for each ``--file TOPIC=PATH``."""
    for argument in arguments:
        topic, separator, name = argument.partition("=")
        if not separator:
            raise InvalidInput(f"--file {argument}: the topic is missing", hint=f"use --file TOPIC={argument}")
        try:
            with Path(name).open(encoding="utf-8") as lines:
                yield topic, name, list(parse_lines(lines, name, key))
        except OSError as error:
            raise NotFound(f"--file {argument}: {error.strerror}") from None


def _check_kept(address: str, topic: str, partitions: int) -> None:
    """Raise InvalidInput if the broker has dropped messages: it keeps about 5 MB of a partition."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "weft", "log_level": 2})
    try:
        ranges = [
            consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=SECONDS)
            for partition in range(partitions)
        ]
    finally:
        consumer.close()
    dropped, total = sum(low for low, _ in ranges), sum(high for _, high in ranges)
    if dropped:
        enough = math.ceil(3 * partitions * total / (total - dropped))
        raise InvalidInput(
            f"topic {topic} is too large for this broker, which has dropped {dropped} of {counted(total, 'message')}",
            hint=f"use --partitions {enough}: the broker keeps about 5 MB of a partition",
        )


def _tell(*lines: str) -> None:
    for line in lines:
        typer.echo(line)


def run(arguments: argparse.Namespace) -> None:
    """Run the broker until a signal ends it.

    Raises:
        InvalidInput: An argument, a file or a line of it is wrong, or a topic is too large.
        NotFound: A file does not exist.
        Conflict: The port is in use.
    """
    files = list(_files(arguments.file, arguments.key))
    topics = list(dict.fromkeys([*arguments.topic, *(topic for topic, _, _ in files)]))
    if not topics:
        raise InvalidInput(
            "there is no topic", hint="give --topic orders --topic payments, or --file orders=orders.jsonl"
        )
    for topic in topics:
        if not _NAME.fullmatch(topic):
            raise InvalidInput(f"{topic!r} is not a topic name", hint="use letters, digits, '.', '_' and '-'")
    if arguments.partitions < 1:
        raise InvalidInput(f"--partitions {arguments.partitions}: a topic has one or more partitions")
    # A queue, because a handler that sets an event could wait for a lock that the interrupted main thread holds.
    stopped: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: stopped.put(received))
    with EmbeddedBroker() as broker:
        broker.create_topics(dict.fromkeys(topics, arguments.partitions))
        front = _Front(arguments.port, broker.bootstrap_servers)
        address = front.bind()
        producer = broker.producer(linger_ms=5, sticky_partitioning_linger_ms=0)
        _tell(
            f"a Kafka for trying things out: {address}",
            f"topics of {counted(arguments.partitions, 'partition')}: {', '.join(topics)}",
        )
        for topic, name, messages in files:
            _tell(f"{topic}: {counted(send(producer, topic, messages), 'message')} of {name}")
            _check_kept(broker.bootstrap_servers, topic, arguments.partitions)
        front.open()  # only now, so that clients that wait for the port find all messages of the files
        brokers = "" if address == ADDRESS else f" --brokers {address}"
        _tell(
            "It is not for production: all is in memory and gone when it ends, it keeps about 5 MB of a partition and",
            "then drops the oldest messages, and it serves this machine only.",
            "Send messages from another terminal, one JSON object a line (--key FIELD sets Kafka's key):",
            f"  echo '{{\"order_id\": 1}}' | python -m weft.streams.demo.send --topic {topics[0]}{brokers}",
        )
        _tell("Ctrl+C ends it.")
        stopped.get()
        _tell("The broker has ended; its messages are gone.")


def main() -> None:
    """Parse the command line, and run the broker."""
    parser = argparse.ArgumentParser(
        prog="python -m weft.streams.demo.broker",
        description="Run a Kafka broker in memory, for trying weft without a Kafka, until Ctrl+C. Messages come from "
        "--file, or from any Kafka client, such as python -m weft.streams.demo.send.",
    )
    parser.add_argument("--topic", action="append", default=[], help="a topic to create; may be repeated")
    parser.add_argument(
        "--file", action="append", default=[], metavar="TOPIC=PATH", help="send a file with one JSON object a line"
    )
    parser.add_argument("--key", metavar="FIELD", help="the field of the objects that becomes Kafka's key")
    parser.add_argument("--port", type=int, default=PORT, help=f"default: {PORT}; 0: any that is free")
    parser.add_argument("--partitions", type=int, default=PARTITIONS, help=f"of each topic; default: {PARTITIONS}")
    try:
        run(parser.parse_args())
    except TableError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
