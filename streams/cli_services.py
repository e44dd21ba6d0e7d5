"""Commands that change a table as a whole: compaction, cleaning, savepoints, restore, lanes, checks.

What cannot be taken back by the same command asks before it starts; without a terminal it wants ``--yes``.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from storage.errors import InvalidInput
from storage.services.restore import RestoreResult
from streams.cli_common import FAILED, Json, Target, errors, open_table, telling, usage
from streams.pipeline_file import parse_duration
from streams.points import parse_moment, parse_point

services = typer.Typer()

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
AsOf = Annotated[str | None, typer.Option(help="A time (ISO 8601 with zone), a savepoint or a cut; now by default.")]


def _confirm(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        with usage():
            raise InvalidInput(f"{question} Nobody can be asked here", hint="say --yes if you mean it")
    typer.confirm(question, abort=True)


def _tell(facts: Any, text: str, *, as_json: bool) -> None:
    typer.echo(json.dumps(_plain(facts), ensure_ascii=False) if as_json else text)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | frozenset | set):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


@services.command()
def compact(
    target: Target,
    fold: Annotated[bool, typer.Option("--fold", help="Only join small log files; base files stay.")] = False,
    as_json: Json = False,
) -> None:
    """Fold all logs of a table into its base files, in this process. Nobody waits for it; no answer changes."""
    with telling():
        table = open_table(target)
        result = table.fold() if fold else table.compact()
    what = "log files" if fold else "base files"
    lines = [
        f"{len(result.done)} file groups, {result.rows:,} rows: {result.bytes_read / 1e6:.1f} MB read, "
        f"{result.bytes_written / 1e6:.1f} MB of {what} written in {result.seconds:.1f} s"
        if result.done
        else "nothing to do: no commit waits"
    ]
    lines.extend(f"skipped {group}: {why}" for group, why in result.skipped.items())
    done = {
        "file_groups": len(result.done),
        "skipped": result.skipped,
        "rows": result.rows,
        "bytes_read": result.bytes_read,
        "bytes_written": result.bytes_written,
        "seconds": round(result.seconds, 3),
    }
    _tell(done, "\n".join(lines), as_json=as_json)


@services.command()
def savepoint(
    target: Target,
    name: Annotated[str | None, typer.Argument(help="Of the savepoint; without one all are listed.")] = None,
    as_of: AsOf = None,
    note: Annotated[str, typer.Option(help="What it is for.")] = "",
    release: Annotated[bool, typer.Option("--release", help="Let it go: cleaning may take its files.")] = False,
    as_json: Json = False,
) -> None:
    """Keep a snapshot under a name, until it is released; or list all savepoints."""
    if name is None and (release or as_of or note):
        with usage():
            raise InvalidInput("a savepoint needs a name", hint="weft savepoint TARGET NAME")
    with telling():
        table = open_table(target)
        if name is None:
            listed = table.savepoints()
            if not listed and not as_json:
                errors.print("there are none", style="dim")
            for known in listed:
                made = dt.datetime.fromtimestamp(known.made_at_ms / 1000, dt.UTC).isoformat(timespec="seconds")
                _tell(known, f"{known.name}  {made}  {known.cut}  {known.note}".rstrip(), as_json=as_json)
        elif release:
            table.release_savepoint(name)
            _tell({"released": name}, f"savepoint {name} is released", as_json=as_json)
        else:
            made_now = table.savepoint(name, parse_point(as_of), note)
            _tell(made_now, f"savepoint {name} keeps {made_now.cut}", as_json=as_json)


@services.command()
def restore(
    target: Target,
    to: Annotated[str, typer.Argument(metavar="SAVEPOINT|TIME|CUT", help="What the table is to be again.")],
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Make a table what it was. Every writer is fenced; what came later means nothing any more."""
    with usage():
        point = parse_point(to)
    assert point is not None
    with telling():
        table = open_table(target)
        table.snapshot(point)  # a wrong name is told before anybody is asked
        _confirm(f"Restore {table.uri} to {to}? Every writer is fenced.", yes=yes)
        result = table.restore(point)
    _tell(result, _taken_back("restored", result), as_json=as_json)


