"""Stitch: merge base rows, shadow rows and collapsed logs of one file group, or of a run of small ones, into rows.

The base comes as a stream of batches in key order. Each batch is merged with the part of the logs in its key range, so
memory is proportional to the logs and the shadow of the stitched file groups, plus one base batch.

    base      a b . d e | g . i          one batch after the other
    shadow    . . c . . | . h .          rows without a present group, or hidden by a row delete
    logs      a . . d x | g h . z        registers, per group
              ----------+--------
    rows      a b . d e x g h i z        visible; the others go to the next shadow

Several small file groups are stitched as one: `weft.storage.core.merge.run_keys` gives their rows a common order.

A stitch is *exact* or *plain*. *Exact* reads the state of every column group, and decides for every row that the logs
change whether it is visible (`weft.storage.core.merge.visibility`). Compactions need it, and reads whose logs have
deletes, whose slices have a shadow, or whose merge modes may hide an upsert. *Plain* is for logs without deletes: every
base row stays visible and every new key becomes visible, so only the requested column groups are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weft.storage.core import keys, names
from weft.storage.core.arrays import Arrays, nulls_or_default, scatter, take_rows
from weft.storage.core.key_lookup import KeyLookup
from weft.storage.core.keys import Indices, KeyVector, Mask
from weft.storage.core.merge.collapse import KeyDirectory
from weft.storage.core.merge.contested import Bounds, contested
from weft.storage.core.merge.run_keys import RunKeys
from weft.storage.core.merge.visibility import visible_rows
from weft.storage.core.model import Group
from weft.storage.core.modes import Mergers, Registers, merging_mode, mode_of
from weft.storage.core.schema.table_schema import TableSchema


@dataclass(frozen=True, slots=True)
class Stitched:
    """Rows of one key range; a dict without columns means no rows.

    Attributes:
        visible: The rows to show.
        hidden: The rows of the next shadow; only if the stitch is ``ordered``.
    """

    visible: dict[str, pa.Array]
    hidden: dict[str, pa.Array]


@dataclass(frozen=True, slots=True)
class LogState:
    """Collapsed logs of one file group, or of a run of several.

    Attributes:
        directory: All keys of the logs.
        registers: By column group id, the registers of the groups that are read.
        run_keys: Mapping of the keys of a run to one sortable vector, which all keys here have; None for one file
            group.
    """

    directory: KeyDirectory
    registers: Mapping[int, Registers]
    run_keys: RunKeys | None = None

    def keys_of(self, schema: TableSchema, rows: Arrays) -> KeyVector:
        """The keys of base or shadow rows; rows of a run have the column ``names.SLICE_ORDINAL``."""
        vector = keys.key_vector(rows[schema.sort_column])
        if self.run_keys is None:
            return vector
        return self.run_keys.vector(vector, np.asarray(rows[names.SLICE_ORDINAL]))

    @property
    def slice_ordinals(self) -> list[int]:
        """Ordinals of the file groups of the run that have keys; [0] for a single file group."""
        ordinals = self.directory.columns.get(names.SLICE_ORDINAL)
        return [0] if ordinals is None else sorted(ordinals.unique().to_pylist())

    def lookup_in(self, vector: KeyVector) -> KeyLookup:
        """Build a lookup of the keys of the logs, and of each group's registers, among the keys of rows."""
        return KeyLookup.of(vector, len(self.directory.keys) + sum(len(group) for group in self.registers.values()))


