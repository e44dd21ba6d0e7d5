"""Passes errors of weft from Spark's Python workers, and from ``foreachBatch``, to the process that started the query.

Spark passes only the text of a traceback. So an error of weft gets a note with the error as JSON, which becomes the
last line of that text. The receiver parses that line; all other lines are for people.

A worker that cannot import weft (another version of Python, or a missing package) cannot send such a line. Such errors
are recognised by their text.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, TypeVar, cast

from storage.errors import InvalidInput, TableError, error_from_dict

INSTALL_HINT: Final = (
    "install weft where the executors run, or send a packed environment along: weft package -o weft-env.tar.gz, then "
    "spark.archives=weft-env.tar.gz#environment and spark.pyspark.python=./environment/bin/python; or let "
    "spark.pyspark.python be a Python of the executors that has it"
)

_MARK: Final = "weft-error: "
_NO_WEFT: Final = re.compile(r"cannot import weft: (No module named '[\w.]+')")
_NO_MODULE: Final = re.compile(r"\b(?:ModuleNotFoundError|ImportError): (?:.*?\b)?(No module named '[\w.]+')")
_NO_PACKAGE: Final = re.compile(r"\[PACKAGE_NOT_INSTALLED\] (\S+ >= \S+) must be installed")
_NO_PYTHON: Final = re.compile(r'Cannot run program "([^"]+)"')
_OTHER_PYTHON: Final = re.compile(r"\[PYTHON_VERSION_MISMATCH\] .*?version: (\S+) than that in driver: ([\d.]+)")

_RAISED: Final = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception)(?:: .*)?)$", re.MULTILINE)
"""The last line of a traceback of Python."""

Function = TypeVar("Function", bound=Callable[..., Any])


class TasksFailed(TableError):
    """A Spark job failed for another reason than an error of weft. Nothing of it is published; try again."""

    code = "TASKS_FAILED"


@contextmanager
def noted_errors() -> Iterator[None]:
    """Add the note that `error_in` reads to errors of weft that are raised in the block."""
    try:
        yield
    except TableError as error:
        if not any(note.startswith(_MARK) for note in getattr(error, "__notes__", ())):
            error.add_note(_MARK + json.dumps(error.to_dict(), default=str))
        raise


def note_errors(function: Function) -> Function:
    """Run a function within `noted_errors`; if it returns a generator, its iteration too."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with noted_errors():
            result = function(*arguments, **options)
        return _noted(result) if inspect.isgenerator(result) else result

    return cast("Function", call)


def _noted(items: Iterator[Any]) -> Iterator[Any]:
    with noted_errors():
        yield from items


def error_in(text: str) -> TableError | None:
    """The error of weft in the text of a Spark error, the last one if there are several; None if there is none.

    Errors of other packages, such as `streams.kafka.errors`, are found if their module is imported.
    """
    for line in reversed(text.splitlines()):
        _, found, data = line.partition(_MARK)
        if found:
            try:
                return error_from_dict(json.JSONDecoder().raw_decode(data)[0])
            except (ValueError, KeyError, TypeError):
                continue
    return None


def python_problem(text: str) -> InvalidInput | None:
    """Find out from the text of a Spark error what is wrong with the Python of Spark's workers.

    Returns:
        An error that restarting the query does not fix; None if the text is about something else.
    """
    if found := _NO_PYTHON.search(text):
        return InvalidInput(f"Spark cannot start a Python worker: there is no {found.group(1)}", hint=INSTALL_HINT)
    if found := _OTHER_PYTHON.search(text):
        return InvalidInput(
            f"the executors have Python {found.group(1)}, and the driver has {found.group(2)}",
            hint="let spark.pyspark.python be a Python of the executors with the same minor version",
        )
    if found := _NO_WEFT.search(text):
        return InvalidInput(f"a Python worker of Spark cannot import weft: {found.group(1)}", hint=INSTALL_HINT)
    if found := _NO_MODULE.search(text):
        return InvalidInput(f"a Python worker of Spark lacks a package: {found.group(1)}", hint=INSTALL_HINT)
    if found := _NO_PACKAGE.search(text):
        return InvalidInput(f"a Python worker of Spark lacks a package: {found.group(1)}", hint=INSTALL_HINT)
    return None


def worker_hints() -> AbstractContextManager[None]:
    """Raise an error of weft with a hint if Spark's workers cannot run weft; re-raise all other errors.

    Raises:
        InvalidInput: See `python_problem`.
    """
    return _translated(lambda text: python_problem(text) if error_in(text) is None else None)


def raise_task_errors() -> AbstractContextManager[None]:
    """Run a Spark job in the block; whatever fails is raised as an error of weft.

    Raises:
        TableError: The error that a task has raised.
        InvalidInput: See `python_problem`.
        TasksFailed: Any other failure of the job.
    """
    return _translated(lambda text: error_in(text) or python_problem(text) or _tasks_failed(text))


@contextmanager
def _translated(translate: Callable[[str], TableError | None]) -> Iterator[None]:
    """Raise the error of weft that the text of another error stands for; None: raise the other error unchanged."""
    try:
        yield
    except TableError:
        raise
    except Exception as error:
        if (found := translate(str(error))) is not None:
            raise found from error
        raise


def _tasks_failed(text: str) -> TasksFailed:
    return TasksFailed(
        f"Spark could not complete the tasks: {_first_cause(text)}",
        hint="the logs of the executors say more; if they ran out of memory, give them more",
    )


def _first_cause(text: str) -> str:
    """The error of Python in the text of an error of Spark, or else the name and message of the JVM's exception."""
    raised = _RAISED.findall(text)
    if raised:
        return str(raised[-1])
    lines = [line.removeprefix(": ") for line in text.splitlines() if line.strip()]
    return (lines[1:2] or lines or ["no reason is given"])[0]
