"""The settings of a Spark session of weft: which of them come from weft, from the pipeline file and from spark-submit.

The functions are pure. `weft.streams.spark.session` collects their arguments, and starts the session.

    weft's defaults  <  section `spark` of the pipeline file  <  the writer's own `spark`  <  spark-submit
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from weft.storage.errors import InvalidInput

MASTER: Final = "spark.master"
APP_NAME: Final = "spark.app.name"
DEPLOY_MODE: Final = "spark.submit.deployMode"
SUBMIT_IN_DRIVER: Final = "spark.kubernetes.submitInDriver"
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
DEFAULT_JAVA_OPTIONS: Final = "spark.driver.defaultJavaOptions"
"""Spark puts these options of the JVM before `JAVA_OPTIONS`; of two contradicting options the last one applies."""
EXTRA_CLASS_PATH: Final = "spark.driver.extraClassPath"
UI: Final = "spark.ui.enabled"
DRIVER_MEMORY: Final = "spark.driver.memory"
ARCHIVES: Final = "spark.archives"
PYTHON: Final = "spark.pyspark.python"
TASK_PYTHON: Final = "spark.sql.execution.pyspark.python"
"""Spark's setting for the Python of tasks. It does not affect the Python that plans data sources beside the driver."""

STANDALONE_CORES: Final = "2"
"""Cores of one application on a standalone cluster. Spark's default is all cores, so a second writer would get none."""
EXECUTOR_OVERHEAD: Final = "1g"
"""Memory for Python in the containers of YARN and Kubernetes, beside the JVM: Arrow batches and log files."""

SERIAL: Final = "-XX:+UseSerialGC"
SMALL: Final = (
    "-Xms32m -XX:MinHeapFreeRatio=20 -XX:MaxHeapFreeRatio=40 -XX:MetaspaceSize=128m -XX:-UsePerfData "
    "-XX:+UnlockDiagnosticVMOptions -XX:ArchiveRelocationMode=0"
)
"""The heap begins small, grows with live objects, and shrinks after a full collection. Loading classes causes a full
collection only beyond the number of classes that Spark always loads. Archives of classes are mapped at their original
address. By default Java may map them elsewhere, which changes most of their pages, so that these cannot be shared."""
QUICK_START: Final = "-XX:TieredStopAtLevel=1"

USE_ARCHIVE: Final = "-XX:SharedArchiveFile="
MAKE_ARCHIVE: Final = "-XX:ArchiveClassesAtExit="

_REDACTION: Final = "spark.redaction.regex"
_DEFAULT_REDACTION: Final = "(?i)secret|password|token|access[.]?key"
"""Spark's default: values of settings with such names are not shown in its UI and logs."""

_SHORT_HISTORY: Final = {
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "10",
}
_BATCH_ROWS: Final = "100000"  # rows per Arrow batch for Python: few calls, and far below the memory of a task
_LOCAL: Final = re.compile(r"local(\[[^\[\]]*\])?")
_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC\b")
_CLASS_SHARING: Final = re.compile(r"-Xshare:|-XX:(SharedArchiveFile|ArchiveClassesAtExit)=")
_FIXED_AT_START: Final = (DRIVER_MEMORY, JAVA_OPTIONS, DEFAULT_JAVA_OPTIONS)
"""Settings that are read when the JVM starts. Under spark-submit it has started before this process."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The inputs of a session's settings besides the pipeline file.

    Attributes:
        cores: Cores of this machine that the session may use.
        scratch: Folder for Spark's temporary files.
        python: Path of the Python of this process.
        task_python: ``PYSPARK_PYTHON`` of the environment; empty if it is not set.
        submitted: The configuration that spark-submit passed; None if spark-submit did not start this process.
        script: File name of the script that spark-submit runs, which is its default name of the application.
        class_archive: Path of the archive of Spark's classes (`weft.streams.spark.class_archive`); empty if there is
            none.
    """

    cores: int
    scratch: str
    python: str
    task_python: str = ""
    submitted: Mapping[str, str] | None = None
    script: str = ""
    class_archive: str = ""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The settings of a session, and those of the pipeline file that are not used.

    Attributes:
        values: All settings of the session.
        task_python: The Python that runs tasks on the executors.
        overruled: Settings of the pipeline file that spark-submit overrides.
        too_late: Settings of the pipeline file that only spark-submit could have set, because its JVM runs already.
    """

    values: Mapping[str, str]
    task_python: str
    overruled: tuple[str, ...] = ()
    too_late: tuple[str, ...] = ()


def is_local(master: str) -> bool:
    """Whether tasks run in the driver's own JVM: ``local``, ``local[4]``, ``local[*]``; not ``local-cluster[...]``."""
    return _LOCAL.fullmatch(master) is not None


def is_secret(name: str, settings: Mapping[str, str]) -> bool:
    """Whether Spark hides the value of a setting in its UI and logs, by its name."""
    return re.search(str(settings.get(_REDACTION, _DEFAULT_REDACTION)), name) is not None


