"""``weft doctor``: checks everything that a pipeline needs, or the tables of a folder."""

from __future__ import annotations

from typing import Annotated

import typer

from weft.storage.errors import InvalidInput
from weft.storage.plural import counted
from weft.streams.cli.arguments import FAILED, Json, StorageOption, load_target, usage_errors
from weft.streams.cli.examples import examples
from weft.streams.cli.output import print_json
from weft.streams.cli.progress import Quiet, progress
from weft.streams.doctor.finding import Finding, Level
from weft.streams.pipeline.file.pipeline import is_pipeline, load_pipeline
from weft.streams.pipeline.run.run import choose_part

doctor_command = typer.Typer()


@doctor_command.command(epilog=examples("weft doctor shop/pipeline.yaml", "weft doctor s3://lake/"))
def doctor(
    target: Annotated[
        str,
        typer.Argument(
            metavar="PIPELINE|URI", help="A pipeline file, or the location of a table or a folder of tables."
        ),
    ],
    only: Annotated[str | None, typer.Option(metavar="NAME", help="Only what this writer or service needs.")] = None,
    sample: Annotated[
        int | None, typer.Option(min=0, help="Messages of each topic to decode, 100 by default; 0: do not start Spark.")
    ] = None,
    storage_option: StorageOption = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Check everything that a pipeline needs, and say what to do. Changes nothing, and leaves nothing behind.

    Checks Java, Spark and the Python of tasks, the brokers, topics and permissions, a sample of messages against schema
    and expressions, the store (conditional writes are really tried), its clock, the table, and the disk. Exit code 1 if
    there is a problem; warnings do not count.

    For a location it checks the store, its clock, and whether each table there can be read, with its references. weft
    verify checks the files of a table.
    """
    if is_pipeline(target):
        findings = _diagnose_pipeline(target, only, sample, storage_option, quiet=quiet)
    else:
        from weft.streams.doctor.lake_checks import diagnose_lake

        with usage_errors():
            if only is not None or sample is not None:
                raise InvalidInput(
                    "--only and --sample are for a pipeline file",
                    hint=f"leave them out: {target} is not a pipeline file",
                )
        location = load_target(target, storage_option).table
        with progress("checking", quiet=quiet):
            findings = diagnose_lake(location)
    for finding in findings:
        if as_json:
            print_json(finding)
        else:
            _print(finding)
    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    warnings = sum(finding.level is Level.WARNING for finding in findings)
    if not as_json:
        typer.echo(f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}")
    if problems:
        raise typer.Exit(FAILED)


def _diagnose_pipeline(
    path: str, only: str | None, sample: int | None, storage_option: list[str] | None, *, quiet: bool
) -> list[Finding]:
    from weft.streams.doctor.diagnose import SAMPLE, diagnose

    with usage_errors():
        if storage_option:
            raise InvalidInput(
                "--storage-option is for a location", hint="set table.storage_options in the pipeline file"
            )
        loaded = load_pipeline(path)
        writers, _ = choose_part(loaded, only)
    with progress("checking", quiet=quiet):
        return diagnose(loaded, writers, sample=SAMPLE if sample is None else sample)


def _print(finding: Finding) -> None:
    typer.echo(f"{finding.level:8} {finding.check}: {finding.text}")
    if finding.hint:
        typer.echo(f"         what to do: {finding.hint}")
    if finding.guide:
        typer.echo(f"         guide: {finding.guide}")
