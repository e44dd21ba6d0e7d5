"""Finds everything that is wrong with a pipeline file, without Spark and without starting or changing anything.

`weft.streams.pipeline.file.pipeline.load_pipeline` checks the file alone. This module also checks the existing table,
referenced tables and local folders. `weft.streams.write.check_expressions` checks the expressions with Spark.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from weft.storage.config.table_config import build_schema
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import InvalidInput, NotFound, TableError
from weft.storage.publish.targets import IcebergTarget
from weft.storage.services.inspect.references import reference_reports
from weft.streams.letters.letter_files import default_folder
from weft.streams.pipeline.file.check import reference_problems, ttl_problems, writer_problems
from weft.streams.pipeline.file.check_sources import source_problems
from weft.streams.pipeline.file.file_problems import FileProblem, fields_of, locate_problems, parse_valid_fields
from weft.streams.pipeline.file.model import Pipeline, PipelineConfig
from weft.streams.pipeline.file.pipeline import SECTIONS, resolve, resolve_references
from weft.streams.pipeline.file.pipeline_file import read_file
from weft.streams.pipeline.file.same_table import check_same_table


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """The result of a check of a pipeline file.

    Attributes:
        pipeline: The pipeline without the fields that have problems; None if too little is left.
        schema: Schema of the existing table, else of the table in the file; None if neither is known.
        problems: The problems, in the order of the file.
    """

    pipeline: Pipeline | None
    schema: TableSchema | None
    problems: list[FileProblem]


def check_file(path: Path, environment: Mapping[str, str] = os.environ) -> CheckedFile:
    """Check a pipeline file: fields, values, the table's configuration, writers, the existing table, and local paths.

    Raises:
        NotFound: There is no such file.
        InvalidInput: The file cannot be read, or is not YAML.
    """
    path = path.absolute()
    raw = read_file(path)
    problems: list[InvalidInput] = []
    content = resolve_references(raw, path, environment, problems.append)
    config = parse_valid_fields(PipelineConfig, content, SECTIONS, problems)
    pipeline = schema = None
    if config is not None:
        pipeline = resolve(path, config, problems.append, fields_of(problems))
        schema = None if pipeline.config is None else build_schema(pipeline.config)
        existing_schema = _existing_schema(pipeline, problems)
        if existing_schema is not None:
            if schema is None:
                for writer in pipeline.writers.values():
                    problems.extend(writer_problems(writer, existing_schema))
            schema = existing_schema
        if schema is not None:
            problems.extend(ttl_problems(pipeline, schema))
            problems.extend(_reference_problems(pipeline, schema))
            problems.extend(_publish_problems(pipeline, schema, fields_of(problems)))
        problems.extend(source_problems(pipeline, {problem.message for problem in problems}))
        problems.extend(_path_problems(pipeline))
    return CheckedFile(pipeline, schema, locate_problems(path, problems))


def _existing_schema(pipeline: Pipeline, problems: list[InvalidInput]) -> TableSchema | None:
    """Read the schema of the existing table, and add how it differs from the file to the problems."""
    try:
        schema = pipeline.table.open().schema
        check_same_table(pipeline, schema)
    except NotFound as error:
        if pipeline.config is None and not any(problem.message.startswith("table.config") for problem in problems):
            hint = "add table.config, and weft run creates the table"
            problems.append(InvalidInput(f"table.uri: {error.message}, and the file has no table.config", hint=hint))
        return None
    except TableError as error:
        problems.append(InvalidInput(f"table.uri: {error.message}", hint=error.hint))
        return None
    return schema


def _reference_problems(pipeline: Pipeline, schema: TableSchema) -> Iterator[InvalidInput]:
    """Problems of the references of the table, as far as their stores answer."""
    location = pipeline.table
    if schema.references:
        try:
            reports = reference_reports(location.uri, schema, location.storage_options)
        except TableError:
            return  # the location of the table itself is wrong, which is reported already
        yield from reference_problems(pipeline, reports)


def _publish_problems(pipeline: Pipeline, schema: TableSchema, skipped: AbstractSet[str]) -> Iterator[InvalidInput]:
    """Why a publication could never work on this machine. Fields with a problem are not checked again."""
    for target in () if pipeline.publish is None else pipeline.publish.targets:
        where = f"publish.{'iceberg' if isinstance(target, IcebergTarget) else 'delta'}"
        if not {where, f"{where}.columns"} & skipped:
            try:
                target.check(schema)
            except (InvalidInput, NotFound) as error:
                yield InvalidInput(f"{where}: {error.message}", hint=error.hint)


def _path_problems(pipeline: Pipeline) -> Iterator[InvalidInput]:
    """Local folders that this process cannot write to."""
    places = {"table.uri": pipeline.table.uri, "state": str(pipeline.state)}
    for writer in pipeline.writers.values():
        writer_field = f"writers.{writer.name}"
        places[f"{writer_field}.checkpoint"] = writer.checkpoint
        if writer.dead_letter is not None:
            places[f"{writer_field}.dead_letter"] = writer.dead_letter
        elif writer.on_error == "dead_letter":
            try:
                places[f"{writer_field}.dead_letter"] = default_folder(pipeline.table.uri, writer.lane)
            except InvalidInput as error:
                yield InvalidInput(f"{writer_field}.dead_letter: {error.message}", hint=error.hint)
    checked_folders: set[Path] = set()
    for field, location in places.items():
        parts = urlsplit(location)
        if parts.scheme not in {"", "file"}:
            continue
        folder = Path(unquote(parts.path) if parts.scheme == "file" else location)
        nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
        if nearest in checked_folders:
            continue
        checked_folders.add(nearest)
        if not nearest.is_dir():
            yield InvalidInput(f"{field}: {nearest} is a file, not a folder", hint="choose another path")
        elif not os.access(nearest, os.W_OK | os.X_OK):
            yield InvalidInput(f"{field}: {nearest} cannot be written to", hint="check its permissions")
