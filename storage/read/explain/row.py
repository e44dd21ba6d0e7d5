"""Explains one row: reads every stored version of a key, and asks the merge modes which of them win.

Only the file group of the key is planned, and only its log blocks and row groups that can have the key are read, as
`weft.storage.read.snapshot.Snapshot.get` does. Memory is proportional to these blocks and to the events of the key.

The same code explains the history: instead of the newest slice and the logs after it, it reads the oldest usable slice
and all commits after it. Both merge to the same row (PROTOCOL.md, S11).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

from weft.storage import mergers
from weft.storage.clock import LANE_BITS
from weft.storage.core import keys, names
from weft.storage.core.arrays import Arrays, take_rows
from weft.storage.core.keys import KeyVector
from weft.storage.core.log import cut
from weft.storage.core.log.entries import Data
from weft.storage.core.log.file_refs import FileGroup
from weft.storage.core.log.table_state import TableState
from weft.storage.core.merge.collapse import LogRange, collapse_group
from weft.storage.core.merge.events import supplied_mask
from weft.storage.core.merge.locate_keys import key_columns, locate_keys
from weft.storage.core.merge.outcomes import Outcome, Version, decide, hide
from weft.storage.core.merge.registers import group_registers, merge_registers
from weft.storage.core.merge.stitch import needed_columns
from weft.storage.core.merge.visibility import visible_rows
from weft.storage.core.model import Group, Op
from weft.storage.core.modes import Mergers, Registers, mode_of
from weft.storage.core.modes.partial import supplier_numbers
from weft.storage.core.names import LaneName
from weft.storage.core.plan.slices import FileSlice, LiveFile, plan_slices
from weft.storage.core.plan.watermarks import to_ticks, watermark_type
from weft.storage.core.python_values import python_value
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.core.types import decode_scalar
from weft.storage.errors import InvalidInput, NotFound
from weft.storage.files.base_file import SliceReader
from weft.storage.files.log_reader import LogReader
from weft.storage.log import live_files
from weft.storage.read.explain.aggregate_winners import Located, contributed_columns
from weft.storage.read.explain.explanation import Explanation, GroupState, Operation, StoredIn, StoredVersion
from weft.storage.read.missing_file import explain_missing_file
from weft.storage.read.plan.pruning import RowGroups, key_table, narrow_log_ranges
from weft.storage.read.snapshot_files import SnapshotFiles
from weft.storage.times import moment_of

_OPERATIONS: Final[Mapping[Op | None, Operation]] = {
    None: "merged",
    Op.UPSERT: "upsert",
    Op.DELETE_GROUP: "delete",
    Op.DELETE_ROW: "delete row",
    Op.RETRACT: "update-before",
}


def explain_row(snapshot: SnapshotFiles, key: Any, *, history: bool = False) -> Explanation:
    """Explain one row of a snapshot.

    Args:
        snapshot: The files of the snapshot.
        key: Value of the key column; a tuple in the order of the key if it has several columns; or a mapping of all key
            columns by name.
        history: Explain all events of the key in the retained log, also those that slices and folds contain.

    Raises:
        InvalidInput: The key has another type, another number of columns, or contains null.
        NotFound: The snapshot has no version of the key, not even a delete.
        SnapshotExpired: The snapshot has expired.
        CorruptData: A file is missing or damaged.
    """
    schema = snapshot.table_schema
    columns = key_columns(schema, key_table(schema, _as_key(schema, key)))
    shown_key = {name: python_value(column[0]) for name, column in columns.items()}
    with explain_missing_file(snapshot.table_log.env, snapshot.at):
        state = _oldest_state(snapshot) if history else snapshot.state
        located = locate_keys(schema, columns, state.levels)
        vector = next(iter(located.values()))
        slices, files = _history_files(snapshot, state, located) if history else _current_files(snapshot, located)
        stored = _StoredRow(schema)
        for file_slice in slices:
            _read_versions(snapshot, narrow_log_ranges(schema, file_slice, files, vector), files, vector, stored)
    if not any(stored.versions.values()):
        key_text = ", ".join(f"{name}={value!r}" for name, value in shown_key.items())
        raise NotFound(
            f"the table has neither a row nor a delete with key {key_text} at {snapshot.at}",
            hint="check the key and the snapshot; nothing is kept of keys that were erased, forgotten or expired",
        )
    loaded = mergers.load(schema, snapshot.table_log.env.mergers)
    registers = {group.id: stored.merge(group, loaded) for group in schema.groups}
    return _explain(snapshot, shown_key, stored, registers, history=history)


def _as_key(schema: TableSchema, key: Any) -> Sequence[Any]:
    if not isinstance(key, Mapping):
        return [key]
    if set(key) != set(schema.key):
        raise InvalidInput(
            f"the key has the columns {', '.join(map(str, key)) or 'none'}",
            hint=f"the key of the table is {', '.join(schema.key)}",
        )
    return [tuple(key[name] for name in schema.key)]


def _current_files(
    snapshot: SnapshotFiles, groups: Collection[FileGroup]
) -> tuple[Sequence[FileSlice], Sequence[LiveFile]]:
    """The slices and log files that a read of the snapshot merges."""
    return snapshot.slices_of(groups), snapshot.files


def _oldest_state(snapshot: SnapshotFiles) -> TableState:
    """The state of the snapshot with the oldest slices that lead to it, and without folds."""
    log, state = snapshot.table_log, snapshot.state
    retained = log.refresh().oldest_retained
    oldest = log.at(min(state.head, max(retained, state.restored, state.rewritten, 1)))
    return replace(state, slices=oldest.slices, covered=oldest.covered, folds=(), folded={})


def _history_files(
    snapshot: SnapshotFiles, begin: TableState, groups: Collection[FileGroup]
) -> tuple[Sequence[FileSlice], Sequence[LiveFile]]:
    """The oldest slices that lead to the snapshot, and all commits after them.

    The log files of these commits are retained (PROTOCOL.md, C2).
    """
    files = live_files.committed_files(snapshot.table_log, begin, begin.log_start(), snapshot.at.lanes)
    return plan_slices(begin, files, only=groups), files


@dataclass(slots=True)
class _StoredRow:
    """Everything that is stored of a key.

    Attributes:
        schema: The schema of the snapshot.
        versions: Versions by group id.
        rows: Rows of base, shadow and folds, older ones first.
        events: Rows of log files, in version order.
    """

    schema: TableSchema
    versions: dict[int, list[Located]] = field(default_factory=dict)
    rows: list[LogRange] = field(default_factory=list)
    events: list[LogRange] = field(default_factory=list)

    def add_events(self, live: LiveFile, rows: Arrays) -> None:
        """Add rows of a log file with events."""
        schema, count = self.schema, len(rows[names.OP])
        vector = keys.key_vector(rows[schema.sort_column])
        groups = [group for group in schema.groups if group.id in live.file.groups]
        self.events.append(
            LogRange(vector, [group.id for group in groups], rows, np.full(count, live.arrival, np.int64))
        )
        for group in groups:
            versions = self.versions.setdefault(group.id, [])
            stored_names = [name for name in group.values if name in rows]
            supplied = {
                name: supplied_mask(rows.get(names.SUPPLIED), schema.column_by_name[name].id, count)
                | (np.asarray(rows[name].is_valid()) if name in rows else np.zeros(count, np.bool_))
                for name in group.values
            }
            for i in range(count):
                version = Version(
                    live.arrival,
                    Op(rows[names.OP][i].as_py()),
                    tuple(python_value(rows[name][i]) for name in group.ordering),
                    frozenset(name for name, mask in supplied.items() if mask[i]),
                )
                values = {name: python_value(rows[name][i]) for name in stored_names}
                versions.append(Located(version, values, "log", live.file.file.path, live.lane, live.seq))

    def add_registers(self, rows: Arrays, groups: Sequence[int], stored_in: StoredIn, file: str) -> None:
        """Add one row of registers; columns as in a slice."""
        schema = self.schema
        self.rows.append(LogRange(keys.key_vector(rows[schema.sort_column]), groups, rows))
        for group in schema.groups:
            if group.id in groups:
                self.versions.setdefault(group.id, []).extend(
                    Located(version, values, stored_in, file, register=rows)
                    for version, values in _versions_in_register(schema, group, rows)
                )

    def in_order(self, group: Group) -> list[Located]:
        """The versions of a group in (arrival, position) order; the sort is stable."""
        return sorted(self.versions.get(group.id, []), key=lambda located: located.version.arrival)

    def merge(self, group: Group, loaded: Mergers) -> Registers | None:
        """The merged register of the group; None if no event touches it."""
        columns = self.schema.slice.names
        parts = [group_registers([rows], self.schema, group, columns) for rows in self.rows]
        parts.append(collapse_group(self.events, self.schema, group, group.columns, loaded))
        registers = [part for part in parts if part is not None]
        return merge_registers(self.schema, group, registers, loaded) if registers else None


def _versions_in_register(schema: TableSchema, group: Group, rows: Arrays) -> list[tuple[Version, dict[str, Any]]]:
    """The versions in a register, with their values; deletes first."""
    mode = mode_of(group)
    state = {name.name: rows[name.name][0] for name in schema.state_fields(group) if name.name in rows}
    if not any(value.is_valid for value in state.values()):
        return []
    arrival = state[names.arrival(group.id)].as_py()
    values = {name: python_value(rows[name][0]) for name in group.values if name in rows and arrival is not None}
    ordering = tuple(rows[name][0].as_py() if arrival is not None else None for name in group.ordering)
    if mode.retracts or mode.runs_merger:
        supplied = frozenset(name for name, value in values.items() if value is not None)
        return [(Version(arrival or 0, None, ordering, supplied), values)]
    result: list[tuple[Version, dict[str, Any]]] = []
    floor = state[names.floor_arrival(group.id)].as_py()
    if floor is not None:
        kind = Op(state[names.floor_kind(group.id)].as_py())
        deleted_ordering = tuple(state[names.floor_ordering(group.id, i)].as_py() for i in range(len(group.ordering)))
        result.append((Version(floor, kind, deleted_ordering, frozenset()), {}))
    if arrival is None:
        return result
    if not mode.accepts_partial:
        return [*result, (Version(arrival, Op.UPSERT, ordering, frozenset(group.values)), values)]
    supplier = dict(zip(group.values, supplier_numbers(group, state[names.suppliers(group.id)]), strict=True))
    older = state[names.versions(group.id)].values if state[names.versions(group.id)].is_valid else []
    versions = [(arrival, ordering)]
    for old_version in older:
        *old_ordering, old_arrival = (old_version[i].as_py() for i in range(len(group.ordering) + 1))
        versions.append((old_arrival, tuple(old_ordering)))
    for number, (version_arrival, version_ordering) in enumerate(versions):
        supplied_names = [name for name, version in supplier.items() if version == number]
        version = Version(version_arrival, Op.UPSERT, version_ordering, frozenset(supplied_names))
        result.append((version, {name: values[name] for name in supplied_names}))
    return result


def _read_versions(
    snapshot: SnapshotFiles, file_slice: FileSlice, files: Sequence[LiveFile], vector: KeyVector, stored: _StoredRow
) -> None:
    """Read everything that a file group stores of a key."""
    env, schema, slice_file = snapshot.table_log.env, snapshot.table_schema, file_slice.slice
    columns = needed_columns(schema, [column.name for column in schema.columns], schema.groups, exact=True)
    groups = [group.id for group in schema.groups]
    reader = SliceReader(env, schema, columns, RowGroups(schema, None, vector, None).may_match)
    if slice_file is not None and slice_file.base is not None:
        for batch in reader.base([slice_file]):
            if rows := _row_of_key(schema, batch, vector):
                overlaid = {group for overlay in slice_file.overlays for group in overlay.groups}
                stored.add_registers(
                    rows, [group for group in groups if group not in overlaid], "base", slice_file.base.path
                )
                for overlay in slice_file.overlays:
                    stored.add_registers(rows, overlay.groups, "overlay", overlay.file.path)
    if slice_file is not None and slice_file.shadow is not None:
        for batch in reader.shadow([slice_file]):
            if rows := _row_of_key(schema, batch, vector):
                stored.add_registers(rows, groups, "shadow", slice_file.shadow.path)
    logs = LogReader(env, schema, files, [file_slice], [{*columns, names.OP, names.SUPPLIED}], {})
    for live, rows in logs.rows_of(file_slice, vector):
        if live.is_fold:
            stored.add_registers(rows, live.file.groups, "fold", live.file.file.path)
        else:
            stored.add_events(live, rows)


def _row_of_key(schema: TableSchema, rows: Arrays, vector: KeyVector) -> Arrays | None:
    """The row with the key; None if it does not exist."""
    _, has_key = keys.find(vector, keys.key_vector(rows[schema.sort_column]))
    return take_rows(rows, has_key) if has_key.any() else None


def _explain(
    snapshot: SnapshotFiles,
    key: Mapping[str, Any],
    stored: _StoredRow,
    registers: Mapping[int, Registers | None],
    *,
    history: bool,
) -> Explanation:
    schema = snapshot.table_schema
    visible = _visible(schema, registers)
    states = [_group_state(group, registers[group.id], visible=visible) for group in schema.groups]
    commits = _Commits(snapshot)
    versions: list[StoredVersion] = []
    all_columns = _row(schema, key, registers)
    for group in schema.groups:
        located = stored.in_order(group)
        group_versions = [stored_version.version for stored_version in located]
        outcomes = decide(group, schema.column_by_name, group_versions)
        if mode_of(group).retracts:
            columns_of = contributed_columns(schema, group, located, registers[group.id], all_columns)
            outcomes = [
                replace(outcome, columns=columns) for outcome, columns in zip(outcomes, columns_of, strict=True)
            ]
        if any(state.hides_row for state in states):
            outcomes = hide(group_versions, outcomes)
        versions += [commits.describe(group, *pair) for pair in zip(located, outcomes, strict=True)]
    row = all_columns if visible else None
    return Explanation(key, str(snapshot.at), history, row, tuple(states), tuple(versions))


def _visible(schema: TableSchema, registers: Mapping[int, Registers | None]) -> bool:
    """Whether a read shows the row with these registers."""
    rows: dict[str, pa.Array] = {schema.sort_column: pa.nulls(1)}
    for group in schema.groups:
        register = registers[group.id]
        for name in (names.arrival(group.id), names.floor_kind(group.id)):
            if register is not None and name in register.columns:
                rows[name] = register.columns[name]
            else:
                rows[name] = pa.nulls(1, pa.int64() if name == names.arrival(group.id) else pa.int8())
    return bool(visible_rows(rows, schema)[0])


def _group_state(group: Group, register: Registers | None, *, visible: bool) -> GroupState:
    state: Literal["present", "deleted", "absent"] = "absent"
    hides = False
    if register is not None:
        kind = register.columns.get(names.floor_kind(group.id))
        if register.columns[names.arrival(group.id)][0].is_valid:
            state = "present"
        elif kind is not None and kind[0].is_valid:
            state = "deleted"
            hides = not visible and kind[0].as_py() == Op.DELETE_ROW
    return GroupState(group.name, group.merge, state, hides)


def _row(schema: TableSchema, key: Mapping[str, Any], registers: Mapping[int, Registers | None]) -> dict[str, Any]:
    row = {}
    for column in schema.columns:
        if column.name in key:
            row[column.name] = key[column.name]
            continue
        group = schema.group_of_column[column.name]
        register = registers[group.id]
        present = register is not None and register.columns[names.arrival(group.id)][0].is_valid
        row[column.name] = (
            python_value(register.columns[column.name][0]) if register is not None and present else column.default
        )
    return row


class _Commits:
    """Looks up the commits of versions, by bisection of a lane, because stamps ascend in it."""

    def __init__(self, snapshot: SnapshotFiles) -> None:
        self._log = snapshot.table_log.commit_log
        self._state, self._heads, self._schema = snapshot.state, snapshot.at.lanes, snapshot.table_schema
        self._lane_of = {lane.lane_id: lane for lane in snapshot.state.lanes.values()}
        self._slots: dict[int, int] = {}

    def describe(self, group: Group, located: Located, outcome: Outcome) -> StoredVersion:
        """A version with its outcome and its commit."""
        version = located.version
        commit: dict[str, Any] = dict.fromkeys(("stream", "lane", "commit", "committed_at", "late"))
        if (entry := self._commit(located)) is not None:
            commit |= {"stream": entry.stream, "lane": entry.lane, "commit": entry.seq}
            commit["committed_at"] = moment_of(entry.committed_at_ms)
            commit["late"] = None if version.op is None else self._is_late(group, entry, version)
        return StoredVersion(
            group=group.name,
            result=outcome.result,
            reason=outcome.reason,
            operation=_OPERATIONS[version.op],
            columns=outcome.columns,
            ordering=dict(zip(group.ordering, version.ordering, strict=True)),
            values=located.values,
            stored_in=located.stored_in,
            file=located.file,
            **commit,
        )

    def _commit(self, located: Located) -> Data | None:
        if located.lane is not None and located.commit is not None:
            return self._entry(located.lane, located.commit)
        arrival = located.version.arrival
        lane = self._lane_of.get(arrival & (1 << LANE_BITS) - 1)
        if arrival == 0 or lane is None:
            return None
        stamp = arrival >> LANE_BITS
        if arrival not in self._slots:
            bounds = {lane.name: (0, self._heads.get(lane.name, 0))}
            self._slots[arrival] = self._log.last_where(bounds, lambda entry: entry.stamp <= stamp)[lane.name]
        entry = self._entry(lane.name, self._slots[arrival])
        return entry if entry is not None and entry.stamp == stamp else None

    def _entry(self, lane: LaneName, seq: int) -> Data | None:
        entry = self._log.entry(lane, seq) if seq else None
        return entry if isinstance(entry, Data) else None

    def _is_late(self, group: Group, entry: Data, version: Version) -> bool:
        """Whether the first ordering value is below the watermark of the lane before the commit (PROTOCOL.md, W6)."""
        first = watermark_type(group, self._schema)
        value = version.ordering[0] if version.ordering else None
        watermark = entry.watermarks.get(group.id)
        if first is None or value is None or watermark is None or watermark.late == 0:
            return False
        previous = self._watermark_before(group, entry)
        return previous is not None and to_ticks(value) < to_ticks(decode_scalar(previous, first))

    def _watermark_before(self, group: Group, entry: Data) -> Any:
        """The watermark of the last live commit of the lane before a commit; None if no commit has one."""
        spans = self._state.rolled_back.get(entry.lane, ())
        for seq in range(entry.seq - 1, 0, -1):
            commit = None if cut.in_spans(spans, seq) else self._entry(entry.lane, seq)
            if commit is not None:
                watermark = commit.watermarks.get(group.id)
                return None if watermark is None else watermark.value
        return None
