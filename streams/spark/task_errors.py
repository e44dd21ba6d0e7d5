"""Passes errors of weft from Spark's Python workers, and from ``foreachBatch``, to the process that started the query.

Spark passes only the text of a traceback. So an error of weft gets a note with the error as JSON, which becomes the
last line of that text. The receiver parses that line; all other lines are for people.

The text may also contain values of messages. So each driver creates a key, sends it to its workers with their functions
(`weft.streams.spark.for_workers`), and notes are signed with it; a line without a valid signature is ignored. The key
never appears in a text.

A worker that cannot import weft (another version of Python, or a missing package) cannot send such a line. Such errors
are recognised by the class of the JVM's exception and its text, and only if no function of weft has raised them.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import inspect
import json
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, TypeVar, cast

from weft.storage.errors import InvalidInput, TableError, error_from_dict
from weft.streams.spark.java_causes import JavaCause, java_causes

INSTALL_HINT: Final = (
    "install weft where the executors run, or send a packed environment: weft package -o weft-env.tar.gz, then "
    "spark.archives=weft-env.tar.gz#environment and spark.pyspark.python=./environment/bin/python; or set "
    "spark.pyspark.python to a Python of the executors that has it"
)

_MARK: Final = "weft-error: "
_SIGNED: Final = re.compile(rf"{_MARK}([0-9a-f]{{64}}) (.*)$", re.MULTILINE)
_NO_WEFT: Final = re.compile(r"cannot import weft: (No module named '[\w.]+')")
_NO_MODULE: Final = re.compile(r"\b(?:ModuleNotFoundError|ImportError): (?:.*?\b)?(No module named '[\w.]+')")
_NO_PACKAGE: Final = re.compile(r"\[PACKAGE_NOT_INSTALLED\] (\S+ >= \S+) must be installed")
_NO_PYTHON: Final = re.compile(r'Cannot run program "([^"]+)"')
_OTHER_PYTHON: Final = re.compile(r"\[PYTHON_VERSION_MISMATCH\] .*?version: (\S+) than that in driver: ([\d.]+)")

_RAISED: Final = re.compile(r"^((?:\w+\.)*\w*(?:Error|Exception)(?:: .*)?)$", re.MULTILINE)
"""The last line of a traceback of Python."""

Function = TypeVar("Function", bound=Callable[..., Any])


class TasksFailed(TableError):
    """A Spark job failed for another reason than an error of weft. None of its results is published; try again."""

    code = "TASKS_FAILED"


class _Signer:
    """Signs notes with the key of the driver; a worker gets that key before it runs any function of weft."""

    def __init__(self) -> None:
        self.key = secrets.token_bytes(32)

    def sign(self, text: str) -> str:
        return hmac.digest(self.key, text.encode(), "sha256").hex()


_signer: Final = _Signer()


def signing_key() -> bytes:
    """Return the key of this driver, to be sent to workers only."""
    return _signer.key


def sign_with(key: bytes) -> None:
    """Sign the errors of this process with the key of its driver."""
    _signer.key = key


@contextmanager
def noted_errors() -> Iterator[None]:
    """Add a note, which `error_in` reads, to errors of weft that are raised in the block.

    Other errors get a note that says only that a function of weft has raised them.
    """
    try:
        yield
    except Exception as error:
        if not any(note.startswith(_MARK) for note in getattr(error, "__notes__", ())):
            described = _missing_package(str(error)) if isinstance(error, ImportError) else error
            plain = described.to_dict() if isinstance(described, TableError) else None
            text = json.dumps(plain, default=str)
            error.add_note(f"{_MARK}{_signer.sign(text)} {text}")
        raise


def note_errors(function: Function) -> Function:
    """Run a function within `noted_errors`; if it returns a generator, its iteration too."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with noted_errors():
            result = function(*arguments, **options)
        return _note_errors(result) if inspect.isgenerator(result) else result

    return cast("Function", call)


def _note_errors(items: Iterator[Any]) -> Iterator[Any]:
    with noted_errors():
        yield from items


