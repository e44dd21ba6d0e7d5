"""Commands that change a table as a whole: compaction, cleaning, savepoints, restore, lanes, verification.

Commands whose effect cannot be undone ask for confirmation; without a terminal they need ``--yes``.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated

import typer

from storage import verify_table
from storage.engine import (
    CompactionResult,
    Execute,
    FoldResult,
    RestoreResult,
    Stage,
    check_open_lane,
    check_reachable,
    one_by_one,
    plan_compaction,
    plan_fold,
)
from storage.errors import InvalidInput
from storage.plural import counted
from streams.cli import completion
from streams.cli.arguments import (
    FAILED,
    Concurrency,
    Json,
    Memory,
    Section,
    StorageOption,
    Target,
    errors,
    flag_of,
    load_target,
    open_location,
    open_table,
    override,
    print_override,
    usage_errors,
)
from streams.cli.examples import examples
from streams.cli.output import print_result
from streams.cli.progress import Quiet, finish_shown, progress
from streams.pipeline.letter_places import expire_letters, load_letter_places, retentions_of
from streams.pipeline.model import CleanSection, CommandSettings, CompactionSection
from streams.pipeline.pipeline import is_pipeline
from streams.pipeline.services import CLEAN, COMPACTION, clean_table
from streams.read.as_of import check_clocks, parse_point
from streams.read.plain_values import json_value

services = typer.Typer()

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
AsOf = Annotated[
    str | None,
    typer.Option(
        help="A time (ISO 8601 with zone), a savepoint or a cut; now by default.",
        autocompletion=completion.savepoints,
    ),
]


def confirm(question: str, *, yes: bool) -> None:
    """Ask before a command whose effect cannot be undone; ``yes``: it was confirmed already."""
    if yes:
        return
    if not sys.stdin.isatty():
        with usage_errors():
            raise InvalidInput(f"{question} There is no terminal to confirm it", hint="add --yes")
    typer.confirm(question, abort=True)


@services.command(
    epilog=examples(
        "weft compact lake/orders_wide",
        "weft compact lake/orders_wide --fold",
        "weft compact shop/pipeline.yaml --all --concurrency 4 --memory '2 GB'",
    )
)
def compact(
    target: Target,
    fold: Annotated[
        bool, typer.Option("--fold", help="Only merge small log files; base files stay as they are.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="Compact everything, due or not.")] = False,
    min_commits: Annotated[
        int | None, typer.Option(min=1, help="A file group is due when this many of its commits are not compacted.")
    ] = None,
    max_log_ratio: Annotated[
        float | None, typer.Option(help="Or when its logs are larger than this share of its base file.")
    ] = None,
    max_read_amplification: Annotated[
        float | None,
        typer.Option(min=1, help="Or when a read fetches more than this many times the bytes of its base."),
    ] = None,
    max_age: Annotated[str | None, typer.Option(help="Or when a commit has waited for this long: 1 hour.")] = None,
    fold_commits: Annotated[int | None, typer.Option(min=2, help="Fold when this many commits are not folded.")] = None,
    concurrency: Concurrency = None,
    memory: Memory = None,
    on_cluster: Annotated[
        bool | None,
        typer.Option("--on-cluster/--here", help="With Spark, by the pipeline's section spark; else in this process."),
    ] = None,
    storage_option: StorageOption = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Merge all logs of a table into its base files. Blocks no reader or writer.

    With a pipeline file, or with settings, compacts only what is due, like one round of the service of weft run. Works
    in this process, unless --on-cluster is given or the pipeline says compaction: {on: cluster}.
    """
    settings = load_target(target, storage_option, COMPACTION, "spark")
    flags = {
        "min_commits": min_commits,
        "max_log_ratio": max_log_ratio,
        "max_read_amplification": max_read_amplification,
        "max_age": max_age,
        "fold_commits": fold_commits,
    }
    with usage_errors():
        section = _compaction_section(settings, flags, everything=everything)
        here = settings.compaction or CompactionSection()
        here = _with_flags(settings, COMPACTION, here, {"concurrency": concurrency, "memory": memory})
    if on_cluster is None:
        on_cluster = settings.compaction is not None and settings.compaction.on == "cluster"
    table = open_location(settings.table)
    policy = None if section is None else section.policy
    rounds: list[CompactionResult | FoldResult] = []
    with _executor("compact", settings, on_cluster=on_cluster, here=here.execute) as execute:
        if not fold:
            rounds.append(finish_shown("compacting", plan_compaction(table, policy, execute), quiet=quiet))
        if fold or policy is not None:
            rounds.append(finish_shown("folding", plan_fold(table, policy, execute=execute), quiet=quiet))
    if policy is not None:
        rounds = [result for result in rounds if result.done or result.skipped]
    lines = [_describe_round(result) for result in rounds] or [
        "nothing is due by the settings; --all compacts everything"
    ]
    reasons = Counter(why for result in rounds for why in result.skipped.values())
    lines.extend(f"skipped {counted(count, 'file group')}: {why}" for why, count in reasons.items())
    compacted = next((result for result in rounds if fold or isinstance(result, CompactionResult)), None)
    folded = next((result for result in rounds if result is not compacted), None)
    done = {
        "file_groups": len(compacted.done) if compacted else 0,
        "file_groups_folded": len(folded.done) if folded else 0,
        "skipped": {group: why for result in rounds for group, why in result.skipped.items()},
        "rows": compacted.rows if compacted else 0,
        "bytes_read": sum(result.bytes_read for result in rounds),
        "bytes_written": sum(result.bytes_written for result in rounds),
        "seconds": round(sum(result.seconds for result in rounds), 3),
    }
    print_result(done, "\n".join(lines), as_json=as_json)


