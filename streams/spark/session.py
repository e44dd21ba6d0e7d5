"""SparkSession for processes that weft starts: a small JVM that starts quickly, with the settings of the user.

`weft.streams.spark.settings` decides which source each setting comes from. A pipeline runs one JVM per writer, so the
cost of each matters. Measured on 2 cores (Spark 4.3, Java 17, CPU seconds of the JVM; `from_json` over 300 000 small
messages, first and sixth time; resident memory at most):

    JVM flags                      start + first query   decode, cold   warm   memory
    none                           12.9                  3.9            1.1    1024 MB
    SERIAL                         12.3                  3.3            0.9     489 MB
    SERIAL + QUICK_START            7.7                  2.7            2.0     434 MB

The serial collector halves the memory and is not slower on few cores. Without the optimising compiler a JVM needs 40 %
less CPU time to start, but decodes at half the speed: good for one query or a short run, bad for a writer that runs for
days. `settings.SMALL` keeps the heap close to the size of the live objects: without it the JVM begins with a 64th of
the machine's memory, and never returns the memory that a large batch needed. `tests/benchmarks/idle_writer.py` measures
the memory of an idle writer.

**The Python of tasks.** Spark starts ``PYSPARK_PYTHON`` in two places: on executors for tasks, and beside the driver to
plan data sources. With a packed environment (``./environment/bin/python``) only executors have that path. So data
sources are planned with the Python of this process, and `settings.TASK_PYTHON` names the Python of tasks.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from weft.storage.errors import InvalidInput, NotFound, TableError
from weft.streams.spark.class_archive import find_archive
from weft.streams.spark.java_causes import java_causes
from weft.streams.spark.settings import MASTER, SessionSettings, Surroundings, is_local, is_secret, settle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_JAVA: Final = 17  # the minimum of Spark 4
MAX_CORES: Final = 4  # cores of one writer: it has one task per partition, and other writers need cores, too
_JAVA_SECONDS: Final = 30.0  # `java -version` takes a tenth of a second, longer on a busy machine
_REFUSED_SETTING: Final = frozenset({"java.lang.IllegalArgumentException", "java.lang.ClassNotFoundException"})
"""Exceptions of the JVM for a setting with a wrong value. After other failures the next start may succeed."""
_WRONG_MASTER: Final = "Could not parse Master URL"
"""Beginning of the message for a wrong master, whose exception has an unspecific class."""
_ARENAS: Final = "2"
"""Number of malloc arenas of glibc in the JVM and in Python workers. The default is 8 per core of the machine, and each
arena keeps memory that its threads have freed."""
_GATEWAY: Final = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit for the Python program that it starts: the port of its JVM."""

GET_JAVA: Final = (
    "install Java 17 or newer, for example: apt install openjdk-17-jre-headless, brew install openjdk@17, "
    "or download it from https://adoptium.net; then put java on the PATH or set JAVA_HOME"
)


class SparkNotStarted(TableError):
    """Spark does not start, for example because its JVM was killed. Try again."""

    code = "SPARK_NOT_STARTED"


def check_java() -> str:
    """Check, before Spark is started, that a suitable Java is installed.

    Returns:
        Output of ``java -version``.

    Raises:
        NotFound: There is no Java, or it is too old; the hint says how to install one.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if java is None:
        where = f"JAVA_HOME is {home}, but has no bin/java" if home else "there is no java on the PATH"
        raise NotFound(f"Spark needs Java, and {where}", hint=GET_JAVA)
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_JAVA_SECONDS, check=False)  # noqa: S603 - found above
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotFound(f"{java} does not run: {error}", hint=GET_JAVA) from error
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if answer.returncode or version is None:
        output = (answer.stderr or answer.stdout).strip().splitlines()
        raise NotFound(f"{java} does not run: {output[0] if output else 'it prints nothing'}", hint=GET_JAVA)
    if int(version.group(1)) < MIN_JAVA:
        raise NotFound(f"{java} is Java {version.group(1)}; Spark needs {MIN_JAVA} or newer", hint=GET_JAVA)
    return answer.stderr + answer.stdout


def build_session(
    name: str,
    settings: Mapping[str, str],
    *,
    scratch: Path,
    quick_start: bool = False,
    quiet: bool = False,
    planner: str = sys.executable,
) -> SparkSession:
    """Start Spark in this process, or use the JVM of the spark-submit that started this process.

    Args:
        name: Name of the application.
        settings: Settings of the pipeline file.
        scratch: Folder for Spark's temporary files. It is emptied first, so nothing else may be in it.
        quick_start: Start faster, but run slower: for processes that end soon.
        quiet: Write the output of the JVM to a file in ``scratch`` instead of the terminal.
        planner: Path of the Python that looks up data sources, see `weft.streams.spark.planning_threads`.

    Raises:
        NotFound: Java is not installed.
        InvalidInput: Spark refuses a setting.
        SparkNotStarted: Spark does not start for another reason. The next start may succeed.
    """
    submitted, archive = None, None
    if os.environ.get(_GATEWAY):
        submitted = _submitted_settings()
    else:
        archive = find_archive(check_java())
    # A JVM that was killed leaves its temporary files.
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    surroundings = Surroundings(
        cores=min(os.cpu_count() or 1, MAX_CORES),
        scratch=str(scratch),
        python=sys.executable,
        task_python=os.environ.get("PYSPARK_PYTHON", ""),
        submitted=submitted,
        script=Path(sys.argv[0]).name,
        class_archive="" if archive is None else str(archive),
    )
    settled = settle(name, settings, surroundings, quick_start=quick_start)
    _report(settled)
    if is_local(settled.values[MASTER]):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # otherwise Spark resolves the host name, and warns
    os.environ.setdefault("MALLOC_ARENA_MAX", _ARENAS)
    with (scratch / "jvm.log").open("ab") if quiet else contextlib.nullcontext() as log:
        session = _start(settled, planner, scratch, log)
    session.sparkContext.setLogLevel("WARN")
    return session


@contextlib.contextmanager
def temporary_session(name: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """Start a session for one command: quick to start, quiet, and stopped after the block. Raises as `build_session`.

    Args:
        name: Name of the application.
        settings: Settings of the pipeline file.
    """
    from pyspark.logger import PySparkLogger

    # PySpark would also log each error of an expression as a page of JSON.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    with tempfile.TemporaryDirectory(prefix="weft-") as scratch:
        spark = build_session(name, settings, scratch=Path(scratch) / "spark", quick_start=True, quiet=True)
        try:
            yield spark
        finally:
            spark.stop()


def _submitted_settings() -> dict[str, str]:
    """Return the settings of spark-submit: its options, its ``--conf``, and spark-defaults.conf."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # noqa: SLF001 - attaches to the JVM; starts no session
    return dict(SparkConf().getAll())


