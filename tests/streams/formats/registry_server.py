"""A schema registry for tests: the part of Confluent's HTTP interface that producers and consumers use.

It stores what producers register, in memory, and gives it back. Python's client registers a Protobuf schema as its
serialized descriptor, which is also what a consumer asks for (``format=serialized``).
"""

from __future__ import annotations

import base64
import json
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit


def guid_of(schema_id: int) -> str:
    """The GUID that the registry gives the schema with an id."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, str(schema_id)))


class SchemaRegistry:
    """A context manager; listens on a port of this machine, by default on a free one.

    Its URL has a path that no other registry has. Decoders keep schemas by URL and id, also in Spark's workers, and a
    later test may get the port of an earlier one.

    Attributes:
        requests: Path of every request, in order.
        failing: A number of requests that are answered with status 503 from now on; -1 for all.
        users: ``user:password`` of the requests that have them; none is checked.
    """

    def __init__(self, port: int = 0) -> None:
        self.requests: list[str] = []
        self.failing = 0
        self.users: set[str] = set()
        self._path = f"/{uuid.uuid4().hex}"
        self._lock = threading.Lock()
        self._schemas: list[dict[str, Any]] = []
        self._versions: dict[str, list[int]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self._path}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def register(
        self, subject: str, schema: str, kind: str = "AVRO", references: list[dict[str, Any]] | None = None
    ) -> int:
        """Add a schema to a subject; returns its id."""
        given = {"schema": schema, "schemaType": kind, "references": references or []}
        with self._lock:
            if given not in self._schemas:
                self._schemas.append(given)
            schema_id = self._schemas.index(given) + 1
            versions = self._versions.setdefault(subject, [])
            if schema_id not in versions:
                versions.append(schema_id)
            return schema_id

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        with self._lock:
            self.requests.append(path)
            if self.failing:
                self.failing -= 1
                return 503, {"error_code": 50301, "message": "unavailable"}
        parts = [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]
        match parts:
            case ["schemas", "types"]:
                return 200, ["AVRO", "JSON", "PROTOBUF"]
            case ["schemas", "ids", number] if 0 < int(number) <= len(self._schemas):
                return self._schema(int(number), path)
            case ["schemas", "ids", _]:
                return 404, {"error_code": 40403, "message": "Schema not found"}
            case ["schemas", "guids", guid]:
                numbers = {guid_of(number): number for number in range(1, len(self._schemas) + 1)}
                if guid not in numbers:
                    return 404, {"error_code": 40403, "message": "Schema not found"}
                return self._schema(numbers[guid], path)
            case ["subjects", subject, "versions"] if method == "POST":
                kind = body.get("schemaType", "AVRO")
                schema_id = self.register(subject, body["schema"], kind, body.get("references"))
                return 200, {"id": schema_id, "guid": guid_of(schema_id)}
            case ["subjects", subject] if method == "POST":
                return self._find(subject, body)
            case ["subjects", subject, "versions", number]:
                versions = self._versions.get(subject, [])
                version = len(versions) if number == "latest" else int(number)
                if not 0 < version <= len(versions):
                    return 404, {"error_code": 40402 if versions else 40401, "message": "Version or subject not found"}
                status, found = self._schema(versions[version - 1], path)
                return status, {"subject": subject, "version": version, "id": versions[version - 1], **found}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _schema(self, number: int, path: str) -> tuple[int, Any]:
        found = dict(self._schemas[number - 1])
        serialized = parse_qs(urlsplit(path).query).get("format") == ["serialized"]
        if found["schemaType"] == "PROTOBUF" and not serialized:
            found["schema"] = 'syntax = "proto3";'  # its text, which no test reads
        return 200, found

    def _find(self, subject: str, body: Any) -> tuple[int, Any]:
        for version, number in enumerate(self._versions.get(subject, []), 1):
            if self._schemas[number - 1]["schema"] == body["schema"]:
                about = {"subject": subject, "version": version, "id": number, "guid": guid_of(number)}
                return 200, {**about, **self._schemas[number - 1]}
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._reply("GET", None)

            def do_POST(self) -> None:
                self._reply("POST", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _reply(self, method: str, body: Any) -> None:
                kind, _, given = self.headers.get("Authorization", "").partition(" ")
                if kind == "Basic":
                    registry.users.add(base64.b64decode(given).decode())
                status, answer = registry.answer(method, self.path.removeprefix(registry._path), body)
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        return Handler
