"""Loads and checks a pipeline file: one table, its writers and its services. START HERE for `weft run`.

Everything that can be checked without Spark and without the network is checked here, so that an error names the field
before any process starts.
    `references`      environment variables, files and keyrings in values
    `pipeline_file`   durations, locations
    `model`           the sections of the file, and the resolved `Pipeline`
    `check`           the writers against the schema of the table
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from weft.storage.config.config_file import Model, Sections
from weft.storage.config.table_config import check_config
from weft.storage.core.names import lane_name
from weft.storage.core.types import parse_type
from weft.storage.errors import InvalidInput
from weft.storage.publish.open_catalog import FOLDER
from weft.storage.publish.targets import DeltaTarget
from weft.streams.formats.format_options import check_options
from weft.streams.formats.registry import check_registry_settings, names_schema
from weft.streams.pipeline.file.check import publish_problems, refusal, writer_problems
from weft.streams.pipeline.file.check_sources import source_problems
from weft.streams.pipeline.file.file_problems import WrongFile, fields_of, parse_sound
from weft.streams.pipeline.file.model import (
    BackPressureSection,
    CleanSection,
    CommandConfig,
    CommandSettings,
    CompactionSection,
    DeadLetterSection,
    FilesSection,
    IcebergSection,
    KafkaSection,
    Pipeline,
    PipelineConfig,
    PublishSection,
    SparkSection,
    TableLocation,
    TableSection,
    TtlSection,
    WriterSection,
    WriterSpec,
)
from weft.streams.pipeline.file.pipeline_file import SUFFIXES, read_file, resolve_archives, resolve_location
from weft.streams.pipeline.file.references import References, Report
from weft.streams.spark.settings import check_redacted

__all__ = [
    "CommandSettings",
    "Pipeline",
    "TableLocation",
    "WriterSpec",
    "WrongFile",
    "is_pipeline",
    "load_pipeline",
    "load_settings",
]

_BOOTSTRAP: Final = "bootstrap.servers"
_FIXED: Final = frozenset({"subscribe", "startingoffsets"})
"""Options of ``weft_kafka`` that have a field of their own, in lower case."""
SECTIONS: Final[Sections] = {
    "table": TableSection,
    "compaction": CompactionSection,
    "clean": CleanSection,
    "ttl": TtlSection,
    "publish": PublishSection,
    "publish.iceberg": IcebergSection,
    "publish.delta": DeltaTarget,
    "back_pressure": BackPressureSection,
    "writers.*.source.kafka": KafkaSection,
    "writers.*.source.files": FilesSection,
    "writers.*.source.spark": SparkSection,
    "writers.*.dead_letter": DeadLetterSection,
    "writers.*": WriterSection,
}


def is_pipeline(text: str) -> bool:
    """Whether an argument of the command line names a pipeline file rather than a table."""
    return text.endswith(SUFFIXES) and "://" not in text


def load_settings(target: str, *sections: str, environment: Mapping[str, str] = os.environ) -> CommandSettings:
    """Settings of a command, from a pipeline file or from the location of a table.

    Args:
        target: A pipeline file or a location.
        sections: Sections to read besides ``table``: ``spark``, ``compaction``, ``clean``, ``ttl``,
            ``publish``. Others are not read, so errors in them, or environment variables that they need, do not matter.
        environment: Values of ``${NAME}``.

    Raises:
        InvalidInput, NotFound: See `load_pipeline`.
    """
    if not is_pipeline(target):
        return CommandSettings(TableLocation(target))
    path = Path(target).absolute()
    whole = {"table": {}, **read_file(path)}
    asked = {name: whole[name] for name in ("table", *sections) if name in whole}
    given, raw = read_fields(CommandConfig, asked, path, environment)
    table = TableLocation(resolve_location(given.table.uri, path.parent), given.table.storage_options)
    spark = resolve_archives(given.spark, path.parent)
    publish = _resolve_publish(given.publish, path.parent)
    return CommandSettings(table, spark, given.compaction, given.clean, given.ttl, publish, raw)


def load_pipeline(path: str | Path, environment: Mapping[str, str] = os.environ) -> Pipeline:
    """Read and check a pipeline file.

    Raises:
        NotFound: There is no such file.
        WrongFile: The file is wrong; the message names the file and every field, the hint how to fix them.
    """
    path = Path(path).absolute()
    found: list[InvalidInput] = []
    raw = resolve_references(read_file(path), path, environment, found.append)
    given = parse_sound(PipelineConfig, raw, SECTIONS, found)
    pipeline = None if given is None else resolve(path, given, found.append, fields_of(found))
    if found:
        if pipeline is not None:
            found.extend(source_problems(pipeline, {problem.message for problem in found}))
        raise WrongFile(path, found, hint="weft init DIR --example writes a file with every setting, explained")
    assert pipeline is not None, "a file from which nothing is left has a problem"
    return pipeline


def read_fields(
    model: type[Model],
    raw: dict[str, Any],
    path: Path,
    environment: Mapping[str, str],
    sections: Sections = SECTIONS,
) -> tuple[Model, dict[str, Any]]:
    """Some sections of a file as a model, and their values without references.

    Args:
        model: Model of these sections.
        raw: Their values.
        path: Absolute path of the file.
        environment: Values of ``${NAME}``.
        sections: See `weft.storage.config.config_file.parse_fields`.

    Raises:
        WrongFile: The message names every field that is wrong.
    """
    found: list[InvalidInput] = []
    resolved = resolve_references(raw, path, environment, found.append)
    given = parse_sound(model, resolved, sections, found)
    if found:
        raise WrongFile(path, found)
    assert given is not None, "a file from which nothing is left has a problem"
    return given, resolved


def resolve_references(
    raw: dict[str, Any], path: Path, environment: Mapping[str, str], report: Report
) -> dict[str, Any]:
    """The values of a file without references.

    Args:
        raw: The values.
        path: Absolute path of the file.
        environment: Environment variables.
        report: Called if a reference is wrong, or Spark would show a secret among its settings.
    """
    references = References(environment, path.parent, report)
    resolved: dict[str, Any] = references.resolve(raw)
    sections = {"spark": resolved.get("spark")}
    writers = resolved.get("writers")
    for name, writer in (writers if isinstance(writers, dict) else {}).items():
        sections[f"writers.{name}.spark"] = writer.get("spark") if isinstance(writer, dict) else None
    for where, settings in sections.items():
        if not isinstance(settings, dict):
            continue  # an error that is reported later
        for name in settings:
            if f"{where}.{name}" in references.secret_fields:
                for problem in refusal(f"{where}.{name}: ", check_redacted, name, settings):
                    report(problem)
    return resolved


def _resolve_publish(given: PublishSection | None, folder: Path) -> PublishSection | None:
    """A folder of Iceberg tables is relative to the folder of the file, as the location of the table is."""
    iceberg = None if given is None else given.iceberg
    if given is None or iceberg is None or iceberg.properties.get("type") != FOLDER:
        return given
    if not (place := iceberg.properties.get("warehouse")):
        return given
    properties = {**iceberg.properties, "warehouse": resolve_location(place, folder)}
    return given.model_copy(update={"iceberg": iceberg.model_copy(update={"properties": properties})})


def resolve(path: Path, given: PipelineConfig, report: Report, wrong: AbstractSet[str] = frozenset()) -> Pipeline:
    """The resolved form of a pipeline file.

    Args:
        path: Absolute path of the file.
        given: Its content.
        report: Called with each problem. If there are any, the result is good enough for further checks only.
        wrong: Fields that were wrong, and are not in the content.
    """
    config = schema = None
    if given.table.config is not None:
        config, schema, problems = check_config(given.table.config)
        for problem in problems:
            report(InvalidInput(f"table.config.{problem.message}", hint=problem.hint))
        if schema is None:
            config = None
    folder = path.parent
    state = Path(resolve_location(given.state or f".weft/{path.stem}", folder))
    writers = {}
    for name, section in given.writers.items():
        for problem in _section_problems(name, section, given):
            report(InvalidInput(f"writers.{name}{problem.message}", hint=problem.hint))
        writers[name] = _resolve_writer(name, section, given, folder, state)
    for problem in _shared(writers):
        report(problem)
    location = TableLocation(resolve_location(given.table.uri, folder), given.table.storage_options)
    spark = resolve_archives(given.spark, folder)
    ttl = given.ttl
    if ttl is None and "ttl" not in given.model_fields_set and config is not None and config.ttl is not None:
        ttl = TtlSection()
    pipeline = Pipeline(
        path,
        location,
        config,
        writers,
        given.compaction,
        given.clean,
        spark,
        state,
        given.back_pressure,
        ttl,
        _resolve_publish(given.publish, folder),
    )
    for problem in publish_problems(given.publish, schema):
        report(problem)
    if schema is not None:
        for writer in writers.values():
            known = f"writers.{writer.name}.select" not in wrong  # else its columns are not those of the messages
            for problem in writer_problems(writer, schema) if known else ():
                report(problem)
    return pipeline


def _section_problems(name: str, given: WriterSection, whole: PipelineConfig) -> Iterator[InvalidInput]:
    """What is wrong with one writer. Messages start with ``.field:``; the caller adds the writer's name."""
    names = {name: ""}
    for text, where in zip(given.names(name), (".stream", ".lane"), strict=True):
        names.setdefault(text, where)
    for text, where in names.items():
        yield from refusal(f"{where}: ", lane_name, text)
    for section, fields in (("schema", given.message), ("key", given.key)):
        for column, type_name in (fields or {}).items():
            yield from refusal(f".{section}.{column}: ", parse_type, type_name)
    for setting, is_given in (("key", given.key is not None), ("tombstones", given.tombstones != "ignore")):
        if is_given and not given.message:
            yield InvalidInput(f".{setting}: needs messages that are decoded", hint="add schema, or remove it")
    if given.on_error == "stop" and given.dead_letter:
        yield InvalidInput(".dead_letter: cannot be combined with on_error: stop", hint="remove one of the two")
    if isinstance(given.source, KafkaSection | FilesSection) and not given.message:
        what = "JSON message" if isinstance(given.source, KafkaSection) else "files"
        hint = f"add schema: {{column: type}} of the {what}; weft infer proposes one"
        yield InvalidInput(".schema: is missing", hint=hint)
    if isinstance(given.source, FilesSection):
        yield from _files_problems(given)
    if isinstance(given.source, KafkaSection):
        yield from _format_problems(given.source, {**whole.registry, **given.registry})
        yield from _kafka_problems(given.source, {**whole.kafka, **given.kafka})
        return
    if given.kafka:
        yield InvalidInput(".kafka: the source is not of type kafka", hint="use source.options instead")
    if given.resume == "table":
        yield InvalidInput(
            ".resume: only a Kafka source can start at the offsets that the table recorded",
            hint="remove it; after a restore give this writer a new checkpoint, a source that starts where the "
            "lane ends (weft show URI streams), and takeover: true",
        )