def _report(settled: SessionSettings) -> None:
    """Print to standard error which settings of the pipeline file are not used, without their values (secrets)."""
    for keys, why in (
        (settled.overruled, "spark-submit gives another value, which is used"),
        (settled.too_late, "the JVM of spark-submit runs already; pass it to spark-submit"),
    ):
        for key in keys:
            sys.stderr.write(f"{key} of the pipeline file is not used: {why}\n")


def _start(settled: SessionSettings, planner: str, scratch: Path, log: BinaryIO | None) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    # PySpark passes all settings that it has when it starts the JVM on a command line, which everybody can read. So
    # the JVM is started without secret settings, and gets them over a socket.
    public = SparkConf(loadDefaults=False)
    builder = SparkSession.builder
    for key, value in settled.values.items():
        builder = builder.config(key, value)
        if not is_secret(key, settled.values):
            public.set(key, value)
    try:
        with _plan_with(planner), _temporary_files_in(scratch):
            if SparkContext._gateway is None:  # noqa: SLF001 - starts the JVM, and no session
                # Only the JVM writes to the log: this process may show its progress on the terminal meanwhile.
                options = {} if log is None else {"stderr": log}
                with ends_with_this_process():
                    gateway = launch_gateway(public, options)  # type: ignore[no-untyped-call]
                SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - as above
            session = builder.getOrCreate()
    except Exception as error:
        cause = _first_cause(str(error))
        first = next(java_causes(error), None)
        if first is not None and (first.classes & _REFUSED_SETTING or first.message.startswith(_WRONG_MASTER)):
            raise InvalidInput(f"Spark refuses a setting: {cause}", hint="correct the spark settings") from error
        raise SparkNotStarted(
            f"Spark does not start: {cause}",
            hint="see its output, and check that there is enough memory and that the spark settings are right",
        ) from error
    # Sets the Python of functions over RDDs, which run on executors only.
    session.sparkContext.pythonExec = settled.task_python
    return session


def _first_cause(text: str) -> str:
    """Return the most informative line of an error's text: for a JVM error the name and message of the exception."""
    lines = text.splitlines() or [""]
    return next((line.removeprefix(": ") for line in lines[1:2] if line.startswith(": ")), lines[0])


@contextlib.contextmanager
def ends_with_this_process() -> Iterator[None]:
    """Kill a JVM that PySpark launches in the block if this process ends before the block does.

    A JVM ends with the process that has launched it, but only after it has written its address to a file. The process
    deletes the folder of that file when it ends, so the JVM would never end.
    """
    from pyspark import java_gateway

    launched: list[subprocess.Popen[bytes]] = []
    gateway: Any = java_gateway
    popen = gateway.Popen

    def launch(*command: Any, **options: Any) -> subprocess.Popen[bytes]:
        launched.append(popen(*command, **options))
        return launched[-1]

    def kill() -> None:
        for process in launched:
            process.kill()

    gateway.Popen = launch
    atexit.register(kill)
    try:
        yield
    finally:
        atexit.unregister(kill)
        gateway.Popen = popen


@contextlib.contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Put Python's temporary files into a folder during the block, so that a killed process leaves none elsewhere."""
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


@contextlib.contextmanager
def _plan_with(python: str) -> Iterator[None]:
    """Let a JVM that is started in the block plan data sources with this Python."""
    before = os.environ.get("PYSPARK_PYTHON")
    os.environ["PYSPARK_PYTHON"] = python
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYSPARK_PYTHON"]
        else:
            os.environ["PYSPARK_PYTHON"] = before
