"""A PostgreSQL server of its own for a test: in a temporary folder, on a free port of this machine, not as root.

Debian's package postgresql has the programs; nothing is fetched or installed. psycopg, which connects to it, is
fetched once per machine.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.deploy.tools import python_packages
from tests.download_cache import Unavailable
from tests.end_process import end_process
from tests.reserved_port import reserved_port

DRIVER: Final = ("psycopg==3.3.9", "psycopg-binary==3.3.9")
START_SECONDS: Final = 120  # an idle machine takes 1
USERS: Final = ("postgres", "nobody")
"""Users that the server runs as where the tests run as root, which PostgreSQL refuses."""


@dataclass(frozen=True, slots=True)
class Postgres:
    """A running server."""

    port: int

    def uri(self, database: str, driver: str = "postgresql+psycopg") -> str:
        """URL of a database, as SQLAlchemy takes it."""
        return f"{driver}://weft@127.0.0.1:{self.port}/{database}"

    def create(self, database: str) -> str:
        """Create an empty database, and return its URL."""
        import psycopg

        with psycopg.connect(host="127.0.0.1", port=self.port, user="weft", dbname="postgres", autocommit=True) as made:
            made.execute(f"CREATE DATABASE {database}")
        return self.uri(database)


def psycopg_packages() -> Path:
    """Folder from which Python imports psycopg; skips the test where it cannot be had."""
    try:
        return python_packages(*DRIVER)
    except Unavailable as missing:
        pytest.skip(f"no psycopg for PostgreSQL: {missing}")


@contextmanager
def postgres_server() -> Iterator[Postgres]:
    """A server with an empty cluster; at the end of the block it is stopped and its files are deleted.

    Skips the test if there is no PostgreSQL on this machine, or no user that it can run as.
    """
    programs, user = _programs(), _user()
    folder = Path(tempfile.mkdtemp(prefix="weft-postgres-"))
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
    as_user: dict[str, Any] = (
        {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": ()}
    ) | {"cwd": "/"}
    data, log = str(folder / "data"), folder / "log"
    try:
        made: Sequence[str] = (str(programs / "initdb"), "-D", data, "-U", "weft", "-A", "trust", "-E", "UTF8", "-N")
        done = subprocess.run(made, capture_output=True, text=True, check=False, timeout=START_SECONDS, **as_user)
        assert done.returncode == 0, done.stderr
        with reserved_port() as port:
            server = _start(programs / "postgres", data, port, log, as_user)
            try:
                yield Postgres(port)
            finally:
                # Ends sessions; SIGTERM would wait for clients that have left some open.
                end_process(server, signal.SIGINT)
    finally:
        shutil.rmtree(folder)


def _programs() -> Path:
    found = [Path(program).parent for program in [shutil.which("initdb")] if program]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    for folder in found:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    pytest.skip("no PostgreSQL: there is no program `initdb`; install Debian's package postgresql")


def _user() -> pwd.struct_passwd | None:
    """The user to run as; None for the one that runs the tests."""
    if os.geteuid() != 0:
        return None
    for name in USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    pytest.skip(f"PostgreSQL does not run as root, and there is no user {' or '.join(USERS)}")


def _start(program: Path, data: str, port: int, log: Path, as_user: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    """A server that accepts sessions."""
    command = (str(program), "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", "", "-F")
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, **as_user)
    if not _is_up(server, port):
        end_process(server, signal.SIGKILL)
        raise RuntimeError(f"{program} does not start:\n{log.read_text()}")
    return server


def _is_up(server: subprocess.Popen[bytes], port: int) -> bool:
    """Whether the server gets ready: it listens before it accepts sessions."""
    import psycopg

    deadline = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        try:
            psycopg.connect(host="127.0.0.1", port=port, user="weft", dbname="postgres").close()
        except psycopg.OperationalError:
            time.sleep(0.1)
        else:
            return True
    return False
