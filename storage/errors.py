"""Every error that weft raises on purpose, grouped by what the caller can do about it.

A rule of this room: a message names the thing that is wrong (field, column, path, value) and a ``hint`` says what to do
next. ``code`` is stable and meant for machines; messages may change.
"""

from __future__ import annotations

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
    "StoreRefused",
    "StoreUnavailable",
    "TableError",
    "UnsupportedFormat",
]


class TableError(Exception):
    """Base of all errors of weft; never raised itself.

    Attributes:
        code: Stable name for machines, one per class.
        message: What is wrong, without the hint.
        hint: What to do about it; empty where the message says it all.
    """

    code = "TABLE_ERROR"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders (Spark tasks, pools); keyword arguments are lost by Exception's own pickling.
        return (
            _rebuild,
            (
                type(self),
                self.message,
                self.hint,
                {k: v for k, v in self.__dict__.items() if k not in {"message", "hint"}},
            ),
        )


def _rebuild(kind: type[TableError], message: str, hint: str, extra: dict[str, object]) -> TableError:
    error = kind.__new__(kind)
    TableError.__init__(error, message, hint=hint)
    error.__dict__.update(extra)
    return error


class InvalidInput(TableError):
    """The caller's data, configuration or argument is wrong; nothing was changed. Mend the input."""

    code = "INVALID_INPUT"


class NotFound(TableError):
    """A table, column, stream, file or savepoint that was named does not exist."""

    code = "NOT_FOUND"


class Conflict(TableError):
    """The request contradicts what the table already holds (it exists, another query owns the lane, ...)."""

    code = "CONFLICT"


class GapError(TableError):
    """A batch number is further ahead than the next one: a batch in between was never committed here."""

    code = "GAP"


class Fenced(TableError):
    """A newer writer has claimed this lane. This writer must stop; what it committed stays, nothing is lost."""

    code = "FENCED"


class SplitBrain(TableError):
    """Two writers act under one claim of a lane, which the protocol makes impossible. Halt and run a check."""

    code = "SPLIT_BRAIN"


class StoreUnavailable(TableError):
    """The object store refused or did not answer within the bound, or lacks an ability that weft needs."""

    code = "STORE_UNAVAILABLE"


class StoreRefused(StoreUnavailable):
    """The store answered, and refused: no credentials, no permission, or an ability that weft needs is missing.

    Waiting does not help, other than for any other `StoreUnavailable`.
    """

    code = "STORE_REFUSED"


class CommitUnknown(TableError):
    """It could not be learnt whether a commit took place. Nothing was removed; replaying the same batch is safe.

    Attributes:
        batch: The (query id, batch number) to replay.
    """

    code = "COMMIT_UNKNOWN"

    def __init__(self, message: str, *, hint: str = "", batch: tuple[str, int] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.batch = batch


class CorruptData(TableError):
    """Stored bytes are not what the log says they are: damaged, truncated, missing or forged."""

    code = "CORRUPT_DATA"


class MissingFile(CorruptData):
    """A file that the log refers to is not there; to callers plain `CorruptData`, of the same code.

    Whoever reads a snapshot asks first whether cleaning has given it up: see `storage.read.missing_file`.
    """


class SnapshotExpired(TableError):
    """The snapshot asked for is older than what is retained."""

    code = "SNAPSHOT_EXPIRED"


class OffsetExpired(SnapshotExpired):
    """Changes are asked for since, or up to, a snapshot that is older than what is retained."""

    code = "OFFSET_EXPIRED"


class OffsetInvalidated(TableError):
    """Changes are asked for since a snapshot before a restore or an undo: what it showed may have been rolled back."""

    code = "OFFSET_INVALIDATED"


class NotComplete(TableError):
    """The snapshot may lack events up to the value that was asked for, as far as its streams declare: wait."""

    code = "NOT_COMPLETE"


class NotSettled(TableError):
    """What the table was at a time may still change: a commit that says it is older may yet become visible."""

    code = "NOT_SETTLED"


class UnsupportedFormat(TableError):
    """The table uses a feature that this version does not know. Upgrade weft; nothing was read or changed."""

    code = "UNSUPPORTED_FORMAT"