def _executor(
    what: str, settings: CommandSettings, *, on_cluster: bool, here: Execute = one_by_one
) -> AbstractContextManager[Execute]:
    """The `Execute` that runs the tasks of a command: on a cluster, or ``here`` in this process."""
    if not on_cluster:
        return nullcontext(here)
    from streams.write.cluster_job import cluster_executor

    return cluster_executor(what, settings)


def _compaction_section(
    settings: CommandSettings, flags: Mapping[str, object], *, everything: bool
) -> CompactionSection | None:
    """The settings that decide what is due: the file's, overridden by flags. None: compact everything.

    Raises:
        InvalidInput: A setting is out of its range, or contradicts ``--all``.
    """
    given = [name for name, value in flags.items() if value is not None]
    if everything and given:
        raise InvalidInput("--all compacts everything, due or not", hint=f"remove --all, or {flag_of(given[0])}")
    if everything and settings.compaction is not None:
        print_override("--all", "settings that decide when compaction is due")
    if everything or (settings.compaction is None and not given):
        return None
    return _with_flags(settings, COMPACTION, settings.compaction or CompactionSection(), flags)


def _with_flags(settings: CommandSettings, section: str, before: Section, flags: Mapping[str, object]) -> Section:
    """A section of the file, overridden by flags; prints which of its settings they override."""
    policy = override(before, flags)
    for name, value in flags.items():
        written = settings.as_written(section, name)
        if value is not None and written is not None and getattr(policy, name) != getattr(before, name):
            print_override(f"{flag_of(name)} {value}", written)
    return policy


def _describe_round(result: CompactionResult | FoldResult) -> str:
    if not result.done:
        return "nothing to do: no commit waits for compaction"
    what = "base files" if isinstance(result, CompactionResult) else "log files"
    return (
        f"{counted(len(result.done), 'file group')}, {counted(result.rows, 'row')}: "
        f"{result.bytes_read / 1e6:.1f} MB read, "
        f"{result.bytes_written / 1e6:.1f} MB of {what} written in {result.seconds:.1f} s"
    )


