"""One `weft run` at a time: a lock on each writer and service of a pipeline, which ends with whoever holds it.

A lock is ``flock`` on a file below the pipeline's state folder, one for each job: two commands may run different
writers of one pipeline (``--writer``), never the same. Whoever shares a state folder, by whatever path or link,
excludes each other. Job processes inherit the lock of their job: it is free when the last of them has ended, not
earlier, and a process that dies in whatever way leaves no lock behind.

Relied on: the kernel's ``flock``, on NFS too, where Linux passes it on to the server. A file system without locks is
refused. What the file says of its holder is for messages, and decides nothing but how long to wait.
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

from storage.errors import Conflict, InvalidInput
from streams.pipeline.status import ORPHAN_SECONDS

LOCKS: Final = "locks"
"""Folder of the lock files, in the state folder."""

ENDING_SECONDS: Final = ORPHAN_SECONDS + 5.0
"""What the jobs of a `weft run` that has died get to end; they are waited for, because they do."""

_LOOK_SECONDS: Final = 0.2


@contextlib.contextmanager
def hold_locks(state: Path, names: Sequence[str], pipeline: str) -> Iterator[Mapping[str, int]]:
    """Hold the locks of some jobs, or of none of them.

    Args:
        state: The pipeline's state folder; made if need be.
        names: Of the jobs.
        pipeline: Its name in messages.

    Yields:
        The open file of each lock, by name, for `Job.held`.

    Raises:
        Conflict: Another process holds one of them; the message names it.
        InvalidInput: The folder cannot be written, or its file system has no locks.
    """
    with contextlib.ExitStack() as stack:
        held = {}
        for name in sorted(names):
            held[name] = _take(state / LOCKS / f"{name}.lock", name, pipeline)
            stack.callback(os.close, held[name])
        yield held


def _take(path: Path, name: str, pipeline: str) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror}", hint=_STATE_HINT) from error
    try:
        _await_lock(file, path, name, pipeline)
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": _now()}
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(holder).encode() + b"\n", 0)
    except BaseException:
        os.close(file)
        raise
    return file


_STATE_HINT: Final = "give the pipeline a `state:` folder on a local disk that can be written"


def _await_lock(file: int, path: Path, name: str, pipeline: str) -> None:
    """Lock the file. What a dead `weft run` has left is waited for; a living one is not."""
    deadline = time.monotonic() + ENDING_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read_holder(file)
            if time.monotonic() < deadline and (not holder or _is_dead(holder)):
                time.sleep(_LOOK_SECONDS)
                continue
            raise Conflict(
                f"{pipeline}: {name} is being run already, {_describe(holder)}",
                hint="one command at a time may run it; stop that one first, or run another writer with --writer",
            ) from None
        except OSError as error:
            raise InvalidInput(f"cannot lock {path}: {error.strerror}", hint=_STATE_HINT) from error
        else:
            return


def _read_holder(file: int) -> Mapping[str, object]:
    """What the holder has written of itself; empty if it has not yet."""
    try:
        holder = json.loads(os.pread(file, 4096, 0))
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _is_dead(holder: Mapping[str, object]) -> bool:
    """Whether the process that took the lock is known to have ended, so that only its jobs hold it still."""
    pid = holder.get("pid")
    if holder.get("host") != socket.gethostname() or not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it lives, and is somebody else's
    return False


def _describe(holder: Mapping[str, object]) -> str:
    if not holder:
        return "by a process that does not say who it is"
    text = f"by process {holder.get('pid')} on {holder.get('host')} since {holder.get('since')}"
    return f"{text}, which has ended; its jobs have not yet" if _is_dead(holder) else text


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