@dataclass(frozen=True, slots=True)
class Stitch:
    """Merges base rows, shadow rows and collapsed logs into rows.

    Attributes:
        schema: The schema of the snapshot.
        columns: Columns of base batches, shadow and result, named as in a slice.
        groups: Column groups whose state is among ``columns``; all of them if ``exact``.
        exact: Whether visibility is decided; otherwise the stitch is *plain* (see above).
        ordered: Whether to return rows in key order, and all rows of the shadow; rows of a run in order of file group,
            then of key, with the column ``names.SLICE_ORDINAL``. Otherwise new rows follow the batch of their key
            range.
        result: Columns whose values are merged in the result; other columns keep old values. All columns if
            ``ordered``.
        mergers: Custom mergers of the groups.
        bounds: Bounds of the slices of base and shadow; may be empty. If no register of a group is contested, the
            columns that its mode reads need not be among ``columns``.
    """

    schema: TableSchema
    columns: tuple[str, ...]
    groups: tuple[Group, ...]
    exact: bool
    ordered: bool
    result: frozenset[str]
    mergers: Mergers
    bounds: Bounds = field(default_factory=dict)

    def run(self, base: Iterable[Arrays], shadow: Arrays | None, logs: LogState | None) -> Iterator[Stitched]:
        """Merge; yields one item per base batch and one for the keys after the last batch.

        Args:
            base: Batches of ``columns`` in key order; for a run with logs also the column ``names.SLICE_ORDINAL``. An
                ordered run has one batch, because run keys do not show which hidden rows are between two batches.
            shadow: The same columns of the whole shadow; None without a shadow.
            logs: The collapsed logs; None without logs.
        """
        if logs is None:
            # All base rows are visible and no shadow row is, so nothing has to be decided or sorted.
            for batch in base:
                yield Stitched(dict(batch), {})
            if shadow is not None and self.ordered:
                yield Stitched({}, dict(shadow))
            return
        shadow_keys = logs.keys_of(self.schema, shadow) if shadow is not None else None
        previous: tuple[Arrays, KeyVector] | None = None
        log_from = shadow_from = 0
        for batch in base:
            if previous is not None:
                last = previous[1][-1]
                log_to = keys.upper_bound(logs.directory.keys, last)
                shadow_to = keys.upper_bound(shadow_keys, last) if shadow_keys is not None else 0
                yield self._range(previous, _slice(shadow, shadow_from, shadow_to), _log_slice(logs, log_from, log_to))
                log_from, shadow_from = log_to, shadow_to
            previous = batch, logs.keys_of(self.schema, batch)
        shadow_end = len(shadow_keys) if shadow_keys is not None else 0
        log_end = len(logs.directory.keys)
        yield self._range(previous, _slice(shadow, shadow_from, shadow_end), _log_slice(logs, log_from, log_end))

    def _range(self, base: tuple[Arrays, KeyVector] | None, shadow: Arrays | None, logs: LogState | None) -> Stitched:
        if logs is None:
            return Stitched(dict(base[0]) if base else {}, dict(shadow or {}) if self.ordered else {})
        located_parts = []
        if base is not None:
            located_parts.append((dict(base[0]), logs.lookup_in(base[1])))
        extra = self._extra(located_parts[0][1] if located_parts else None, shadow, logs)
        if extra is not None:
            located_parts.append((extra[0], logs.lookup_in(extra[1])))
        for part, lookup in located_parts:
            self._apply(part, lookup, logs)
        parts = [part for part, _ in located_parts]
        if not self.exact:
            return Stitched(self._combine(parts, logs), {})
        masks = [visible_rows(part, self.schema) for part in parts]
        visible = [part if mask.all() else take_rows(part, mask) for part, mask in zip(parts, masks, strict=True)]
        hidden = [take_rows(part, ~mask) for part, mask in zip(parts, masks, strict=True) if not mask.all()]
        return Stitched(self._combine(visible, logs), self._combine(hidden, logs) if self.ordered else {})

    def _extra(
        self, base: KeyLookup | None, shadow: Arrays | None, logs: LogState
    ) -> tuple[dict[str, pa.Array], KeyVector] | None:
        """Rows of keys that are not in the base, from the shadow or blank, and their keys."""
        new_keys = logs.directory.keys
        key_columns: Arrays = logs.directory.columns
        if base is not None:
            _, in_base = base.find(new_keys)
            if in_base.all():
                new_keys, key_columns = keys.take(new_keys, slice(0, 0)), take_rows(key_columns, ~in_base)
            elif in_base.any():
                new_keys, key_columns = keys.take(new_keys, ~in_base), take_rows(key_columns, ~in_base)
        have_shadow = shadow is not None and len(shadow[self.schema.sort_column]) > 0
        if self.ordered and have_shadow:
            assert shadow is not None
            shadow_keys = logs.keys_of(self.schema, shadow)
            _, in_shadow = keys.find(shadow_keys, new_keys)
            fresh = self._blank(take_rows(key_columns, ~in_shadow), int((~in_shadow).sum()))
            both = self._in_key_order(logs, dict(shadow), fresh)
            return both, logs.keys_of(self.schema, both)
        if len(new_keys) == 0:
            return None
        frame = self._blank(key_columns, len(new_keys))
        if have_shadow:
            assert shadow is not None
            position, in_shadow = keys.find(logs.keys_of(self.schema, shadow), new_keys)
            if in_shadow.any():
                rows = np.flatnonzero(in_shadow)
                old = take_rows(shadow, position[in_shadow])
                frame = {name: scatter(column, rows, old[name]) for name, column in frame.items()}
        return frame, new_keys

    def _blank(self, key_columns: Arrays, count: int) -> dict[str, pa.Array]:
        """New rows for keys: value columns have their defaults, and state columns are NULL."""
        frame = {}
        for name in self.columns:
            if name in key_columns:
                frame[name] = key_columns[name]
            else:
                column = self.schema.column_by_name.get(name)
                field = self.schema.slice.field(name)
                frame[name] = nulls_or_default(field, count, column.default if column else None)
        return frame

    def _apply(self, frame: dict[str, pa.Array], rows_by_key: KeyLookup, logs: LogState) -> None:
        """Merge the registers of every group into the rows with the same keys."""
        for group in self.groups:
            registers = logs.registers.get(group.id)
            if registers is None or len(registers) == 0:
                continue
            position, is_match = rows_by_key.find(registers.keys)
            if not is_match.any():
                continue
            if not is_match.all():
                position, registers = position[is_match], _take_registers(registers, is_match)
            changed, merged = self._merge(group, frame, position, registers)
            rows = position[changed]
            present = merged[names.arrival(group.id)].is_valid()
            for name, column in merged.items():
                if name in self.result:
                    frame[name] = scatter(frame[name], rows, self._with_default(name, column, present))

    def _merge(self, group: Group, frame: Arrays, position: Indices, new: Registers) -> tuple[Mask, Arrays]:
        """Merge registers into the rows at some positions, see `weft.storage.core.modes.base.MergeMode.merge`."""
        mode, columns = merging_mode(group, self.mergers), self.schema.column_by_name
        reads = mode.reads(group, columns, new.columns)
        bound = self.bounds.get(group.id)
        if bound is None:
            old = take_rows({name: frame[name] for name in reads}, position)
            return mode.merge(group, columns, new.keys, old, new.columns)
        wins = np.ones(len(new), np.bool_)
        contested_rows = np.flatnonzero(contested(group, new, bound))
        if len(contested_rows):
            old = take_rows({name: frame[name] for name in reads}, position[contested_rows])
            contested_registers = _take_registers(
                Registers(new.keys, {name: new.columns[name] for name in reads}), contested_rows
            )
            wins[contested_rows], _ = mode.merge(
                group, columns, contested_registers.keys, old, contested_registers.columns
            )
        values = {
            name: new.columns[name] for name in new.columns if name in self.result or name == names.arrival(group.id)
        }
        return wins, values if wins.all() else take_rows(values, wins)

    def _with_default(self, name: str, values: pa.Array, present: pa.Array) -> pa.Array:
        column = self.schema.column_by_name.get(name)
        if column is None or column.default is None:
            return values
        return pc.if_else(present, values, pa.scalar(column.default, column.type))

    def _combine(self, parts: Sequence[dict[str, pa.Array]], logs: LogState) -> dict[str, pa.Array]:
        if len(parts) < len(("base", "extra")):
            return parts[0] if parts else {}
        if self.ordered:
            return self._in_key_order(logs, *parts)
        first, second = parts
        return {name: pa.concat_arrays([first[name], second[name]]) for name in self.result}

    def _in_key_order(self, logs: LogState, first: Arrays, second: Arrays) -> dict[str, pa.Array]:
        both = {name: pa.concat_arrays([column, second[name]]) for name, column in first.items()}
        order = pa.array(keys.stable_order(logs.keys_of(self.schema, both)))
        return take_rows(both, order)


