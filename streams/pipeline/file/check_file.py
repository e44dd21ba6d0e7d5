"""Finds everything that is wrong with a pipeline file, without Spark and without starting or changing anything.

`weft.streams.pipeline.file.pipeline.load_pipeline` raises what the file alone shows. Here the existing table,
referenced tables and local folders are looked at, too. `weft.streams.write.check_expressions` checks the expressions
with Spark.
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
from weft.streams.pipeline.file.check import check_same_table, reference_problems, ttl_problems, writer_problems
from weft.streams.pipeline.file.check_sources import source_problems
from weft.streams.pipeline.file.file_problems import FileProblem, fields_of, parse_sound, placed
from weft.streams.pipeline.file.model import Pipeline, PipelineConfig
from weft.streams.pipeline.file.pipeline import SECTIONS, resolve, resolve_references
from weft.streams.pipeline.file.pipeline_file import read_file


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """What could be read of a pipeline file.

    Attributes:
        pipeline: The parts without problems; None if too little is left.
        schema: Schema of the table: of the existing one, else that of the file; None if neither is known.
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
    found: list[InvalidInput] = []
    given = parse_sound(PipelineConfig, resolve_references(raw, path, environment, found.append), SECTIONS, found)
    pipeline = schema = None
    if given is not None:
        pipeline = resolve(path, given, found.append, fields_of(found))
        schema = None if pipeline.config is None else build_schema(pipeline.config)
        there = _existing_schema(pipeline, found)
        if there is not None:
            if schema is None:
                for writer in pipeline.writers.values():
                    found.extend(writer_problems(writer, there))
            schema = there
        if schema is not None:
            found.extend(ttl_problems(pipeline, schema))
            found.extend(_reference_problems(pipeline, schema))
            found.extend(_publish_problems(pipeline, schema, fields_of(found)))
        found.extend(source_problems(pipeline, {problem.message for problem in found}))
        found.extend(_path_problems(pipeline))
    return CheckedFile(pipeline, schema, placed(path, found))


def _existing_schema(pipeline: Pipeline, found: list[InvalidInput]) -> TableSchema | None:
    """The schema of the existing table, and how it differs from the file."""
    try:
        there = pipeline.table.open().schema
        check_same_table(pipeline, there)
    except NotFound as error:
        if pipeline.config is None and not any(problem.message.startswith("table.config") for problem in found):
            hint = "add table.config, and weft run creates the table"
            found.append(InvalidInput(f"table.uri: {error.message}, and the file has no table.config", hint=hint))
        return None
    except TableError as error:
        found.append(InvalidInput(f"table.uri: {error.message}", hint=error.hint))
        return None
    return there


def _reference_problems(pipeline: Pipeline, schema: TableSchema) -> Iterator[InvalidInput]:
    """What is wrong with the references of the table, as far as their stores answer."""
    location = pipeline.table
    if schema.references:
        try:
            reports = reference_reports(location.uri, schema, location.storage_options)
        except TableError:
            return  # the location of the table itself is wrong, which has been found already
        yield from reference_problems(pipeline, reports)


def _publish_problems(pipeline: Pipeline, schema: TableSchema, wrong: AbstractSet[str]) -> Iterator[InvalidInput]:
    """Why a publication would never work on this machine; fields that are wrong already are left out."""
    for target in () if pipeline.publish is None else pipeline.publish.targets:
        where = f"publish.{'iceberg' if isinstance(target, IcebergTarget) else 'delta'}"
        if not {where, f"{where}.columns"} & wrong:
            try:
                target.check(schema)
            except (InvalidInput, NotFound) as error:
                yield InvalidInput(f"{where}: {error.message}", hint=error.hint)


def _path_problems(pipeline: Pipeline) -> Iterator[InvalidInput]:
    """Local folders that this process cannot write to."""
    places = {"table.uri": pipeline.table.uri, "state": str(pipeline.state)}
    for writer in pipeline.writers.values():
        where = f"writers.{writer.name}"
        places[f"{where}.checkpoint"] = writer.checkpoint
        if writer.dead_letter is not None:
            places[f"{where}.dead_letter"] = writer.dead_letter
        elif writer.on_error == "dead_letter":
            try:
                places[f"{where}.dead_letter"] = default_folder(pipeline.table.uri, writer.lane)
            except InvalidInput as error:
                yield InvalidInput(f"{where}.dead_letter: {error.message}", hint=error.hint)
    seen: set[Path] = set()
    for field, location in places.items():
        parts = urlsplit(location)
        if parts.scheme not in {"", "file"}:
            continue
        folder = Path(unquote(parts.path) if parts.scheme == "file" else location)
        nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
        if nearest in seen:
            continue
        seen.add(nearest)
        if not nearest.is_dir():
            yield InvalidInput(f"{field}: {nearest} is a file, not a folder", hint="choose another path")
        elif not os.access(nearest, os.W_OK | os.X_OK):
            yield InvalidInput(f"{field}: {nearest} cannot be written to", hint="check its permissions")
