"""A real schema registry: Apicurio Registry, whose address ``/apis/ccompat/v7`` is the interface of Confluent's.

Maven fetches it once per machine (`tests.maven`). Where Maven, Java or Maven's repository is missing the tests are
skipped and say why. Version 3.0 is the last one that runs on Java 17.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote, urlsplit

from tests.download_cache import Unavailable
from tests.end_process import end_process
from tests.maven import maven_program

VERSION: Final = "3.0.9"
START_SECONDS: Final = 240  # an idle machine takes 5 to 10
POLL_SECONDS: Final = 0.2
REQUEST_SECONDS: Final = 60
STARTS: Final = 3  # another process may take a port between its choice and its use
_PATH: Final = "/apis/ccompat/v7"

_PROPERTIES: Final = """
quarkus.http.host=127.0.0.1
quarkus.http.access-log.enabled=false
quarkus.log.category."io.apicurio".level=WARN
apicurio.datasource.url=jdbc:h2:file:{folder}/data;WRITE_DELAY=0
apicurio.datasource.jdbc.initial-size=1
apicurio.datasource.jdbc.min-size=1
apicurio.datasource.jdbc.max-size=10
"""
"""Each change is on disk before it is answered, so that a killed registry keeps it."""
_PLAIN: Final = "quarkus.http.port={port}\n"
_SECURE: Final = """
quarkus.http.insecure-requests=disabled
quarkus.http.ssl-port={port}
quarkus.http.ssl.certificate.files={certificate}
quarkus.http.ssl.certificate.key-files={key}
quarkus.http.auth.basic=true
quarkus.http.auth.permission.all.paths=/*
quarkus.http.auth.permission.all.policy=authenticated
quarkus.security.users.embedded.plain-text=true
quarkus.security.users.embedded.users.{user}={password}
quarkus.security.users.embedded.roles.{user}=sr-admin
"""


@dataclass(frozen=True)
class Login:
    """What a secure registry has: TLS, and one user.

    Attributes:
        certificate, key: PEM files of the registry.
        user, password: Of basic authentication.
    """

    certificate: Path
    key: Path
    user: str
    password: str = field(repr=False)


def find_registry() -> Path:
    """Folder of the registry's program, fetched by Maven on first use.

    Raises:
        Unavailable: Maven or Java is missing, or Maven cannot fetch it.
    """
    if shutil.which("java") is None:
        raise Unavailable("there is no program `java`; install a Java runtime, 17 or newer")
    return maven_program(f"apicurio-{VERSION}", f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all")


class RealRegistry:
    """A registry that runs during a ``with`` block, and can be stopped, killed and started within it.

    It keeps port and data, and listens only on the loopback interface.
    """

    def __init__(self, folder: Path, login: Login | None = None) -> None:
        """Start nothing yet.

        Args:
            folder: For its data, settings and log; exists.
            login: None: it answers everybody, without TLS.

        Raises:
            Unavailable: See `find_registry`.
        """
        self._program, self._folder, self._login = find_registry(), folder.absolute(), login
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    def __enter__(self) -> Self:
        for attempt in range(STARTS):
            self._configure()
            try:
                self.start()
                break
            except RuntimeError:
                if attempt == STARTS - 1:
                    raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        """The address for a client of Confluent's registry."""
        return f"{'http' if self._login is None else 'https'}://127.0.0.1:{self._port}{_PATH}"

    @property
    def pid(self) -> int:
        """Id of its process; 0 if it is not running."""
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process with its earlier data and port; returns when it answers."""
        assert self._process is None, "the registry is already running"
        log = self._folder / "registry.log"
        tuning = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]  # faster start, less load on the machine
        program = self._program / f"apicurio-registry-app-{VERSION}-runner.jar"
        command = ["java", *tuning, "-jar", str(program)]
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, cwd=self._folder)
        try:
            started = self._answers_in_time(self._process)
        except BaseException:
            self.kill()
            raise
        if not started:
            self.kill()
            raise RuntimeError(f"the registry does not start:\n{log.read_text(errors='replace')[-3_000:]}")

    def stop(self) -> None:
        """Stop the process cleanly; data and port are kept."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL for the process; data and port are kept."""
        self._end(signal.SIGKILL)

    def register(self, subject: str, schema: str, kind: str = "AVRO") -> int:
        """Register a schema at a registry without a login; returns its id.

        A JSON Schema needs ``$schema`` or ``properties``: otherwise the registry does not see that it is one.

        Raises:
            OSError: The registry does not answer.
            RuntimeError: It refuses the schema.
        """
        body = json.dumps({"schema": schema, "schemaType": kind})
        status, answer = self._request("POST", f"/subjects/{quote(subject, safe='')}/versions", body)
        if status != 200:
            raise RuntimeError(f"the registry refuses a schema of {subject}: HTTP {status}, {answer}")
        return int(answer["id"])

    def _configure(self) -> None:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self._port = one.getsockname()[1]
        text = _PROPERTIES.format(folder=self._folder)
        if self._login is None:
            text += _PLAIN.format(port=self._port)
        else:
            text += _SECURE.format(port=self._port, **vars(self._login))
        settings = self._folder / "config" / "application.properties"
        settings.parent.mkdir(exist_ok=True)
        settings.write_text(text)

    def _answers_in_time(self, process: subprocess.Popen[bytes]) -> bool:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self._is_up():
                    return True
            time.sleep(POLL_SECONDS)
        return False

    def _is_up(self) -> bool:
        """Whether it answers; one with a login answers a handshake of TLS when it is ready."""
        if self._login is None:
            return self._request("GET", "/schemas/types")[0] == 200
        with socket.create_connection(("127.0.0.1", self._port), REQUEST_SECONDS):
            return True

    def _request(self, method: str, path: str, body: str | None = None) -> tuple[int, Any]:
        where = urlsplit(self.url)
        connection = http.client.HTTPConnection(where.netloc, timeout=REQUEST_SECONDS)
        try:
            headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
            connection.request(method, where.path + path, body, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            end_process(process, how)
