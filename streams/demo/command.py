"""The command ``weft demo``: parses its options and sets the exit code."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

DEFAULT_ROWS = 200_000
"""With this many messages the whole demo takes less than two minutes on two cores."""
PIPE_WIDTH = 120


def demo(
    rows: Annotated[
        int, typer.Option(help="Number of messages of the four topics of the wide table.", show_default=True)
    ] = DEFAULT_ROWS,
    keep: Annotated[
        Path | None, typer.Option(help="New folder that keeps table, pipeline file and logs.", metavar="DIR")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the messages: the same seed gives the same messages.", min=0)] = 1,
    feed: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Only send the messages to this Kafka; for a pipeline that runs there."),
    ] = None,
    feed_seconds: Annotated[float, typer.Option(help="With --feed: spread the messages over this time.", min=0)] = 0,
) -> None:
    """Run a complete example: four Kafka topics, four writer processes, compaction, a kill -9, Spark SQL.

    At the end the whole table is compared with dedupe + joins in Spark over the same topics; the exit code is 1 if they
    differ. There is no limit of time, but without progress for minutes, or after Ctrl-C, the demo ends and says what is
    missing.
    """
    from rich.console import Console

    from weft.storage.errors import TableError
    from weft.streams.demo import shop
    from weft.streams.demo.outcome import DemoFailed, Unfinished
    from weft.streams.demo.run_demo import run_demo

    # rich would assume 80 columns for a pipe or a file.
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    error_console = Console(stderr=True, style="red", highlight=False, soft_wrap=True)
    if feed is not None:
        from weft.streams.demo.external_broker import feed_broker

        try:
            feed_broker(feed, rows, console, seed=seed, seconds=feed_seconds)
        except TableError as error:
            error_console.print(error.message, markup=False)
            raise typer.Exit(1) from None
        return
    try:
        equal = run_demo(rows, console, keep=keep, seed=seed)
    except (DemoFailed, TableError, Unfinished) as error:
        error_console.print(str(error), markup=False)
        raise typer.Exit(1) from None
    if keep is not None:
        table, pipeline = (shlex.quote(str(keep / name)) for name in (shop.TABLE, shop.PIPELINE_FILE))
        query = "SELECT country, count(*), sum(paid) FROM t GROUP BY country"
        for line in (
            f"kept in {keep}; for example",
            f"  weft show {table}",
            f"  weft show {table} timeline",
            f'  weft sql {pipeline} "{query}"',
            f"  weft ui {pipeline}",
        ):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if not equal:
        raise typer.Exit(1)