def _resolve_writer(name: str, given: WriterSection, whole: PipelineConfig, folder: Path, state: Path) -> WriterSpec:
    """Resolve one writer."""
    stream, lane = given.names(name)
    if isinstance(given.source, KafkaSection):
        reader_format, ddl = "weft_kafka", None
        options = kafka_options(given.source, {**whole.kafka, **given.kafka})
        expressions = [*(given.select or {}).values(), given.where or ""]
        formats = (given.source.format, given.source.key_format)  # a header may name the schema
        if any("_kafka.headers" in sql for sql in expressions) or any(map(names_schema, formats)):
            options = {"includeHeaders": "true", **options}
    elif isinstance(given.source, FilesSection):
        files, ddl = given.source, None
        # JSON is read line by line, so that a line that is not JSON is known as it is.
        reader_format = "text" if files.format == "json" else files.format
        options = {"path": resolve_location(files.path, folder), **files.options}
        if files.max_files_per_trigger is not None:
            options["maxFilesPerTrigger"] = str(files.max_files_per_trigger)
    else:
        reader_format, ddl = given.source.format, given.source.ddl
        options = dict(given.source.options)
    letters = given.dead_letter or DeadLetterSection()
    return WriterSpec(
        name=name,
        stream=stream,
        lane=lane,
        reader_format=reader_format,
        reader_options=options,
        reader_schema=ddl,
        file_format=given.source.format if isinstance(given.source, FilesSection) else None,
        message_format=given.source.format if isinstance(given.source, KafkaSection) else "json",
        format_options=given.source.format_options if isinstance(given.source, KafkaSection) else {},
        key_format=given.source.key_format if isinstance(given.source, KafkaSection) else "json",
        registry={**whole.registry, **given.registry},
        message=given.message,
        select=given.select,
        where=given.where,
        trigger_seconds=given.trigger,
        key=given.key,
        tombstones=given.tombstones,
        dead_letter=None if letters.path is None else resolve_location(letters.path, folder),
        on_error=given.on_error,
        letter_limit=given.dead_letter,
        takeover=given.takeover,
        resume=given.resume,
        lateness=given.lateness,
        checkpoint=resolve_location(given.checkpoint or str(state / "checkpoints" / name), folder),
        spark=resolve_archives({**whole.spark, **given.spark}, folder),
    )


