"""The explanation of one row: per column group the stored versions, which of them wins, and why the others lose."""

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

_MAX_CHARS: Final = 200  # of the values of an event in words

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
    """What one stored event, or one version in a merged row, says about a column group.

    Attributes:
        group: Name of the column group.
        result: ``wins``, ``counts`` or ``loses``.
        reason: Why; see `weft.storage.core.merge.outcomes.Reason`.
        operation: Operation of the event; ``merged`` for the merged result of several events.
        columns: The columns of the row whose values come from it. In an aggregate group a column may come from several:
            all that are added or collected, or all with the largest value.
        ordering: Values of the group's ordering columns.
        values: Values of the group's other columns that the version has.
        stream, lane, commit, committed_at: Stream and lane of the event, the slot and the time of its commit; of a
            merged result those of its newest upsert. None if the result has no upsert, or if the log does not tell.
        late: Whether a watermark of the lane had promised that such an event would not come any more; None if unknown.
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
        """Why it has its result, in words."""
        return f"{_WORDS[self.reason]}{', late' if self.late else ''}"

    @property
    def words(self) -> str:
        """One line for people."""
        at = "" if self.committed_at is None else f" at {self.committed_at:%Y-%m-%d %H:%M:%S.%f} UTC"
        commit = "" if self.commit is None else f" of stream {self.stream}, commit {self.lane}:{self.commit}{at}"
        ordering = "" if not self.ordering else f" {_listed(self.ordering)}"
        told = self.values and self.result is not Result.WINS and not self.operation.startswith("delete")
        said = f" with {_shortened(_listed(self.values))}" if told else ""  # the row shows the values of winners
        supplies = f", gives {', '.join(self.columns)}" if self.columns else ""
        return (
            f"{self.result} ({self.why}): {self.operation}{ordering}{said}{commit}{supplies}, "
            f"in {self.stored_in} file {self.file}"
        )


@dataclass(frozen=True, slots=True)
class GroupState:
    """A column group of the row.

    Attributes:
        name: Name of the column group.
        merge: Its merge mode.
        state: ``present``; ``deleted``: a delete is newer than everything that would show; ``absent``: no upsert shows.
        hides_row: Whether its delete hides the whole row.
    """

    name: str
    merge: str
    state: Literal["present", "deleted", "absent"]
    hides_row: bool


@dataclass(frozen=True, slots=True)
class ReferencedRow:
    """What a row shows of a referenced table.

    Attributes:
        reference: Name of the reference.
        table: Location of the referenced table, as the reference has it.
        foreign_key: Values of the foreign key in the row.
        explanation: Of the referenced row; None if the table has nothing of the key, or the foreign key is NULL.
        problem: Why the referenced table cannot be read; "" if it can.
    """

    reference: str
    table: str
    foreign_key: Mapping[str, Any]
    explanation: Explanation | None = None
    problem: str = ""

    def to_lines(self) -> list[str]:
        """The explanation in words."""
        begin = f"reference {self.reference}: {_listed(self.foreign_key)}"
        if self.problem:
            return [f"{begin}, but its columns cannot be read: {self.problem}"]
        if self.explanation is None:
            return [f"{begin} names no row of {self.table}"]
        return [f"{begin} names a row of {self.table}", *(f"  {line}" for line in self.explanation.to_lines())]


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """Why a row is as it is in one snapshot.

    Attributes:
        key: The key columns.
        cut: The snapshot, as text.
        history: Whether the retained history is included, and not only what a read of the snapshot merges.
        row: The columns of the table and of its references as a read gives them, maps as mappings; None if it is not
            visible.
        groups: The state of every column group, in the order of the table.
        versions: All stored versions, in the order of the groups; within a group the oldest commit first.
        references: What a visible row shows of referenced tables.
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
        named = [("", version) for version in self.versions]
        for each in self.references:
            referenced = each.explanation.versions if each.explanation is not None else ()
            named += [(f"{each.reference}.", version) for version in referenced]
        rows = [
            {name: getattr(version, name) for name in EXPLANATION_SCHEMA.names}
            | {
                "group": f"{reference}{version.group}",
                "ordering": _text(version.ordering),
                "values": _text(version.values),
            }
            for reference, version in named
        ]
        return pa.Table.from_pylist(rows, EXPLANATION_SCHEMA)

    def __repr__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        """For notebooks."""
        return shown.text("", self.to_text())

    def to_text(self) -> str:
        """The explanation in words, several lines."""
        return "\n".join(self.to_lines())

    def to_lines(self) -> list[str]:
        """The explanation in words."""
        hiding = [group.name for group in self.groups if group.hides_row]
        if self.row is not None:
            visible = "visible"
        elif hiding:
            visible = f"hidden by a delete of group {', '.join(hiding)}"
        else:
            visible = "not visible, because no group is present"
        lines = [f"row {_listed(self.key)} at {self.cut} is {visible}"]
        if self.row is not None:
            lines.append(f"  {_listed(self.row)}")
        for group in self.groups:
            lines.append(f"group {group.name} ({group.merge}): {group.state}")
            lines.extend(f"  {version.words}" for version in self.of_group(group.name))
        return [*lines, *(line for each in self.references for line in each.to_lines())]


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 3]}..."


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_word(value)}" for name, value in values.items())


def _word(value: Any) -> str:
    plain = _plain(value)
    return "NULL" if plain is None else plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _text(values: Mapping[str, Any]) -> str:
    return json.dumps(_plain(values), ensure_ascii=False)


def _plain(value: Any) -> Any:
    """A value for JSON: what JSON lacks becomes text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping():
            return {str(name): _plain(item) for name, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case dt.date():
            return value.isoformat()
        case bytes():
            return value.hex()
    return str(value)
