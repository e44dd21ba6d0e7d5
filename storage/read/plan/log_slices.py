"""Commits between two cuts: where the earlier cut ends in each lane, log ranges of file groups, and keys."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import pyarrow as pa

from weft.storage.core.arrays import Arrays
from weft.storage.core.keys import KeyVector
from weft.storage.core.log import cut
from weft.storage.core.log.cut import Cut
from weft.storage.core.log.file_refs import FileGroup
from weft.storage.core.log.newest_slices import Slices
from weft.storage.core.log.table_state import TableState
from weft.storage.core.merge.locate_keys import locate_keys
from weft.storage.core.modes import NO_MERGERS
from weft.storage.core.plan.slices import FileSlice, LiveFile, plan_slices
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.environment import Environment
from weft.storage.files.log_reader import LogReader


def start_of(since: Cut, state: TableState) -> cut.Seqs:
    """The last entry of an earlier cut in each lane, limited to the ends of the lanes in a later state.

    A closed lane may have a claim after its end, if the claim was published while the lane was being closed. A snapshot
    that was taken before the end of the closing includes the claim, later snapshots do not. The claim has no rows.
    A lane that was retired in between is left out, because both cuts have all its entries (PROTOCOL.md, C6).
    """
    ends = {name: lane.closed for name, lane in state.lanes.items() if lane.closed is not None}
    return {lane: min(seq, ends.get(lane, seq)) for lane, seq in cut.only(since.lanes, state.lanes).items()}


def log_slices(state: TableState, files: Sequence[LiveFile]) -> Sequence[FileSlice]:
    """All log ranges of each file group in these log files, as if nothing had been compacted or folded."""
    return plan_slices(replace(state, slices=Slices(), covered={}, folds=(), folded={}), files)


def keys_of_commits(
    env: Environment,
    schema: TableSchema,
    files: Sequence[LiveFile],
    slices: Sequence[FileSlice],
    levels: Collection[int],
) -> tuple[Arrays, dict[FileGroup, KeyVector]]:
    """Read the keys in log ranges of file groups.

    Args:
        env: The environment of the table.
        schema: The schema of the snapshot.
        files: The log files that the file groups refer to by position.
        slices: The file groups with their log ranges.
        levels: The bits of the file groups by which the keys are returned, see `locate_keys`.

    Returns:
        The key columns, and the keys by file group, sorted and distinct.

    Raises:
        MissingFile: A log file is missing.
        CorruptData: A log file is damaged.
    """
    columns = {*schema.key, schema.sort_column}
    logs = LogReader(env, schema, files, slices, [columns] * len(slices), NO_MERGERS)
    states = {file_slice.group: logs.collapse(file_slice, (), ()) for file_slice in slices}
    directories = {group: state.directory for group, state in states.items() if state is not None}
    key_columns = {
        name: pa.concat_arrays([directory.columns[name] for directory in directories.values()])
        if directories
        else pa.array([], schema.column_by_name[name].type)
        for name in schema.key
    }
    if all({group.bits} == set(levels) for group in directories):
        return key_columns, {group: directory.keys for group, directory in directories.items()}
    return key_columns, locate_keys(schema, key_columns, levels)
