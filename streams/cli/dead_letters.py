"""``weft dead-letters``: shows dead letters, replays them through the current pipeline file, and drops them.

A condition (``--where``) is evaluated by a local Spark session. Without a condition only ``replay`` starts Spark.
"""

from __future__ import annotations

import datetime as dt
import itertools
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from weft.storage.errors import NotFound
from weft.storage.plural import counted
from weft.streams.cli.arguments import Json, console, open_location, stderr, usage_errors
from weft.streams.cli.completion import pipeline_files
from weft.streams.cli.examples import examples
from weft.streams.cli.operation_commands import Yes, confirm
from weft.streams.cli.output import limit_note, print_json, print_result, print_rows
from weft.streams.cli.progress import Quiet, poll_progress, progress
from weft.streams.letters.letter_files import Letter, parse_name
from weft.streams.letters.letter_folder import LetterFolder, State, Survey
from weft.streams.pipeline.file.letter_places import LetterPlace, choose_places, load_letter_places

if TYPE_CHECKING:
    from weft.streams.write.replay import ReplayResult

dead_letter_commands = typer.Typer(
    no_args_is_help=True, help="Messages that could not be stored: show, replay or drop them."
)

_DEFAULT_STATES: Final = (State.WAITING, State.REPLAYING, State.NOT_FINAL)
_CELL_CHARACTERS: Final = 60  # of a value in a table
_LINE_CHARACTERS: Final = 300  # of a value on a line of its own
_INDENT: Final = 4

PipelineFile = Annotated[
    Path, typer.Argument(metavar="PIPELINE", help="A pipeline file.", autocompletion=pipeline_files)
]
Only = Annotated[str | None, typer.Option(metavar="STREAM", help="Only the letters of this writer or stream.")]
Where = Annotated[
    str | None,
    typer.Option(
        metavar="SQL",
        help="Only letters for which this is true: reason, topic, partition, offset, timestamp, key, value, headers, "
        "schema_id, written_at, query_id, batch, task, letter.",
    ),
]
All = Annotated[bool, typer.Option("--all", help="Also letters that were replayed.")]


class By(StrEnum):
    """Property by which ``weft dead-letters count`` counts."""

    REASON = "reason"
    STREAM = "stream"
    TOPIC = "topic"
    PARTITION = "partition"
    DAY = "day"
    STATE = "state"


_MILLISECONDS: Final = "_ms"
"""Suffix of fields that hold a time. `weft dead-letters show` prints them as ISO 8601; JSON has the stored number."""


@dead_letter_commands.command(
    "list",
    epilog=examples(
        "weft dead-letters list shop/pipeline.yaml --only orders",
        "weft dead-letters list shop/pipeline.yaml --where \"reason LIKE '%UTF-8%'\"",
    ),
)
def list_letters(
    pipeline: PipelineFile,
    only: Only = None,
    where: Where = None,
    everything: All = False,
    limit: Annotated[int, typer.Option(min=1, help="Letters at most.")] = 100,
    wide: Annotated[bool, typer.Option("--wide", help="A table with one row for each letter.")] = False,
    as_json: Json = False,
) -> None:
    """List dead letters: the name of each, its state, its position, the reason, and the beginning of its value.

    States: waiting (can be replayed), replaying (in a replay that was begun), replayed, and not final (its batch is not
    committed, or was rolled back: its message is read again).
    """
    with _folders(pipeline, only, where) as (folders, choose):
        matches = (pair for folder in folders for pair in choose(folder.survey(), _states(everything=everything)))
        rows = list(itertools.islice(matches, limit + 1))
    if wide or as_json:
        columns = ("letter", "state", "stream", "time", "topic", "partition", "offset", "reason", "value")
        print_rows(columns, [_row(state, letter) for state, letter in rows[:limit]], as_json=as_json)
    else:
        for state, letter in rows[:limit]:
            _print_lines(state, letter)
    note = limit_note(limit, "dead letter") if len(rows) > limit else counted(len(rows), "dead letter")
    (stderr if as_json else console()).print(note, style="dim", soft_wrap=True)