@services.command(
    epilog=examples(
        "weft savepoint lake/orders_wide before_migration --note 'ticket 12'",
        "weft savepoint lake/orders_wide",
        "weft savepoint lake/orders_wide before_migration --release",
    )
)
def savepoint(
    target: Target,
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of the savepoint; without one, all savepoints are listed.",
            autocompletion=completion.savepoints,
        ),
    ] = None,
    as_of: AsOf = None,
    note: Annotated[str, typer.Option(help="A note about its purpose.")] = "",
    release: Annotated[bool, typer.Option("--release", help="Release it: cleaning may delete its files.")] = False,
    storage_option: StorageOption = None,
    as_json: Json = False,
) -> None:
    """Keep a snapshot under a name, until it is released; or list all savepoints."""
    if name is None and (release or as_of or note):
        with usage_errors():
            raise InvalidInput("a savepoint needs a name", hint="weft savepoint TARGET NAME")
    table = open_table(target, storage_option)
    if name is None:
        listed = table.savepoints()
        if not listed and not as_json:
            errors.print("there are no savepoints", style="dim")
        for known in listed:
            made = dt.datetime.fromtimestamp(known.made_at_ms / 1000, dt.UTC).isoformat(timespec="seconds")
            print_result(known, f"{known.name}  {made}  {known.cut}  {known.note}".rstrip(), as_json=as_json)
    elif release:
        table.release_savepoint(name)
        print_result({"released": name}, f"savepoint {name} is released", as_json=as_json)
    else:
        made_now = table.savepoint(name, parse_point(as_of), note)
        print_result(made_now, f"savepoint {name} keeps {made_now.cut}", as_json=as_json)


@services.command(
    epilog=examples(
        "weft restore lake/orders_wide before_migration", "weft restore lake/orders_wide 2026-11-20T10:00:00Z --yes"
    )
)
def restore(
    target: Target,
    to: Annotated[
        str,
        typer.Argument(
            metavar="SAVEPOINT|TIME|CUT", help="The snapshot to restore.", autocompletion=completion.savepoints
        ),
    ],
    yes: Yes = False,
    storage_option: StorageOption = None,
    as_json: Json = False,
) -> None:
    """Restore a table to a snapshot. Fences all writers; later commits are rolled back, and no file is deleted."""
    with usage_errors():
        point = parse_point(to)
    assert point is not None
    table = open_table(target, storage_option)
    table.snapshot(point)  # reports a wrong name before it asks
    confirm(f"Restore {table.uri} to {to}? Every writer is fenced.", yes=yes)
    result = table.restore(point)
    print_result(result, _describe_rollback("restored", result), as_json=as_json)


@services.command(
    epilog=examples(
        "weft undo lake/orders_wide payments --since 2026-11-20T10:00:00Z",
        "weft undo lake/orders_wide payments --since before_migration --yes",
    )
)
def undo(
    target: Target,
    stream: Annotated[str, typer.Argument(help="The stream.", autocompletion=completion.stream_names)],
    since: Annotated[
        str,
        typer.Option(
            help="A time (ISO 8601 with zone), a cut or a savepoint: later commits are rolled back.",
            autocompletion=completion.savepoints,
        ),
    ],
    yes: Yes = False,
    storage_option: StorageOption = None,
    as_json: Json = False,
) -> None:
    """Roll back what one stream has committed since a time, a cut or a savepoint; other streams are not affected.

    Reports commits that were kept only because a writer's clock says that they are older. With a cut or a savepoint
    there are none.
    """
    with usage_errors():
        point = parse_point(since)
        if isinstance(point, dt.datetime) and point > dt.datetime.now(dt.UTC):
            raise InvalidInput(f"nothing can have been committed since {since}", hint="give a time in the past")
    table = open_table(target, storage_option)
    table.schema.stream(stream)  # reports a wrong name before it asks, as the next one
    if isinstance(point, str):
        with usage_errors():
            table.snapshot(point)
    else:
        check_clocks(table)
    confirm(f"Undo {stream} since {since} in {table.uri}? Its writer is fenced.", yes=yes)
    result = table.undo(stream, point)
    print_result(result, _describe_rollback("undone", result), as_json=as_json)


