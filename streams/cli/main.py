"""The command line, ``weft``: each command reads its arguments, calls a function, and prints the result.

Exit codes: 0 success; 1 failure; 2 the command line or the pipeline file is wrong, and nothing was done; 3 (only
`weft check`) no problem was found, but not everything could be checked; 4 (only `weft run`) nothing failed, but a
writer was fenced; 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from weft.storage.errors import InvalidInput
from weft.storage.services.inspect.inspect import Inspection
from weft.storage.store.open_store import check_reachable
from weft.streams.cli.arguments import (
    Commands,
    Http,
    Json,
    LogFile,
    LogFormat,
    StatusJson,
    StorageOption,
    Target,
    console,
    load_target,
    print_free_port,
    usage_errors,
)
from weft.streams.cli.check_command import check_command
from weft.streams.cli.completion import completion_command, pipeline_files
from weft.streams.cli.dead_letters import dead_letter_commands
from weft.streams.cli.display import describe_stored, show_and_log
from weft.streams.cli.doctor import doctor_command
from weft.streams.cli.examples import examples
from weft.streams.cli.exit_codes import INTERRUPTED
from weft.streams.cli.import_command import import_command
from weft.streams.cli.infer_command import infer_command
from weft.streams.cli.init_command import init_command
from weft.streams.cli.operation_commands import alter, operation_commands
from weft.streams.cli.output import print_result
from weft.streams.cli.package import package_commands
from weft.streams.cli.read_commands import read_commands
from weft.streams.cli.run_report import RunReport
from weft.streams.cli.savepoint_command import savepoint_command
from weft.streams.cli.show import Aspect, show_parts, show_plot, show_table
from weft.streams.cli.sql_command import sql_command
from weft.streams.cli.table_services import services_command
from weft.streams.cli.ui_command import ui_command
from weft.streams.pipeline.file.pipeline import is_pipeline, load_pipeline
from weft.streams.pipeline.run.error_kinds import Ending
from weft.streams.pipeline.run.http_status import StatusPage, parse_address, serve_status
from weft.streams.pipeline.run.supervisor import JobStatus
from weft.streams.pipeline.run.table_watch import TableWatch
from weft.streams.spark.session import check_java

PipelineFile = Annotated[
    Path,
    typer.Argument(metavar="PIPELINE", help="A pipeline file; weft init writes one.", autocompletion=pipeline_files),
]


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="weft: several streams write their columns of one wide table, without locks.\n\n"
    "Exit codes: 0 ok, 1 something failed, 2 the command line or the pipeline file is wrong, "
    "3 weft check could not check everything, 4 a writer of weft run was fenced, 130 stopped by Ctrl-C.",
)


def _print_version(is_set: bool) -> None:
    if is_set:
        typer.echo(f"weft {metadata.version('weft')}")
        raise typer.Exit


@app.callback()
def versions(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Declare the options before a command."""


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog=examples("weft demo", "weft demo --rows 1000000 --keep ./demo"),
)
def demo(context: typer.Context) -> None:
    """A self-contained demo: an embedded Kafka broker, four writers, compaction, SQL; see weft demo --help."""
    # Only this command imports the demo and parses its options.
    command = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    command.command()(importlib.import_module("weft.streams.demo.command").demo)
    command(context.args, prog_name="weft demo")


@app.command(epilog=examples("weft create shop/pipeline.yaml"))
def create(pipeline: PipelineFile, as_json: Json = False) -> None:
    """Create the table of a pipeline. Does nothing if the table exists and is the one that the file describes.

    weft run creates the table as well. Create it beforehand where the processes that run may not, or to see early that
    the store and the file are right. Exit code 1, and nothing is changed, if the table differs from the file.
    """
    from weft.streams.pipeline.run.run import create_table

    with usage_errors():
        loaded = load_pipeline(pipeline)
    _, created = create_table(loaded)
    uri = loaded.table.uri
    text = f"{uri} is created" if created else f"{uri} already exists, as the pipeline describes it"
    print_result({"uri": uri, "created": created}, text, as_json=as_json)