def _format_problems(source: KafkaSection, registry: Mapping[str, str]) -> Iterator[InvalidInput]:
    """What is wrong with the options of the formats of a source, and which packages and settings they lack."""
    yield from refusal(".source.format_options.", check_options, source.format, source.format_options)
    if source.key_format.startswith("debezium"):
        yield InvalidInput(
            f".source.key_format: {source.key_format!r} is a format of values",
            hint="the key of a change event has the format json or avro",
        )
    for field, name, options in (
        ("format", source.format, source.format_options),
        ("key_format", source.key_format, {}),
    ):
        yield from refusal(f".source.{field}: ", check_registry_settings, name, registry, options)


def _files_problems(given: WriterSection) -> Iterator[InvalidInput]:
    """What is wrong with a source of files."""
    assert isinstance(given.source, FilesSection), "the caller has checked this"
    if given.tombstones != "ignore" or given.key is not None:
        setting = "tombstones" if given.key is None else "key"
        yield InvalidInput(f".{setting}: files have no Kafka key", hint="remove it")
    for option in given.source.options:
        if option.lower() in {"path", "maxfilespertrigger", "mode", "columnnameofcorruptrecord", "multiline"}:
            yield InvalidInput(
                f".source.options.{option}: is set by weft", hint="use path or max_files_per_trigger, or remove it"
            )


