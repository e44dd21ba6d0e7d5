"""Archive: pack old entries of the log, chunk by chunk, and delete their slots (PROTOCOL.md, C5; S20 FloorSafe).

    CLEAN_INTENT(archived) ─▶ per chunk: read its slots ─▶ create the archive ─▶ read it back ─▶ delete the slots

Nothing is remembered: whoever dies in between leaves slots that the next one finds, of a chunk whose archive is there
or not. What is archived is policy alone, for an entry is read wherever it is: chunks that nobody comes by who opens,
reads or writes the table as it is now, or one of the snapshots that are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from storage.core.log.archive_codec import (
    decode_archive,
    encode_archive,
)
from storage.core.log.cut import Cut
from storage.core.log.entries import CleanIntent, decode_entry
from storage.core.log.retention import ENDLESS, Needed, Spans, touches, union_spans
from storage.core.log.table_state import Lane, TableState
from storage.core.names import TABLE_LANE, LaneName, archive_path, lane_folder, parse_slot, slot_path
from storage.errors import CorruptData, TableError
from storage.log.commit_log import CommitLog
from storage.log.table_log import TableLog
from storage.store.object_store import MAX_CREATE_BYTES, missing, normalise_errors

READ_AT_ONCE: Final = 64  # entries in one round
MAX_CHUNK_BYTES: Final = 4 * MAX_CREATE_BYTES  # in memory; packed it must fit into one request


@dataclass(frozen=True, slots=True)
class Archived:
    """What archiving did: how many entries left their slots, and how many archives were made."""

    entries: int = 0
    archives: int = 0


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A chunk some of whose slots are taken: which, and whether it may be archived by now."""

    lane: LaneName
    number: int
    slots: Sequence[int]
    may_pack: bool


def archive_log(
    table_log: TableLog, state: TableState, needed: Needed, held: Sequence[Cut], *, dry_run: bool
) -> Archived:
    """Archive what nobody needs in its slots.

    Args:
        table_log: The table's.
        state: What cleaning judges by.
        needed: What is needed of it.
        held: Snapshots below ``oldest_retained`` that stay.
        dry_run: Say what would be done, as far as it shows without reading entries.

    Raises:
        CorruptData: An archive is damaged; slots of its chunk were not deleted.
        StoreUnavailable: The store does not answer; the next clean goes on.
    """
    chunks = [chunk for lane in (TABLE_LANE, *state.lanes) for chunk in _chunks(table_log, state, needed, held, lane)]
    if dry_run:
        packed = [
            chunk for chunk in chunks if chunk.may_pack and len(chunk.slots) == table_log.env.tuning.archive_chunk
        ]
        return Archived(sum(len(chunk.slots) for chunk in packed), len(packed))
    _announce(table_log, chunks)
    entries = archives = 0
    for chunk in chunks:
        made, there = _pack(table_log, chunk)
        archives += made
        if there:
            table_log.store.delete_many([slot_path(chunk.lane, seq) for seq in chunk.slots])
            entries += len(chunk.slots)
    return Archived(entries, archives)


def _chunks(
    table_log: TableLog, state: TableState, needed: Needed, held: Sequence[Cut], lane: LaneName
) -> Iterator[_Chunk]:
    """The chunks of a lane that may be archived, or may have been, and have objects in their slots."""
    chunks = table_log.commit_log.archives.chunks
    by_chunk: dict[int, list[int]] = {}
    for name, _ in table_log.store.list(lane_folder(lane)):
        seq = parse_slot(name)
        if seq:
            by_chunk.setdefault(chunks.of(seq), []).append(seq)
    if all(len(slots) < chunks.size for slots in by_chunk.values()) and lane not in state.archived:
        return  # as most lanes are: nothing to be asked for
    hot = (
        _hot_table(table_log, state, held) if lane == TABLE_LANE else _hot(table_log, state.lanes[lane], state, needed)
    )
    for number in sorted(by_chunk):
        may_pack = not touches(hot, chunks.first_slot(number) - 1, chunks.last_slot(number))
        if may_pack or chunks.last_slot(number) <= state.archived.get(lane, 0):
            yield _Chunk(lane, number, sorted(by_chunk[number]), may_pack)


