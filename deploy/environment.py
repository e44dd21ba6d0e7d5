"""Makes the virtual environment of setup.sh: one process at a time, with progress, and ready only if it works.

    python deploy/environment.py FOLDER FINGERPRINT EXTRA

Needs Python's standard library alone. A virtual environment has its own path in its scripts, so it is made in its
place, under a lock: the file `weft-environment` in the folder, which also says that this program made the folder. The
files `weft-ready` and `weft-ready-EXTRA` are written last. An environment without them is half made, and is made anew.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
MARK: Final = "weft-environment"
READY: Final = "weft-ready"
IN_DEV: Final = frozenset({"ui", "docs"})
"""Extras that the tools for development include."""
IN_CHECKOUT: Final = 3
"""Exit code of `IMPORT_WEFT` if a module of the checkout is faulty: making the environment anew would not help."""
IMPORT_WEFT: Final = f"""
import os, sys, traceback
try:
    import weft.storage, weft.streams
except Exception as error:
    frames = traceback.extract_tb(error.__traceback__)
    path = error.filename if isinstance(error, SyntaxError) else frames[-1].filename
    traceback.print_exc()
    elsewhere = isinstance(error, ImportError) and (error.name or "").partition(".")[0] != "weft"
    sys.exit(1 if elsewhere or "site-packages" in path or not os.path.isfile(path) else {IN_CHECKOUT})
"""
WAIT_SECONDS: Final = 1800.0
"""How long another process may take; a slow network needs some minutes for Spark's 450 MB."""
POLL_SECONDS: Final = 0.5
SAY_SECONDS: Final = 15.0
"""Without a terminal, a line is written at least this often."""
LAST_LINES: Final = 25


class SetupFailed(Exception):
    """What went wrong, and what to do."""


class Progress:
    """Lines with the time so far: on a terminal one that changes, else one for each step and now and then."""

    def __init__(self) -> None:
        self._start = self._said = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._shown = ""

    def step(self, text: str) -> None:
        """Say that a step begins."""
        self._write(text, end="\n")

    def now(self, text: str) -> None:
        """Say how far a step is."""
        if self._terminal:
            self._write(text, end="")
        elif time.monotonic() - self._said >= SAY_SECONDS:
            self._write(text, end="\n")

    def _write(self, text: str, end: str) -> None:
        self._said = time.monotonic()
        line = f"weft: {self._said - self._start:4.0f} s  {text}"
        clear = "\r\x1b[K" if self._terminal else ""
        if not end:  # a line that is longer than the terminal could not be cleared
            line = line[: shutil.get_terminal_size().columns - 1]
        sys.stderr.write(f"{clear}{line}{end}")
        sys.stderr.flush()


def is_ready(folder: Path, fingerprint: str, extra: str) -> bool:
    """Whether an environment is finished, of this version, and has an extra."""
    names = {f"{READY}-{extra}"} | ({f"{READY}-dev"} if extra in IN_DEV else set())
    return any(_read(folder / name) == fingerprint for name in names)


def find_damage(folder: Path) -> str:
    """Why an environment must be made anew: the last line of the error, or an empty string.

    A fault in a module of the checkout is not damage. It is printed, and the environment stays as it is.
    """
    # Not from the current folder, and not with the variables of the caller.
    command = [str(folder / "bin" / "python"), "-I", "-c", IMPORT_WEFT]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
    except OSError as error:
        return str(error)
    if done.returncode == IN_CHECKOUT:
        sys.stderr.write(f"{done.stderr}weft: the environment is complete, but this checkout cannot be imported\n")
    if done.returncode in {0, IN_CHECKOUT}:
        return ""
    return (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]


def make(folder: Path, fingerprint: str, extra: str) -> None:
    """Make an environment, or add an extra to it, unless it is there.

    Raises:
        SetupFailed: It could not be made.
    """
    if is_ready(folder, fingerprint, extra) and not find_damage(folder):
        return
    progress = Progress()
    mark = _own(folder)
    with mark.open("r+") as lock:
        _wait_for(lock.fileno(), mark, progress)
        lock.truncate()
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        ready = {path for path in folder.glob(f"{READY}*") if _read(path) == fingerprint}
        damage = find_damage(folder) if ready else ""
        if is_ready(folder, fingerprint, extra) and not damage:
            return  # the process that had the lock has made it
        if damage:
            progress.step(f"{folder} is damaged, and is made anew: {damage}")
        for path in folder.glob(f"{READY}*"):
            path.unlink()
        if not ready or damage:
            ready = set()
            _make_empty(folder, lock.fileno(), progress)
        _install(folder, extra, lock.fileno(), progress)
        progress.step("checking that weft can be imported")
        if damage := find_damage(folder):
            raise SetupFailed(f"{folder} does not work: {damage}\nDelete it (rm -r {folder}) and run this again.")
        for path in ready | {folder / READY, folder / f"{READY}-{extra}"}:
            path.write_text(f"{fingerprint}\n", encoding="utf-8")
        progress.step(f"ready: {folder}")


def _own(folder: Path) -> Path:
    """The mark of a folder that is ours, or that is made here."""
    mark = folder / MARK
    folder.mkdir(parents=True, exist_ok=True)
    # Asked twice: another process may have made the mark in between.
    if not mark.exists() and any(folder.iterdir()) and not mark.exists():
        raise SetupFailed(
            f"{folder} is there and was not made by this script, so it is left alone.\nLet WEFT_VENV be another folder."
        )
    mark.touch()
    return mark


