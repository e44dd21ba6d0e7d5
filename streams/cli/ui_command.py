"""``weft ui``: a web page about tables and their pipelines, served on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from weft.storage.errors import NotFound
from weft.streams.cli.arguments import StorageOption, load_target, stderr
from weft.streams.cli.completion import list_targets
from weft.streams.cli.examples import examples
from weft.streams.pipeline.file.pipeline import is_pipeline

ui_command = typer.Typer()


@ui_command.command(
    epilog=examples("weft ui lake/orders_wide", "weft ui shop/pipeline.yaml --port 8088 --write", "weft ui lake")
)
def ui(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="PIPELINE|URI...",
            help="Pipeline files (*.yaml), locations of tables, or folders of tables.",
            autocompletion=list_targets,
        ),
    ],
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 takes a free one.")] = 8088,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on. Others than 127.0.0.1 need a token.")
    ] = "127.0.0.1",
    token: Annotated[
        bool,
        typer.Option(
            "--token", help="Ask for a token on this machine, too, because it has other users. See WEFT_UI_TOKEN."
        ),
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A further name by which browsers reach the page. May be repeated."),
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Allow replays of dead letters.")] = False,
    storage_option: StorageOption = None,
) -> None:
    """Show a table and its pipeline in a browser, live: weft ui shop/orders_wide, then open the printed address.

    For several tables, or a folder of tables, a start page has a line for each table, those with problems first.

    The pages have an overview with problems, the timeline of the log, file groups, rows and how they came about,
    changes, SQL, completeness and dead letters. Lag and dead letters need a pipeline file. Nothing is changed unless
    --write is given.

    The token is the value of the environment variable WEFT_UI_TOKEN; without it, a new token at each start. Stop with
    Ctrl-C.
    """
    settings = [load_target(target, storage_option, "spark", "compaction") for target in targets]
    try:
        from weft.streams.ui.listed_tables import Target
        from weft.streams.ui.serve import Serving, serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in {"starlette", "uvicorn", "jinja2", "anyio"}:
            raise
        raise NotFound(f"weft ui needs the package {error.name}", hint="install it: pip install 'weft[ui]'") from error
    serving = Serving(host, port, token, tuple(allow_host or ()), write)
    pipelines = [target if is_pipeline(target) else None for target in targets]
    serve([*map(Target, settings, pipelines)], serving, _print_address)


def _print_address(address: str) -> None:
    stderr.print(f"weft ui: {address}   (Ctrl-C ends it)", soft_wrap=True)
