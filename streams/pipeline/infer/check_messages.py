"""Compares the fields that a pipeline file declares with those that messages have, as far as messages can be read now.

A field that no message has is no error: it may be new, or rare. But it is often misspelt, and then its column would be
NULL for ever. Without Spark; commits no offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final

from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import InvalidInput, NotFound, TableError
from weft.storage.plural import counted
from weft.streams.kafka import FORMAT, SourceUnavailable
from weft.streams.kafka.options import parse_options
from weft.streams.kafka.sample import limit_requests, load_topics, read_newest
from weft.streams.pipeline.file.model import WriterSpec
from weft.streams.pipeline.infer.check_ordering import unordered_messages
from weft.streams.pipeline.infer.check_times import misread_times
from weft.streams.pipeline.infer.infer_files import file_messages, local_files
from weft.streams.pipeline.infer.infer_key import Messages
from weft.streams.pipeline.infer.infer_messages import kafka_messages, keys_and_values
from weft.streams.pipeline.infer.infer_registry import Kafka

SAMPLE: Final = 500  # messages of each writer
ANSWER_SECONDS: Final = 3.0
_NAMES: Final = 20  # that a hint lists


@dataclass(slots=True)
class MessageFindings:
    """What messages show of the writers of a file.

    Attributes:
        warnings: Fields that no message has, and sources that have no message that can be read.
        looked: What was looked at, in words, by writer.
        not_looked: Why messages were not looked at, by writer.
        unreachable: The writers among them whose brokers or registry did not answer.
    """

    warnings: list[InvalidInput] = field(default_factory=list)
    looked: dict[str, str] = field(default_factory=dict)
    not_looked: dict[str, str] = field(default_factory=dict)
    unreachable: set[str] = field(default_factory=set)


def check_messages(writers: Mapping[str, WriterSpec], schema: TableSchema | None = None) -> MessageFindings:
    """Read the newest messages of each writer that declares fields, and compare these with those of the messages.

    Brokers that do not answer are asked once.

    Args:
        writers: The writers by name.
        schema: Schema of the table, to look for messages without an ordering value; None: do not.
    """
    findings = MessageFindings()
    silent: dict[str, str] = {}
    for name, writer in writers.items():
        if writer.message is None:
            findings.not_looked[name] = "the file declares no fields for them (schema)"
            continue
        servers = writer.reader_options.get("kafka.bootstrap.servers", "")
        if servers in silent:
            findings.not_looked[name] = silent[servers]
            findings.unreachable.add(name)
            continue
        try:
            given, source = _read(writer)
        except (InvalidInput, NotFound) as error:  # no such topic or file, or none of the messages can be read
            findings.warnings.append(InvalidInput(f"writers.{name}.source: {error.message}", hint=error.hint))
            continue
        except TableError as error:
            findings.not_looked[name] = error.message
            findings.unreachable.add(name)
            if isinstance(error, SourceUnavailable):
                silent[servers] = error.message
            continue
        if given is None:
            findings.not_looked[name] = source
            continue
        of = f"{counted(len(given.rows), 'message')} of {source}" if given.rows else f"the schema of {source}"
        findings.looked[name] = of
        found = set(given.fields)
        if writer.file_format not in {None, "json"}:  # Spark's readers of files ignore the case of names
            found |= {each for each in writer.message if each.lower() in map(str.lower, given.fields)}
        findings.warnings += _missing(f"writers.{name}.schema", writer.message, found, of)
        findings.warnings += misread_times(writer, given.rows, source)
        if schema is not None and given.rows:
            findings.warnings += unordered_messages(writer, schema, given.rows, source)
        names = set(filter(None, given.key_fields))
        if writer.key and names:
            findings.warnings += _missing(f"writers.{name}.key", writer.key, names, f"the keys of {source}")
    return findings


def _read(writer: WriterSpec) -> tuple[Messages | None, str]:
    """What messages show, and where they are from; None, and why, if the source is none that can be read here."""
    options = writer.reader_options
    if writer.file_format is not None:
        files = local_files(options["path"])
        if not files:
            return (
                None,
                f"{options['path']} is not local" if files is None else f"there is no file in {options['path']}",
            )
        if writer.file_format == "csv" and options.get("header", "false").lower() != "true":
            return None, "files without a header do not name their fields"
        return file_messages(writer.stream, writer.file_format, options["path"], options, SAMPLE), options["path"]
    if writer.reader_format != FORMAT:
        return None, f"its source is Spark's format {writer.reader_format}"
    parsed = limit_requests(parse_options(options, default_starting="latest"), ANSWER_SECONDS)
    rows = read_newest(parsed, load_topics(parsed), SAMPLE).sort_by("timestamp")
    source = Kafka(writer.stream, parsed.topics, writer.message_format, writer.key_format, writer.registry)
    pairs = keys_and_values(rows, source)
    if not pairs and not writer.needs_registry:
        return None, f"there is no message in {', '.join(parsed.topics)}"
    return kafka_messages(source, pairs), ", ".join(parsed.topics)


def _missing(where: str, declared: Iterable[str], found: AbstractSet[str], source: str) -> Iterator[InvalidInput]:
    """Declared fields that no message has."""
    names = sorted(found)
    for name in declared:
        if name in found:
            continue
        folded = {each.lower(): each for each in names}
        close = [f"did you mean {folded[each]}? " for each in get_close_matches(name.lower(), folded, 1)]
        shown = ", ".join(names[:_NAMES]) + (", ..." if len(names) > _NAMES else "")
        yield InvalidInput(
            f"{where}.{name}: not found in {source}",
            hint=f"{''.join(close)}fields found: {shown}",
        )