def error_in(text: str) -> TableError | None:
    """Return the error of weft in the text of a Spark error, the last one of several; None if there is none.

    Errors of other packages, such as `weft.streams.kafka.errors`, are found if their module is imported.
    """
    for plain in _signed_notes(text):
        if plain is not None:
            return error_from_dict(plain)
    return None


def _signed_notes(text: str) -> Iterator[dict[str, Any] | None]:
    """Yield the contents of all notes with a valid signature, the last one first."""
    for signature, line in reversed(_SIGNED.findall(text)):
        with contextlib.suppress(ValueError):
            _, end = json.JSONDecoder().raw_decode(line)  # Spark may add words to the line
            if hmac.compare_digest(signature, _signer.sign(line[:end])):
                yield json.loads(line[:end])


def python_problem(error: BaseException) -> InvalidInput | None:
    """Determine from an error of Spark what is wrong with the Python of its workers.

    Returns:
        An error that restarting the query does not fix; None if the error is about something else.
    """
    for cause in java_causes(error):
        if (problem := problem_in(cause)) is not None:
            return problem
    return None


def problem_in(cause: JavaCause) -> InvalidInput | None:
    """Return the problem with the Python of workers that a JVM exception reports, see `python_problem`."""
    if "java.io.IOException" in cause.classes and (match := _NO_PYTHON.match(cause.message)):
        return InvalidInput(f"Spark cannot start a Python worker: there is no {match.group(1)}", hint=INSTALL_HINT)
    if "PYTHON" not in cause.condition or any(True for _ in _signed_notes(cause.message)):
        return None
    if match := _OTHER_PYTHON.search(cause.message):
        return InvalidInput(
            f"the executors have Python {match.group(1)}, and the driver has {match.group(2)}",
            hint="set spark.pyspark.python to a Python of the executors with the same minor version",
        )
    if match := _NO_WEFT.search(cause.message):
        return InvalidInput(f"a Python worker of Spark cannot import weft: {match.group(1)}", hint=INSTALL_HINT)
    if match := _NO_MODULE.search(cause.message) or _NO_PACKAGE.search(cause.message):
        return _missing_package(match.group(1))
    return None


def _missing_package(package: str) -> InvalidInput:
    return InvalidInput(f"a Python worker of Spark lacks a package: {package}", hint=INSTALL_HINT)


def worker_hints() -> AbstractContextManager[None]:
    """Raise an error of weft with a hint if Spark's workers cannot run weft; re-raise all other errors.

    Raises:
        InvalidInput: See `python_problem`.
    """
    return _translate(lambda error: python_problem(error) if error_in(str(error)) is None else None)


def raise_task_errors() -> AbstractContextManager[None]:
    """Run a Spark job in the block, and raise any failure as an error of weft.

    Raises:
        TableError: The error that a task has raised.
        InvalidInput: See `python_problem`.
        TasksFailed: Any other failure of the job.
    """
    return _translate(lambda error: error_in(str(error)) or python_problem(error) or _tasks_failed(str(error)))


@contextmanager
def _translate(translate: Callable[[Exception], TableError | None]) -> Iterator[None]:
    """Raise the error that ``translate`` returns for an error; if it returns None, raise the error unchanged."""
    try:
        yield
    except TableError:
        raise
    except Exception as error:
        if (translated_error := translate(error)) is not None:
            raise translated_error from error
        raise


def _tasks_failed(text: str) -> TasksFailed:
    return TasksFailed(
        f"Spark could not complete the tasks: {_first_cause(text)}",
        hint="read the logs of the executors; if they ran out of memory, give them more",
    )


def _first_cause(text: str) -> str:
    """Return the Python error in the text of an error of Spark, or else the name and message of the JVM exception."""
    raised = _RAISED.findall(text)
    if raised:
        return str(raised[-1])
    lines = [line.removeprefix(": ") for line in text.splitlines() if line.strip()]
    return (lines[1:2] or lines or ["no reason is given"])[0]
