"""``weft doctor``: checks everything that a pipeline needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streams.cli.arguments import FAILED, Json, usage_errors
from streams.cli.output import counted, print_json
from streams.doctor.finding import Finding, Level
from streams.pipeline.pipeline import load_pipeline
from streams.pipeline.run import choose_part

doctoring = typer.Typer()


@doctoring.command()
def doctor(
    pipeline: Annotated[Path, typer.Argument(metavar="PIPELINE", help="A pipeline file.")],
    only: Annotated[str | None, typer.Option(metavar="NAME", help="Only what this writer or service needs.")] = None,
    sample: Annotated[int, typer.Option(min=0, help="Messages of each topic to decode; 0: do not start Spark.")] = 100,
    as_json: Json = False,
) -> None:
    """Check everything that a pipeline needs, and say what to do. Changes nothing, and leaves nothing behind.

    Checks Java, Spark and the Python of tasks, the brokers, topics and permissions, a sample of messages against schema
    and expressions, the store (conditional writes are really tried), its clock, the table, and the disk. Exit code 1 if
    there is a problem; warnings do not count.
    """
    from streams.doctor.diagnose import diagnose

    with usage_errors():
        loaded = load_pipeline(pipeline)
        writers, _ = choose_part(loaded, only)
    found = diagnose(loaded, writers, sample=sample)
    for finding in found:
        if as_json:
            print_json(finding)
        else:
            _print(finding)
    problems = sum(finding.level is Level.PROBLEM for finding in found)
    warnings = sum(finding.level is Level.WARNING for finding in found)
    if not as_json:
        typer.echo(f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}")
    if problems:
        raise typer.Exit(FAILED)


def _print(finding: Finding) -> None:
    typer.echo(f"{finding.level:8} {finding.check}: {finding.text}")
    if finding.hint:
        typer.echo(f"         what to do: {finding.hint}")
