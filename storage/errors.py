"""The errors that weft raises on purpose, one class for each way in which a caller can react.

A message names what is wrong and where (field, column, path, value); ``hint`` says what to do next. ``code`` is stable
and meant for programs; messages may change. An error can be pickled, and written as a small dictionary and read back
(`TableError.to_dict`, `error_from_dict`), so that it keeps its class when it is sent to another process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = [
    "CommitUnknown",
    "Conflict",
    "CorruptData",
    "Fenced",
    "GapError",
    "InvalidInput",
    "NotComplete",
    "NotFound",
    "NotSettled",
    "OffsetExpired",
    "OffsetInvalidated",
    "SnapshotExpired",
    "SplitBrain",
    "StillRetained",
    "StoreRefused",
    "StoreUnavailable",
    "TableError",
    "UnsupportedFormat",
]


class TableError(Exception):
    """Base class of all errors of weft; only its subclasses are raised.

    Attributes:
        code: Stable name for programs, one per class.
        message: What is wrong and where, without the hint.
        hint: What to do about it; empty if the message says everything.
        guide: Document and section that explain such errors and what to do, one per class; empty for none.
    """

    code = "TABLE_ERROR"
    guide = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        more = (f"\n  {name}: {text}" for name, text in (("hint", self.hint), ("guide", self.guide)) if text)
        return self.message + "".join(more)

    def to_dict(self) -> dict[str, Any]:
        """The error as JSON values: ``code``, ``message``, ``hint``, ``guide``, and the ``fields`` of its class."""
        texts = {"code": self.code, "message": self.message, "hint": self.hint, "guide": self.guide}
        return {**texts, "fields": self._fields()}

    def _fields(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in self.__dict__.items()
            if name not in {"message", "hint"} and not name.startswith("__")
        }

    def __reduce__(self) -> tuple[object, ...]:
        # The default pickling of exceptions loses keyword arguments.
        return _rebuild, (type(self), self.message, self.hint, self._fields())


def error_from_dict(data: Mapping[str, Any]) -> TableError:
    """The error that `TableError.to_dict` described, also after JSON.

    A code that this process does not know gives a plain `TableError` with the same message and hint.

    Raises:
        KeyError: ``data`` does not describe an error.
    """
    kind = next((kind for kind in _kinds(TableError) if kind.code == data["code"]), TableError)
    # JSON turns tuples into lists; no error has a list.
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in data["fields"].items()}
    return _rebuild(kind, data["message"], data["hint"], fields)


def _kinds(base: type[TableError]) -> Iterator[type[TableError]]:
    """All classes of errors that are loaded, each before its subclasses."""
    for kind in base.__subclasses__():
        yield kind
        yield from _kinds(kind)


def _rebuild(kind: type[TableError], message: str, hint: str, fields: Mapping[str, Any]) -> TableError:
    error = kind.__new__(kind)
    TableError.__init__(error, message, hint=hint)
    error.__dict__.update(fields)
    return error


class InvalidInput(TableError):
    """The caller's data, configuration or argument is wrong. Nothing was changed. Correct the input."""

    code = "INVALID_INPUT"


class NotFound(TableError):
    """A table, column, stream, lane, savepoint or cut that the caller named does not exist."""

    code = "NOT_FOUND"


class Conflict(TableError):
    """The request contradicts what the table holds: it already exists, the lane belongs to another query, ..."""

    code = "CONFLICT"


class StillRetained(Conflict):
    """Keys cannot be erased, because snapshots that are retained or kept by name still need files with them.

    Nothing was changed. Release or expire them, or let `Table.erase` do that.

    Attributes:
        savepoints: Names of the savepoints.
        pins: Owners of the pins.
        snapshots: Whether snapshots within the retention time are among them.
    """

    code = "STILL_RETAINED"
    guide = "deploy/OPERATIONS.md#erasing-keys"

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        savepoints: tuple[str, ...] = (),
        pins: tuple[str, ...] = (),
        snapshots: bool = False,
    ) -> None:
        super().__init__(message, hint=hint)
        self.savepoints = savepoints
        self.pins = pins
        self.snapshots = snapshots


class GapError(TableError):
    """A batch number is not the next one of its query: an earlier batch was not committed. Send that batch first."""

    code = "GAP"


class Fenced(TableError):
    """A newer writer has claimed the lane. This writer must stop. Its commits remain."""

    code = "FENCED"
    guide = "deploy/docs/recovery.md#a-machine-is-gone"


class SplitBrain(TableError):
    """Two writers use the same claim of a lane, which the protocol rules out. Stop both, and run `Table.verify`."""

    code = "SPLIT_BRAIN"


class StoreUnavailable(TableError):
    """The object store did not answer in time, or refused access. Try again, unless the error is `StoreRefused`."""

    code = "STORE_UNAVAILABLE"


class StoreRefused(StoreUnavailable):
    """The store refused access because credentials or permissions are missing, or lacks a feature that weft needs.

    Waiting does not help, unlike for any other `StoreUnavailable`.
    """

    code = "STORE_REFUSED"
    guide = "storage/STORES.md#options"


class CommitUnknown(TableError):
    """The store did not say whether a commit took place. No file was deleted. Sending the same batch again is safe.

    Attributes:
        batch: (query id, batch number) to send again; None for a commit without a batch.
    """

    code = "COMMIT_UNKNOWN"

    def __init__(self, message: str, *, hint: str = "", batch: tuple[str, int] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.batch = batch


class CorruptData(TableError):
    """A stored object is damaged, truncated, missing, or not the one that the log names. Restore it from a copy."""

    code = "CORRUPT_DATA"
    guide = "deploy/docs/recovery.md#objects-are-missing-or-damaged"


class MissingFile(CorruptData):
    """A file that the log refers to is missing. Has the code of `CorruptData`.

    A reader of a snapshot raises `SnapshotExpired` instead if cleaning has removed the file: see
    `weft.storage.read.missing_file`.
    """


class SnapshotExpired(TableError):
    """The snapshot is older than what is retained: cleaning may have removed its files. Read a newer one."""

    code = "SNAPSHOT_EXPIRED"
    guide = "storage/READING.md#time-travel"


class OffsetExpired(SnapshotExpired):
    """One end of a range of changes is a snapshot that has expired. Read the whole table, and continue from there."""

    code = "OFFSET_EXPIRED"
    guide = "storage/READING.md#changes"


class OffsetInvalidated(TableError):
    """Changes were requested since a snapshot before a restore or an undo, whose rows may have been rolled back."""

    code = "OFFSET_INVALIDATED"
    guide = "storage/READING.md#changes"


class NotComplete(TableError):
    """Events up to the requested value may still arrive, according to the watermarks of the streams. Wait."""

    code = "NOT_COMPLETE"
    guide = "deploy/docs/tutorial.md#a-report-that-waits"


class NotSettled(TableError):
    """The state of the table at a time is not final: a commit with an earlier time may still become visible."""

    code = "NOT_SETTLED"
    guide = "storage/READING.md#time-travel"


class NotOneMoment(TableError):
    """The table at one moment was asked for, and commits of an earlier version leave it open. Nothing was read."""

    code = "NOT_ONE_MOMENT"
    guide = "storage/READING.md#one-moment"


class UnsupportedFormat(TableError):
    """The table uses a feature that this version does not know. Nothing was read or changed. Upgrade weft."""

    code = "UNSUPPORTED_FORMAT"
    guide = "deploy/OPERATIONS.md#upgrades"
