"""SparkSession for processes that weft starts: a small local JVM that starts quickly, with the settings of the user.

A pipeline runs one JVM per writer, so what each costs counts. Measured on 2 cores (Spark 4.3, Java 17, CPU seconds of
the JVM; `from_json` over 300 000 small messages, first and sixth time; resident memory at most):

    JVM flags                      start + first query   decode, cold   warm   memory
    none                           12.9                  3.9            1.1    1024 MB
    SERIAL                         12.3                  3.3            0.9     489 MB
    SERIAL + QUICK_START            7.7                  2.7            2.0     434 MB

The serial collector halves the memory and costs nothing on few cores. Without the optimising compiler a JVM starts
with 40 % less work but decodes at half the speed: right for one query or a short run, wrong for a writer that lives for
days.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from storage.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SERIAL: Final = "-XX:+UseSerialGC -XX:-UsePerfData"
QUICK_START: Final = "-XX:TieredStopAtLevel=1"
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"

MIN_JAVA: Final = 17  # the minimum of Spark 4
MAX_CORES: Final = 4  # of one writer: its tasks follow the topic's partitions, and other writers want the rest
_JAVA_SECONDS: Final = 30.0  # `java -version` takes a tenth of a second; a JVM on a busy machine some more
_BATCH_ROWS: Final = "100000"  # Arrow rows handed to Python at once: few calls, and far from the memory of a task

GET_JAVA: Final = (
    "install Java 17 or newer, for example: apt install openjdk-17-jre-headless, brew install openjdk@17, "
    "or download it from https://adoptium.net; then put java on the PATH or set JAVA_HOME"
)


def check_java() -> None:
    """Check, before Spark is started, that there is a Java that it can run on.

    Raises:
        NotFound: There is none, or it is too old; the hint says how to get one.
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
        told = (answer.stderr or answer.stdout).strip().splitlines()
        raise NotFound(f"{java} does not run: {told[0] if told else 'it says nothing'}", hint=GET_JAVA)
    if int(version.group(1)) < MIN_JAVA:
        raise NotFound(f"{java} is Java {version.group(1)}; Spark needs {MIN_JAVA} or newer", hint=GET_JAVA)


def build_session(
    name: str, settings: Mapping[str, str], *, scratch: Path, quick_start: bool = False, quiet: bool = False
) -> SparkSession:
    """Start Spark in this process.

    Args:
        name: Of the application.
        settings: The user's; they go before all that is set here.
        scratch: Folder for Spark's temporary files, emptied first; nothing else may be in it.
        quick_start: For a short life: less work at the start, less speed later.
        quiet: What the JVM prints goes to a file in ``scratch`` instead of the terminal.

    Raises:
        NotFound: There is no Java.
        InvalidInput: Spark does not start.
    """
    check_java()
    from pyspark.sql import SparkSession

    cores = min(os.cpu_count() or 1, MAX_CORES)
    settled = {
        "spark.app.name": name,
        "spark.master": f"local[{cores}]",
        "spark.driver.memory": "1g",
        JAVA_OPTIONS: f"{SERIAL} {QUICK_START}" if quick_start else SERIAL,
        "spark.driver.host": "127.0.0.1",  # not the name that the machine has in some network
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",  # the same table whichever machine writes it
        "spark.sql.shuffle.partitions": str(2 * cores),
        "spark.sql.execution.arrow.maxRecordsPerBatch": _BATCH_ROWS,
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.streaming.stopTimeout": "10s",  # then the process ends anyway; Spark's default is no limit
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        **settings,
    }
    # A JVM that was killed leaves its files, and nobody else clears them away.
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    if settled["spark.master"].startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else Spark looks up the machine's name, and complains
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # by default Spark takes the first python3 of the PATH
    builder = SparkSession.builder
    for key, value in settled.items():
        builder = builder.config(key, value)
    try:
        with _stderr_to(scratch / "jvm.log") if quiet else contextlib.nullcontext():
            session = builder.getOrCreate()
    except Exception as error:
        raise InvalidInput(
            f"Spark does not start: {str(error).splitlines()[0]}", hint="see its output; are the spark settings right?"
        ) from error
    session.sparkContext.setLogLevel("WARN")
    return session


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Give processes that are started within the block this file for their standard error."""
    before = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
