"""Finds everything that is wrong with a pipeline file, without Spark and without starting or changing anything.

`streams.pipeline.pipeline.load_pipeline` raises the first problem. Here all of them are collected: what has a problem
is left out, and the rest is checked further. `streams.write.check_expressions` checks the expressions with Spark.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import yaml

from storage import Table
from storage.config import build_schema
from storage.config_file import find_problems, remove_field
from storage.engine import TableSchema, check_reachable, reference_reports
from storage.errors import InvalidInput, NotFound, TableError
from streams.letters.letter_files import default_folder
from streams.pipeline.check import check_same_table, reference_problems, ttl_problems, writer_problems
from streams.pipeline.model import Pipeline, PipelineConfig
from streams.pipeline.pipeline import SECTIONS, resolve, resolve_references
from streams.pipeline.pipeline_file import read_file

_MISSING: Final = ": is missing"
_ROUNDS: Final = 20  # each removes at least one field, and reveals problems of sections that could not be checked


@dataclass(frozen=True, slots=True)
class FileProblem:
    """A problem of a pipeline file.

    Attributes:
        message: What is wrong; it begins with the field.
        hint: What to do; may be empty.
        line: Line of the field, or of the section that lacks it, from 1; None if the file has neither.
        guide: Document and section that explain it; empty for none.
    """

    message: str
    hint: str
    line: int | None
    guide: str = ""


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
    given = _parsed(resolve_references(raw, path, environment, found.append), found)
    pipeline = schema = None
    if given is not None:
        pipeline = resolve(path, given, found.append)
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
        found.extend(_source_problems(pipeline, {problem.message for problem in found}))
        found.extend(_path_problems(pipeline))
    return CheckedFile(pipeline, schema, placed(path, found))


def placed(path: Path, problems: Sequence[TableError]) -> list[FileProblem]:
    """Problems with their lines, in the order of the file; those without a line come first."""
    lines = _Lines(path)
    unique = {problem.message: problem for problem in problems}
    wrong = {message.partition(": ")[0] for message in unique if not message.endswith(_MISSING)}
    for field in wrong:
        unique.pop(f"{field}{_MISSING}", None)  # it was left out because it is wrong
    each = [FileProblem(error.message, error.hint, lines.of(error.message), error.guide) for error in unique.values()]
    return sorted(each, key=lambda problem: problem.line or 0)


def _parsed(raw: Any, found: list[InvalidInput]) -> PipelineConfig | None:
    """The fields of the file without those that are wrong."""
    rest, removed = copy.deepcopy(raw), set()
    for _ in range(_ROUNDS):
        given, problems = find_problems(PipelineConfig, rest, SECTIONS)
        if given is not None:
            return given
        for problem in problems:
            if problem.path not in removed:
                found.append(InvalidInput(f"{problem.field}: {problem.text}", hint="; ".join(problem.hints)))
            place = problem.path[:-1] if problem.missing else problem.path
            if not place or not remove_field(rest, place):
                return None
            removed.add(place)
    return None


def _existing_schema(pipeline: Pipeline, found: list[InvalidInput]) -> TableSchema | None:
    """The schema of the existing table, and how it differs from the file."""
    location = pipeline.table
    try:
        check_reachable(location.uri, location.storage_options)
        there = Table.open(location.uri, storage_options=location.storage_options).schema
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


def _source_problems(pipeline: Pipeline, known: set[str]) -> Iterator[InvalidInput]:
    """Options of Kafka sources that are wrong, unless the source has a known problem."""
    from streams.kafka import FORMAT
    from streams.kafka.client_settings import wrong_settings
    from streams.kafka.options import parse_options

    for writer in pipeline.writers.values():
        where = (f"writers.{writer.name}.source", f"writers.{writer.name}: kafka.")
        if writer.reader_format == FORMAT and not any(message.startswith(where) for message in known):
            try:
                options = parse_options(writer.reader_options, default_starting="latest")
            except InvalidInput as error:
                yield InvalidInput(f"writers.{writer.name}.source: {error.message}", hint=error.hint)
                continue
            for wrong in wrong_settings(options.kafka):
                yield InvalidInput(f"writers.{writer.name}.source: {wrong.message}", hint=wrong.hint)


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


class _Lines:
    """Lines of the fields of a YAML file."""

    def __init__(self, path: Path) -> None:
        self._root = yaml.compose(path.read_text(encoding="utf-8"), yaml.SafeLoader)

    def of(self, message: str) -> int | None:
        """The line of the field with which a message begins."""
        node, line, rest = self._root, None, message.replace("table configuration: ", "", 1)
        while isinstance(node, yaml.MappingNode | yaml.SequenceNode):
            step = _step(node, rest)
            if step is None:
                break
            key, node, rest = step
            line = key.start_mark.line + 1
        return line


def _step(node: yaml.Node, text: str) -> tuple[yaml.Node, yaml.Node, str] | None:
    """The child with whose name a text begins: the node with its place, the node of its value, and the rest."""
    if isinstance(node, yaml.SequenceNode):
        children = [(str(number), child, child) for number, child in enumerate(node.value)]
    else:
        children = [(key.value, key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)]
    # The longest name first: names may have dots.
    for name, place, value in sorted(children, key=lambda child: -len(child[0])):
        if text.startswith(name) and text[len(name) : len(name) + 1] in {".", ":", ""}:
            rest = text[len(name) :]
            return place, value, rest[1:].lstrip() if rest.startswith(":") else rest[1:]
    return None
