"""The merged rows of the file groups that a compaction writes again: in key order, and in bounded memory.

The logs of a file group are in memory while they are merged. If there are more than `Tuning.merge_bytes`, as after a
first load, the file group is merged in key ranges, one after the other:

    base       [a.....d][e.....h][i.....m]     row groups
    logs       [a...c][c......h][h......m]     blocks of one commit
               [a.....d][d....g][g......m]     blocks of another
    ranges              ^e       ^i            the logs of a range are read, merged, written, and forgotten

A block that has keys of several ranges is read once, and kept until the last of them. So memory is proportional to the
logs of one range and the blocks that reach beyond it. A file of a large commit has a block for each 4 MiB of its rows,
which are sorted by key, and so has a fold; small commits have one each, and are folded before they are many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from storage.core import names
from storage.core.arrays import Arrays
from storage.core.log.file_refs import FileGroup
from storage.core.merge.contested import stored_bounds
from storage.core.merge.stitch import LogState, Stitch, Stitched
from storage.core.modes import Mergers
from storage.core.plan.slices import FileSlice, LiveFile
from storage.core.schema.table_schema import TableSchema
from storage.environment import Environment
from storage.files.base_file import read_base, read_shadow
from storage.files.log_reader import LogReader
from storage.files.row_groups import LastRowGroups
from storage.read.divide_file_group import divide_by_logs
from storage.read.pruning import RowGroups


class MergedRows:
    """The merged rows of file groups. Each is read once, in about the order in which they were given."""

    def __init__(
        self,
        env: Environment,
        schema: TableSchema,
        slices: Sequence[FileSlice],
        files: Sequence[LiveFile],
        mergers: Mergers,
    ) -> None:
        """Prepare the reads; of large file groups the footers of base files are read.

        Args:
            env: The environment of the table.
            schema: The schema of the snapshot.
            slices: The file groups.
            files: The log files that ``slices`` refer to by position.
            mergers: The custom mergers of the groups.

        Raises:
            CorruptData: A base file is missing, or its footer is damaged.
        """
        self._env, self._schema, self._mergers = env, schema, mergers
        self._columns = tuple(schema.slice.names)
        large = [each for each in slices if each.log_bytes > env.tuning.merge_bytes]
        divided = divide_by_logs(env, schema, large, files, env.tuning.merge_bytes)
        self._ranges: dict[FileGroup, list[FileSlice]] = {each.group: [each] for each in slices}
        self._ranges |= {each.group: ranges for each, ranges in zip(large, divided, strict=True)}
        in_order = [part for each in slices for part in self._ranges[each.group]]
        wanted = frozenset((*self._columns, names.OP, names.SUPPLIED))
        self._logs = LogReader(env, schema, files, in_order, [wanted] * len(in_order), mergers)
        self._known: dict[FileGroup, LogState | None] = {}
        self._last_base, self._last_shadow = LastRowGroups(), LastRowGroups()

    def ranges(self, file_slice: FileSlice) -> Sequence[FileSlice]:
        """The key ranges in which a file group is merged, in order; usually one, the file group itself."""
        return self._ranges[file_slice.group]

    def logs(self, file_slice: FileSlice) -> Iterator[tuple[FileSlice, LogState | None]]:
        """The key ranges of a file group in order, each with its collapsed logs; None without logs.

        Call it before `of`, and for a file group with several ranges in place of it: each of their logs is read once.

        Raises:
            CorruptData: A log file is missing or damaged.
            InvalidInput: A merge function has failed.
        """
        ranges = self.ranges(file_slice)
        if len(ranges) == 1 and file_slice.group not in self._known:
            self._known[file_slice.group] = self._collapse(file_slice)
        for key_range in ranges:
            yield key_range, self._known[file_slice.group] if len(ranges) == 1 else self._collapse(key_range)

    def _collapse(self, key_range: FileSlice) -> LogState | None:
        return self._logs.collapse(key_range, self._schema.groups, self._columns)

    def of(self, file_slice: FileSlice) -> Iterator[Stitched]:
        """The rows of a file group, in key order.

        Raises:
            CorruptData: A file is missing or damaged.
            InvalidInput: A merge function has failed.
        """
        schema, columns = self._schema, self._columns
        stitch = Stitch(
            schema,
            columns,
            schema.groups,
            exact=True,
            ordered=True,
            result=frozenset(columns),
            mergers=self._mergers,
            bounds=stored_bounds(schema, schema.groups, [file_slice.slice]),
        )
        for key_range, logs in self.logs(file_slice):
            self._known.pop(file_slice.group, None)
            base = base_rows(self._env, schema, key_range, columns, self._last_base)
            shadow = shadow_rows(self._env, schema, key_range, columns, self._last_shadow)
            yield from stitch.run(base, shadow, logs)


def base_rows(
    env: Environment,
    schema: TableSchema,
    key_range: FileSlice,
    columns: Sequence[str],
    last: LastRowGroups | None = None,
) -> Iterator[Arrays]:
    """The visible rows of a file group, or of a key range of it; otherwise as `storage.files.base_file.read_base`."""
    within = key_range.within
    for rows in read_base(env, schema, [key_range.slice], columns, last=last):
        found = rows if within is None or not within.within_row_groups else within.rows(rows, schema.sort_column)
        if len(found[schema.sort_column]):
            yield found


def shadow_rows(
    env: Environment,
    schema: TableSchema,
    key_range: FileSlice,
    columns: Sequence[str],
    last: LastRowGroups | None = None,
) -> Arrays | None:
    """The hidden rows of a file group, or of a key range of it; otherwise as `storage.files.base_file.read_shadow`."""
    within = key_range.within
    if within is None:
        return read_shadow(env, schema, [key_range.slice], columns, last)
    chosen = RowGroups(schema, None, None, None, within)
    found = read_shadow(env, schema, [key_range.slice], columns, chosen=chosen.may_match)
    return within.rows(found, schema.sort_column) if found is not None else None
