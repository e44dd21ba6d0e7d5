"""Loads and checks a pipeline file: one table, its writers and its services. START HERE for `weft run`.

Everything that can be checked without Spark and without the network is checked here, so that an error names the field
before any process starts.
    `references`      environment variables, files and keyrings in values
    `pipeline_file`   durations, sizes, locations
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
from weft.streams.pipeline.file.file_problems import WrongFile, fields_of, parse_valid_fields
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
    content = {"table": {}, **read_file(path)}
    requested = {name: content[name] for name in ("table", *sections) if name in content}
    config, raw = read_fields(CommandConfig, requested, path, environment)
    table = TableLocation(resolve_location(config.table.uri, path.parent), config.table.storage_options)
    spark = resolve_archives(config.spark, path.parent)
    publish = _resolve_publish(config.publish, path.parent)
    return CommandSettings(table, spark, config.compaction, config.clean, config.ttl, publish, raw)


def load_pipeline(path: str | Path, environment: Mapping[str, str] = os.environ) -> Pipeline:
    """Read and check a pipeline file.

    Raises:
        NotFound: There is no such file.
        WrongFile: The file is wrong; the message names the file and every field, the hint how to fix them.
    """
    path = Path(path).absolute()
    problems: list[InvalidInput] = []
    raw = resolve_references(read_file(path), path, environment, problems.append)
    config = parse_valid_fields(PipelineConfig, raw, SECTIONS, problems)
    pipeline = None if config is None else resolve(path, config, problems.append, fields_of(problems))
    if problems:
        if pipeline is not None:
            problems.extend(source_problems(pipeline, {problem.message for problem in problems}))
        raise WrongFile(path, problems, hint="weft init DIR --example writes a file with every setting, explained")
    assert pipeline is not None, "a file without valid fields has a problem"
    return pipeline


def read_fields(
    model: type[Model],
    raw: dict[str, Any],
    path: Path,
    environment: Mapping[str, str],
    sections: Sections = SECTIONS,
) -> tuple[Model, dict[str, Any]]:
    """Parse some sections of a file as a model.

    Args:
        model: Model of these sections.
        raw: Their values.
        path: Absolute path of the file.
        environment: Values of ``${NAME}``.
        sections: See `weft.storage.config.config_file.parse_fields`.

    Returns:
        The model, and the values with their references replaced.

    Raises:
        WrongFile: The message names every field that is wrong.
    """
    problems: list[InvalidInput] = []
    resolved = resolve_references(raw, path, environment, problems.append)
    values = parse_valid_fields(model, resolved, sections, problems)
    if problems:
        raise WrongFile(path, problems)
    assert values is not None, "a file without valid fields has a problem"
    return values, resolved


def resolve_references(
    raw: dict[str, Any], path: Path, environment: Mapping[str, str], report: Report
) -> dict[str, Any]:
    """Replace the references to environment variables, files and keyrings in the values of a file.

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


def _resolve_publish(section: PublishSection | None, folder: Path) -> PublishSection | None:
    """Make the folder of Iceberg tables absolute; relative paths start at the folder of the pipeline file."""
    iceberg = None if section is None else section.iceberg
    if section is None or iceberg is None or iceberg.properties.get("type") != FOLDER:
        return section
    if not (warehouse := iceberg.properties.get("warehouse")):
        return section
    properties = {**iceberg.properties, "warehouse": resolve_location(warehouse, folder)}
    return section.model_copy(update={"iceberg": iceberg.model_copy(update={"properties": properties})})


