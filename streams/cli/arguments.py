"""Arguments that commands share, the printing of errors, and exit codes.

Exit codes: 0 success; 1 failure; 2 the command line or the pipeline file is wrong, and nothing was done. `weft check`
also uses 3 (see `weft.streams.cli.check_command`), and `weft run` 4 (see
`weft.streams.pipeline.run.supervisor.ending_of_all`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import typer
from pydantic import BaseModel, ValidationError
from rich.console import Console
from typer.core import TyperGroup

from weft.storage import Table
from weft.storage.errors import InvalidInput, NotFound, TableError
from weft.storage.foreign_text import parse_json
from weft.streams.cli.completion import list_targets
from weft.streams.pipeline.file.file_problems import FileProblem, WrongFile
from weft.streams.pipeline.file.model import CommandSettings, TableLocation
from weft.streams.pipeline.file.pipeline import load_settings

Section = TypeVar("Section", bound=BaseModel)

FAILED: Final = 1
USAGE: Final = 2
PIPE_WIDTH: Final = 240
MAX_HINT_TABLES: Final = 5

stderr: Final = Console(stderr=True, highlight=False, markup=False)

Target = Annotated[
    str,
    typer.Argument(
        metavar="PIPELINE|URI", help="A pipeline file (*.yaml), or a table's location.", autocompletion=list_targets
    ),
]
StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="KEY=VALUE",
        help="Option of the table's store, as fsspec takes it, or a JSON object of several. May be repeated.",
    ),
]
Http = Annotated[
    str | None,
    typer.Option(
        metavar="[ADDRESS:]PORT",
        help="Serve /metrics, /healthz and /readyz; at 127.0.0.1 by default. 0: a free port, printed.",
    ),
]
Concurrency = Annotated[int | None, typer.Option(min=1, help="Tasks at the same time in this process; by default 1.")]
Memory = Annotated[
    str | None,
    typer.Option(help="Memory that these tasks need together, by estimate: 2 GB. A larger task runs alone."),
]
StatusJson = Annotated[bool, typer.Option("--json", help="Status as JSON lines.")]
LogFormat = Annotated[
    Literal["text", "json"] | None,
    typer.Option(
        help="Log what happens, with times: one line a batch, restart and outage. To --log-file; without it to "
        "standard output, in place of the status."
    ),
]
LogFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="File for that log. A new one is begun after 10 MB; five older ones are kept."),
]
Json = Annotated[bool, typer.Option("--json", help="JSON lines instead of tables.")]


def console() -> Console:
    """Return a console for standard output, without a limit of width in a pipe."""
    # A pipe has no width; output for another program must not be cut.
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


class Commands(TyperGroup):
    """A group of commands that prints an error of weft in red, with its hint, and exits with `FAILED`."""

    def invoke(self, ctx: Any) -> Any:
        with _exit_on_error(FAILED):
            return super().invoke(ctx)


def usage_errors() -> AbstractContextManager[None]:
    """Print an error of the block and exit with `USAGE`: the command line or the pipeline file is wrong."""
    return _exit_on_error(USAGE)


@contextmanager
def _exit_on_error(code: int) -> Iterator[None]:
    try:
        yield
    except TableError as error:
        print_error(error)
        raise typer.Exit(code) from None


def print_error(error: TableError) -> None:
    """Print an error and its hint to standard error; for a wrong pipeline file, all problems as weft check does."""
    if isinstance(error, WrongFile):
        for problem in error.problems:
            print_problem(stderr, error.file, problem, style="red")
        if error.hint and not any(problem.hint for problem in error.problems):
            stderr.print(f"hint: {error.hint}", style="dim", soft_wrap=True)
        return
    stderr.print(error.message, style="red", soft_wrap=True)
    if error.hint:
        stderr.print(f"hint: {error.hint}", style="dim", soft_wrap=True)
    if error.guide:
        stderr.print(f"guide: {error.guide}", style="dim", soft_wrap=True)


def print_problem(to: Console, file: str, problem: FileProblem, kind: str = "", style: str | None = None) -> None:
    """Print a problem of a pipeline file with its line, its hint and its guide.

    Args:
        to: The console to print to.
        file: Name of the pipeline file.
        problem: The problem.
        kind: Prefix of the message, such as ``warning: ``.
        style: Style of the message.
    """
    place = file if problem.line is None else f"{file}:{problem.line}"
    to.print(f"{place}: {kind}{problem.message}", style=style, soft_wrap=True)
    for name, text in (("hint", problem.hint), ("guide", problem.guide)):
        if text:
            to.print(f"    {name}: {text}", style="dim", soft_wrap=True)


def load_target(target: str, storage_option: Sequence[str] | None, *sections: str) -> CommandSettings:
    """Load the location of a command's table, and the command's settings from the pipeline file.

    Args:
        target: A pipeline file, or a table's location.
        storage_option: Options of the command line; they win over those of the file.
        sections: Sections of the file that the command uses, see `weft.streams.pipeline.file.pipeline.load_settings`.

    Raises:
        typer.Exit: With code `USAGE`; the error was printed.
    """
    with usage_errors():
        settings = load_settings(target, *sections)
        flag_options = parse_storage_options(storage_option or ())
    file_options = settings.table.storage_options
    for name in flag_options:
        if name in file_options and file_options[name] != flag_options[name]:
            print_override(f"--storage-option {name}", "value")  # the values themselves may be secrets
    return replace(settings, table=replace(settings.table, storage_options={**file_options, **flag_options}))


def parse_storage_options(texts: Sequence[str]) -> dict[str, Any]:
    """Parse the values of ``--storage-option``; returns options by name.

    A value is text, unless it is ``true``, ``false``, ``null``, or a JSON object or list. A number stays text, because
    keys may look like numbers; write a JSON object to pass a number.

    Raises:
        InvalidInput: A text is neither KEY=VALUE nor a JSON object. The message does not contain the value, which may
            be secret.
    """
    options: dict[str, Any] = {}
    for text in texts:
        if text.lstrip().startswith("{"):
            options.update(_json_object(text))
            continue
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InvalidInput(
                "--storage-option is neither KEY=VALUE nor a JSON object",
                hint="""for example --storage-option anon=true, or --storage-option '{"key": "..."}'""",
            )
        options[name.strip()] = _option_value(value)
    return options


def split_names(texts: Sequence[str] | None) -> list[str] | None:
    """Split the values of a repeatable option at commas; `None` if the option is absent."""
    if texts is None:
        return None
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def _json_object(text: str) -> dict[str, Any]:
    try:
        return dict(parse_json(text))
    except ValueError as error:
        where = (
            f"{error.msg} at character {error.pos + 1}"
            if isinstance(error, json.JSONDecodeError)
            else "it cannot be parsed"
        )
        raise InvalidInput(
            f"--storage-option is not a JSON object: {where}", hint="correct it, or write KEY=VALUE"
        ) from None


def _option_value(text: str) -> Any:
    if text in {"true", "false", "null"} or text.lstrip()[:1] in {"{", "["}:
        try:
            return parse_json(text)
        except ValueError:
            return text
    return text


def flag_of(setting: str) -> str:
    """Return the command-line flag for a setting of the pipeline file."""
    return f"--{setting.replace('_', '-')}"


def override(section: Section, flags: Mapping[str, object]) -> Section:
    """Return a section of the pipeline file with the values of all flags that are not None.

    Raises:
        InvalidInput: See `validate`.
    """
    values = {name: value for name, value in flags.items() if value is not None}
    return validate(type(section), {**section.model_dump(), **values})


def validate(model: type[Section], values: Mapping[str, object]) -> Section:
    """Build a model from values of the command line.

    Raises:
        InvalidInput: A value is out of range or has the wrong type. The message names the flag.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problem = error.errors()[0]
        flag = flag_of(str(problem["loc"][0]))
        raise InvalidInput(f"{flag}: {problem['msg'].removeprefix('Value error, ')}") from None


