"""``weft check``: everything that is wrong with a pipeline file, without starting or changing anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from storage.errors import InvalidInput, NotFound, TableError
from streams.cli.arguments import USAGE, Json, console, errors, usage_errors
from streams.cli.completion import pipeline_files
from streams.cli.examples import examples
from streams.cli.output import counted, print_json
from streams.cli.progress import Quiet, progress
from streams.pipeline.check_file import CheckedFile, FileProblem, check_file, placed

check_command = typer.Typer()


@check_command.command(
    epilog=examples("weft check shop/pipeline.yaml", "weft check shop/pipeline.yaml --without-spark --json")
)
def check(
    pipeline: Annotated[
        Path,
        typer.Argument(
            metavar="PIPELINE", help="A pipeline file; weft init writes one.", autocompletion=pipeline_files
        ),
    ],
    without_spark: Annotated[
        bool, typer.Option("--without-spark", help="Do not check expressions and types, for which Spark is started.")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Print everything that is wrong with a pipeline file: fields, table, writers, expressions, types and paths.

    Nothing is started, created or changed, and no broker is asked. Exit code 2 if there is a problem.
    """
    with usage_errors():
        checked = check_file(pipeline)
    problems = checked.problems
    skipped = ""
    if without_spark:
        skipped = "expressions and types were not checked"
    elif checked.pipeline is not None and checked.pipeline.writers:
        try:
            with progress("checking expressions", quiet=quiet):
                problems = placed(pipeline.absolute(), [*_as_errors(problems), *_expression_problems(checked)])
        except NotFound as error:  # no Java
            skipped = f"expressions and types were not checked: {error.message}"
    for problem in problems:
        _print(pipeline, problem, as_json=as_json)
    if skipped:
        errors.print(skipped, style="dim", soft_wrap=True)
    if not as_json:
        console().print(counted(len(problems), "problem") if problems else f"{pipeline}: no problem found")
    if problems:
        raise typer.Exit(USAGE)


def _as_errors(problems: list[FileProblem]) -> list[TableError]:
    return [InvalidInput(problem.message, hint=problem.hint) for problem in problems]


def _expression_problems(checked: CheckedFile) -> Iterator[TableError]:
    from streams.spark.session import temporary_session
    from streams.write.check_expressions import expression_problems

    assert checked.pipeline is not None, "the caller has checked this"
    # Without the settings of the file: those for a cluster do not matter for the analysis.
    with temporary_session("weft check", {}) as spark:
        for writer in checked.pipeline.writers.values():
            where = tuple(f"writers.{writer.name}.{section}" for section in ("schema", "key", "source"))
            if any(problem.message.startswith(where) for problem in checked.problems):
                continue  # each expression would have the same problem again
            yield from expression_problems(spark, writer, checked.schema)


def _print(pipeline: Path, problem: FileProblem, *, as_json: bool) -> None:
    if as_json:
        print_json({"line": problem.line, "message": problem.message, "hint": problem.hint})
        return
    place = pipeline.name if problem.line is None else f"{pipeline.name}:{problem.line}"
    console().print(f"{place}: {problem.message}", soft_wrap=True)
    if problem.hint:
        console().print(f"    hint: {problem.hint}", style="dim", soft_wrap=True)
