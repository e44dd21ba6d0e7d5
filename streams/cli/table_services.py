"""``weft services``: one process compacts, folds, expires and cleans many tables."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final

import typer

from weft.storage import Table
from weft.storage.errors import TableError
from weft.streams.cli.arguments import (
    FAILED,
    Concurrency,
    Http,
    LogFile,
    LogFormat,
    Memory,
    StatusJson,
    StorageOption,
    console,
    override,
    parse_storage_options,
    print_free_port,
    stderr,
    usage_errors,
)
from weft.streams.cli.display import show_and_log
from weft.streams.cli.examples import examples
from weft.streams.letters.retention import Retention
from weft.streams.pipeline.file.letter_places import load_letter_places, retentions_of
from weft.streams.pipeline.file.model import CleanSection, CompactionSection, TableLocation
from weft.streams.pipeline.file.pipeline import is_pipeline, load_settings
from weft.streams.pipeline.file.reference_retention import read_retention, retention_warnings
from weft.streams.pipeline.file.table_list import list_tables
from weft.streams.pipeline.run.daemon_threads import DaemonThreads
from weft.streams.pipeline.run.http_status import StatusPage, parse_address, serve_status
from weft.streams.pipeline.run.many_tables import ManyTables
from weft.streams.pipeline.run.serve_tables import serve_tables
from weft.streams.pipeline.run.services import CLEAN, COMPACTION, PUBLISH, TTL
from weft.streams.pipeline.run.stop_signal import stop_signals
from weft.streams.pipeline.run.supervisor import JobStatus
from weft.streams.pipeline.run.table_rounds import TableSettings

services_command = typer.Typer()

MAX_OPENING: Final = 8  # tables that are opened at the same time
MAX_PUBLICATIONS: Final = 4  # tables that are published at the same time
COMPARISON_SECONDS: Final = 10.0  # with --once, wait as long for the comparison of retentions
LINE_SECONDS: Final = 60.0  # between two lines about a busy table


@services_command.command(
    name="services",
    epilog=examples(
        "weft services lake/orders_wide shop/pipeline.yaml @tables.txt --retain '7 days'",
        "weft services 'pipelines/*.yaml' --once --json",
    ),
)
def serve(
    tables: Annotated[
        list[str],
        typer.Argument(
            metavar="TABLES...", help="Tables' locations, pipeline files, patterns of both, or @FILE: a list."
        ),
    ],
    once: Annotated[bool, typer.Option("--once", help="Run one round of each table, then exit.")] = False,
    every: Annotated[
        str | None, typer.Option(help="Time between two rounds of a table; by default 30 seconds.")
    ] = None,
    retain: Annotated[
        str | None, typer.Option(help="Clean all tables, and keep the snapshots of this period: 24 hours.")
    ] = None,
    concurrency: Concurrency = None,
    memory: Memory = None,
    http: Http = None,
    log_format: LogFormat = None,
    log_file: LogFile = None,
    storage_option: StorageOption = None,
    as_json: StatusJson = False,
) -> None:
    """Compact, fold, expire and clean many tables in this process until Ctrl-C, fair between them.

    For a pipeline file, its sections compaction, ttl, publish and clean decide what is due, what is published and what
    is kept, and cleaning deletes dead letters that are older than keep. A table without a pipeline file is compacted
    by the defaults, and no file of it is deleted without --retain. The time to live of a table is applied, unless its
    pipeline file says ttl: false. Options of the command line override the files.

    A table that is damaged, or whose store does not answer, is tried again later; the other tables continue. With
    --once the exit code is 1 if a table failed.
    """
    with usage_errors():
        targets = list_tables(tables)
        options = parse_storage_options(storage_option or ())
        limits = {"every": every, "concurrency": concurrency, "memory": memory}
        override(CleanSection(), {"every": every, "retain": retain})  # reports values that cannot be parsed
        override(CompactionSection(), limits)
        address = None if http is None else parse_address(http)
    loaders = {target.name: _loader(target.text, options, limits, retain) for target in targets}
    # A store that does not answer must not keep the others waiting.
    comparison = threading.Thread(target=_compare_retentions, args=(loaders,), daemon=True)
    comparison.start()
    opener = ThreadPoolExecutor(MAX_OPENING, thread_name_prefix="weft-open")
    page, stop = StatusPage(), threading.Event()
    publisher = DaemonThreads(MAX_PUBLICATIONS)
    on_view = None if address is None else page.show_table
    many = ManyTables(loaders, once=once, opener=opener, publisher=publisher, on_view=on_view)
    with contextlib.ExitStack() as stack:
        if address is not None:
            print_free_port(address, stack.enter_context(serve_status(page, *address)))
        on_status = stack.enter_context(
            show_and_log(
                console(), as_json=as_json, log_format=log_format, log_file=log_file, line_seconds=LINE_SECONDS
            )
        )
        stack.enter_context(stop_signals(_stopper(stop)))

        def update(statuses: Sequence[JobStatus]) -> None:
            page.update(statuses)
            on_status(statuses)

        serve_tables(many, stop, update)
    if once:
        comparison.join(COMPARISON_SECONDS)
    opener.shutdown(wait=False, cancel_futures=True)  # one of its threads may wait for a store
    failed = [status for status in many.statuses if status.is_lost]
    for status in failed:
        stderr.print(f"{status.name}: {status.message}", style="red", soft_wrap=True)
    if failed:
        raise typer.Exit(FAILED)


def _compare_retentions(loaders: Mapping[str, Callable[[], TableSettings]]) -> None:
    """Warn about tables that refer to another of the tables which keeps its snapshots for a shorter time."""
    retentions = {}
    for load in loaders.values():
        with contextlib.suppress(TableError):  # the rounds of the table report it
            settings = load()
            if settings.clean is not None:
                uri, retention = read_retention(settings.location, settings.clean.retain)
                retentions[uri] = retention
    for text in retention_warnings(retentions):
        stderr.print(text, style="yellow", soft_wrap=True)


def _loader(
    text: str, options: Mapping[str, Any], limits: Mapping[str, object], retain: str | None
) -> Callable[[], TableSettings]:
    """Return a function that loads the settings of a table: its pipeline file, overridden by the command line."""

    def load() -> TableSettings:
        settings = load_settings(text, COMPACTION, CLEAN, TTL, PUBLISH)
        location = replace(settings.table, storage_options={**settings.table.storage_options, **options})
        compaction = settings.compaction if is_pipeline(text) else CompactionSection()
        if compaction is not None:
            compaction = override(compaction, limits)
        clean = settings.clean if retain is None else override(settings.clean or CleanSection(), {"retain": retain})
        letters = partial(_load_retentions, text, location)
        return TableSettings(location, compaction, clean, settings.ttl, letters, settings.publish)

    return load


def _load_retentions(text: str, location: TableLocation, table: Table) -> list[Retention]:
    """Load the retention of the dead letters of a pipeline file; empty for a location."""
    return retentions_of(load_letter_places(text)[1], table, location) if is_pipeline(text) else []


def _stopper(stop: threading.Event) -> Callable[[int, object], None]:
    """Return a signal handler that stops after the current step, and ends the process at once when called again."""

    def handle(number: int, _: object) -> None:
        if stop.is_set():
            raise SystemExit(128 + number)
        stop.set()

    return handle
