"""The command line, ``weft``: each command reads its arguments, calls one function elsewhere, and says how it went.

Exit codes: 0 ok; 1 something failed; 2 the command line or the pipeline file is wrong, and nothing was done.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from storage.errors import InvalidInput, TableError
from streams.show import What

FAILED: Final = 1
USAGE: Final = 2
PIPE_WIDTH: Final = 240

errors: Final = Console(stderr=True, highlight=False, markup=False)

Target = Annotated[str, typer.Argument(metavar="PIPELINE|URI", help="A pipeline file (*.yaml), or a table's location.")]
Json = Annotated[bool, typer.Option("--json", help="JSON lines instead of tables.")]
PipelineFile = Annotated[Path, typer.Argument(metavar="PIPELINE", help="A pipeline file; weft init writes one.")]


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="weft: several streams write one wide table, each its own columns, without a lock.\n\n"
    "Exit codes: 0 ok, 1 something failed, 2 the command line or the pipeline file is wrong.",
)


def _console() -> Console:
    # A pipe has no width of its own, and cutting what is meant for another program helps nobody.
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


@contextmanager
def telling() -> Iterator[None]:
    """Turns an error of weft into one red line, its hint, and an exit code."""
    try:
        yield
    except TableError as error:
        errors.print(error.message, style="red", soft_wrap=True)
        if error.hint:
            errors.print(f"hint: {error.hint}", style="dim", soft_wrap=True)
        raise typer.Exit(FAILED) from None


@contextmanager
def _usage() -> Iterator[None]:
    """What is wrong in here was given on the command line or in the pipeline file: nothing has been done."""
    try:
        with telling():
            yield
    except typer.Exit:
        raise typer.Exit(USAGE) from None


@app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def demo(context: typer.Context) -> None:
    """The main job, self-contained: an embedded Kafka broker, four writers, compaction, SQL; see weft demo --help."""
    # The demo is imported, and its own options are read, only when it is asked for.
    command = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    command.command()(importlib.import_module("streams.demo.command").demo)
    command(context.args, prog_name="weft demo")


@app.command()
def init(folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to; created if need be.")]) -> None:
    """Write a commented pipeline file to start from."""
    target = folder / "pipeline.yaml"
    with telling():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with target.open("x", encoding="utf-8") as file:
                file.write(Path(__file__).with_name("example_pipeline.yaml").read_text(encoding="utf-8"))
        except FileExistsError:
            raise InvalidInput(f"{target} exists already", hint="it is left as it is; choose another folder") from None
        except OSError as error:
            raise InvalidInput(f"cannot write {target}: {error}", hint="choose another folder") from error
    typer.echo(f"{target} is written. Change it to your topics, then: weft run {target}")


@app.command()
def run(
    pipeline: PipelineFile,
    writer: Annotated[str | None, typer.Option(help="Only this writer, and no service.")] = None,
    once: Annotated[bool, typer.Option("--once", help="What the sources hold now, one compaction, then end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Status as JSON lines.")] = False,
) -> None:
    """Run a pipeline: every writer and service is a process of its own, restarted when it fails, until Ctrl-C.

    The table is created if there is none. Exit code 1 if a writer was given up or fenced; the others went on.
    """
    from streams.display import show_jobs
    from streams.pipeline import load_pipeline
    from streams.run import check_sources, run_pipeline
    from streams.session import check_java

    with _usage():
        loaded = load_pipeline(pipeline)
        if writer is not None:
            loaded.writer(writer)
        check_sources(loaded)
    last: dict[str, Any] = {}
    with telling():
        check_java()
        with show_jobs(_console(), as_json=as_json) as on_status:

            def noted(statuses: Any) -> None:
                last.update((status.name, status) for status in statuses)
                on_status(statuses)

            good = run_pipeline(loaded, only=writer, once=once, on_status=noted)
    for status in last.values():
        if status.tail and status.phase in {"failed", "fenced"}:
            errors.print(f"{status.name} {status.phase}: {status.message}", style="red", soft_wrap=True)
            errors.print(f"last lines of {status.log}:", style="dim", soft_wrap=True)
            for line in status.tail:
                errors.print(f"  {line}", soft_wrap=True)
    raise typer.Exit(0 if good else FAILED)


@app.command()
def sql(
    target: Target,
    query: Annotated[str, typer.Argument(metavar="SQL", help="The table is called t, and by its folder name.")],
    limit: Annotated[int, typer.Option(min=1, help="Rows at most.")] = 100,
    as_json: Json = False,
) -> None:
    """Run one Spark SQL query over a table, in a local Spark."""
    from streams.pipeline import load_location
    from streams.query import run_query

    with _usage():
        location = load_location(target)
    with telling():
        run_query(_console(), location, query, limit=limit, as_json=as_json)


@app.command()
def show(
    target: Target,
    what: Annotated[What, typer.Argument(help="overview, timeline, files or streams.")] = What.OVERVIEW,
    limit: Annotated[int, typer.Option(min=1, help="Entries of the timeline at most.")] = 30,
    as_json: Json = False,
) -> None:
    """What is in a table, what happened to it, which files it has, and how far each stream has got."""
    from storage.inspect import Inspection
    from streams import show as view
    from streams.pipeline import load_location

    with _usage():
        location = load_location(target)
    with telling():
        table = Inspection(location.uri, storage_options=location.storage_options)
        view.show(_console(), table, what, limit=limit, as_json=as_json)


@app.command()
def compact(target: Target, as_json: Json = False) -> None:
    """Fold all logs of a table into its base files, in this process. Nobody waits for it; no answer changes."""
    import json

    from storage import Table
    from streams.pipeline import load_location

    with _usage():
        location = load_location(target)
    with telling():
        result = Table.open(location.uri, storage_options=location.storage_options).compact()
    done = {
        "file_groups": len(result.done),
        "skipped": {str(group): why for group, why in result.skipped.items()},
        "rows": result.rows,
        "bytes_read": result.bytes_read,
        "bytes_written": result.bytes_written,
        "seconds": round(result.seconds, 3),
    }
    if as_json:
        typer.echo(json.dumps(done))
        return
    typer.echo(
        f"{len(result.done)} file groups, {result.rows:,} rows: {result.bytes_read / 1e6:.1f} MB read, "
        f"{result.bytes_written / 1e6:.1f} MB written in {result.seconds:.1f} s"
        if result.done
        else "nothing to do: no commit waits for compaction"
    )
    for group, why in result.skipped.items():
        typer.echo(f"skipped {group}: {why}")


def main() -> None:
    """Entry point of the ``weft`` command."""
    app()


if __name__ == "__main__":
    main()