def _hot(table_log: TableLog, lane: Lane, state: TableState, needed: Needed) -> Spans:
    """Entries of a writer's lane that somebody comes by: readers, a barrier's helper, or the lane's next writer."""
    hot = needed.read.get(lane.name, ())
    if state.intent is not None and lane.name in state.intent.lanes:
        hot = union_spans(hot, [(state.intent.lanes[lane.name] - 1, ENDLESS)])
    if lane.closed is not None:
        return union_spans(hot, [(lane.closed, ENDLESS)])
    known = table_log.checkpoints.newest_lane(table_log.commit_log, lane.name, state.rolled_back.get(lane.name, ()))
    return union_spans(hot, [((known.head if known is not None else 1) - 1, ENDLESS)])


def _hot_table(table_log: TableLog, state: TableState, held: Iterable[Cut]) -> Spans:
    """Entries of the table lane that somebody comes by who opens the table, or a snapshot that stays."""
    hot: Spans = ()
    for until, end in [(state.oldest_retained, ENDLESS), *((at.table, at.table) for at in held)]:
        known = table_log.checkpoints.newest_table(table_log.commit_log, until)
        hot = union_spans(hot, [((known.head if known is not None else 1) - 1, end)])
    return hot


def _announce(table_log: TableLog, chunks: Iterable[_Chunk]) -> None:
    """Say up to where slots may be archived, before any is."""
    wanted: dict[LaneName, int] = {}
    for chunk in chunks:
        if chunk.may_pack:
            last = table_log.commit_log.archives.chunks.last_slot(chunk.number)
            wanted[chunk.lane] = max(wanted.get(chunk.lane, 0), last)

    def build(newest: TableState) -> CleanIntent | None:
        more = {lane: seq for lane, seq in wanted.items() if seq > newest.archived.get(lane, 0)}
        return (
            CleanIntent(**table_log.header(newest), oldest_retained=newest.oldest_retained, archived=more)
            if more
            else None
        )

    table_log.publish(build)


def _pack(table_log: TableLog, chunk: _Chunk) -> tuple[bool, bool]:
    """Whether an archive was made, and whether the chunk is archived."""
    path, chunks = archive_path(chunk.lane, chunk.number), table_log.commit_log.archives.chunks
    with normalise_errors(path):
        data = table_log.store.get(path)
    if data is not None:
        decode_archive(data, chunk.lane, chunk.number, chunks)
        return False, True
    contents = _contents(table_log, chunk) if chunk.may_pack else None
    packed = encode_archive(chunk.lane, chunk.number, contents, chunks) if contents is not None else b""
    if contents is None or len(packed) > table_log.env.tuning.archive_bytes:
        return False, False
    with normalise_errors(path):
        made = table_log.store.put_if_absent(path, packed)
        data = table_log.store.get(path)
    if data is None:
        raise missing(path)
    if decode_archive(data, chunk.lane, chunk.number, chunks).contents() != contents:
        raise CorruptData(
            f"archive {path} does not hold what stands in its slots; they were left as they are",
            hint="restore it from a copy of the store, or remove it while all its slots are there",
        )
    return made, True


def _contents(table_log: TableLog, chunk: _Chunk) -> list[bytes] | None:
    """Bytes of a chunk's entries; None if they do not fit into an archive, or one is missing or damaged."""
    log = CommitLog(table_log.env)
    contents: list[bytes] = []
    slots = log.archives.chunks.slots(chunk.number)
    before: str | None = None
    for start in range(0, len(slots), READ_AT_ONCE):
        part = slots[start : start + READ_AT_ONCE]
        with normalise_errors(slot_path(chunk.lane, part[0])):
            data = log.archives.read([(chunk.lane, seq) for seq in part])
        for seq, content in zip(part, data, strict=True):
            try:
                entry = decode_entry(content, chunk.lane, seq) if content is not None else None
            except TableError:
                return None  # verify tells of it; nobody needs it who reads the table
            if content is None or entry is None or before not in (None, entry.prev_id):
                return None
            before = entry.commit_id
            contents.append(content)
        if sum(map(len, contents)) > MAX_CHUNK_BYTES:
            return None
    return contents