def check_redacted(name: str, settings: Mapping[str, str]) -> None:
    """Refuse a setting with a secret value that Spark would show.

    Raises:
        InvalidInput: Spark does not hide the value.
    """
    if not is_secret(name, settings):
        raise InvalidInput(
            "the value is a secret, but Spark shows the values of settings with such names",
            hint=f"set {_REDACTION} in the same section, for example to '{_DEFAULT_REDACTION}|{re.escape(name)}'",
        )


def in_cluster_mode(values: Mapping[str, str]) -> bool:
    """Whether the cluster chooses the machine of the driver, and may choose another one at the next start.

    On Kubernetes the spark-submit in the driver's pod reports client mode, so another setting is checked.
    """
    return values.get(DEPLOY_MODE, "client") == "cluster" or values.get(SUBMIT_IN_DRIVER, "false") == "true"


def settle(
    name: str, file_settings: Mapping[str, str], surroundings: Surroundings, *, quick_start: bool = False
) -> SessionSettings:
    """Combine the settings of a session.

    Args:
        name: Name of the application, unless the pipeline file or spark-submit sets one.
        file_settings: Settings of the pipeline file.
        surroundings: The other inputs.
        quick_start: Start faster, but run slower: for processes that end soon.

    Raises:
        InvalidInput: The pipeline file sets cluster mode, which only spark-submit can start.
    """
    submitted = _submitted_settings(surroundings)
    if surroundings.submitted is None and file_settings.get(DEPLOY_MODE, "client") != "client":
        raise InvalidInput(
            f"{DEPLOY_MODE} {file_settings[DEPLOY_MODE]} cannot be set in a pipeline file: this process is the driver",
            hint="start the writer with spark-submit --deploy-mode cluster, or remove the setting",
        )
    master = submitted.get(MASTER) or file_settings.get(MASTER) or f"local[{surroundings.cores}]"
    values = {**_defaults(name, master, surroundings), **file_settings, **submitted, MASTER: master}
    java = _java_defaults(values, surroundings, quick_start=quick_start)
    values = {**java, **_history_defaults(values), **values}
    overruled = tuple(
        sorted(key for key in file_settings.keys() & submitted.keys() if file_settings[key] != submitted[key])
    )
    too_late: tuple[str, ...] = ()
    if surroundings.submitted is not None:
        too_late = tuple(sorted(key for key in _FIXED_AT_START if key in file_settings and key not in submitted))
        for key in _FIXED_AT_START:
            if key not in submitted:
                values.pop(key, None)
    task_python = values.get(PYTHON) or surroundings.task_python or surroundings.python
    values.setdefault(TASK_PYTHON, task_python)
    return SessionSettings(values, values[TASK_PYTHON], overruled, too_late)


def _submitted_settings(surroundings: Surroundings) -> dict[str, str]:
    """Return the settings of spark-submit, without the application name that it derives from the script."""
    submitted = dict(surroundings.submitted or {})
    if submitted.get(APP_NAME) == surroundings.script:
        submitted.pop(APP_NAME, None)
    return submitted


def _java_defaults(values: Mapping[str, str], surroundings: Surroundings, *, quick_start: bool) -> dict[str, str]:
    """Return options of the JVM that precede those of the user."""
    java_options = values.get(JAVA_OPTIONS, "")
    options = [SMALL]
    if _COLLECTOR.search(java_options) is None:  # a JVM does not start if two collectors are chosen
        options.insert(0, SERIAL)
    if quick_start:
        options.append(QUICK_START)
    # An archive fits only the class path that it was made with, and a JVM uses only one archive.
    if surroundings.class_archive and EXTRA_CLASS_PATH not in values and _CLASS_SHARING.search(java_options) is None:
        options.append(f'"{USE_ARCHIVE}{surroundings.class_archive}"')
    return {DEFAULT_JAVA_OPTIONS: " ".join(options)}


def _history_defaults(values: Mapping[str, str]) -> dict[str, str]:
    """Return limits of the history for Spark's web UI. By default Spark keeps 1,000 plans, even without the UI."""
    return {} if values.get(UI) == "true" else _SHORT_HISTORY


def _defaults(name: str, master: str, surroundings: Surroundings) -> dict[str, str]:
    shared = {
        APP_NAME: name,
        DRIVER_MEMORY: "1g",
        UI: "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",  # so that the time zone of the machine does not affect the table
        "spark.sql.execution.arrow.maxRecordsPerBatch": _BATCH_ROWS,
        "spark.sql.catalogImplementation": "in-memory",
        "spark.cleaner.periodicGC.interval": "10min",  # a full collection, after which the heap shrinks
        "spark.sql.streaming.stopTimeout": "10s",  # after that the process ends anyway; Spark's default is unlimited
        "spark.local.dir": surroundings.scratch,
        "spark.sql.warehouse.dir": f"{surroundings.scratch}/warehouse",
    }
    if is_local(master):
        return shared | {
            "spark.driver.host": "127.0.0.1",  # not the machine's name in a network, which may change
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(2 * surroundings.cores),
        }
    # Executors connect to the driver by spark.driver.host, for which Spark's default is the name of the machine.
    if master.startswith("spark://"):
        return shared | {"spark.cores.max": STANDALONE_CORES}
    if master == "yarn" or master.startswith("k8s://"):
        return shared | {"spark.executor.memoryOverhead": EXECUTOR_OVERHEAD}
    return shared
