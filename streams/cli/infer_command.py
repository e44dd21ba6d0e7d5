"""``weft infer``: proposes the schema, the select and the table of a pipeline from messages, schemas and files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.storage.config.config_file import errors_at
from weft.storage.errors import InvalidInput
from weft.streams.cli.arguments import stderr, usage_errors
from weft.streams.cli.completion import pipeline_files
from weft.streams.cli.examples import examples
from weft.streams.cli.progress import Quiet, progress
from weft.streams.formats.registry import check_registry_settings
from weft.streams.pipeline.file.model import FilesSection, KafkaSection, PipelineConfig, WriterSection
from weft.streams.pipeline.file.pipeline import kafka_options, read_fields
from weft.streams.pipeline.file.pipeline_file import read_file, resolve_location
from weft.streams.pipeline.file.yaml_comments import dump
from weft.streams.pipeline.infer.infer_key import Fields, Messages, propose_fields
from weft.streams.pipeline.infer.proposal import Proposal, propose

infer_command = typer.Typer()


@infer_command.command(epilog=examples("weft infer shop/pipeline.yaml > proposed.yaml"))
def infer(
    pipeline: Annotated[
        Path,
        typer.Argument(
            metavar="PIPELINE", help="A pipeline file; a writer needs only its source.", autocompletion=pipeline_files
        ),
    ],
    sample: Annotated[int, typer.Option(min=1, help="Messages or rows to read of each writer, the newest.")] = 1000,
    quiet: Quiet = False,
) -> None:
    """Propose what a pipeline file lacks, from messages, the schema registry and files: schema, select, and the table.

    Prints the whole file, with notes. Check the key, the ordering columns and the groups, then run weft check. What the
    file has is kept; if it has table.config, only schemas are added. Nothing is changed or committed.
    """
    with usage_errors():
        raw = read_file(pipeline.absolute())
        config, _ = read_fields(PipelineConfig, raw, pipeline.absolute(), os.environ)
        sections = {
            name: section
            for name, section in config.writers.items()
            if section.message is None and isinstance(section.source, KafkaSection | FilesSection)
        }
        if not sections:
            raise InvalidInput(
                "every Kafka writer has a schema, and so has every writer of files",
                hint="remove the schema of writers to infer it again",
            )
        for name, section in sections.items():
            if isinstance(section.source, KafkaSection):
                for field in ("format", "key_format"):
                    with errors_at(f"writers.{name}.source.{field}: "):
                        settings = {**config.registry, **section.registry}
                        check_registry_settings(getattr(section.source, field), settings)
    inferred: dict[str, Fields] = {}
    for name, section in sections.items():
        with errors_at(f"writers.{name}.source: "):
            with progress(f"reading {name}", quiet=quiet):
                fields = propose_fields(read_messages(name, section, config, pipeline.absolute().parent, sample))
            if fields is None:
                raise InvalidInput(
                    "no field has a type that a column can have", hint="write the section schema by hand"
                )
        inferred[name] = fields
    proposal = propose(inferred)
    typer.echo(_format_file(raw, inferred, proposal), nl=False)
    for name, fields in inferred.items():
        for note in (*fields.notes, *fields.guesses, *proposal.notes.get(name, ())):
            stderr.print(f"{name}: {note}", style="dim", soft_wrap=True, markup=False)
    if not config.table.config and len(inferred) < len(config.writers):
        rest = ", ".join(name for name in config.writers if name not in inferred)
        note = f"table.config and select are not proposed, because not every writer is inferred: {rest}"
        stderr.print(f"{note} (remove its schema, or write table.config)", style="dim", soft_wrap=True, markup=False)


def read_messages(name: str, section: WriterSection, config: PipelineConfig, folder: Path, count: int) -> Messages:
    """Read the newest messages of a writer, with the fields that they or their schemas have.

    Args:
        name: Name of the writer.
        section: The writer's section; only its source is used.
        config: The pipeline file.
        folder: The folder of the pipeline file, for relative paths.
        count: Maximum number of messages or rows to read.

    Raises:
        typer.Exit: A setting is wrong; the error was printed.
        TableError: The source or the schema registry does not answer, or has nothing that can be read.
    """
    source, stream = section.source, section.stream or name
    if isinstance(source, FilesSection):
        from weft.streams.pipeline.infer.infer_files import file_messages

        location = resolve_location(source.path, folder)
        return file_messages(stream, source.format, location, source.options, count)
    from weft.streams.kafka.options import parse_options
    from weft.streams.kafka.sample import limit_requests, load_topics, read_newest
    from weft.streams.pipeline.infer.infer_messages import kafka_messages, keys_and_values
    from weft.streams.pipeline.infer.infer_registry import Kafka

    assert isinstance(source, KafkaSection), "callers pass only writers of Kafka and of files"
    with usage_errors():
        settings = {**kafka_options(source, {**config.kafka, **section.kafka}), "includeHeaders": "true"}
        options = limit_requests(parse_options(settings, default_starting="latest"))
    rows = read_newest(options, load_topics(options), count).sort_by("timestamp")
    registry = {**config.registry, **section.registry}
    topic = Kafka(stream, options.topics, source.format, source.key_format, registry)
    return kafka_messages(topic, keys_and_values(rows, topic))


def _format_file(raw: Mapping[str, Any], inferred: Mapping[str, Fields], proposal: Proposal) -> str:
    """Format the pipeline file with the proposal as YAML. References such as ``${NAME}`` stay unresolved."""
    table = {**raw["table"]}
    adds_table = "config" not in table and len(inferred) == len(raw["writers"])
    if adds_table:
        table["config"] = proposal.config
    writers = {}
    for name, section in raw["writers"].items():
        additions = proposal.writers.get(name, {})
        if not adds_table and "schema" in additions:
            additions = {"schema": additions["schema"]}
        writers[name] = {**section, **additions, **section}  # the order and the values of the file stay
    new = {**raw, "table": table, "writers": writers}
    head = "# Proposed by weft infer. Check key, ordering columns and groups, then run weft check."
    notes = [
        f"# {name}: {note}"
        for name, fields in inferred.items()
        for note in (*fields.notes, *fields.guesses, *proposal.notes.get(name, ()))
    ]
    comments: dict[tuple[str, ...], str] = {}
    for name, fields in inferred.items():
        for part, texts in (("schema", fields.texts), ("select", proposal.joins.get(name, {}))):
            comments |= {("writers", name, part, field): text for field, text in texts.items()}
    return "\n".join([head, *notes]) + "\n\n" + dump(new, comments)