def _take_registers(registers: Registers, rows: Indices | Mask) -> Registers:
    return Registers(keys.take(registers.keys, rows), take_rows(registers.columns, rows))


def _slice(columns: Arrays | None, start: int, stop: int) -> Arrays | None:
    if columns is None:
        return None
    return {name: column.slice(start, stop - start) for name, column in columns.items()}


def _log_slice(logs: LogState | None, start: int, stop: int) -> LogState | None:
    """The part of the logs with the keys ``start`` to ``stop`` of the directory."""
    if logs is None or start == stop:
        return None
    vector = keys.take(logs.directory.keys, slice(start, stop))
    columns = {name: column.slice(start, stop - start) for name, column in logs.directory.columns.items()}
    registers = {}
    for group_id, register in logs.registers.items():
        first = int(keys.lower_bound(register.keys, vector[:1])[0])
        last = keys.upper_bound(register.keys, vector[-1])
        registers[group_id] = Registers(
            keys.take(register.keys, slice(first, last)),
            {name: column.slice(first, last - first) for name, column in register.columns.items()},
        )
    return LogState(KeyDirectory(vector, columns), registers, logs.run_keys)


def needed_columns(
    schema: TableSchema, values: Sequence[str], groups: Sequence[Group], *, exact: bool
) -> tuple[str, ...]:
    """Slice columns to read for some value columns and the state of some groups.

    Returns:
        Names in slice order, including the key columns and the sort column.
    """
    column_names = {*values, *schema.key, schema.sort_column}
    for group in groups:
        column_names.update(mode_of(group).reads(group, schema.column_by_name, values))
        if exact:
            column_names.update((names.arrival(group.id), names.floor_kind(group.id)))
    return tuple(name for name in schema.slice.names if name in column_names)
