"""``weft infer``: proposes the schema, the select and the table of a pipeline from samples of its topics."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import yaml

from storage.config_file import parse_fields
from storage.errors import InvalidInput
from streams.cli.arguments import errors, usage_errors
from streams.pipeline.infer import Fields, Sample, infer_fields, propose
from streams.pipeline.model import KafkaSection, PipelineConfig
from streams.pipeline.pipeline import SECTIONS, kafka_options, resolve_references
from streams.pipeline.pipeline_file import read_file

infer_command = typer.Typer()

_LINE: Final = 118


@infer_command.command()
def infer(
    pipeline: Annotated[
        Path,
        typer.Argument(metavar="PIPELINE", help="A pipeline file; a writer needs only its source."),
    ],
    sample: Annotated[int, typer.Option(min=1, help="Messages to read of each writer, the newest.")] = 1000,
) -> None:
    """Propose what a pipeline file lacks, from JSON messages of its topics: schema, select, and the table.

    Prints the whole file, with notes. Check the key, the ordering columns and the groups, then run weft check. What the
    file has is kept; if it has table.config, only schemas are added. Nothing is changed or committed.
    """
    with usage_errors():
        raw = read_file(pipeline.absolute())
        given = parse_fields(PipelineConfig, resolve_references(raw, pipeline.absolute(), os.environ), SECTIONS)
        wanted = {
            name: section.source
            for name, section in given.writers.items()
            if section.message is None and isinstance(section.source, KafkaSection)
        }
        if not wanted:
            raise InvalidInput("every Kafka writer has a schema", hint="remove the schema of writers to infer it again")
        for name, source in wanted.items():
            if source.format != "json":
                raise InvalidInput(
                    f"writers.{name}.source.format: {source.format} is not inferred, only json is",
                    hint="write schema by hand, from the schema in the registry",
                )
    found: dict[str, Fields] = {}
    for name, source in wanted.items():
        section = given.writers[name]
        fields = _sampled(name, section.stream or name, source, {**given.kafka, **section.kafka}, sample)
        found[name] = fields
    typer.echo(_file(raw, found), nl=False)
    for name, fields in found.items():
        for note in fields.notes:
            errors.print(f"{name}: {note}", style="dim", soft_wrap=True)


def _sampled(name: str, stream: str, source: KafkaSection, kafka: Mapping[str, str], count: int) -> Fields:
    from streams.kafka.options import parse_options
    from streams.kafka.sample import impatient, load_topics, read_newest

    with usage_errors():
        options = impatient(parse_options(kafka_options(source, kafka), default_starting="latest"))
    rows = read_newest(options, load_topics(options), count)
    messages = list(zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True))
    fields = infer_fields(Sample(stream, messages))
    if fields is None:
        what = f"none of {len(messages):,} messages is a JSON object" if messages else "there is no message"
        raise InvalidInput(
            f"writers.{name}.source: {what} in {', '.join(options.topics)}", hint="send some, or write schema by hand"
        )
    return fields


def _file(raw: Mapping[str, Any], found: Mapping[str, Fields]) -> str:
    """The pipeline file with the proposal, as YAML. References such as ``${NAME}`` stay as they are written."""
    whole = {name: dict(section) if isinstance(section, dict) else section for name, section in raw.items()}
    proposal = propose(found)
    table = {**whole["table"]}
    adds_table = "config" not in table and len(found) == len(whole["writers"])
    if adds_table:
        table["config"] = proposal.config
    writers = {}
    for name, section in whole["writers"].items():
        added = proposal.writers.get(name, {})
        if not adds_table and "schema" in added:
            added = {"schema": added["schema"]}
        writers[name] = {**section, **{key: value for key, value in added.items() if key not in section}}
    new = {**whole, "table": table, "writers": writers}
    text = yaml.safe_dump(new, sort_keys=False, allow_unicode=True, width=_LINE)
    head = "# Proposed by weft infer from samples. Check key, ordering columns and groups, then run weft check."
    notes = [f"# {name}: {note}" for name, fields in found.items() for note in fields.notes]
    return "\n".join([head, *notes]) + "\n\n" + text