@app.command(
    epilog=examples(
        "weft run shop/pipeline.yaml",
        "weft run shop/pipeline.yaml --once",
        "weft run shop/pipeline.yaml --only orders --http 9464",
    )
)
def run(
    pipeline: PipelineFile,
    only: Annotated[
        str | None,
        typer.Option(
            "--only", "--writer", metavar="NAME", help="Only this writer or service: compaction, ttl, publish, clean."
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Process what the sources hold now, run each service once, then exit.")
    ] = False,
    exit_on_failure: Annotated[
        bool,
        typer.Option(
            "--exit-on-failure", help="Stop everything when a writer or service has failed permanently or was fenced."
        ),
    ] = False,
    http: Http = None,
    log_format: LogFormat = None,
    log_file: LogFile = None,
    as_json: StatusJson = False,
) -> None:
    """Run a pipeline until Ctrl-C: each writer and service as a process, restarted when it fails.

    Creates the table if it does not exist. Waits for outages of Kafka and the store to end, unless --once is given.
    A writer or service that has failed permanently, or was fenced, is not started again. The others continue, unless
    --exit-on-failure is given, for systemd or Kubernetes. Exit code 1 if one has failed; 4 if none has failed and a
    writer was fenced: another process took over its lane, or the table was restored. Nothing is lost then. With --once
    exit code 1 also if a writer has stored no row, because all its messages became dead letters or have no ordering
    value; a run in which some became dead letters is a success. Exit code 130 if --once was stopped before its end.

    With --only NAME it runs that writer or service alone, so that each can have a container of its own. If a writer is
    called compaction, ttl, publish or clean, the service of that name is called compaction-service, and so on.
    """
    from weft.streams.pipeline.file.check_sources import check_sources
    from weft.streams.pipeline.run.run import COMPACTION, choose_part, run_pipeline, watches_table

    with usage_errors():
        loaded = load_pipeline(pipeline)
        writers, chosen_services = choose_part(loaded, only, once=once)
        check_sources(loaded)
        address = None if http is None else parse_address(http)
    page = StatusPage()
    last_statuses: list[JobStatus] = []
    report = RunReport(loaded, str(pipeline), once=once, exit_on_failure=exit_on_failure)
    if writers or (COMPACTION in chosen_services and loaded.compacts_on_cluster):  # other services need no Spark
        check_java()
    with contextlib.ExitStack() as stack:
        if address is not None:
            print_free_port(address, stack.enter_context(serve_status(page, *address)))
            if watches_table(loaded, chosen_services):
                policy = None if loaded.compaction is None else loaded.compaction.policy
                show = partial(page.show_table, loaded.table.uri)
                stack.enter_context(TableWatch(loaded.table, policy, show))
        on_status = stack.enter_context(
            show_and_log(console(), as_json=as_json, log_format=log_format, log_file=log_file, show_failures=False)
        )

        def update(statuses: Sequence[JobStatus]) -> None:
            last_statuses[:] = statuses
            page.update(statuses)
            on_status(statuses)
            report.update(statuses)

        succeeded = run_pipeline(loaded, only=only, once=once, exit_on_failure=exit_on_failure, on_status=update)
    if once and console().is_terminal and not as_json:
        for status in last_statuses:
            if not status.background and status.name in writers:
                console().print(f"{status.name}: {describe_stored(status)}")
    ending: int = report.end(last_statuses)
    if once and ending == Ending.DONE and not succeeded:
        ending = INTERRUPTED
    raise typer.Exit(ending)


@app.command(
    epilog=examples(
        "weft show lake/orders_wide",
        "weft show shop/pipeline.yaml timeline --limit 100",
        "weft show lake/orders_wide --plot",
        "weft show shop/pipeline.yaml parts",
    )
)
def show(
    target: Target,
    what: Annotated[
        Aspect, typer.Argument(help="overview, timeline, files or streams; of a pipeline file also parts.")
    ] = Aspect.OVERVIEW,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of entries of the timeline.")] = 30,
    plot: Annotated[
        bool, typer.Option("--plot", help="Draw rows, commits and freshness of each stream over time, and the backlog.")
    ] = False,
    storage_option: StorageOption = None,
    as_json: Json = False,
) -> None:
    """Show what is in a table: an overview, its log, its files, or its streams.

    With parts, show what each writer and service of a pipeline file did last on this machine: its last run, result and
    error, and when it runs next.
    """
    if plot and (as_json or what is not Aspect.OVERVIEW):
        with usage_errors():
            raise InvalidInput("--plot is a picture of the whole table", hint="leave out --json, and the argument WHAT")
    if what is Aspect.PARTS:
        with usage_errors():
            if not is_pipeline(target):
                raise InvalidInput(
                    f"{target} is not a pipeline file", hint="give a pipeline file: weft show FILE parts"
                )
            show_parts(load_pipeline(target), as_json=as_json)
        return
    location = load_target(target, storage_option).table
    check_reachable(location.uri, location.storage_options)
    table = Inspection(location.uri, storage_options=location.storage_options)
    if plot:
        show_plot(table)
    else:
        show_table(table, what, limit=limit, as_json=as_json)


app.add_typer(init_command)
app.add_typer(sql_command)
app.add_typer(read_commands)
app.add_typer(check_command)
app.add_typer(infer_command)
app.add_typer(import_command)
app.add_typer(operation_commands)
app.add_typer(savepoint_command)
app.add_typer(services_command)
app.add_typer(package_commands)
app.add_typer(doctor_command)
app.add_typer(ui_command)
app.add_typer(completion_command)
app.add_typer(alter, name="alter")
app.add_typer(dead_letter_commands, name="dead-letters")


def main() -> None:
    """Entry point of the ``weft`` command."""
    app(prog_name="weft")


if __name__ == "__main__":
    main()
