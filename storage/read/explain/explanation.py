"""The explanation of one row: for each column group the stored versions, which one wins, and why the others lose."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa

from weft.storage import shown
from weft.storage.core.merge.outcomes import Reason, Result

StoredIn = Literal["log", "fold", "base", "overlay", "shadow"]
Operation = Literal["upsert", "delete", "delete row", "update-before", "merged"]

_WORDS: Final[Mapping[Reason, str]] = {
    Reason.NEWEST: "newest",
    Reason.MERGED: "all events of the group count",
    Reason.OLDER: "older than the winner",
    Reason.TIE: "equal ordering value, but the winner was committed later",
    Reason.TOMBSTONE: "a newer delete removed it",
    Reason.HIDDEN: "hidden: another group's delete hides the whole row",
    Reason.NO_ORDERING: "its ordering values are all NULL, so it does not touch the group",
    Reason.UPDATE_BEFORE: "an update-before row, which only aggregate groups use",
}

_MAX_CHARS: Final = 200  # of the values of an event in the text form

EXPLANATION_SCHEMA: Final = pa.schema(
    [
        pa.field("group", pa.string(), nullable=False),
        pa.field("result", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("words", pa.string(), nullable=False),
        pa.field("operation", pa.string(), nullable=False),
        pa.field("columns", pa.list_(pa.string()), nullable=False),
        pa.field("ordering", pa.string(), nullable=False),
        pa.field("values", pa.string(), nullable=False),
        pa.field("stream", pa.string()),
        pa.field("lane", pa.string()),
        pa.field("commit", pa.int64()),
        pa.field("committed_at", pa.timestamp("us", tz="UTC")),
        pa.field("late", pa.bool_()),
        pa.field("stored_in", pa.string(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
    ]
)
"""Columns of `Explanation.to_arrow`; ``ordering`` and ``values`` are JSON objects."""


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """One version of a column group: a stored event, or a part of a merged row.

    Attributes:
        group: Name of the column group.
        result: ``wins``, ``counts`` or ``loses``.
        reason: Why; see `weft.storage.core.merge.outcomes.Reason`.
        operation: Operation of the event; ``merged`` for the merged result of several events.
        columns: The columns of the row whose values come from this version. In an aggregate group a column may come
            from several versions: all that are added or collected, or all with the largest value.
        ordering: Values of the group's ordering columns.
        values: Values of the group's other columns that the version has.
        stream, lane, commit, committed_at: Stream and lane of the event, and the sequence number and time of its
            commit; for a merged result those of its newest upsert. None if the result has no upsert, or if the log
            does not say.
        late: Whether the event arrived although a watermark of its lane was already above it; None if unknown.
        stored_in: Kind of the file.
        file: Path of the file, relative to the table.
    """

    group: str
    result: Result
    reason: Reason
    operation: Operation
    columns: tuple[str, ...]
    ordering: Mapping[str, Any]
    values: Mapping[str, Any]
    stream: str | None
    lane: str | None
    commit: int | None
    committed_at: dt.datetime | None
    late: bool | None
    stored_in: StoredIn
    file: str

    @property
    def why(self) -> str:
        """The reason for the result, as text."""
        return f"{_WORDS[self.reason]}{', late' if self.late else ''}"

    @property
    def words(self) -> str:
        """One line for people."""
        at = "" if self.committed_at is None else f" at {self.committed_at:%Y-%m-%d %H:%M:%S.%f} UTC"
        commit = "" if self.commit is None else f" of stream {self.stream}, commit {self.lane}:{self.commit}{at}"
        ordering = "" if not self.ordering else f" {_format_values(self.ordering)}"
        # The row shows the values of winners.
        shows_values = self.values and self.result is not Result.WINS and not self.operation.startswith("delete")
        values = f" with {_shorten(_format_values(self.values))}" if shows_values else ""
        supplies = f", gives {', '.join(self.columns)}" if self.columns else ""
        return (
            f"{self.result} ({self.why}): {self.operation}{ordering}{values}{commit}{supplies}, "
            f"in {self.stored_in} file {self.file}"
        )


@dataclass(frozen=True, slots=True)
class GroupState:
    """A column group of the row.

    Attributes:
        name: Name of the column group.
        merge: Its merge mode.
        state: ``present``; ``deleted``: a delete is newer than all upserts; ``absent``: there is no upsert.
        hides_row: Whether its delete hides the whole row.
    """

    name: str
    merge: str
    state: Literal["present", "deleted", "absent"]
    hides_row: bool


@dataclass(frozen=True, slots=True)
class ReferencedRow:
    """The row of a referenced table that the foreign key of a row names.

    Attributes:
        reference: Name of the reference.
        table: Location of the referenced table, as in the reference.
        foreign_key: Values of the foreign key in the row.
        explanation: Explanation of the referenced row; None if the table has no version of the key, or the foreign key
            is NULL.
        problem: Why the referenced table cannot be read; "" if it can be read.
    """

    reference: str
    table: str
    foreign_key: Mapping[str, Any]
    explanation: Explanation | None = None
    problem: str = ""

    def to_lines(self) -> list[str]:
        """The explanation as lines of text."""
        begin = f"reference {self.reference}: {_format_values(self.foreign_key)}"
        if self.problem:
            return [f"{begin}, but its columns cannot be read: {self.problem}"]
        if self.explanation is None:
            return [f"{begin} names no row of {self.table}"]
        return [f"{begin} names a row of {self.table}", *(f"  {line}" for line in self.explanation.to_lines())]


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """Why a row has its values in one snapshot.

    Attributes:
        key: The key columns.
        cut: The snapshot, as text.
        history: Whether all retained versions are included, not only those that a read of the snapshot merges.
        row: The columns of the table and of its references as a read returns them, maps as mappings; None if the row
            is not visible.
        groups: The state of every column group, in the order of the table.
        versions: All stored versions, in the order of the groups; within a group the oldest commit first.
        references: The referenced rows, if the row is visible.
    """

    key: Mapping[str, Any]
    cut: str
    history: bool
    row: Mapping[str, Any] | None
    groups: tuple[GroupState, ...]
    versions: tuple[StoredVersion, ...]
    references: tuple[ReferencedRow, ...] = ()

    def of_group(self, name: str) -> tuple[StoredVersion, ...]:
        """The versions of one column group."""
        return tuple(version for version in self.versions if version.group == name)

    def to_arrow(self) -> pa.Table:
        """One row per stored version, with the columns of `EXPLANATION_SCHEMA`.

        The versions of a referenced row come last. Their groups are named ``<reference>.<group>``.
        """
        prefixed = [("", version) for version in self.versions]
        for referenced in self.references:
            versions = referenced.explanation.versions if referenced.explanation is not None else ()
            prefixed += [(f"{referenced.reference}.", version) for version in versions]
        rows = [
            {name: getattr(version, name) for name in EXPLANATION_SCHEMA.names}
            | {
                "group": f"{prefix}{version.group}",
                "ordering": _to_json(version.ordering),
                "values": _to_json(version.values),
            }
            for prefix, version in prefixed
        ]
        return pa.Table.from_pylist(rows, EXPLANATION_SCHEMA)

    def __repr__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        """Show the text in notebooks."""
        return shown.text("", self.to_text())

    def to_text(self) -> str:
        """The explanation as text of several lines."""
        return "\n".join(self.to_lines())

    def to_lines(self) -> list[str]:
        """The explanation as lines of text."""
        hiding = [group.name for group in self.groups if group.hides_row]
        if self.row is not None:
            visible = "visible"
        elif hiding:
            visible = f"hidden by a delete of group {', '.join(hiding)}"
        else:
            visible = "not visible, because no group is present"
        lines = [f"row {_format_values(self.key)} at {self.cut} is {visible}"]
        if self.row is not None:
            lines.append(f"  {_format_values(self.row)}")
        for group in self.groups:
            lines.append(f"group {group.name} ({group.merge}): {group.state}")
            lines.extend(f"  {version.words}" for version in self.of_group(group.name))
        return [*lines, *(line for referenced in self.references for line in referenced.to_lines())]


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 3]}..."


def _format_values(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_format_value(value)}" for name, value in values.items())


def _format_value(value: Any) -> str:
    plain = _to_plain(value)
    return "NULL" if plain is None else plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _to_json(values: Mapping[str, Any]) -> str:
    return json.dumps(_to_plain(values), ensure_ascii=False)


def _to_plain(value: Any) -> Any:
    """Convert a value for JSON; values that JSON cannot represent become text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping():
            return {str(name): _to_plain(item) for name, item in value.items()}
        case list() | tuple():
            return [_to_plain(item) for item in value]
        case dt.date():
            return value.isoformat()
        case bytes():
            return value.hex()
    return str(value)
