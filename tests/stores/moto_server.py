"""S3 simulated by moto, on a free port of this machine, with wrappers that fix or break it.

Moto honours ``If-None-Match: *``, but checks first and then writes, in several threads, so two racing creates can win.
`one_step` fixes that by handling one request at a time, so that a race tests this project and not moto; `looking_first`
makes the fault certain, to show that the race test finds it. `ignoring_conditions` is a store that must be refused.
`Faulty` loses answers and simulates conflicts. All servers of this process share their buckets.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import s3fs
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

from tests.stores.places import BLOCK_BYTES, Backend

BUCKET: Final = "weft"
READ_SECONDS: Final = 120
_CONDITION: Final = "HTTP_IF_NONE_MATCH"
_turn: Final = threading.Lock()


class _QuietHandler(MotoRequestHandler):
    def log_request(self, *args: Any) -> None:
        del args


def one_step(app: WSGIApplication) -> WSGIApplication:
    def run(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        with _turn:
            return app(environ, start_response)

    return run


def ignoring_conditions(app: WSGIApplication) -> WSGIApplication:
    def run(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        environ.pop(_CONDITION, None)
        return app(environ, start_response)

    return run


def looking_first(racers: int) -> Callable[[WSGIApplication], WSGIApplication]:
    """Every racer finds the name free, because all check before one writes."""
    gate = threading.Barrier(racers)

    def wrap(app: WSGIApplication) -> WSGIApplication:
        def run(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            if environ["REQUEST_METHOD"] == "PUT" and environ.pop(_CONDITION, None):
                gate.wait(READ_SECONDS)
            return one_step(app)(environ, start_response)

        return run

    return wrap


@dataclass
class Fault:
    """The next ``times`` requests of ``method`` whose path contains ``path`` are answered with ``status`` and ``code``.

    With ``done`` the request takes effect anyway; without a status the connection breaks instead of an answer.
    """

    path: str
    status: str = ""
    code: str = ""
    done: bool = False
    method: str = "PUT"
    times: int = 1
    extra: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a client."""

    method: str
    path: str
    query: str
    condition: str


@dataclass
class Faulty:
    """A wrapper that also records every request."""

    faults: list[Fault] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def __call__(self, app: WSGIApplication) -> WSGIApplication:
        def run(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
            self.requests.append(Request(method, path, environ["QUERY_STRING"], environ.get(_CONDITION, "")))
            for fault in self.faults:
                if fault.times > 0 and fault.method == method and fault.path in path:
                    fault.times -= 1
                    if fault.done:
                        list(app(environ, lambda *_: lambda _: None))
                    return _answer(fault, environ, start_response)
            return app(environ, start_response)

        return run


def _answer(fault: Fault, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    environ["wsgi.input"].read(0 if fault.done else int(environ.get("CONTENT_LENGTH") or 0))
    if not fault.status:
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        raise ConnectionResetError
    start_response(fault.status, [("Content-Type", "application/xml")])
    return [f"<Error><Code>{fault.code}</Code><Message>made up</Message>{fault.extra}</Error>".encode()]


@contextlib.contextmanager
def moto_server(wrap: Callable[[WSGIApplication], WSGIApplication] = one_step) -> Iterator[Backend]:
    """A server with an empty bucket; it stops at the end of the block."""
    app = wrap(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_QuietHandler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="moto")
    thread.start()
    try:
        options = s3_options(f"http://127.0.0.1:{server.server_port}")
        make_bucket(options)
        yield Backend(f"s3://{BUCKET}/", options)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def s3_options(endpoint: str) -> dict[str, Any]:
    return {
        "key": "weft",
        "secret": "not-a-secret",
        "endpoint_url": endpoint,
        "default_block_size": BLOCK_BYTES,
        # The SDK retries, as by default, but not for a minute.
        "config_kwargs": {"retries": {"mode": "standard", "total_max_attempts": 2}, "read_timeout": READ_SECONDS},
    }


def make_bucket(options: dict[str, Any]) -> None:
    with contextlib.suppress(FileExistsError):
        s3fs.S3FileSystem(**options, skip_instance_cache=True).mkdir(BUCKET)
