"""Compares the fields that a pipeline file declares with those of the newest messages.

A field that no message has is not an error: it may be new, or rare. But it is often misspelt, and then its column would
always be NULL. Needs no Spark; commits no offsets.
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
    """The result of a check of messages.

    Attributes:
        warnings: Fields that no message has, and sources without a message that can be read.
        checked: Which messages were checked, in words, by writer.
        unchecked: Why messages were not checked, by writer.
        unreachable: The writers in ``unchecked`` whose brokers or registry did not answer.
    """

    warnings: list[InvalidInput] = field(default_factory=list)
    checked: dict[str, str] = field(default_factory=dict)
    unchecked: dict[str, str] = field(default_factory=dict)
    unreachable: set[str] = field(default_factory=set)


def check_messages(writers: Mapping[str, WriterSpec], schema: TableSchema | None = None) -> MessageFindings:
    """Read the newest messages of each writer, and compare their fields with those that the writer declares.

    Brokers that do not answer are tried only once.

    Args:
        writers: The writers by name.
        schema: Schema of the table, to look for messages without an ordering value; None skips this check.
    """
    findings = MessageFindings()
    unreachable_servers: dict[str, str] = {}
    for name, writer in writers.items():
        if writer.message is None:
            findings.unchecked[name] = "the file declares no fields for them (schema)"
            continue
        servers = writer.reader_options.get("kafka.bootstrap.servers", "")
        if servers in unreachable_servers:
            findings.unchecked[name] = unreachable_servers[servers]
            findings.unreachable.add(name)
            continue
        try:
            messages, source = _read(writer)
        except (InvalidInput, NotFound) as error:  # no such topic or file, or none of the messages can be read
            findings.warnings.append(InvalidInput(f"writers.{name}.source: {error.message}", hint=error.hint))
            continue
        except TableError as error:
            findings.unchecked[name] = error.message
            findings.unreachable.add(name)
            if isinstance(error, SourceUnavailable):
                unreachable_servers[servers] = error.message
            continue
        if messages is None:
            findings.unchecked[name] = source
            continue
        count = len(messages.rows)
        description = f"{counted(count, 'message')} of {source}" if count else f"the schema of {source}"
        findings.checked[name] = description
        fields = set(messages.fields)
        if writer.file_format not in {None, "json"}:  # Spark's readers of files ignore the case of names
            fields |= {declared for declared in writer.message if declared.lower() in map(str.lower, messages.fields)}
        findings.warnings += _missing(f"writers.{name}.schema", writer.message, fields, description)
        findings.warnings += misread_times(writer, messages.rows, source)
        if schema is not None and messages.rows:
            findings.warnings += unordered_messages(writer, schema, messages.rows, source)
        names = set(filter(None, messages.key_fields))
        if writer.key and names:
            findings.warnings += _missing(f"writers.{name}.key", writer.key, names, f"the keys of {source}")
    return findings


def _read(writer: WriterSpec) -> tuple[Messages | None, str]:
    """Read messages of a source; also returns where they are from. None, and why, if the source cannot be read here."""
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


def _missing(where: str, declared: Iterable[str], fields: AbstractSet[str], source: str) -> Iterator[InvalidInput]:
    """Declared fields that no message has."""
    names = sorted(fields)
    for name in declared:
        if name in fields:
            continue
        folded = {match.lower(): match for match in names}
        suggestions = [f"did you mean {folded[match]}? " for match in get_close_matches(name.lower(), folded, 1)]
        listed = ", ".join(names[:_NAMES]) + (", ..." if len(names) > _NAMES else "")
        yield InvalidInput(
            f"{where}.{name}: not found in {source}",
            hint=f"{''.join(suggestions)}fields found: {listed}",
        )