def _kafka_problems(source: KafkaSection, kafka: Mapping[str, str]) -> Iterator[InvalidInput]:
    """What is wrong with a Kafka source. The values of options are checked when the source is loaded."""
    if not source.topic and not source.topics:
        yield InvalidInput(".source.topic: is missing", hint="add topic, or topics for several")
    if source.topic and source.topics:
        yield InvalidInput(".source.topics: cannot be combined with topic", hint="keep one of the two")
    if not kafka.get(_BOOTSTRAP):
        close = "".join(f"{each} is written: did you mean this? " for each in get_close_matches(_BOOTSTRAP, kafka, 1))
        hint = f'{close}add kafka: {{{_BOOTSTRAP}: "host:9092"}} to the pipeline'
        yield InvalidInput(f": kafka.{_BOOTSTRAP} is missing", hint=hint)
    fixed = _FIXED if source.max_offsets_per_trigger is None else {*_FIXED, "maxoffsetspertrigger"}
    for option in source.options:
        if option.lower() in fixed or option.lower().startswith("kafka."):
            yield InvalidInput(
                f".source.options.{option}: has its own field",
                hint="use topic, starting_offsets, max_offsets_per_trigger, or the kafka section",
            )


def kafka_options(source: KafkaSection, kafka: Mapping[str, str]) -> dict[str, str]:
    """Options of ``weft_kafka``."""
    topics = [source.topic, *source.topics] if source.topic else list(source.topics)
    starting = source.starting_offsets
    fixed = {
        "subscribe": ",".join(topics),
        "startingOffsets": starting if isinstance(starting, str) else json.dumps(starting),
    }
    if source.max_offsets_per_trigger is not None:
        fixed["maxOffsetsPerTrigger"] = str(source.max_offsets_per_trigger)
    return {**fixed, **source.options, **{f"kafka.{name}": value for name, value in kafka.items()}}


def _shared(writers: Mapping[str, WriterSpec]) -> Iterator[InvalidInput]:
    """Lanes and checkpoints that two writers share."""
    for what in ("lane", "checkpoint"):
        owner: dict[str, str] = {}
        for writer in writers.values():
            value = getattr(writer, what)
            if value in owner:
                yield InvalidInput(
                    f"writers.{writer.name}.{what}: {what} {value!r} is already used by writer {owner[value]!r}",
                    hint=f"give one of them another {what}",
                )
            owner[value] = writer.name
