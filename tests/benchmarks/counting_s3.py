"""S3 in memory: counts requests and computes the time that they would take, without waiting.

It implements the part of s3fs that `weft.storage.store.remote_store` uses. Every request takes the latency plus the
time of its bytes at the bandwidth of one connection. Requests that are sent together run at the same time, up to the
connection pool of the S3 client; a request that is sent after another one was answered begins when that one ends. So
the results do not depend on the load of this machine.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import fsspec
from fsspec.asyn import AsyncFileSystem, sync_wrapper
from fsspec.spec import AbstractBufferedFile

from weft.storage.core.names import Path
from weft.storage.store.object_store import ObjectStore

URI: Final = "s3://bucket/table"
PAGE: Final = 1_000  # names in one response to LIST
BLOCK_BYTES: Final = 50 * 2**20  # s3fs uploads larger objects in parts
CLIENT_CONNECTIONS: Final = 10  # default of botocore; `config_kwargs` of s3fs changes it
TURNS: Final = 3
"""Turns of the event loop before the first request of a round is answered, so that all of its requests are sent."""


@dataclass
class Server:
    """Objects by path, and the number and the time of requests.

    Attributes:
        latency: Seconds of a request.
        bytes_per_second: Bandwidth of one connection; 0: bytes take no time.
        requests: Number of requests by kind.
        folders: Number of requests by kind and folder (the first two parts of a path).
        transferred: Bytes that were sent and received.
        seconds: Time of all requests; requests that were sent together run at the same time.
        rounds: Length of the longest chain of requests that were each sent after the previous one was answered.
    """

    latency: float = 0.0
    bytes_per_second: float = 0.0
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    folders: Counter[tuple[str, str]] = field(default_factory=Counter)
    transferred: int = 0
    seconds: float = 0.0
    rounds: int = 0
    running: asyncio.Semaphore | None = None

    def begin(self) -> None:
        """Count from zero."""
        self.requests, self.folders = Counter(), Counter()
        self.transferred, self.seconds, self.rounds = 0, 0.0, 0

    def load(self, store: ObjectStore) -> None:
        """Replace all objects by those of another store."""
        self.objects = {f"bucket/table/{name}": store.get(Path(name)) or b"" for name, _ in store.list(Path(""))}

    async def answer(self, kind: str, path: str, size: int = 0) -> None:
        """Count one request for a path with ``size`` bytes, and compute its time."""
        assert self.running is not None
        async with self.running:
            self.requests[kind] += 1
            self.folders[kind, "/".join(path.split("/")[2:4])] += 1
            self.transferred += size
            begun, round_before = self.seconds, self.rounds
            for _ in range(TURNS):
                await asyncio.sleep(0)
            transfer = size / self.bytes_per_second if self.bytes_per_second else 0.0
            self.seconds = max(self.seconds, begun + self.latency + transfer)
            self.rounds = max(self.rounds, round_before + 1)


SERVER: Final = Server()


def register() -> None:
    """Make ``s3://`` this store, in this process."""
    fsspec.register_implementation("s3", CountingS3, clobber=True)


class CountingS3(AsyncFileSystem):  # type: ignore[misc]
    """The part of s3fs that weft uses, on `SERVER`."""

    protocol = "s3"

    def __init__(self, *, config_kwargs: dict[str, Any] | None = None, **options: Any) -> None:
        super().__init__(**options)
        SERVER.running = asyncio.Semaphore((config_kwargs or {}).get("max_pool_connections", CLIENT_CONNECTIONS))

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        path = self._strip_protocol(path)
        data = SERVER.objects.get(path)
        part = None if data is None else data[start:end]
        await SERVER.answer("GET", path, len(part or b""))
        if part is None:
            raise FileNotFoundError(path)
        return part

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        path = self._strip_protocol(path)
        await SERVER.answer("PUT", path, len(value))
        if mode == "create" and path in SERVER.objects:
            raise FileExistsError(path)
        SERVER.objects[path] = bytes(value)

    async def _find(self, path: str, **_: Any) -> dict[str, dict[str, Any]]:
        prefix = self._strip_protocol(path).rstrip("/") + "/"
        found = {name: {"size": len(data)} for name, data in SERVER.objects.items() if name.startswith(prefix)}
        for _ in range(max(1, -(-len(found) // PAGE))):  # each page contains the token for the next one
            await SERVER.answer("LIST", prefix)
        return found

    async def _rm_file(self, path: str, **_: Any) -> None:
        path = self._strip_protocol(path)
        await SERVER.answer("DELETE", path)
        SERVER.objects.pop(path, None)

    async def _call_s3(self, _method: str, *, Bucket: str, Delete: dict[str, Any]) -> dict[str, Any]:  # noqa: N803 - S3's names
        await SERVER.answer("DELETE", Bucket)
        for one in Delete["Objects"]:
            SERVER.objects.pop(f"{Bucket}/{one['Key']}", None)
        return {}

    call_s3 = sync_wrapper(_call_s3)

    def split_path(self, path: str) -> tuple[str, str, None]:
        bucket, _, key = self._strip_protocol(path).partition("/")
        return bucket, key, None

    def _open(self, path: str, mode: str = "rb", **_: Any) -> _Upload:
        return _Upload(self, path, mode, block_size=BLOCK_BYTES)


class _Upload(AbstractBufferedFile):  # type: ignore[misc]
    """One PUT for a small object, parts for a large one."""

    def _initiate_upload(self) -> None:
        self._whole = b""

    def _upload_chunk(self, final: bool = False) -> bool:  # noqa: FBT001, FBT002 - fsspec's signature
        part, path = self.buffer.getvalue(), self.fs._strip_protocol(self.path)
        first = not self._whole
        self._whole += part
        asked = ["PUT"] if final and first else ["POST"] * first + ["PUT"] + ["POST"] * final
        for kind in asked:
            fsspec.asyn.sync(self.fs.loop, SERVER.answer, kind, path, len(part) if kind == "PUT" else 0)
        if final:
            SERVER.objects[path] = self._whole
        return True