def _wait_for(lock: int, mark: Path, progress: Progress) -> None:
    """Take the lock. It ends with this process and with the pip that it started, whichever lives longer."""
    end, told = time.monotonic() + WAIT_SECONDS, False
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        except OSError as error:
            return progress.step(f"no lock on {mark} ({error}): run no second set-up meanwhile")
        holder = f"another set-up (process {_read(mark) or '?'})"
        if time.monotonic() > end:
            raise SetupFailed(
                f"{holder} has been working on {mark.parent} for too long.\n"
                "Look what it does, end it, and run this again; or let WEFT_VENV be another folder."
            )
        text = f"waiting for {holder} of {mark.parent}"
        if told:
            progress.now(text)
        else:
            progress.step(text)
        told = True
        time.sleep(POLL_SECONDS)


def _make_empty(folder: Path, lock: int, progress: Progress) -> None:
    """Make an environment without packages, in place of what is there; the locked mark stays."""
    version = ".".join(map(str, sys.version_info[:3]))
    progress.step(f"making a virtual environment of Python {version} in {folder}; it takes one to four minutes, once")
    for path in folder.iterdir():
        if path.name != MARK:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    code, lines = _run([sys.executable, "-m", "venv", str(folder)], lock, progress, _Steps(folder, "venv works"))
    if code:
        raise SetupFailed(
            "\n".join([*lines, "no virtual environment could be made (Debian, Ubuntu: apt-get install python3-venv)."])
        )


def _install(folder: Path, extra: str, lock: int, progress: Progress) -> None:
    what = f"{ROOT}[{extra}]"
    progress.step(f"installing weft[{extra}] and its packages with pip")
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
    command += ["--constraint", str(ROOT / "deploy" / "constraints.txt"), "--editable", what]
    code, lines = _run(command, lock, progress, _Steps(folder, "pip starts"))
    if code:
        raise SetupFailed("\n".join([*lines, "the packages could not be installed; pip says why above."]))
    # Python asks the import hook of an editable installation last, so a folder called `weft` in the current folder,
    # such as the checkout itself, would hide the package. A folder on Python's path goes first. It is added by a
    # statement, because venv-pack refuses environments with folders elsewhere.
    line = f"import sys; sys.path.append({str(ROOT / 'deploy' / 'python_path')!r})\n"
    for packages in folder.glob("lib/python*/site-packages"):
        (packages / "__editable__.weft.pth").write_text(line, encoding="utf-8")


class _Steps:
    """What pip does, in a few words, from what it prints."""

    def __init__(self, folder: Path, text: str) -> None:
        self._folder, self._text = folder, text
        self._collected = self._total = 0

    def read(self, line: str) -> str:
        """Take a line; what to say of it as a step of its own, or nothing."""
        word, _, rest = line.strip().partition(" ")
        if word == "Collecting":
            self._collected += 1
            self._text = f"package {self._collected}: {rest.partition(' (')[0]}"
        elif word == "Downloading":
            self._text = f"package {self._collected}: downloading {rest.rsplit('/', 1)[-1]}"
        elif line.startswith("Building wheel"):
            self._text = line.strip().partition(" (")[0].lower()
        elif line.startswith("Installing collected packages"):
            self._total = line.count(",") + 1
            return f"installing {self._total} package{'s' * (self._total > 1)}"
        return ""

    def text(self) -> str:
        """What is done now."""
        if not self._total:
            return self._text
        # pip says nothing until all are there.
        there = sum(1 for _ in self._folder.glob("lib/python*/site-packages/*.dist-info"))
        return f"installing: {min(there, self._total)} of {self._total} packages"


def _run(command: Sequence[str], lock: int, progress: Progress, steps: _Steps) -> tuple[int, list[str]]:
    """Run a program, and show what it does; its exit code and its last lines."""
    lines: deque[str] = deque(maxlen=LAST_LINES)
    arrived: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    # It keeps the lock if this process is killed: nobody else may begin while it still writes.
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        pass_fds=[lock],
        env=_environment(),
    ) as process:
        assert process.stdout is not None
        output = process.stdout

        def pump() -> None:
            for line in output:
                arrived.put(line)
            arrived.put(None)

        threading.Thread(target=pump, daemon=True).start()
        while True:
            try:
                line = arrived.get(timeout=POLL_SECONDS)
            except queue.Empty:
                progress.now(steps.text())
                continue
            if line is None:
                break
            lines.append(line.rstrip())
            if step := steps.read(line):
                progress.step(step)
            else:
                progress.now(steps.text())
    return process.returncode, list(lines)


def _environment() -> dict[str, str]:
    """Variables of this process without those that let Python find packages of elsewhere."""
    return {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def main() -> int:
    """Make the environment that the arguments describe; the exit code is 1 if that failed."""
    parser = argparse.ArgumentParser(description="Make the virtual environment of weft; called by setup.sh.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("fingerprint")
    parser.add_argument("extra")
    arguments = parser.parse_args()
    try:
        make(arguments.folder, arguments.fingerprint, arguments.extra)
    except SetupFailed as error:
        sys.stderr.write("".join(f"weft: {line}\n" for line in str(error).splitlines()))
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\nweft: stopped; the next set-up begins anew\n")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