def resolve(
    path: Path, config: PipelineConfig, report: Report, wrong_fields: AbstractSet[str] = frozenset()
) -> Pipeline:
    """Resolve a pipeline file: fill in defaults, and make paths absolute.

    Args:
        path: Absolute path of the file.
        config: Its content.
        report: Called with each problem. If there is one, use the result for further checks only.
        wrong_fields: Fields that were wrong, and are therefore not in the content.
    """
    table_config = schema = None
    if config.table.config is not None:
        table_config, schema, problems = check_config(config.table.config)
        for problem in problems:
            report(InvalidInput(f"table.config.{problem.message}", hint=problem.hint))
        if schema is None:
            table_config = None
    folder = path.parent
    state = Path(resolve_location(config.state or f".weft/{path.stem}", folder))
    writers = {}
    for name, section in config.writers.items():
        for problem in _section_problems(name, section, config):
            report(InvalidInput(f"writers.{name}{problem.message}", hint=problem.hint))
        writers[name] = _resolve_writer(name, section, config, folder, state)
    for problem in _sharing_problems(writers):
        report(problem)
    location = TableLocation(resolve_location(config.table.uri, folder), config.table.storage_options)
    spark = resolve_archives(config.spark, folder)
    ttl = config.ttl
    if "ttl" not in config.model_fields_set and table_config is not None and table_config.ttl is not None:
        ttl = TtlSection()
    pipeline = Pipeline(
        path,
        location,
        table_config,
        writers,
        config.compaction,
        config.clean,
        spark,
        state,
        config.back_pressure,
        ttl,
        _resolve_publish(config.publish, folder),
    )
    for problem in publish_problems(config.publish, schema):
        report(problem)
    if schema is not None:
        for writer in writers.values():
            if f"writers.{writer.name}.select" in wrong_fields:
                continue  # it is not in the content, so the fields of the messages would be checked in its place
            for problem in writer_problems(writer, schema):
                report(problem)
    return pipeline


def _section_problems(name: str, section: WriterSection, config: PipelineConfig) -> Iterator[InvalidInput]:
    """Problems of one writer. Their messages start with ``.field:``; the caller adds the writer's name."""
    names = {name: ""}
    source = section.source
    for text, where in zip(section.names(name), (".stream", ".lane"), strict=True):
        names.setdefault(text, where)
    for text, where in names.items():
        yield from refusal(f"{where}: ", lane_name, text)
    for part, fields in (("schema", section.message), ("key", section.key)):
        for column, type_name in (fields or {}).items():
            yield from refusal(f".{part}.{column}: ", parse_type, type_name)
    for setting, is_set in (("key", section.key is not None), ("tombstones", section.tombstones != "ignore")):
        if is_set and not section.message:
            yield InvalidInput(f".{setting}: needs messages that are decoded", hint="add schema, or remove it")
    if section.on_error == "stop" and section.dead_letter:
        yield InvalidInput(".dead_letter: cannot be combined with on_error: stop", hint="remove one of the two")
    if isinstance(source, KafkaSection | FilesSection) and not section.message:
        what = "JSON message" if isinstance(source, KafkaSection) else "files"
        hint = f"add schema: {{column: type}} of the {what}; weft infer proposes one"
        yield InvalidInput(".schema: is missing", hint=hint)
    if isinstance(source, FilesSection):
        yield from _files_problems(section)
    if isinstance(source, KafkaSection):
        yield from _format_problems(source, {**config.registry, **section.registry})
        yield from _kafka_problems(source, {**config.kafka, **section.kafka})
        return
    if section.kafka:
        yield InvalidInput(".kafka: the source is not of type kafka", hint="use source.options instead")
    if section.resume == "table":
        yield InvalidInput(
            ".resume: only a Kafka source can start at the offsets that the table recorded",
            hint="remove it; after a restore give this writer a new checkpoint, a source that starts where the "
            "lane ends (weft show URI streams), and takeover: true",
        )