def _moment(time_ms: int) -> str:
    return dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC).isoformat(timespec="milliseconds")


def _describe_rollback(what: str, result: RestoreResult) -> str:
    """Describe what a restore or an undo kept of each lane. The last entry that it rolled back is the fencing claim."""
    lines = [f"{what} with entry {result.entry} of the table lane; writers are fenced, and may be started again"]
    for lane, seq in result.kept.items():
        count = result.rolled_back[lane] - 1
        known = result.before.get(lane, 0)
        gone = "nothing new" if known else "it has no later entry"
        if count > 0:
            gone = f"{counted(count, 'entry')} after it rolled back"
        if lane in result.rolled_back_ms:
            gone += " (committed {} to {})".format(*map(_moment, result.rolled_back_ms[lane]))
        if known:
            gone += f"; {counted(known, 'later entry')} had been rolled back before"
        if lane in result.kept_ms:
            gone += f"; what is kept ends at {_moment(result.kept_ms[lane])}"
        lines.append(f"{lane}: kept up to entry {seq}, {gone}")
    for lane, (first, last) in result.in_doubt.items():
        lines.append(f"{lane}: entries {first} to {last} were kept only because of a clock: check them")
    return "\n".join(lines)


@services.command(epilog=examples("weft mark lake/orders_wide"))
def mark(target: Target, storage_option: StorageOption = None, as_json: Json = False) -> None:
    """Record what is committed now, so that the snapshot at any time up to now cannot change any more.

    Writers and services do this once a minute.
    """
    until = open_table(target, storage_option).mark().isoformat(timespec="milliseconds")
    print_result({"settled": until}, f"times up to {until} are settled", as_json=as_json)


@services.command(epilog=examples("weft fence lake/orders_wide orders"))
def fence(
    target: Target,
    lane: Annotated[str, typer.Argument(help="The lane of the dead writer.", autocompletion=completion.lane_names)],
    yes: Yes = False,
    storage_option: StorageOption = None,
) -> None:
    """Fence the writer of a lane that seems to be dead. If it was only slow it stops, and nothing is lost."""
    table = open_table(target, storage_option)
    check_open_lane(table, lane)  # reports a wrong name before it asks
    confirm(f"Fence the writer of lane {lane} of {table.uri}?", yes=yes)
    typer.echo(
        f"lane {lane} is claimed with entry {table.fence(lane)}; weft clean deletes uncommitted files of its writer"
    )


@services.command(epilog=examples("weft close lake/orders_wide backfill-2025"))
def close(
    target: Target,
    lane: Annotated[str, typer.Argument(help="The lane to close.", autocompletion=completion.lane_names)],
    yes: Yes = False,
    storage_option: StorageOption = None,
) -> None:
    """Close a lane permanently, for example that of a finished backfill; its rows stay."""
    table = open_table(target, storage_option)
    check_open_lane(table, lane)
    confirm(f"Close lane {lane} of {table.uri} permanently?", yes=yes)
    typer.echo(f"lane {lane} is closed; its last entry is {table.close_lane(lane)}")


