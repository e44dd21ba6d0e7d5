"""Infers the fields of files for `weft infer`: from schemas of Parquet, and from values of JSON lines and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from weft.storage.errors import InvalidInput
from weft.streams.formats.schema_fields import SchemaField, SchemaFields, arrow_fields
from weft.streams.pipeline.infer.infer_key import Messages
from weft.streams.pipeline.infer.infer_registry import merge_versions
from weft.streams.pipeline.infer.json_types import infer_type, json_messages

MOST_FILES: Final = 20
"""How many Parquet files are read, the newest ones."""
_HIDDEN: Final = (".", "_")
_NUMBER: Final = re.compile(r"[+-]?(0|[1-9][0-9]*)")
_FRACTION: Final = re.compile(r"[+-]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)([eE][+-]?[0-9]+)?")


def file_messages(stream: str, file_format: str, location: str, options: Mapping[str, str], count: int) -> Messages:
    """Infer the fields of the rows of files.

    Args:
        stream: Name of the stream.
        file_format: ``json``, ``csv`` or ``parquet``.
        location: A local folder, file or pattern.
        options: Options of Spark's file source.
        count: Rows to read, of the newest files.

    Raises:
        InvalidInput: There is no file, it is not local, or it is not of the format.
    """
    plain, files = location.removeprefix("file://"), local_files(location)
    if files is None:
        raise InvalidInput(f"{location} is not local", hint="copy a file to a local folder, and infer from that")
    if not files:
        raise InvalidInput(f"there is no file in {plain}", hint="put one there, or write schema by hand")
    try:
        messages = _READERS[file_format](stream, files, {name.lower(): text for name, text in options.items()}, count)
    except (OSError, ValueError, csv.Error) as error:  # errors of pyarrow are ValueError
        raise InvalidInput(f"a file in {plain} is not {file_format}: {error}", hint="check format and path") from None
    if not messages.fields:
        raise InvalidInput(f"no file in {plain} has a row of {file_format}", hint="check format and path")
    return replace(messages, time="the time at which the file was modified")


def local_files(location: str) -> list[Path] | None:
    """The files of a folder or pattern, the newest first; None if it is not local."""
    plain = location.removeprefix("file://")
    if "://" in plain:
        return None
    path = Path(plain)
    if path.is_dir():
        paths = [file for file in path.iterdir() if file.is_file()]
    elif path.is_file():
        paths = [path]
    else:
        paths = [file for file in path.parent.glob(path.name) if file.is_file()]
    return sorted(
        (file for file in paths if not file.name.startswith(_HIDDEN)),
        key=lambda file: file.stat().st_mtime,
        reverse=True,
    )


def _lines(files: Sequence[Path], count: int) -> Iterator[tuple[Path, str]]:
    """The first lines of each file, ``count`` in all; a compressed file is unpacked."""
    for file in files:
        with pa.input_stream(str(file), compression="detect") as raw, io.TextIOWrapper(raw, encoding="utf-8") as text:
            for line in text:
                if count == 0:
                    return
                if line.strip():
                    count -= 1
                    yield file, line


def _read_json(stream: str, files: Sequence[Path], options: Mapping[str, str], count: int) -> Messages:  # noqa: ARG001
    return json_messages(stream, [(None, line.encode()) for _, line in _lines(files, count)])


def _read_csv(stream: str, files: Sequence[Path], options: Mapping[str, str], count: int) -> Messages:
    separator = options.get("sep", options.get("delimiter", ","))
    has_header = options.get("header", "false").lower() == "true"
    notes = []
    names: list[str] = []
    rows: list[dict[str, str | None]] = []
    by_file: dict[Path, list[str]] = {}
    for file, line in _lines(files, count):
        by_file.setdefault(file, []).append(line)
    for file, lines in by_file.items():
        records = list(csv.reader(lines, delimiter=separator, quotechar=options.get("quote") or '"'))
        header = records.pop(0) if has_header else [f"c{number + 1}" for number in range(len(records[0]))]
        names = names or header
        if header != names:
            raise ValueError(f"{file.name} has other columns than {files[0].name}")
        rows += [dict(zip(names, [value or None for value in row], strict=False)) for row in records]
    if not has_header:
        notes.append("the files have no header (options: header): the names of the fields are guesses")
    fields = {name: SchemaField(_type_of([row.get(name) for row in rows])) for name in names}
    return Messages(stream, fields, rows, [None] * len(rows), notes=tuple(notes))


def _type_of(texts: Sequence[str | None]) -> str:
    present = [text for text in texts if text is not None]
    if present and all(_NUMBER.fullmatch(text) for text in present):
        return infer_type([int(text) for text in present])
    if present and all(_FRACTION.fullmatch(text) and not re.match(r"[+-]?0[0-9]", text) for text in present):
        return "double"
    if present and all(text.lower() in {"true", "false"} for text in present):
        return "boolean"
    return infer_type(present)


def _read_parquet(stream: str, files: Sequence[Path], options: Mapping[str, str], count: int) -> Messages:  # noqa: ARG001
    notes: list[str] = []
    versions: dict[bytes, tuple[str, SchemaFields, int]] = {}
    for file in files[:MOST_FILES]:
        schema = pq.read_schema(file)
        versions.setdefault(schema.remove_metadata().serialize().to_pybytes(), ("", arrow_fields(schema), 0))
    fields = merge_versions(list(versions.values()), notes)
    rows: list[Mapping[str, Any]] = []
    for file in files[:MOST_FILES]:
        stored = pq.ParquetFile(file)
        columns = [name for name in stored.schema_arrow.names if name in fields and fields[name].type]
        for batch in stored.iter_batches(batch_size=count, columns=columns):
            rows += batch.slice(0, count - len(rows)).to_pylist()
            break
        if len(rows) >= count:
            break
    return Messages(stream, fields, rows, [None] * len(rows), notes=tuple(notes))


_READERS: Final[Mapping[str, Callable[[str, Sequence[Path], Mapping[str, str], int], Messages]]] = {
    "json": _read_json,
    "csv": _read_csv,
    "parquet": _read_parquet,
}
