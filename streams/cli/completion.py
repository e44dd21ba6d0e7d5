"""What a shell proposes after a tab: tables and pipeline files, and what the table of the command line has.

A proposal never fails and asks no store but local folders: a shell waits for it, and prints what it writes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

import typer
from typer.completion import get_completion_inspect_parameters, get_completion_script  # type: ignore[attr-defined]

from weft.storage import Table
from weft.streams.cli.examples import examples
from weft.streams.pipeline.file.pipeline import is_pipeline, load_settings

completing = typer.Typer()
get_completion_inspect_parameters()  # typer learns the shells by it; else only apps with its own two options do

DEPTH: Final = 3  # folders below what is typed in which tables are looked for
MOST: Final = 200  # folders and files that are looked at
_PIPELINES: Final = (".yaml", ".yml")


@completing.command(
    epilog=examples('eval "$(weft completion bash)"', "weft completion zsh", "weft completion fish"),
)
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell.")],
) -> None:
    """Print what makes a shell complete commands, options, tables, savepoints, streams and columns.

    bash: add eval "$(weft completion bash)" to ~/.bashrc. zsh: the same in ~/.zshrc, after compinit.
    fish: weft completion fish > ~/.config/fish/completions/weft.fish.
    """
    typer.echo(get_completion_script(prog_name="weft", complete_var="_WEFT_COMPLETE", shell=shell))


def places(incomplete: str) -> list[str]:
    """Local tables and pipeline files whose paths begin so."""
    if "://" in incomplete:
        return []
    folder, _, begun = incomplete.rpartition("/")
    start = Path(f"{folder}/" if folder or incomplete.startswith("/") else ".")
    found: list[str] = []
    looked = 0
    pending = [(start, f"{folder}/" if folder or incomplete.startswith("/") else "", 0)]
    while pending and looked < MOST:
        here, shown, depth = pending.pop(0)
        with contextlib.suppress(OSError):
            for entry in sorted(here.iterdir()):
                looked += 1
                if entry.name.startswith(".") or (depth == 0 and not entry.name.startswith(begun)):
                    continue
                if entry.is_dir():
                    if (entry / "_weft").is_dir():
                        found.append(f"{shown}{entry.name}")
                    elif depth < DEPTH:
                        pending.append((entry, f"{shown}{entry.name}/", depth + 1))
                elif entry.suffix in _PIPELINES:
                    found.append(f"{shown}{entry.name}")
    return found


def pipeline_files(incomplete: str) -> list[str]:
    """Local pipeline files whose paths begin so."""
    return [path for path in places(incomplete) if path.endswith(_PIPELINES)]


def savepoints(context: typer.Context, incomplete: str) -> list[str]:
    """Savepoints of the table on the command line."""
    return _of_table(context, incomplete, lambda table: (kept.name for kept in table.savepoints()))


def stream_names(context: typer.Context, incomplete: str) -> list[str]:
    """Streams of the table on the command line."""
    return _of_table(context, incomplete, lambda table: (stream.name for stream in table.schema.streams))


def lane_names(context: typer.Context, incomplete: str) -> list[str]:
    """Open lanes of the table on the command line."""
    return _of_table(
        context,
        incomplete,
        lambda table: (name for name, lane in table.state().lanes.items() if name and lane.closed is None),
    )


def group_names(context: typer.Context, incomplete: str) -> list[str]:
    """Groups of the table on the command line."""
    return _of_table(context, incomplete, lambda table: (group.name for group in table.schema.groups))


def column_names(context: typer.Context, incomplete: str) -> list[str]:
    """Columns of the table on the command line."""
    return _of_table(context, incomplete, lambda table: iter(table.schema.column_by_name))


def _of_table(context: typer.Context, incomplete: str, names: Callable[[Table], Iterable[str]]) -> list[str]:
    return [name for table in _table(context) for name in _suppressed(names, table) if name.startswith(incomplete)]


def _table(context: typer.Context) -> Iterator[Table]:
    target = context.params.get("target")
    if not target:
        return
    with contextlib.suppress(Exception):
        location = load_settings(target).table if is_pipeline(target) else None
        uri = target if location is None else location.uri
        if "://" not in uri:
            yield Table.open(uri)


def _suppressed(names: Callable[[Table], Iterable[str]], table: Table) -> list[str]:
    try:
        return list(names(table))
    except Exception:
        return []