@services.command(
    epilog=examples("weft clean lake/orders_wide --retain '7 days' --dry-run", "weft clean shop/pipeline.yaml")
)
def clean(
    target: Target,
    retain: Annotated[
        str | None,
        typer.Option(help="Keep every snapshot that was the newest within this time: 0, 7 days; default 24 hours."),
    ] = None,
    versions: Annotated[
        int | None, typer.Option(min=1, help="Keep the snapshots of this many last compactions.")
    ] = None,
    abandon_after: Annotated[
        str | None, typer.Option(help="Abort open compactions that are older than this; default 24 hours.")
    ] = None,
    close_after: Annotated[
        str | None,
        typer.Option(help="Close the lanes of query ids that have written nothing for this time; default never."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be deleted.")] = False,
    storage_option: StorageOption = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Delete what no retained snapshot needs, and what dead writers and compactions left. Blocks no reader or writer.

    With a pipeline file, its section clean says what is kept; flags override it. Dead letters are deleted after the
    time that their writer declares: dead_letter: {keep: 30 days}.
    """
    settings = load_target(target, storage_option, CLEAN)
    flags = {"retain": retain, "versions": versions, "abandon_after": abandon_after, "close_after": close_after}
    with usage_errors():
        policy = _with_flags(settings, CLEAN, settings.clean or CleanSection(), flags)
        places = load_letter_places(target)[1] if is_pipeline(target) else []
    table = open_location(settings.table)
    with progress("cleaning", quiet=quiet) as show:
        result = clean_table(table, policy, dry_run=dry_run, progress=show)
    lines = [f"{'would delete' if dry_run else 'deleted'} {counted(result.files, 'file')}, {result.bytes / 1e6:.1f} MB"]
    lines.extend(
        f"  {kind}: {counted(deleted.files, 'file')}, {deleted.bytes / 1e6:.1f} MB"
        for kind, deleted in result.deleted.items()
    )
    lines.extend(f"  {path}" for path in result.listed)
    if result.archived:
        verb = "would move" if dry_run else "moved"
        lines.append(
            f"{verb} {counted(result.archived, 'entry')} of the log into {counted(result.archives, 'archive')}"
        )
    if result.retired:
        verb = "would retire" if dry_run else "retired"
        lines.append(f"{verb} {counted(len(result.retired), 'closed lane')}, whose rows are in slices")
    lines.append(f"snapshots from entry {result.oldest_retained} of the table lane on are kept: {result.reason}")
    lines.extend(f"kept besides by {kept.what} {kept.name}: {kept.cut}" for kept in result.held)
    lines.extend(f"aborted as abandoned: compaction {plan}" for plan in result.aborted)
    lines.extend(f"not deleted, because it is not a file of weft: {path}" for path in result.foreign)
    if result.foreign_files > len(result.foreign):
        lines.append(f"  and {result.foreign_files - len(result.foreign)} more")
    retentions = retentions_of(places, table, settings.table)
    if not retentions:
        print_result(result, "\n".join(lines), as_json=as_json)
        return
    letters = expire_letters(retentions, dry_run=dry_run)
    verb = "would delete" if dry_run else "deleted"
    lines.append(f"{verb} {counted(letters.files, 'file')} of dead letters, {letters.bytes / 1e6:.1f} MB")
    print_result({**json_value(result), "dead_letters": letters}, "\n".join(lines), as_json=as_json)


@services.command(epilog=examples("weft verify lake/orders_wide", "weft verify s3://lake/orders_wide --shallow --json"))
def verify(
    target: Target,
    shallow: Annotated[bool, typer.Option("--shallow", help="Look at the sizes of files, not into them.")] = False,
    on_cluster: Annotated[
        bool, typer.Option("--on-cluster", help="Read the files with Spark, by the pipeline's section spark.")
    ] = False,
    storage_option: StorageOption = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Check a table: log, files, keys, statistics. Lists all problems, what they mean, and how to fix them.

    Nothing is changed. A table that cannot even be opened is checked, too.
    """
    settings = load_target(target, storage_option, "spark")
    location = settings.table
    check_reachable(location.uri, location.storage_options)
    with (
        progress("verifying", quiet=quiet) as show,
        _executor("verify", settings, on_cluster=True) if on_cluster else nullcontext() as execute,
    ):
        report = verify_table(
            location.uri,
            storage_options=location.storage_options,
            deep=not shallow,
            progress=lambda done, total: show(Stage("verifying", done, total, "objects")),
            execute=execute,
        )
    print_result(report, str(report), as_json=as_json)
    if not report.ok:
        raise typer.Exit(FAILED)
