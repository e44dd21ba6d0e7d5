"""Shell completion: tables, pipeline files, and names from the table on the command line.

Completion never fails and reads only local folders, because the shell waits for it and prints all its output.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Final, Literal

import typer
from typer.completion import get_completion_inspect_parameters, get_completion_script  # type: ignore[attr-defined]

from weft.storage import Table
from weft.streams.cli.examples import examples
from weft.streams.pipeline.file.pipeline import is_pipeline, load_settings

completion_command = typer.Typer()
get_completion_inspect_parameters()  # registers the shells; typer itself does it only for apps with its two options

MAX_DEPTH: Final = 3  # levels of folders that are searched for tables
MAX_ENTRIES: Final = 200  # folders and files that are read before the search stops
_PIPELINES: Final = (".yaml", ".yml")


@completion_command.command(
    epilog=examples('eval "$(weft completion bash)"', "weft completion zsh", "weft completion fish"),
)
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell.")],
) -> None:
    """Print a script by which a shell completes commands, options, tables, savepoints, streams and columns.

    bash: add eval "$(weft completion bash)" to ~/.bashrc. zsh: the same in ~/.zshrc, after compinit.
    fish: weft completion fish > ~/.config/fish/completions/weft.fish.
    """
    typer.echo(get_completion_script(prog_name="weft", complete_var="_WEFT_COMPLETE", shell=shell))


def list_targets(incomplete: str) -> list[str]:
    """List local tables and pipeline files whose paths begin with a text."""
    if "://" in incomplete:
        return []
    parent, slash, name_prefix = incomplete.rpartition("/")
    targets: list[str] = []
    entries_read = 0
    pending = [(Path(parent + slash or "."), parent + slash, 0)]
    while pending and entries_read < MAX_ENTRIES:
        folder, path_prefix, depth = pending.pop(0)
        with contextlib.suppress(OSError):
            for entry in sorted(folder.iterdir()):
                entries_read += 1
                if entry.name.startswith(".") or (depth == 0 and not entry.name.startswith(name_prefix)):
                    continue
                if entry.is_dir():
                    if (entry / "_weft").is_dir():
                        targets.append(f"{path_prefix}{entry.name}")
                    elif depth < MAX_DEPTH:
                        pending.append((entry, f"{path_prefix}{entry.name}/", depth + 1))
                elif entry.suffix in _PIPELINES:
                    targets.append(f"{path_prefix}{entry.name}")
    return targets


def pipeline_files(incomplete: str) -> list[str]:
    """List local pipeline files whose paths begin with a text."""
    return [path for path in list_targets(incomplete) if path.endswith(_PIPELINES)]


def savepoints(context: typer.Context, incomplete: str) -> list[str]:
    """List savepoints of the table on the command line."""
    return _complete(context, incomplete, lambda table: (savepoint.name for savepoint in table.savepoints()))


def stream_names(context: typer.Context, incomplete: str) -> list[str]:
    """List streams of the table on the command line."""
    return _complete(context, incomplete, lambda table: (stream.name for stream in table.schema.streams))


def lane_names(context: typer.Context, incomplete: str) -> list[str]:
    """List open lanes of the table on the command line."""
    return _complete(
        context,
        incomplete,
        lambda table: (name for name, lane in table.state().lanes.items() if name and lane.closed is None),
    )


def group_names(context: typer.Context, incomplete: str) -> list[str]:
    """List groups of the table on the command line."""
    return _complete(context, incomplete, lambda table: (group.name for group in table.schema.groups))


def column_names(context: typer.Context, incomplete: str) -> list[str]:
    """List columns of the table on the command line."""
    return _complete(context, incomplete, lambda table: iter(table.schema.column_by_name))


def _complete(context: typer.Context, incomplete: str, names: Callable[[Table], Iterable[str]]) -> list[str]:
    """Names of the local table on the command line that begin with a text; empty after any error."""
    with contextlib.suppress(Exception):
        target = context.params["target"]
        uri = load_settings(target).table.uri if is_pipeline(target) else target
        if "://" not in uri:
            return [name for name in names(Table.open(uri)) if name.startswith(incomplete)]
    return []
