"""Plans Python data sources in threads of this process, instead of in separate Python processes.

For a streaming query over a Python data source Spark starts four Python processes beside the driver: to look up data
sources, to create the source, to plan its reader, and to get offsets from it. Each of them imports the same modules as
the driver before the query can start, and runs until the JVM ends.

Spark starts them with the Python path of a function (`weft.streams.spark.data_sources.register_source`) or of the
environment. `PlanningThreads.python` is such a path: a shell script. If Spark starts it for one of these purposes, the
script writes a line into a named pipe, and a thread of this process does the work with Spark's functions, over the
socket that Spark opened for it. The script then waits until its standard input is closed, so Spark can watch and kill
it like a Python process. For everything else, such as tasks, the script executes Python.

    JVM   -- starts -->  script, as a daemon   -- module, process id, secret -->        pipe --> this process
          -- connects, secret -->  port of the module  <-- accepts -- this process
    JVM   -- starts -->  script, as a worker   -- module, process id, secret, port -->  pipe --> this process
          <-- connects, secret -- this process

Spark authenticates both kinds of connections by a secret for each process that it starts. The pipe and the script are
in a folder that only this user can read.

Use it only in processes that run a single query: Spark's functions clear the accumulators of PySpark, and set the
folder of ``SparkFiles`` to that of workers. Formats in packages called ``pyspark_*`` are not found, but registered
formats are.
"""

from __future__ import annotations

import contextlib
import hmac
import importlib
import os
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Self

from weft.streams.spark.process_alive import is_alive

_LOOKUP: Final = "pyspark.sql.worker.lookup_data_sources"
_DAEMONS: Final = (_LOOKUP, "pyspark.sql.worker.create_data_source", "pyspark.sql.worker.plan_data_source_read")
"""Modules that Spark starts through its daemon; a worker serves several requests, one after the other."""
_WORKER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
"""The module that Spark starts directly. It serves requests until its query ends."""

_CHECK: Final = "weft-check"
_CHECK_SECONDS: Final = 10.0
_LINE_SECONDS: Final = 10.0  # the line is in the pipe before Spark connects; on a busy machine it is read later
_LOOPBACK: Final = "127.0.0.1"
_NUMBER: Final = struct.Struct("!i")

_SCRIPT: Final = """\
#!/bin/sh
# Written by weft, see streams/spark/planning_threads.py. Spark's JVM starts it in place of Python.
tell() {{
    printf '%s %s %s %s\\n' "$1" "$$" "$PYTHON_WORKER_FACTORY_SECRET" "${{PYTHON_WORKER_FACTORY_PORT:--}}" > {pipe}
}}
# Python itself runs if there is a limit of memory, which needs a separate process, or no secret, or with IPv6.
if [ -n "$PYTHON_WORKER_FACTORY_SECRET" ] && [ -z "$PYSPARK_PLANNER_MEMORY_MB$SPARK_PREFER_IPV6" ]; then
    case "$*" in
{cases}
    esac
fi
[ "$*" = {check} ] && exit 0
exec {python} "$@"
"""
_DAEMON_CASE: Final = """\
    '-m pyspark.daemon {module}') tell {module}; printf '{port}'; exec cat > /dev/null 2>&1 ;;"""
_WORKER_CASE: Final = """\
    '-m {module}') tell {module}; exec cat > /dev/null 2>&1 ;;"""


class _Start(NamedTuple):
    """The line that the script writes when Spark starts it."""

    module: str
    pid: int
    secret: str
    port: str