def override_and_print(settings: CommandSettings, name: str, section: Section, flags: Mapping[str, object]) -> Section:
    """Do what `override` does, and print which settings of the file are overridden."""
    changed = override(section, flags)
    print_overrides(settings, name, section, changed, flags)
    return changed


def print_overrides(
    settings: CommandSettings, name: str, before: BaseModel, after: BaseModel, flags: Mapping[str, object]
) -> None:
    """Print each setting of the section that a flag overrides, if the pipeline file has it with another value."""
    for setting, value in flags.items():
        written = settings.as_written(name, setting)
        if value is not None and written is not None and getattr(after, setting) != getattr(before, setting):
            print_override(f"{flag_of(setting)} {value}", written)


def print_override(flag: str, written: object) -> None:
    """Print that a flag overrides the pipeline file."""
    stderr.print(f"{flag} instead of the pipeline's {written}", style="dim", soft_wrap=True)


def open_table(target: str, storage_option: Sequence[str] | None) -> Table:
    """Open the table of a command."""
    return open_location(load_target(target, storage_option).table)


def open_location(location: TableLocation) -> Table:
    """Open the table at a location.

    Raises:
        StoreUnavailable: The store does not answer within a few seconds, or refuses access.
        NotFound: There is no table at the location.
    """
    with hint_at_tables():
        return location.open()


@contextmanager
def hint_at_tables() -> Iterator[None]:
    """If the block finds no table, add the tables below the current folder to the hint of the error."""
    try:
        yield
    except NotFound as error:
        tables = [path for path in list_targets("") if not path.endswith((".yaml", ".yml"))]
        if tables and "there is no table at" in error.message:
            more = f" and {len(tables) - MAX_HINT_TABLES} more" if len(tables) > MAX_HINT_TABLES else ""
            error.hint = f"{error.hint}; tables below this folder: {', '.join(tables[:MAX_HINT_TABLES])}{more}"
        raise


def print_free_port(http: tuple[str, int], port: int) -> None:
    """Print the URL of the metrics to standard error if ``--http`` asked for a free port.

    Args:
        http: Address and port of the option ``--http``; port 0 asks for a free one.
        port: The port that was opened.
    """
    address, requested_port = http
    if requested_port == 0:
        stderr.print(f"--http 0: http://{address}:{port}/metrics", soft_wrap=True)
