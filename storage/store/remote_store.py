"""S3, Google Cloud Storage and Azure, through fsspec.

A file system is supported only if its ``pipe_file(mode="create")`` is *one* request that the *server* decides
(STORES.md describes each). Most others check first and then write, which a probe cannot detect. Other differences
between stores are handled in `_KINDS` and `weft.storage.store.sdk_errors` only.

SDKs retry by themselves, so "it exists" may be the answer to a retry of a put that has succeeded. So `publish` reads
the object.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import os
import selectors
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final, cast
from urllib.parse import urlsplit

import fsspec
import pyarrow as pa
from fsspec.asyn import sync
from fsspec.exceptions import FSTimeoutError

from weft.storage.core.names import Path
from weft.storage.errors import InvalidInput, StoreRefused, StoreUnavailable
from weft.storage.store.object_store import ObjectStore, Ranges, ReadRequest, check_create_size, normalise_errors
from weft.storage.store.remote_input import RemoteInput, merge_ranges
from weft.storage.store.sdk_errors import http_status, normalise_sdk_errors

MAX_PARALLEL_REQUESTS: Final = 64
"""Limit for each call and for the process, and the number of connections of the S3 client. A snapshot reads the ends of
64 lanes in one round; a query reads 64 small log files."""
MAX_PARALLEL_DELETES: Final = 16  # one thread per delete, for stores without a bulk delete
_S3_DELETES: Final = 1_000  # maximum number of objects in one request

_QUICK: Final = {"connect_timeout": 3, "read_timeout": 4, "retries": {"mode": "standard", "total_max_attempts": 2}}
"""Options of `check_reachable` for S3, so that its error names the reason, such as an unknown host."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of store, such as S3.

    Attributes:
        extra: The extra of this package that installs the SDK of the store.
        whole: Arguments of fsspec's `cat_file` for a small object. Without them s3fs first requests the size.
        bulk_delete: Whether one request can delete many objects.
        config: Settings of the SDK (``config_kwargs``); those of the user override them.
        quick: Options of the file system with short time-outs, for `check_reachable`.
    """

    extra: str
    whole: Mapping[str, Any] = field(default_factory=dict)
    bulk_delete: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)


_S3: Final = _Kind(
    "s3",
    {"max_concurrency": 1},
    bulk_delete=True,
    config={"max_pool_connections": MAX_PARALLEL_REQUESTS},  # botocore's default of 10 would make requests wait
    quick=_QUICK,
)
_GCS: Final = _Kind("gcs")
_AZURE: Final = _Kind("azure")
_KINDS: Final = {"s3": _S3, "s3a": _S3, "gs": _GCS, "gcs": _GCS, "az": _AZURE, "abfs": _AZURE, "abfss": _AZURE}


_PROBE_NAME: Final = "_weft/is-anybody-there"
"""Path of an object that does not exist in any table; `check_reachable` requests it."""
_REACH_HINT: Final = "check the URL, the network, and the storage options, such as endpoint_url"

_loops: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
"""Event loops of this process that wait for responses of stores."""


def _detach_event_loops() -> None:
    """Detach the inherited event loops in a forked child, so that the parent continues to get responses.

    Both processes share one epoll instance. SDKs close inherited connections when they are garbage-collected in the
    child, which would remove the connections of the parent from it.
    """
    for loop in _loops:
        if hasattr(loop, "_selector"):
            loop._selector = selectors.SelectSelector()  # noqa: SLF001 - asyncio has no name for this
    _loops.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_detach_event_loops)


class RemoteStore(ObjectStore):
    """A prefix of a bucket or container. Uploads that were not completed are not visible (STORES.md).

    Raises:
        InvalidInput: The URL's scheme is unknown, its package is not installed, or the options are invalid.
    """

    def __init__(self, uri: str, options: Mapping[str, Any]) -> None:
        scheme = urlsplit(uri).scheme
        kind = _KINDS.get(scheme)
        if kind is None:
            raise InvalidInput(
                f"cannot open {uri!r}: {scheme!r} is not a kind of store that creates objects exclusively",
                hint="use a folder, or a URL that starts with s3://, gs:// or abfs://",
            )
        self._uri, self._options, self._kind = uri, dict(options), kind
        try:
            self._connect()
        except (ValueError, TypeError, ImportError) as error:
            raise InvalidInput(
                f"cannot open {uri!r}: {error}",
                hint=f"check that weft[{kind.extra}] is installed, and that the storage options are those of fsspec",
            ) from error

    def _connect(self) -> None:
        """Open the file system for this process: sessions and event loops cannot be used after pickling or a fork."""
        # Cached listings would hide objects of other processes.
        options = {**self._options, "use_listings_cache": False}
        if self._kind.config:
            options["config_kwargs"] = {**self._kind.config, **options.get("config_kwargs", {})}
        self._file_system, root = fsspec.url_to_fs(self._uri, **options)
        self._root = root.rstrip("/")
        self._process = os.getpid()
        _loops.add(self._file_system.loop)

    @property
    def _fs(self) -> Any:
        if self._process != os.getpid():
            self._connect()
        return self._file_system

    def check_reachable(self, within_seconds: float) -> None:
        """Request an object that does not exist, with a short time limit; SDKs would retry for minutes.

        Raises:
            StoreRefused: The store refuses access, or there are no credentials.
            StoreUnavailable: The store does not answer, or its host does not exist.
        """
        options = {**self._options, "use_listings_cache": False, "skip_instance_cache": True}
        if self._kind.quick:
            options["config_kwargs"] = {**self._kind.quick, **options.get("config_kwargs", {})}
        try:
            with normalise_sdk_errors():
                file_system, root = fsspec.url_to_fs(self._uri, **options)
                file_system.retries = 1  # s3fs retries in addition to its SDK
                probe_path = f"{root.rstrip('/')}/{_PROBE_NAME}"
                sync(file_system.loop, file_system._cat_file, probe_path, timeout=within_seconds, **self._kind.whole)  # noqa: SLF001 - fsspec has no public way to bound a call
        except FileNotFoundError:
            return  # "not found" is an answer, so the store is reachable
        except PermissionError as error:
            raise StoreRefused(
                f"no access to {self._uri}: {error}",
                hint="check the credentials, their permissions, and the storage options",
            ) from error
        except FSTimeoutError as error:
            raise StoreUnavailable(
                f"no access to {self._uri}: no answer within {within_seconds:g} s", hint=_REACH_HINT
            ) from error
        except OSError as error:
            raise StoreUnavailable(f"no access to {self._uri}: {error}", hint=_REACH_HINT) from error

    def __reduce__(self) -> tuple[type[RemoteStore], tuple[str, Mapping[str, Any]]]:
        return RemoteStore, (self._uri, self._options)

    @property
    def uri(self) -> str:
        return self._uri

    @property
    def options(self) -> Mapping[str, Any]:
        """The options that the store was opened with."""
        return self._options

    def folders(self) -> list[str] | None:
        """Names of the folders in this one, sorted; None if there is no object in it. Needs one request per page."""
        with normalise_errors(Path(self._uri)):
            try:
                with normalise_sdk_errors():
                    entries = self._fs.ls(self._root, detail=True)
            except FileNotFoundError:
                return None
        names = (str(entry["name"]).rstrip("/") for entry in entries if entry["type"] == "directory")
        return sorted({name.rpartition("/")[2] for name in names if name != self._root})

    def has_bucket(self) -> bool:
        """Whether the bucket or container exists, so that objects can be created in it. Needs one request."""
        with normalise_errors(Path(self._uri)):
            try:
                with normalise_sdk_errors():
                    self._fs.ls(self._root)
            except FileNotFoundError as error:
                if self._kind is _S3:
                    return http_status(error) is None  # otherwise the server answered that the bucket does not exist
                return bool(self._fs.exists(self._root.partition("/")[0]))
        return True

    def put_if_absent(self, path: Path, data: bytes) -> bool:
        check_create_size(path, data)
        try:
            with normalise_sdk_errors():
                self._fs.pipe_file(self._full(path), data, mode="create")
        except FileExistsError:
            return False
        return True

    def put(self, path: Path, data: pa.Buffer | bytes) -> None:
        with normalise_errors(path), normalise_sdk_errors():
            self._fs.pipe_file(self._full(path), bytes(data))

    @contextlib.contextmanager
    def open_output(self, path: Path) -> Iterator[BinaryIO]:
        with normalise_errors(path):
            with normalise_sdk_errors():
                file = self._fs.open(self._full(path), "wb")
            try:
                yield cast("BinaryIO", _Output(file))
                with normalise_sdk_errors():
                    file.close()
            except BaseException:
                _discard(file)
                raise

    def get(self, path: Path) -> bytes | None:
        try:
            with normalise_sdk_errors():
                return self._fs.cat_file(self._full(path), **self._kind.whole)
        except FileNotFoundError:
            return None

    def get_many(self, paths: Sequence[Path]) -> list[bytes | None]:
        if not paths:
            return []
        full = [self._full(path) for path in paths]
        with normalise_sdk_errors():
            answers = self._fs.cat_ranges(
                full, None, None, batch_size=MAX_PARALLEL_REQUESTS, on_error="return", **self._kind.whole
            )
        return [_unwrap(answer) for answer in answers]

    def open_input(self, path: Path, size: int, ranges: Ranges | None = None) -> pa.NativeFile:
        (source,) = self._inputs([ReadRequest(path, size, ranges or ())])
        return pa.PythonFile(source, mode="r")

    def read_ranges(self, requests: Sequence[ReadRequest]) -> list[list[pa.Buffer]]:
        sources = zip(self._inputs(requests), requests, strict=True)
        return [
            [pa.py_buffer(bytearray(item.lead) + source.part(start, start + length)) for start, length in item.ranges]
            for source, item in sources
        ]

    def _inputs(self, requests: Sequence[ReadRequest]) -> list[RemoteInput]:
        """The requested objects; one call fetches all requested ranges."""
        inputs = [RemoteInput(self._fs, self._full(item.path), item.path, item.size) for item in requests]
        spans = [
            (source, *span) for source, item in zip(inputs, requests, strict=True) for span in merge_ranges(item.ranges)
        ]
        if spans:
            answers = self._fs.cat_ranges(
                [source.full_path for source, _, _ in spans],
                [start for _, start, _ in spans],
                [end for _, _, end in spans],
                batch_size=MAX_PARALLEL_REQUESTS,
                on_error="return",
            )
            for (source, start, end), answer in zip(spans, answers, strict=True):
                source.keep(start, end, answer)
        return inputs

    def list(self, folder: Path) -> list[tuple[str, int]]:
        top = self._full(folder)
        with normalise_errors(folder):
            try:
                with normalise_sdk_errors():
                    entries = self._fs.find(top, detail=True)
            except FileNotFoundError:
                return []
        # This leaves out an object (on some servers a folder) with exactly this name, and names that end with a slash,
        # which consoles and other tools create as placeholders for folders.
        prefix = f"{top.rstrip('/')}/"  # the folder of the store ends with a slash
        objects = ((n.removeprefix(prefix), o) for n, o in entries.items() if n.startswith(prefix) and n[-1] != "/")
        return sorted((name, int(info["size"])) for name, info in objects)

    def modified_at(self, path: Path) -> float:
        """Time when an object was written, by the clock of the store; in Unix seconds."""
        with normalise_sdk_errors():
            time: dt.datetime = self._fs.modified(self._full(path))
        return time.timestamp()

    def delete(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError), normalise_sdk_errors():
            self._fs.rm_file(self._full(path))

    def delete_many(self, paths: Sequence[Path]) -> None:
        if self._kind.bulk_delete:
            for start in range(0, len(paths), _S3_DELETES):
                self._delete_at_once(paths[start : start + _S3_DELETES])
        elif paths:
            with ThreadPoolExecutor(MAX_PARALLEL_DELETES) as pool:
                for future in [pool.submit(self._delete_one, path) for path in paths]:
                    future.result()

    def _delete_at_once(self, paths: Sequence[Path]) -> None:
        bucket, _, _ = self._fs.split_path(self._full(paths[0]))
        names = [{"Key": self._fs.split_path(self._full(path))[1]} for path in paths]
        with normalise_errors(paths[0]), normalise_sdk_errors():
            answer = self._fs.call_s3("delete_objects", Bucket=bucket, Delete={"Objects": names, "Quiet": True})
        failed = answer.get("Errors", [])  # the bulk delete of fsspec would ignore them
        if failed:
            raise StoreUnavailable(
                f"{len(failed)} of {len(paths)} objects were not deleted; {failed[0].get('Key')}: "
                f"{failed[0].get('Code')} {failed[0].get('Message', '')}",
                hint="check that these credentials may delete; then try again",
            )

    def _delete_one(self, path: Path) -> None:
        with normalise_errors(path):
            self.delete(path)

    def _full(self, path: Path) -> str:
        return f"{self._root}/{path}"


def _unwrap(answer: Any) -> bytes | None:
    """Unwrap one answer of `cat_ranges`: None if the object does not exist.

    Raises:
        OSError: The answer is an error other than "not found".
    """
    if isinstance(answer, FileNotFoundError):
        return None
    if isinstance(answer, BaseException):
        with normalise_sdk_errors():
            raise answer
    return answer


def _discard(file: Any) -> None:
    """Abort an upload; the object was never visible. If that fails, the store drops the parts after some time."""
    with contextlib.suppress(Exception):
        file.discard()
    # Otherwise the file would be uploaded when it is garbage-collected.
    file.forced = True
    with contextlib.suppress(Exception):
        file.close()


class _Output(io.RawIOBase):
    """An upload. The writer cannot close it: it is completed at the end of the block of `open_output`."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        with normalise_sdk_errors():
            return self._file.write(view)