class PlanningThreads:
    """Threads that replace Spark's planning processes. Use it in a ``with`` block around the session.

    Attributes:
        python: The path to give to Spark as Python: the script, or Python itself if the folder supports no pipes or
            scripts.
    """

    def __init__(self, folder: Path) -> None:
        """Remember the folder; the block starts the threads.

        Args:
            folder: Folder on a local disk for nothing else. The script and its pipe are in a subfolder for this
                process; everything else is deleted, except subfolders of running processes.
        """
        self.python = sys.executable
        # Each process has its own folder: a writer that was frozen and replaced deletes its folder later, when it ends.
        self._folder = folder / str(os.getpid())
        self._starts = -1
        self._listeners: dict[str, socket.socket] = {}
        self._unserved: dict[str, list[_Start]] = {module: [] for module in _DAEMONS}
        self._news = threading.Condition()
        self._turn = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        _delete_ended(self._folder.parent)
        self._folder.mkdir(parents=True, mode=0o700)
        pipe, script = self._folder / "starts", self._folder / "python"
        try:
            os.mkfifo(pipe, mode=0o600)
        except OSError:
            return self  # not every file system supports pipes
        # Opened for reading and writing, so that reading never ends, and a script never waits for a reader.
        self._starts = os.open(pipe, os.O_RDWR)
        self._listeners = {module: socket.create_server((_LOOPBACK, 0)) for module in _DAEMONS}
        script.write_text(self._text(pipe), encoding="utf-8")
        script.chmod(0o700)
        if _runs(script):
            self.python = str(script)
        _in_background(self._read_starts)
        for module, listener in self._listeners.items():
            _in_background(partial(self._accept, module, listener))
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        for listener in self._listeners.values():
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # otherwise its thread stays in accept
            listener.close()
        if self._starts >= 0:
            os.write(self._starts, b"\n")  # ends the thread that reads it
        shutil.rmtree(self._folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._folder.parent.rmdir()  # if no other process uses it

    def _text(self, pipe: Path) -> str:
        cases = [
            _DAEMON_CASE.format(module=module, port=_octal(listener.getsockname()[1]))
            for module, listener in self._listeners.items()
        ]
        return _SCRIPT.format(
            pipe=shlex.quote(str(pipe)),
            cases="\n".join([*cases, _WORKER_CASE.format(module=_WORKER)]),
            check=_CHECK,
            python=shlex.quote(sys.executable),
        )

    def _read_starts(self) -> None:
        with os.fdopen(self._starts, "r", encoding="utf-8") as lines:
            while (line := lines.readline()) and not self._closed:
                module, pid, secret, port = line.split()
                start = _Start(module, int(pid), secret, port)
                if module == _WORKER:
                    _in_background(partial(_work, start))
                    continue
                with self._news:
                    self._unserved[module].append(start)
                    self._news.notify_all()

    def _accept(self, module: str, listener: socket.socket) -> None:
        while not self._closed:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            _in_background(partial(self._serve, module, connection))

    def _serve(self, module: str, connection: socket.socket) -> None:
        """Do the work of a worker that the daemon forks: send its id, check the secret, serve requests."""
        with self._news:
            self._news.wait_for(lambda: self._unserved[module], _LINE_SECONDS)
            starts = list(self._unserved[module])
        with _file(connection) as file:
            if not starts:
                return
            _send(file, starts[-1].pid)
            secret = _receive(file)
            good = any(hmac.compare_digest(start.secret.encode(), secret) for start in starts)
            _send(file, b"ok" if good else b"err")
            answer = _find_none if module == _LOOKUP else importlib.import_module(module).main
            while good and file.peek(1):
                with self._turn:  # Spark's functions clear and send accumulators, which all threads share
                    answer(file, file)
                file.flush()


def _work(start: _Start) -> None:
    """Do the work of a worker that Spark starts directly: connect, send the secret and its id, serve requests."""
    with _file(socket.create_connection((_LOOPBACK, int(start.port)))) as file:
        _send(file, start.secret.encode())
        if _receive(file) == b"ok":
            _send(file, start.pid)
            importlib.import_module(_WORKER).main(file, file)


def _find_none(request: IO[bytes], reply: IO[bytes]) -> None:
    """Reply that there are no data sources, instead of running `_LOOKUP`."""
    from pyspark.sql.worker.utils import worker_run

    worker_run(lambda _, answer: answer.write(_NUMBER.pack(0)), request, reply)


def _send(file: IO[bytes], value: int | bytes) -> None:
    """Send a number, or bytes after their length."""
    file.write(_NUMBER.pack(value) if isinstance(value, int) else _NUMBER.pack(len(value)) + value)
    file.flush()


def _receive(file: IO[bytes]) -> bytes:
    """Receive bytes that are sent after their length."""
    head = file.read(_NUMBER.size)
    if len(head) < _NUMBER.size:
        raise EOFError
    return file.read(_NUMBER.unpack(head)[0])


@contextlib.contextmanager
def _file(connection: socket.socket) -> Iterator[Any]:
    """Open a connection as a file to read and write; it is closed at the end of the block.

    When a query ends, Spark closes the connection. When a request fails, Spark's functions exit. Neither is an error of
    this process.
    """
    with connection, contextlib.suppress(OSError, EOFError, SystemExit):
        connection.settimeout(None)
        with connection.makefile("rwb") as file:
            yield file


def _delete_ended(parent: Path) -> None:
    """Delete the content of a folder, except folders of other processes that are alive."""
    for path in parent.glob("*"):
        if path.name.isdecimal() and int(path.name) != os.getpid() and is_alive(int(path.name)):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _runs(script: Path) -> bool:
    """Whether the script can be run; it cannot on a file system that is mounted with noexec, or without a shell."""
    try:
        return subprocess.run([script, _CHECK], timeout=_CHECK_SECONDS, check=False).returncode == 0  # noqa: S603 - our own
    except (OSError, subprocess.SubprocessError):
        return False


def _in_background(function: Callable[[], None]) -> None:
    threading.Thread(target=function, name="weft-planning", daemon=True).start()


def _octal(port: int) -> str:
    """Convert a port to the escapes of its four bytes for `printf`."""
    return "".join(f"\\{byte:03o}" for byte in _NUMBER.pack(port))
