"""``weft check``: reports everything that is wrong with a pipeline file, quick checks first. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.errors import NotFound, TableError
from weft.storage.plural import counted
from weft.streams.cli.arguments import USAGE, Json, console, print_problem, stderr, usage_errors
from weft.streams.cli.completion import pipeline_files
from weft.streams.cli.examples import examples
from weft.streams.cli.output import print_json
from weft.streams.cli.progress import Quiet, progress
from weft.streams.pipeline.file.check_file import CheckedFile, check_file
from weft.streams.pipeline.file.file_problems import FileProblem, locate_problems
from weft.streams.pipeline.file.model import WriterSpec

check_command = typer.Typer()

UNCHECKED: Final = 3
"""Exit code: no problem was found, but a check was skipped because a server did not answer or a program is missing."""


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
    without_messages: Annotated[
        bool, typer.Option("--without-messages", help="Do not ask brokers, and do not look at messages and files.")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Print everything that is wrong with a pipeline file: fields, table, writers, expressions, types and paths.

    What the file alone shows comes first. Then the newest messages are read, if the brokers answer: fields that none
    of them has are warnings. Last, Spark checks the expressions. Nothing is started, created or changed, and no offset
    is committed. Exit code 2 if there is a problem; warnings do not count. Exit code 3 if no problem was found, but
    brokers or a registry did not answer, or Java is missing: --without-messages and --without-spark skip these checks.
    """
    with usage_errors():
        checked = check_file(pipeline)
    out = _Output(pipeline, as_json=as_json)
    out.print(checked.problems)
    writers = {} if checked.pipeline is None else checked.pipeline.writers
    valid_writers = {name: writer for name, writer in writers.items() if not _has_problem(name, checked)}
    if without_messages:
        out.note("messages were not looked at")
    elif valid_writers:
        _look_at_messages(valid_writers, checked.schema, out, quiet=quiet)
    if without_spark:
        out.note("expressions and types were not checked")
    elif writers:
        try:
            with progress("checking expressions", quiet=quiet):
                problems = list(_expression_problems(checked, valid_writers.values()))
            out.print(locate_problems(pipeline.absolute(), problems))
        except NotFound as error:  # Java is missing
            out.skip(f"expressions and types were not checked: {error.message}")
    if not as_json:
        console().print(out.total)
    if out.problems:
        raise typer.Exit(USAGE)
    if out.skipped:
        raise typer.Exit(UNCHECKED)


def _has_problem(name: str, checked: CheckedFile) -> bool:
    """Whether the source or the fields of a writer are wrong; other checks would only repeat such problems."""
    where = tuple(f"writers.{name}.{section}" for section in ("schema", "key", "source"))
    return any(problem.message.startswith((*where, f"writers.{name}: kafka.")) for problem in checked.problems)


def _look_at_messages(
    writers: Mapping[str, WriterSpec], schema: TableSchema | None, out: _Output, *, quiet: bool
) -> None:
    from weft.streams.pipeline.infer.check_messages import check_messages

    with progress("looking at messages", quiet=quiet):
        result = check_messages(writers, schema)
    out.print(locate_problems(out.pipeline.absolute(), result.warnings), warning=True)
    for name, source in result.checked.items():
        out.note(f"{name}: fields were compared with {source}")
    for reason in dict.fromkeys(result.unchecked.values()):
        names = [name for name, other in result.unchecked.items() if other == reason]
        text = f"{', '.join(names)}: messages were not looked at: {reason}"
        if result.unreachable.isdisjoint(names):
            out.note(text)
        else:
            out.skip(text)


def _expression_problems(checked: CheckedFile, writers: Iterable[WriterSpec]) -> Iterator[TableError]:
    from weft.streams.spark.session import temporary_session
    from weft.streams.write.check_expressions import expression_problems

    # The Spark settings of the file are left out: those for a cluster do not matter for the analysis.
    with temporary_session("weft check", {}) as spark:
        for writer in writers:
            yield from expression_problems(spark, writer, checked.schema)


class _Output:
    """Prints problems and warnings as soon as they are found, each message once, and counts them."""

    def __init__(self, pipeline: Path, *, as_json: bool) -> None:
        self.pipeline, self._as_json = pipeline, as_json
        self._printed: set[str] = set()
        self.problems = self.warnings = self.skipped = 0

    @property
    def total(self) -> str:
        """The last line: number of problems and warnings."""
        warnings = f", {counted(self.warnings, 'warning')}" if self.warnings else ""
        if self.problems:
            return counted(self.problems, "problem") + warnings
        unchecked = ", but not everything could be checked" if self.skipped else ""
        return f"{self.pipeline}: no problem found{warnings}{unchecked}"

    def note(self, text: str) -> None:
        """Print to standard error what was compared, or left out by an option."""
        stderr.print(text, style="dim", soft_wrap=True)

    def skip(self, text: str) -> None:
        """Print which check could not be made, and count it."""
        self.skipped += 1
        stderr.print(text, style="yellow", soft_wrap=True)
        if self._as_json:
            print_json({"severity": "skipped", **asdict(FileProblem(text, "", None))})

    def print(self, problems: Sequence[FileProblem], *, warning: bool = False) -> None:
        """Print problems or warnings."""
        for problem in problems:
            if problem.message not in self._printed:
                self._printed.add(problem.message)
                self.problems += not warning
                self.warnings += warning
                self._print(problem, "warning" if warning else "problem")

    def _print(self, problem: FileProblem, severity: str) -> None:
        if self._as_json:
            print_json({"severity": severity, **asdict(problem)})
            return
        print_problem(console(), self.pipeline.name, problem, "warning: " if severity == "warning" else "")
