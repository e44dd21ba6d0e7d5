"""Checks of this machine: Java, PySpark, Python of tasks, packed environments, and the disk of the state folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Final

from weft.streams.doctor.finding import Findings
from weft.streams.pipeline.file.pipeline import Pipeline
from weft.streams.spark.session import check_java
from weft.streams.spark.settings import ARCHIVES, MASTER, PYTHON, is_local

LITTLE_BYTES: Final = 1_000_000_000  # Spark spills and logs here; checkpoints are small
TOO_LITTLE_BYTES: Final = 100_000_000
_PYTHON_SECONDS: Final = 60.0
_ASK_PYTHON: Final = "import sys, pyarrow, weft.streams; print('%d.%d' % sys.version_info[:2])"


def check_machine(pipeline: Pipeline, settings: Iterable[dict[str, str]], findings: Findings) -> None:
    """Check this machine.

    Args:
        pipeline: The pipeline.
        settings: Spark settings of each Spark application that would be started; empty if none needs Java.
        findings: Gets the findings.
    """
    applications = list(settings)
    if applications:
        with findings.guarded("java"):
            findings.ok("java", check_java().splitlines()[0])
        findings.ok("spark", f"pyspark {metadata.version('pyspark')}, pyarrow {metadata.version('pyarrow')}")
    for spark_settings in {tuple(sorted(application.items())): application for application in applications}.values():
        _check_archives(spark_settings, findings)
        _check_python(spark_settings, findings)
    _check_disk(pipeline.state, findings)


def _check_archives(spark_settings: dict[str, str], findings: Findings) -> None:
    for archive in filter(None, spark_settings.get(ARCHIVES, "").split(",")):
        path = archive.partition("#")[0]
        if "://" in path:
            findings.skipped(ARCHIVES, f"{path} is not on this machine, and was not checked")
        elif Path(path).is_file():
            findings.ok(ARCHIVES, f"{path} is there")
        else:
            findings.problem(ARCHIVES, f"there is no file {path}", "create it with weft package -o FILE")


def _check_python(spark_settings: dict[str, str], report: Findings) -> None:
    """The Python of tasks, if it is one of this machine; that of a cluster is checked when Spark is tried."""
    python = spark_settings.get(PYTHON) or os.environ.get("PYSPARK_PYTHON") or sys.executable
    if not is_local(spark_settings.get(MASTER, "local")):
        return
    with report.guarded(PYTHON):
        program = shutil.which(python)
        if program is None:
            report.problem(PYTHON, f"there is no program {python}", f"set {PYTHON} to a Python that has weft")
            return
        process = subprocess.run(  # noqa: S603 - Spark would start it too
            [program, "-c", _ASK_PYTHON], capture_output=True, text=True, timeout=_PYTHON_SECONDS, check=False
        )
        version, driver_version = process.stdout.strip(), f"{sys.version_info.major}.{sys.version_info.minor}"
        if process.returncode:
            last = (process.stderr.strip().splitlines() or ["it ends without a message"])[-1]
            report.problem(PYTHON, f"{python} cannot run tasks: {last}", "install weft there, or choose another Python")
        elif version != driver_version:
            text = f"{python} is Python {version}, the driver {driver_version}"
            report.problem(PYTHON, text, "use the same version for both")
        else:
            report.ok(PYTHON, f"{python} is Python {version}, and has weft")


def _check_disk(state: Path, findings: Findings) -> None:
    folder = next(path for path in (state, *state.parents) if path.exists())
    with findings.guarded("state"):
        free = shutil.disk_usage(folder).free
        text = f"{free / 1e9:.1f} GB are free for {state}"
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            findings.problem("state", f"{folder} cannot be written to", "set state to a folder of this user")
        elif free < TOO_LITTLE_BYTES:
            findings.problem("state", text, "free space, or set state to a folder on a larger disk")
        elif free < LITTLE_BYTES:
            findings.warning("state", text, "free space: Spark writes scratch files there, too")
        else:
            findings.ok("state", text)