def _resolve_writer(name: str, section: WriterSection, config: PipelineConfig, folder: Path, state: Path) -> WriterSpec:
    """Resolve one writer."""
    source = section.source
    stream, lane = section.names(name)
    if isinstance(source, KafkaSection):
        reader_format, ddl = "weft_kafka", None
        options = kafka_options(source, {**config.kafka, **section.kafka})
        expressions = [*(section.select or {}).values(), section.where or ""]
        formats = (source.format, source.key_format)  # a header may name the schema
        if any("_kafka.headers" in sql for sql in expressions) or any(map(names_schema, formats)):
            options = {"includeHeaders": "true", **options}
    elif isinstance(source, FilesSection):
        ddl = None
        # JSON is read as lines of text, so that a line that is not JSON becomes a dead letter as it is.
        reader_format = "text" if source.format == "json" else source.format
        options = {"path": resolve_location(source.path, folder), **source.options}
        if source.max_files_per_trigger is not None:
            options["maxFilesPerTrigger"] = str(source.max_files_per_trigger)
    else:
        reader_format, ddl = source.format, source.ddl
        options = dict(source.options)
    letters = section.dead_letter or DeadLetterSection()
    return WriterSpec(
        name=name,
        stream=stream,
        lane=lane,
        reader_format=reader_format,
        reader_options=options,
        reader_schema=ddl,
        file_format=source.format if isinstance(source, FilesSection) else None,
        message_format=source.format if isinstance(source, KafkaSection) else "json",
        format_options=source.format_options if isinstance(source, KafkaSection) else {},
        key_format=source.key_format if isinstance(source, KafkaSection) else "json",
        registry={**config.registry, **section.registry},
        message=section.message,
        select=section.select,
        where=section.where,
        trigger_seconds=section.trigger,
        key=section.key,
        tombstones=section.tombstones,
        dead_letter=None if letters.path is None else resolve_location(letters.path, folder),
        on_error=section.on_error,
        letter_limit=section.dead_letter,
        takeover=section.takeover,
        resume=section.resume,
        lateness=section.lateness,
        checkpoint=resolve_location(section.checkpoint or str(state / "checkpoints" / name), folder),
        spark=resolve_archives({**config.spark, **section.spark}, folder),
    )


def _format_problems(source: KafkaSection, registry: Mapping[str, str]) -> Iterator[InvalidInput]:
    """Problems of the format options of a source, and packages and settings that its formats lack."""
    yield from refusal(".source.format_options.", check_options, source.format, source.format_options)
    if source.key_format.startswith("debezium"):
        yield InvalidInput(
            f".source.key_format: {source.key_format!r} is a format of values",
            hint="use json or avro for the key of a change event",
        )
    for field, name, options in (
        ("format", source.format, source.format_options),
        ("key_format", source.key_format, {}),
    ):
        yield from refusal(f".source.{field}: ", check_registry_settings, name, registry, options)


def _files_problems(section: WriterSection) -> Iterator[InvalidInput]:
    """Problems of a source of files."""
    assert isinstance(section.source, FilesSection), "the caller has checked this"
    if section.tombstones != "ignore" or section.key is not None:
        setting = "tombstones" if section.key is None else "key"
        yield InvalidInput(f".{setting}: files have no Kafka key", hint="remove it")
    for option in section.source.options:
        if option.lower() in {"path", "maxfilespertrigger", "mode", "columnnameofcorruptrecord", "multiline"}:
            yield InvalidInput(
                f".source.options.{option}: is set by weft", hint="use path or max_files_per_trigger, or remove it"
            )


def _kafka_problems(source: KafkaSection, kafka: Mapping[str, str]) -> Iterator[InvalidInput]:
    """Problems of a Kafka source. The values of options are checked when the source is loaded."""
    if not source.topic and not source.topics:
        yield InvalidInput(".source.topic: is missing", hint="add topic, or topics for several")
    if source.topic and source.topics:
        yield InvalidInput(".source.topics: cannot be combined with topic", hint="keep one of the two")
    if not kafka.get(_BOOTSTRAP):
        similar = get_close_matches(_BOOTSTRAP, kafka, 1)
        suggestion = f"{similar[0]} is written: did you mean this? " if similar else ""
        hint = f'{suggestion}add kafka: {{{_BOOTSTRAP}: "host:9092"}} to the pipeline'
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


def _sharing_problems(writers: Mapping[str, WriterSpec]) -> Iterator[InvalidInput]:
    """Lanes and checkpoints that two writers share."""
    for field in ("lane", "checkpoint"):
        owner: dict[str, str] = {}
        for writer in writers.values():
            value = getattr(writer, field)
            if value in owner:
                yield InvalidInput(
                    f"writers.{writer.name}.{field}: {field} {value!r} is already used by writer {owner[value]!r}",
                    hint=f"give one of them another {field}",
                )
            owner[value] = writer.name
