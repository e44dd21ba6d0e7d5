"""Locks on the writers and services of a pipeline, so that each runs only once.

A lock is ``flock`` on a file in the state folder of the pipeline, one per job. So two commands may run different
parts of one pipeline (``--only``), but not the same one. Job processes inherit the lock of their job: it is
released when the last of them has ended, for whatever reason.

This relies on the ``flock`` of the kernel; on NFS, Linux passes it to the server. A file system without locks is
refused. The content of the file names the holder for messages; it decides only how long to wait.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from weft.storage.errors import Conflict, InvalidInput
from weft.storage.foreign_text import parse_json
from weft.streams.pipeline.run.stop_signal import ORPHAN_SECONDS
from weft.streams.spark.process_alive import is_alive

LOCKS: Final = "locks"
"""Folder of the lock files, in the state folder."""

ENDING_SECONDS: Final = ORPHAN_SECONDS + 5.0  # jobs of a `weft run` that was killed end within this time

_RETRY_SECONDS: Final = 0.2


@contextlib.contextmanager
def hold_locks(
    state: Path, names: Sequence[str], pipeline: str, *, ending_seconds: float = ENDING_SECONDS
) -> Iterator[Mapping[str, int]]:
    """Hold the locks of some jobs: all of them, or none.

    Args:
        state: The state folder of the pipeline; created if it does not exist.
        names: Names of the jobs.
        pipeline: Name of the pipeline, for messages.
        ending_seconds: How long to wait for the jobs of a `weft run` that has ended.

    Yields:
        The open file descriptor of each lock, by job, for `Job.lock_fds`.

    Raises:
        Conflict: Another process holds one of the locks; the message names it.
        InvalidInput: The folder cannot be written, or its file system has no locks.
    """
    with contextlib.ExitStack() as stack:
        descriptors = {}
        for name in sorted(names):
            descriptors[name] = _acquire(state / LOCKS / f"{name}.lock", name, pipeline, ending_seconds)
            stack.callback(os.close, descriptors[name])
        yield descriptors


def is_held(state: Path, name: str) -> bool:
    """Whether a process of this machine holds the lock of a job. The check does not disturb the holder."""
    try:
        file = os.open(state / LOCKS / f"{name}.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # A shared lock, so that two checks at the same time do not take each other for the holder. A job that starts
        # meanwhile waits for a moment.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    return False


def _acquire(path: Path, name: str, pipeline: str, ending_seconds: float) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}", hint=_STATE_HINT) from error
    try:
        _await_lock(file, path, name, pipeline, ending_seconds)
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": _now()}
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(holder).encode() + b"\n", 0)
    except BaseException:
        os.close(file)
        raise
    return file


_STATE_HINT: Final = "set `state:` in the pipeline to a writable folder on a local disk"


def _await_lock(file: int, path: Path, name: str, pipeline: str, ending_seconds: float) -> None:
    """Lock the file. Wait only if the `weft run` that holds it has ended, and its jobs have not ended yet."""
    deadline = time.monotonic() + ending_seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read_holder(file)
            if time.monotonic() < deadline and (not holder or _is_dead(holder)):
                time.sleep(_RETRY_SECONDS)
                continue
            raise Conflict(
                f"{pipeline}: {name} is already running, {_describe(holder)}",
                hint="stop that process first, or run another writer or service with --only",
            ) from None
        except OSError as error:
            raise InvalidInput(f"cannot lock {path}: {error.strerror}", hint=_STATE_HINT) from error
        else:
            return


def _read_holder(file: int) -> Mapping[str, object]:
    """The description that the holder has written; empty if it has not written yet."""
    try:
        holder = parse_json(os.pread(file, 4096, 0))
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _is_dead(holder: Mapping[str, object]) -> bool:
    """Whether the process that took the lock has ended, so that only its jobs hold it."""
    pid = holder.get("pid")
    if holder.get("host") != socket.gethostname() or not isinstance(pid, int):
        return False
    return not is_alive(pid)


def _describe(holder: Mapping[str, object]) -> str:
    if not holder:
        return "by an unknown process"
    text = f"by process {holder.get('pid')} on {holder.get('host')} since {holder.get('since')}"
    return f"{text}, which has ended, but its jobs have not" if _is_dead(holder) else text


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
