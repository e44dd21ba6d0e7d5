"""Checks of the brokers, topics and registry of a writer, with its login. Reads a sample; commits no offsets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from weft.storage.plural import counted
from weft.streams.doctor.finding import Findings
from weft.streams.formats.registry import registry_client
from weft.streams.kafka.offset_plan import Topics
from weft.streams.kafka.options import KafkaOptions, parse_options
from weft.streams.kafka.sample import limit_requests, load_topics, read_newest
from weft.streams.pipeline.file.model import WriterSpec

READ: Final = frozenset({"READ", "ALL"})


def check_source(writer: WriterSpec, count: int, findings: Findings) -> pa.Table | None:
    """Check the brokers, topics and permissions of a writer with a Kafka source, and read the newest messages.

    Args:
        writer: The writer.
        count: About how many messages to read; 0 for none.
        findings: Gets the findings.

    Returns:
        The messages, with the columns of the source; None if it could not be read.
    """
    where = f"writers.{writer.name}"
    with findings.guarded(f"{where}.source"):
        options = limit_requests(parse_options(writer.reader_options, default_starting="latest"))
        topics = load_topics(options)
        findings.ok(f"{where}.kafka", f"{options.kafka['bootstrap.servers']} answers")
        messages = sum(log.high - log.low for log in topics.logs.values())
        topic_names = ", ".join(options.topics)
        parts = counted(len(topics.logs), "partition")
        findings.ok(f"{where}.source", f"{topic_names}: {parts}, at most {counted(messages, 'message')}")
        _check_permissions(where, options, findings)
        return _read(where, options, topics, count, findings)
    return None


def check_registry(writer: WriterSpec, findings: Findings) -> None:
    """Check that the schema registry of a writer answers, if its formats need one."""
    if not writer.needs_registry:
        return
    check = f"writers.{writer.name}.registry"
    with findings.guarded(check):
        registry_client(tuple(sorted(writer.registry.items()))).check()
        findings.ok(check, "the schema registry answers")


def _check_permissions(where: str, options: KafkaOptions, report: Findings) -> None:
    """Check that the brokers allow this login to read. Brokers without an authorizer allow everything."""
    check = f"{where}.permissions"
    try:
        client = AdminClient({"log_level": 2, **options.kafka})
        answers = client.describe_topics(
            TopicCollection(list(options.topics)),
            include_authorized_operations=True,
            request_timeout=options.request_timeout_seconds,
        )
        operations = {name: _names(answer.result().authorized_operations) for name, answer in answers.items()}
    except (KafkaException, ValueError) as error:
        report.skipped(check, f"the brokers do not report permissions: {error}")
        return
    for topic, allowed in operations.items():
        if allowed is None:
            report.skipped(check, f"the brokers do not report the permissions on {topic}")
        elif READ.isdisjoint(allowed):
            report.problem(check, f"this login may not read topic {topic}", "allow it the operation Read on the topic")
        else:
            report.ok(check, f"this login may read topic {topic}")


def _names(operations: Iterable[Any] | None) -> frozenset[str] | None:
    """The names of operations; None if the brokers did not return them."""
    return None if operations is None else frozenset(operation.name for operation in operations)


def _read(where: str, options: KafkaOptions, topics: Topics, count: int, findings: Findings) -> pa.Table | None:
    with findings.guarded(f"{where}.messages"):
        return read_newest(options, topics, count)
    return None
