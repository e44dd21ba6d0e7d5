"""A Spark standalone cluster on this machine: a master and its workers, each a process with a separate folder.

The programs are part of pyspark. Workers offer more cores and memory than they use, so that executors of several
applications run at the same time on a machine with two cores. Workers have no access to this project: their environment
has no PYTHONPATH, and the ``python3`` on their PATH is the one that the virtual environment was created with.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyspark

from tests.class_sharing import sharing_options

SPARK_HOME: Final = Path(str(pyspark.__file__)).parent
START_SECONDS: Final = 240.0  # each takes five on an idle machine
STOP_SECONDS: Final = 120.0
POLL_SECONDS: Final = 0.1
_SMALL_JVM: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k"


@dataclass
class Daemon:
    """A master or a worker. It is the leader of a process group, which includes its executors."""

    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_SECONDS)


@dataclass
class Cluster:
    """The cluster, a context manager: no process outlives the block.

    Attributes:
        workers: Number of workers at the start.
        cores: Number of cores that each worker offers.
        memory: Memory that each worker offers.
        master: Its address, with a port that the master has chosen.
    """

    workers: int = 2
    cores: int = 1
    memory: str = "1g"
    daemons: list[Daemon] = field(default_factory=list)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    master: str = ""

    def __enter__(self) -> Self:
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="weft-spark-")))
        try:
            address = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
            master = self._start(
                "master", "org.apache.spark.deploy.master.Master", address, "I have been elected leader"
            )
            self.master = re.findall(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)", master.log.read_text())[0]
            for _ in range(self.workers):
                self.add_worker()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for daemon in reversed(self.daemons):
            daemon.kill()
        self._stack.close()

    def add_worker(self) -> Daemon:
        """Start a worker; it is registered when this returns."""
        name = f"worker-{len(self.daemons)}"
        arguments = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        arguments += ["--cores", str(self.cores), "--memory", self.memory, "--work-dir", str(self.folder / name)]
        started = "Successfully registered with master"
        return self._start(name, "org.apache.spark.deploy.worker.Worker", [*arguments, self.master], started)

    def applications(self) -> set[str]:
        """Ids of the applications that have had executors."""
        return {folder.name for folder in self.folder.glob("worker-*/app-*")}

    def _start(self, name: str, main: str, arguments: Sequence[str], started: str) -> Daemon:
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(SPARK_HOME / "bin" / "spark-class"), main, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment(),
                cwd=self.folder,
                start_new_session=True,
            )
        daemon = Daemon(process, log)
        self.daemons.append(daemon)
        for _ in until(time.monotonic() + START_SECONDS):
            text = log.read_text(errors="replace")
            if started in text:
                return daemon
            if process.poll() is not None:
                break
        raise RuntimeError(f"{name} does not start:\n{log.read_text(errors='replace')[-3_000:]}")

    def _environment(self) -> dict[str, str]:
        base = Path(sys.base_prefix, "bin")
        kept = {name: value for name, value in os.environ.items() if name in {"HOME", "JAVA_HOME", "LANG", "TMPDIR"}}
        return {
            **kept,
            "PATH": f"{base}:/usr/local/bin:/usr/bin:/bin",
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": sharing_options() + _SMALL_JVM,
        }


def until(deadline: float) -> Iterator[None]:
    """Yield repeatedly, with short pauses, until a time of the monotonic clock."""
    while time.monotonic() < deadline:
        yield
        time.sleep(POLL_SECONDS)