@dead_letter_commands.command(epilog=examples("weft dead-letters count shop/pipeline.yaml --by reason"))
def count(
    pipeline: PipelineFile,
    by: Annotated[By, typer.Option(help="What to count by.")] = By.REASON,
    only: Only = None,
    where: Where = None,
    everything: All = False,
    as_json: Json = False,
) -> None:
    """Count dead letters by reason, stream, topic, partition, day or state."""
    with _folders(pipeline, only, where) as (folders, choose):
        counts = Counter(
            _value_of(by, state, letter)
            for folder in folders
            for state, letter in choose(folder.survey(), _states(everything=everything))
        )
    print_rows((by.value, "letters"), [(name, number) for name, number in counts.most_common()], as_json=as_json)


@dead_letter_commands.command(epilog=examples("weft dead-letters show shop/pipeline.yaml orders-7-0.jsonl:3"))
def show(
    pipeline: PipelineFile,
    letter: Annotated[str, typer.Argument(metavar="LETTER", help="Its name, as weft dead-letters list prints it.")],
    as_json: Json = False,
) -> None:
    """Show all fields of one dead letter."""
    with usage_errors():
        file, line = parse_name(letter)
    with _folders(pipeline, None, None) as (folders, _):
        for folder in folders:
            for state, candidate in folder.survey().letters():
                if (candidate.file, candidate.line) == (file, line):
                    _show(state, candidate, as_json=as_json)
                    return
    raise NotFound(f"there is no dead letter {letter}", hint="weft dead-letters list PIPELINE --all shows the names")


@dead_letter_commands.command(
    epilog=examples(
        "weft dead-letters replay shop/pipeline.yaml",
        "weft dead-letters replay shop/pipeline.yaml --only orders --where 'offset < 1000'",
    )
)
def replay(
    pipeline: PipelineFile, only: Only = None, where: Where = None, quiet: Quiet = False, as_json: Json = False
) -> None:
    """Send dead letters through the current pipeline file, each exactly once; writers may run meanwhile.

    A message that fails again is a dead letter again. If the command is killed or fails, repeat it: it finishes what it
    began. Messages keep their Kafka timestamp and offset, so they do not win over newer ones; only in groups without
    ordering columns the replayed message is the newest.
    """
    from weft.streams.pipeline.file.check_sources import check_sources
    from weft.streams.pipeline.file.pipeline import load_pipeline
    from weft.streams.spark.running_tasks import running_tasks
    from weft.streams.spark.session import check_java, temporary_session
    from weft.streams.write.replay import replay as replay_letters
    from weft.streams.write.replay import replayable
    from weft.streams.write.replay_frame import check_condition, choose_where, spark_run

    with usage_errors():
        loaded = load_pipeline(pipeline)
        check_sources(loaded)
        location, places = load_letter_places(pipeline)
        chosen = choose_places(places, only)
    check_java()
    table = open_location(location)
    results: list[tuple[LetterPlace, ReplayResult]] = []
    for place in chosen:
        folder = place.open(table, location)
        if not any(True for _ in folder.survey().chosen(State.WAITING, State.REPLAYING)):
            continue
        writer = loaded.writer(place.writer)
        with ExitStack() as stack:
            with progress("starting Spark", quiet=quiet):
                spark = stack.enter_context(temporary_session("weft dead-letters", writer.spark))
            if where is not None:
                with usage_errors():
                    check_condition(spark, where)
            run = spark_run(spark, table, writer, folder.store)
            choose = replayable if where is None else choose_where(spark, where)
            with poll_progress("replaying", partial(running_tasks, spark, "replaying"), quiet=quiet):
                replays = replay_letters(folder, table, place.stream, run, where=where or "", choose=choose)
            results.extend((place, result) for result in replays)
    for place, result in results:
        print_result({"writer": place.writer, **asdict(result)}, _describe(place, result), as_json=as_json)
    if not results and not as_json:
        typer.echo("no dead letter waits")


