"""Finds the tables of ``weft services``: locations, pipeline files, patterns of these, and text files with a list."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from weft.storage.errors import InvalidInput, NotFound
from weft.streams.pipeline.file.pipeline import is_pipeline

LIST: Final = "@"
_PATTERN: Final = frozenset("*?[")
_LOG: Final = "_weft"  # a folder that contains this one is a table


@dataclass(frozen=True, slots=True)
class TableTarget:
    """A table: its name in the status, and its location or pipeline file."""

    name: str
    text: str


def list_tables(arguments: Sequence[str]) -> list[TableTarget]:
    """The tables named by the arguments of the command line, each once, in the order of the arguments.

    Args:
        arguments: Each a location, a pipeline file, a local pattern of these (``lake/*``, ``pipelines/*.yaml``), or
            ``@FILE``: a text file with one of these per line, relative to its folder; ``#`` begins a comment.

    Raises:
        NotFound: The text file does not exist.
        InvalidInput: A pattern matches no table, or is a URL.
    """
    texts = list(dict.fromkeys(text for argument in arguments for text in _expand(argument, Path())))
    if not texts:
        raise InvalidInput("no tables are named", hint="for example: weft services s3://lake/orders pipelines/*.yaml")
    names = _names(texts)
    return [TableTarget(names[text], text) for text in texts]


def _expand(argument: str, folder: Path) -> Iterator[str]:
    if argument.startswith(LIST):
        path = folder / argument.removeprefix(LIST)
        for line in _lines(path):
            yield from _expand(line, path.parent)
        return
    if "://" in argument:
        if _PATTERN & set(argument):
            raise InvalidInput(
                f"{argument}: patterns match local files only", hint="name each table, or list them in a file"
            )
        yield argument
        return
    whole = str(folder / argument)
    if not _PATTERN & set(argument):
        yield whole
        return
    # Path.glob does not accept an absolute pattern.
    paths = sorted(text for text in glob.glob(whole, recursive=True) if _is_table(text))  # noqa: PTH207
    if not paths:
        raise InvalidInput(f"{argument}: matches no table and no pipeline file", hint="quote it, and check the folder")
    yield from paths


def _lines(path: Path) -> Iterable[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise NotFound(f"{path}: cannot be read: {error.strerror}", hint="create it, with one table per line") from None
    return [line for line in (line.partition("#")[0].strip() for line in text.splitlines()) if line]


def _is_table(text: str) -> bool:
    path = Path(text)
    return (is_pipeline(text) and path.is_file()) or (path / _LOG).is_dir()


def _names(texts: Sequence[str]) -> Mapping[str, str]:
    """The name of each text: its last part if that is unique, otherwise the whole text."""
    short = {text: Path(text).stem if is_pipeline(text) else text.rstrip("/").rpartition("/")[2] for text in texts}
    names = list(short.values())
    return {text: name if name and names.count(name) == 1 else text for text, name in short.items()}
