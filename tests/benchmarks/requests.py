"""The cost of operations on an object store: requests, bytes, seconds and dollars.

    python -m tests.benchmarks.requests [--lanes 1 60 500] [--groups 8 1000 8000] [--commits 100 100000]
                                        [--latency-ms 30] [--megabytes 100] [--put 5.0] [--get 0.4]

Three sweeps, each from a table of 8 lanes, 8 file groups and 100 commits: the lanes, the file groups, and the commits
of the history. The store is S3 as `storage.store.remote_store` uses it, request by request, over an S3 in memory with
simulated latency: every request takes the latency and the time of its bytes at the bandwidth of one connection, and the
connection pool of the S3 client limits how many run at once. So seconds are those of a client that waits for the store;
they include the work of this machine, which is also shown as CPU seconds. Tables are created in a local folder, without
simulated latency.

Prices are dollars for a million requests (S3 Standard, us-east-1: PUT, POST and LIST 5.00, GET and HEAD 0.40, DELETE
free). *again* is a snapshot by a reader that has taken one before; *commit* is the second commit of a writer, *enter*
what a writer does before the first one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime as dt
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import fsspec
import pyarrow as pa
from fsspec.asyn import AsyncFileSystem, sync_wrapper
from fsspec.spec import AbstractBufferedFile

from storage import Table
from storage.core.names import LaneName
from storage.read.snapshot import Snapshot
from tests.benchmarks import timeline
from tests.many_groups import BUCKETS, CONFIG, KEYS, rows

URI: Final = "s3://bucket/table"
PAGE: Final = 1_000  # names in one answer to a LIST
BLOCK_BYTES: Final = 50 * 2**20  # s3fs uploads larger objects in parts
CLIENT_CONNECTIONS: Final = 10  # default of botocore; `config_kwargs` of s3fs changes it
MONTH_SECONDS: Final = 30 * 24 * 3600
BASE_LANES, BASE_GROUPS, BASE_COMMITS = 8, 8, 100


@dataclass
class Server:
    """Objects by path, the requests so far, and the simulated time of each."""

    latency: float = 0.0
    bytes_per_second: float = 0.0
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    transferred: int = 0
    running: asyncio.Semaphore | None = None

    async def answer(self, kind: str, size: int = 0) -> None:
        """Count one request of some bytes, and wait for its simulated time."""
        self.requests[kind] += 1
        self.transferred += size
        if self.latency:
            assert self.running is not None
            async with self.running:
                await asyncio.sleep(self.latency + size / self.bytes_per_second)


SERVER: Final = Server()


class PricedS3(AsyncFileSystem):  # type: ignore[misc]
    """The part of s3fs that weft uses, on `SERVER`."""

    protocol = "s3"

    def __init__(self, *, config_kwargs: dict[str, Any] | None = None, **options: Any) -> None:
        super().__init__(**options)
        SERVER.running = asyncio.Semaphore((config_kwargs or {}).get("max_pool_connections", CLIENT_CONNECTIONS))

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        data = SERVER.objects.get(self._strip_protocol(path))
        part = None if data is None else data[start:end]
        await SERVER.answer("GET", len(part or b""))
        if part is None:
            raise FileNotFoundError(path)
        return part

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        await SERVER.answer("PUT", len(value))
        path = self._strip_protocol(path)
        if mode == "create" and path in SERVER.objects:
            raise FileExistsError(path)
        SERVER.objects[path] = bytes(value)

    async def _find(self, path: str, **_: Any) -> dict[str, dict[str, Any]]:
        prefix = self._strip_protocol(path).rstrip("/") + "/"
        found = {name: {"size": len(data)} for name, data in SERVER.objects.items() if name.startswith(prefix)}
        for _ in range(max(1, -(-len(found) // PAGE))):
            await SERVER.answer("LIST")
        return found

    async def _rm_file(self, path: str, **_: Any) -> None:
        await SERVER.answer("DELETE")
        SERVER.objects.pop(self._strip_protocol(path), None)

    async def _call_s3(self, _method: str, *, Bucket: str, Delete: dict[str, Any]) -> dict[str, Any]:  # noqa: N803 - S3's names
        await SERVER.answer("DELETE")
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
        part = self.buffer.getvalue()
        first = not self._whole
        self._whole += part
        asked = ["PUT"] if final and first else ["POST"] * first + ["PUT"] + ["POST"] * final
        for kind in asked:
            fsspec.asyn.sync(self.fs.loop, SERVER.answer, kind, len(part) if kind == "PUT" else 0)
        if final:
            SERVER.objects[self.fs._strip_protocol(self.path)] = self._whole
        return True


@dataclass(frozen=True)
class Figure:
    """The cost of one operation."""

    requests: Counter[str]
    megabytes: float
    seconds: float
    cpu: float

    @property
    def total(self) -> int:
        return sum(self.requests.values())

    def dollars(self, prices: dict[str, float]) -> float:
        return sum(prices[kind] * count for kind, count in self.requests.items()) / 1e6


def load(folder: Path) -> None:
    """Put a table of a local folder into the store."""
    SERVER.objects.clear()
    for path in folder.rglob("*"):
        if path.is_file():
            SERVER.objects[f"bucket/table/{path.relative_to(folder).as_posix()}"] = path.read_bytes()


def build(folder: Path, lanes: int, groups: int, commits: int) -> None:
    """A table: all keys loaded and compacted, then a number of commits of all lanes in turn, at least one each."""
    partitions = max(groups // BUCKETS, 1)
    table = Table.create(folder, CONFIG)
    with table.writer("s", lane=LaneName("lane0")) as writer:
        writer.append(rows(partitions, KEYS, 1))
    table.compact()
    few = rows(min(partitions, 2), 4, 2)
    for lane in range(lanes):
        with table.writer("s", lane=LaneName(f"lane{lane}")) as writer:
            for _ in range(max(1, commits // lanes)):
                writer.append(few)


def steps(history: bool) -> Iterator[tuple[str, Callable[[], object]]]:  # noqa: FBT001
    """The measured operations, in order; ``history``: for a table that `timeline` made, which lacks some files."""
    tables: list[Table] = []

    def snapshot() -> Snapshot:
        return tables[0].snapshot()

    stack = contextlib.ExitStack()
    few = rows(1, 2, 3) if not history else pa.table({"k": [1, 2], "v": [1, 2], "ts": [9, 9]})
    writers: list[Any] = []

    def query() -> None:
        scan = snapshot().scan()
        for task in scan.tasks:
            for _ in scan.read(task):
                pass

    yield "open", lambda: tables.append(Table.open(URI))
    yield "snapshot", snapshot
    yield "again", snapshot
    yield "plan", lambda: snapshot().scan()
    if not history:
        yield "query", query
        yield "get", lambda: tables[0].get([(0, 1)])
    yield "enter", lambda: writers.append(stack.enter_context(tables[0].writer("s", lane=LaneName("lane0"))))
    yield "", lambda: writers[0].append(few)
    yield "commit", lambda: writers[0].append(few)
    yield "", stack.close
    if not history:
        yield "fold", lambda: Table.open(URI).fold()
        yield "compact", lambda: Table.open(URI).compact()
        yield "clean", lambda: Table.open(URI).clean(dt.timedelta(0))


def measure(folder: Path, latency: float, bytes_per_second: float, *, history: bool = False) -> dict[str, Figure]:
    load(folder)
    found = {}
    for name, run in steps(history):
        SERVER.latency, SERVER.bytes_per_second = (latency, bytes_per_second) if name else (0.0, 0.0)
        SERVER.requests, SERVER.transferred = Counter(), 0
        cpu, wall = time.process_time(), time.perf_counter()
        run()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        if name:
            found[name] = Figure(SERVER.requests, SERVER.transferred / 1e6, wall, cpu)
    return found


def report(title: str, figures: dict[str, Figure], prices: dict[str, float]) -> None:
    print(f"\n{title}")
    print(f"{'':10} {'requests':>8} {'MB':>8} {'seconds':>8} {'CPU s':>7} {'$ for 1,000':>12}  by kind")
    for name, figure in figures.items():
        kinds = " ".join(f"{kind} {count}" for kind, count in sorted(figure.requests.items()))
        print(
            f"{name:10} {figure.total:8} {figure.megabytes:8.2f} {figure.seconds:8.2f} {figure.cpu:7.2f} "
            f"{1000 * figure.dollars(prices):12.5f}  {kinds}"
        )


def month(figures: dict[str, Figure], prices: dict[str, float]) -> str:
    """Dollars a month of 4 streams that commit every 5 s, with services and one reader."""
    often = {"commit": 4 / 5, "fold": 1 / 60, "compact": 1 / 300, "clean": 1 / 600, "query": 1 / 60, "again": 1 / 5}
    parts = {name: figures[name].dollars(prices) * times * MONTH_SECONDS for name, times in often.items()}
    text = ", ".join(f"{name} {dollars:.2f}" for name, dollars in parts.items())
    return (
        "dollars a month, 4 streams with a commit each 5 s, a fold a minute, a compaction each 5 and a cleaning each "
        f"10 minutes, a query a minute, a reader that asks each 5 s: {sum(parts.values()):.2f} ({text})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, nargs="*", default=[1, 60, 500])
    parser.add_argument("--groups", type=int, nargs="*", default=[8, 1000, 8000])
    parser.add_argument("--commits", type=int, nargs="*", default=[100, 100_000])
    parser.add_argument("--latency-ms", type=float, default=30.0, help="of every request")
    parser.add_argument("--megabytes", type=float, default=100.0, help="a second, of one connection")
    parser.add_argument("--put", type=float, default=5.0, help="dollars for a million PUT, POST or LIST requests")
    parser.add_argument("--get", type=float, default=0.4, help="dollars for a million GET or HEAD requests")
    given = parser.parse_args()
    prices = {
        "PUT": given.put,
        "POST": given.put,
        "LIST": given.put,
        "GET": given.get,
        "HEAD": given.get,
        "DELETE": 0.0,
    }
    fsspec.register_implementation("s3", PricedS3, clobber=True)
    root = Path(tempfile.mkdtemp(prefix="weft-requests-"))
    speed = (given.latency_ms / 1000, given.megabytes * 1e6)
    print(f"{given.latency_ms:g} ms a request, {given.megabytes:g} MB/s a connection")
    try:
        sizes = [(lanes, BASE_GROUPS) for lanes in given.lanes] + [(BASE_LANES, groups) for groups in given.groups]
        for number, (lanes, groups) in enumerate(dict.fromkeys(sizes)):
            folder = root / str(number)
            build(folder, lanes, groups, BASE_COMMITS)
            figures = measure(folder, *speed)
            report(f"{lanes} lanes, {groups:,} file groups, {BASE_COMMITS} commits", figures, prices)
            print(month(figures, prices))
            shutil.rmtree(folder)
        for commits in given.commits:
            folder = root / f"history{commits}"
            shape = timeline.Shape(commits, BASE_LANES, min(commits, BASE_COMMITS), BASE_GROUPS)
            timeline.build(folder, shape, folded=False)
            report(
                f"{BASE_LANES} lanes, {BASE_GROUPS} file groups, {commits:,} commits, all but the last "
                f"{shape.waiting} compacted",
                measure(folder, *speed, history=True),
                prices,
            )
            shutil.rmtree(folder)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