@dead_letter_commands.command(
    epilog=examples("weft dead-letters drop shop/pipeline.yaml --where \"reason LIKE '%UTF-8%'\" --yes")
)
def drop(
    pipeline: PipelineFile,
    only: Only = None,
    where: Where = None,
    everything: All = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Delete dead letters that wait. Their messages are lost, unless their source still has them.

    With --all it also deletes replayed letters, for example to erase a key. A restore cannot bring these back.
    """
    states = (State.WAITING, State.REPLAYED) if everything else (State.WAITING,)
    with _folders(pipeline, only, where) as (folders, choose):
        total = sum(1 for folder in folders for _ in choose(folder.survey(), states))
        if total:
            confirm(f"Delete {counted(total, 'dead letter')}?", yes=yes)
        dropped = 0
        for folder in folders:
            plan = folder.publish("drop", where or "", lambda survey: (letter for _, letter in choose(survey, states)))
            dropped += 0 if plan is None else plan.count
            folder.erase_dropped()
    print_result({"dropped": dropped}, f"{counted(dropped, 'dead letter')} deleted", as_json=as_json)


Choose = Callable[[Survey, Sequence[State]], Iterator[tuple[State, Letter]]]


@contextmanager
def _folders(pipeline: Path, only: str | None, where: str | None) -> Iterator[tuple[list[LetterFolder], Choose]]:
    """Yield the letter folders of the chosen writers, and the function that selects letters by state and condition."""
    with usage_errors():
        location, places = load_letter_places(pipeline)
        chosen = choose_places(places, only)
    table = open_location(location)
    folders = [place.open(table, location) for place in chosen]
    if where is None:
        yield folders, _by_state
        return
    from weft.streams.spark.session import temporary_session
    from weft.streams.write.replay_frame import check_condition, letters_where

    with temporary_session("weft dead-letters", {}) as spark:
        with usage_errors():
            check_condition(spark, where)

        def matching(survey: Survey, states: Sequence[State]) -> Iterator[tuple[State, Letter]]:
            for state in states:  # one by one, because `letters_where` returns letters without their state
                for letter in letters_where(spark, survey.chosen(state), where):
                    yield state, letter

        yield folders, matching


def _by_state(survey: Survey, states: Sequence[State]) -> Iterator[tuple[State, Letter]]:
    return ((state, letter) for state, letter in survey.letters() if state in states)


def _describe(place: LetterPlace, result: ReplayResult) -> str:
    text = f"{place.writer}: {counted(result.letters, 'letter')} replayed"
    if result.resumed:
        text += " (an earlier command began this replay)"
    text += f", {counted(result.rows, 'event')} stored"
    if result.failed:
        text += f", {counted(result.failed, 'message')} failed again"
    if result.missing:
        text += f", {counted(result.missing, 'letter')} deleted meanwhile"
    return text


def _states(*, everything: bool) -> Sequence[State]:
    return tuple(State) if everything else _DEFAULT_STATES


def _format_time(time_ms: int | None) -> str | None:
    if time_ms is None:
        return None
    return dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC).isoformat(timespec="milliseconds")


def _row(state: State, letter: Letter) -> tuple[Any, ...]:
    content = letter.content
    value = content.get("value")
    short_value = value if value is None or len(value) <= _CELL_CHARACTERS else f"{value[:_CELL_CHARACTERS]}..."
    position = (content.get(name) for name in ("topic", "partition", "offset"))
    time = _format_time(content.get("timestamp_ms"))
    return (letter.name, state.value, content.get("stream"), time, *position, content["reason"], short_value)


def _print_lines(state: State, letter: Letter) -> None:
    """Print a letter in a few lines. The reason is wrapped, and the value cut, to the width of the terminal."""
    content, out = letter.content, console()
    position = [f"{name} {content[name]}" for name in ("topic", "partition", "offset") if content.get(name) is not None]
    time = _format_time(content.get("timestamp_ms"))
    out.print(f"{letter.name}  {state.value}", style="bold", soft_wrap=True)
    source = ", ".join([f"stream {content.get('stream')}", *position, *([time] if time else [])])
    for text in (source, content["reason"]):
        for line in textwrap.wrap(str(text), out.width - _INDENT) or [""]:
            out.print(f"{' ' * _INDENT}{line}", soft_wrap=True)
    if (value := content.get("value")) is not None:
        first_line = str(value).partition("\n")[0][:_LINE_CHARACTERS]
        out.print(Text(f"{' ' * _INDENT}{first_line}", "dim"), no_wrap=True, overflow="ellipsis")


def _value_of(by: By, state: State, letter: Letter) -> Any:
    if by is By.STATE:
        return state.value
    if by is By.DAY:
        return (_format_time(letter.content.get("written_at_ms")) or "")[:10] or None
    return letter.content.get(by.value)


def _show(state: State, letter: Letter, *, as_json: bool) -> None:
    fields = {"letter": letter.name, "state": state.value, **letter.content}
    if as_json:
        print_json(fields)
        return
    for name, value in fields.items():
        if value is None:
            continue
        if name.endswith(_MILLISECONDS):
            typer.echo(f"{name.removesuffix(_MILLISECONDS):>14}  {_format_time(value)}")
        else:
            typer.echo(f"{name:>14}  {value}")
