"""The dependencies of a table's code: its store, a clock, new ids, the allowed mergers, and tuning values.

Opening a table creates one `Environment`, which is passed to everything that reads or writes the table, also to tasks
in other processes. No other module opens a store or reads the machine's clock, host name or random numbers. Tests and
the simulation pass another one.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol

from weft.storage import mergers
from weft.storage.clock import Clock, SystemClock
from weft.storage.store.object_store import ObjectStore
from weft.storage.store.open_store import open_beside, open_store

KIB: Final = 1024
MIB: Final = 1024 * 1024


class Ids(Protocol):
    """Creates ids, and names this process."""

    def new(self) -> str:
        """A random id of 32 hexadecimal digits, which no process has used before."""
        ...

    @property
    def host(self) -> str:
        """Name of this machine, for messages to operators."""
        ...

    @property
    def pid(self) -> int:
        """Number of this process, for messages to operators."""
        ...


class RandomIds:
    """Ids from the operating system's random numbers."""

    def new(self) -> str:
        return uuid.uuid4().hex

    @property
    def host(self) -> str:
        return socket.gethostname()

    @property
    def pid(self) -> int:
        return os.getpid()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Sizes and counts that affect speed and memory, never results.

    The defaults were measured; tests and the simulation choose small values to reach code that only large tables reach.
    Every value but `archive_chunk` may differ between the processes of a table.

    Attributes:
        log_file_bytes: Size of the rows in memory at which a long append writes a log file: bounds memory, keeps files
            large.
        look_up_entries: Entries of a lane in memory while a writer looks for an old batch.
        recent_commits: Commits with a batch that a writer remembers; it looks older ones up in the lane.
        read_part_entries: Entries in memory while a lane is read to its end without keeping the entries.
        first_table_window: Slots of the table lane that are read in the first round after a checkpoint, when a table is
            opened. There is a checkpoint about every 64 entries, so this costs few requests and saves rounds.
        lane_window: Maximum number of slots of a lane that are read in one round of requests; more would not be faster.
        round_bytes: Maximum number of bytes of a lane that are read in one round: the entry of a commit of many tasks
            has megabytes.
        search_probes: Slots that a search for the end of a lane requests in one round.
        inline_list_bytes: The longest list that is stored in an entry. A longer one is stored in a sidecar: it would
            slow down every reader of the table lane.
        archive_chunk: Slots of an archive. Part of the format: all processes of a table must use the same value.
        archive_kept_bytes: Unpacked archives in memory; the newest is kept whatever its size.
        archive_single_requests: Up to this many archives are requested without reading the table lane first, which says
            which chunks may be archived.
        archive_bytes: The largest archive that is written; it must fit into one request.
        table_checkpoint_every: Entries of the table lane between two checkpoints.
        checkpoint_end_bytes: Bytes at the end of a checkpoint of the table lane that are read when the table is opened;
            a smaller one is read whole. The state of a usual table, without its slices, has fewer.
        lane_checkpoint_every: Entries of a writer's lane between two checkpoints: a claim reads at most this many.
        block_min_bytes: The smallest block of a log file, because a record batch has a fixed cost.
        block_max_bytes: The largest block of a log file, because a reader of a small part reads the whole block.
        inline_index_bytes: The longest index of a log file that is stored in the entry of its commit; a longer one is
            stored in a sidecar.
        row_group_rows: Rows of a row group: the unit of memory of a merge, of pruning by statistics, and of a look-up
            by key.
        shared_row_group_rows: The same in files that several small file groups share: a reader of one of them decodes
            this many rows.
        row_group_bytes: Memory of the rows of a row group, about: a merge holds several, and of a table of a thousand
            columns they would need gigabytes.
        coalesce_rows: Log ranges with fewer rows are decoded together.
        fetch_bytes: Maximum number of bytes of log files that are fetched before they are needed.
        compaction_part_bytes: New files after which a compaction publishes: a crash loses about this much work.
        small_group_bytes: Smaller file groups share files when they are compacted: opening a file costs a reader
            about as much as reading 2 MiB of it.
        shared_file_bytes: The largest file that file groups share: limits its unused rows after some of the file groups
            were compacted again.
        overlay_percent: A compaction writes an overlay only if the groups that it writes have at most this percentage
            of the bytes of the base file: the bytes that it saves must be worth a file more to read.
        overlay_files: Maximum number of overlays of a slice: a read of all columns opens all of them.
        merge_bytes: Stored logs of a file group that a compaction merges at once. A file group with more is merged in
            key ranges of about this many bytes of logs, one after the other, if its statistics have keys to divide at.
        merge_together_bytes: Memory, by estimate, of the rows of small file groups that a compaction or a fold merges
            together: each column of each merge has a fixed cost.
        fold_file_bytes: Stored logs that a fold makes into one file, or those of one larger file group: memory is a
            small multiple of it.
        scan_run_bytes: Stored bytes of logs and shadows that a read holds in memory at once.
        task_bytes: Maximum of the stored bytes of columns that a task of a read decodes, estimated by their number; a
            larger file group is divided into several tasks. The default is that of Spark
            (``spark.sql.files.maxPartitionBytes``), whose value views use.
        task_min_bytes: A smaller task of a read costs more to start than to read.
        change_task_bytes: Stored bytes of one task of a change scan, which holds the earlier rows of its keys in
            memory.
        change_task_rows: Stored rows of such a task: values that repeat are large in memory only.
        inspected_entries: Entries of a lane that an inspection reads.
    """

    log_file_bytes: int = 128 * MIB
    look_up_entries: int = 1_000
    recent_commits: int = 1_000
    read_part_entries: int = 256
    first_table_window: int = 16
    lane_window: int = 64
    round_bytes: int = 16 * MIB
    search_probes: int = 7
    inline_list_bytes: int = 64 * KIB
    archive_chunk: int = 256
    archive_kept_bytes: int = 64 * MIB
    archive_single_requests: int = 8
    archive_bytes: int = 32 * MIB
    table_checkpoint_every: int = 64
    checkpoint_end_bytes: int = 64 * KIB
    lane_checkpoint_every: int = 1_000
    block_min_bytes: int = 256 * KIB
    block_max_bytes: int = 4 * MIB
    inline_index_bytes: int = 16 * KIB
    row_group_rows: int = 64 * KIB
    row_group_bytes: int = 64 * MIB
    shared_row_group_rows: int = 8 * KIB
    coalesce_rows: int = 64 * KIB
    fetch_bytes: int = 8 * MIB
    compaction_part_bytes: int = 512 * MIB
    small_group_bytes: int = 2 * MIB
    shared_file_bytes: int = 16 * MIB
    overlay_percent: int = 25
    overlay_files: int = 4
    merge_bytes: int = 128 * MIB
    merge_together_bytes: int = 32 * MIB
    fold_file_bytes: int = 64 * MIB
    scan_run_bytes: int = 16 * MIB
    task_bytes: int = 128 * MIB
    task_min_bytes: int = 4 * MIB
    change_task_bytes: int = 32 * MIB
    change_task_rows: int = 512 * KIB
    inspected_entries: int = 1_000


DEFAULT_TUNING = Tuning()
"""Tuning of a new environment. Only `Environment` reads it."""


def _default_tuning() -> Tuning:
    return DEFAULT_TUNING


@dataclass(frozen=True, slots=True)
class Environment:
    """The dependencies of the code of one table; can be pickled and sent to tasks.

    Attributes:
        store: The table's folder.
        clock: The wall clock.
        ids: New ids.
        mergers: Modules whose custom mergers may run. By default those that the process allows when it loads a merger;
            tasks get those of the process that planned them.
        tuning: Sizes and counts.
        open_beside: Opens the store of a table that this one refers to, from this table's store and a location.
    """

    store: ObjectStore
    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=RandomIds)
    mergers: Collection[str] = field(default_factory=mergers.ProcessModules)
    tuning: Tuning = field(default_factory=_default_tuning)
    open_beside: Callable[[ObjectStore, str], ObjectStore] = open_beside

    def of_table(self, location: str) -> Environment:
        """The environment of the table at a location, which is written as in a reference.

        Raises:
            InvalidInput: The location is of an unknown kind of store.
        """
        return replace(self, store=self.open_beside(self.store, location))

    def tuned(self, **values: int) -> Environment:
        """A copy with other tuning values; names and meaning as in `Tuning`."""
        return replace(self, tuning=replace(self.tuning, **values))


def open_environment(
    uri: str | Path,
    storage_options: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
) -> Environment:
    """The environment of the table at a location, as this process has it now.

    Args:
        uri: As for `weft.Table.open`.
        storage_options: For the store.
        clock: Clock of the table; by default the machine's clock.

    Raises:
        InvalidInput: The URI is of an unknown kind of store, or the package of the store is not installed.
    """
    return Environment(open_store(str(uri), storage_options), clock if clock is not None else SystemClock())