@services.command()
def undo(
    target: Target,
    stream: Annotated[str, typer.Argument(help="Whose commits.")],
    since: Annotated[str, typer.Option(help="From this time on (ISO 8601 with zone).")],
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Take back what one stream has committed since a time; other streams and their writers are not touched."""
    with usage():
        moment = parse_moment(since)
        if moment > dt.datetime.now(dt.UTC):
            raise InvalidInput(f"nothing can have been committed since {since}", hint="give a time in the past")
    with telling():
        table = open_table(target)
        _confirm(f"Undo {stream} since {since} in {table.uri}? Its writer is fenced.", yes=yes)
        result = table.undo(stream, moment)
    _tell(result, _taken_back("undone", result), as_json=as_json)


def _taken_back(what: str, result: RestoreResult) -> str:
    """What a restore or an undo has left of each lane. The last void entry is the claim that fenced its writer."""
    lines = [f"{what} with entry {result.entry} of the table lane; writers are fenced, and may be started again"]
    for lane, seq in result.kept.items():
        count = result.void[lane] - 1
        gone = f"{count:,} entr{'y' if count == 1 else 'ies'} after it void" if count > 0 else "nothing came after it"
        lines.append(f"{lane}: kept up to entry {seq}, {gone}")
    return "\n".join(lines)


@services.command()
def fence(target: Target, lane: Annotated[str, typer.Argument(help="Of the dead writer.")], yes: Yes = False) -> None:
    """Fence the writer of a lane, believed to be dead. If it is only slow it stops, and nothing is lost."""
    with telling():
        table = open_table(target)
        _confirm(f"Fence whoever writes lane {lane} of {table.uri}?", yes=yes)
        typer.echo(
            f"lane {lane} is claimed with entry {table.fence(lane)}; what its writer left is cleaned by: weft clean"
        )


@services.command()
def close(
    target: Target, lane: Annotated[str, typer.Argument(help="That nobody is to write any more.")], yes: Yes = False
) -> None:
    """Close a lane for ever, for example that of a finished backfill; its rows stay."""
    with telling():
        table = open_table(target)
        _confirm(f"Close lane {lane} of {table.uri} for ever?", yes=yes)
        typer.echo(f"lane {lane} is closed; its last entry is {table.close_lane(lane)}")


@services.command()
def clean(
    target: Target,
    retain: Annotated[str, typer.Option(help="Keep what was newest since so long ago: 24 hours, 0.")] = "24 hours",
    versions: Annotated[int | None, typer.Option(min=1, help="Keep what the last so many compactions made.")] = None,
    abandon_after: Annotated[str, typer.Option(help="Take older open compactions for dead.")] = "24 hours",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    as_json: Json = False,
) -> None:
    """Delete what no kept snapshot needs, and what dead writers and compactions left. Nobody waits for it."""
    with usage():
        keep, abandon = _duration(retain), _duration(abandon_after)
    with telling():
        result = open_table(target).clean(keep, versions, dry_run=dry_run, abandon_after=abandon)
    lines = [f"{'would delete' if dry_run else 'deleted'} {result.files:,} files, {result.bytes / 1e6:.1f} MB"]
    lines.extend(f"  {kind}: {own.files:,} files, {own.bytes / 1e6:.1f} MB" for kind, own in result.deleted.items())
    lines.extend(f"  {path}" for path in result.listed)
    lines.append(f"snapshots from entry {result.keep} of the table lane on are kept: {result.reason}")
    lines.extend(f"kept besides by {own.what} {own.name}: {own.cut}" for own in result.held)
    lines.extend(f"given up as dead: compaction {plan}" for plan in result.aborted)
    lines.extend(f"left alone, for it is none of weft's: {path}" for path in result.foreign)
    if result.foreign_files > len(result.foreign):
        lines.append(f"  and {result.foreign_files - len(result.foreign)} more")
    _tell(result, "\n".join(lines), as_json=as_json)


def _duration(text: str) -> dt.timedelta:
    try:
        return dt.timedelta(seconds=parse_duration(text))
    except ValueError as error:
        raise InvalidInput(str(error)) from None


@services.command()
def verify(
    target: Target,
    shallow: Annotated[bool, typer.Option("--shallow", help="Look at the sizes of files, not into them.")] = False,
    as_json: Json = False,
) -> None:
    """Check a table: log, files, keys, statistics. Tells all that is wrong, what it means, and the mend.

    Nothing is changed. A table that cannot even be opened is checked, too.
    """
    from rich.progress import Progress

    from storage import verify_table
    from streams.pipeline import load_location

    with usage():
        location = load_location(target)
    with telling(), Progress(console=errors, transient=True, disable=as_json or not errors.is_terminal) as bar:
        task = bar.add_task("verifying", total=None)
        report = verify_table(
            location.uri,
            storage_options=location.storage_options,
            deep=not shallow,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    _tell(report, str(report), as_json=as_json)
    if not report.ok:
        raise typer.Exit(FAILED)
