"""The slots of a lane as `verify` finds them: which are taken, and what is in each, in archives too.

What is wrong with a slot or an archive is told of, and the next one is looked at. Archives are listed after slots,
for a slot that is gone by then was archived before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from storage.core.log import entries
from storage.core.log.archive_codec import chunk_of, first_slot, last_slot, slots_of_chunk
from storage.core.log.entries import Entry
from storage.core.names import (
    LaneName,
    archive_folder,
    archive_path,
    lane_folder,
    parse_archive,
    parse_slot,
    slot_path,
)
from storage.errors import CorruptData, TableError, UnsupportedFormat
from storage.log.archived_entries import Archives
from storage.services.verify.findings import FROM_COPY, Findings
from storage.store.object_store import ObjectStore, normalise_errors

AT_ONCE: Final = 64  # entries in memory: each may have megabytes
_CLEANED: Final = "nobody reads them; clean removes them"


def slots_of(store: ObjectStore, lane: LaneName, findings: Findings) -> list[int]:
    """The slots of a lane that are taken, ascending."""
    slots, _ = _listed(store, lane, findings=None)
    if slots and slots[-1] != len(slots):
        # A listing of a folder that is written to may miss what came while it was made.
        slots, _ = _listed(store, lane, findings=findings)
    return slots


def _listed(store: ObjectStore, lane: LaneName, findings: Findings | None) -> tuple[list[int], set[int]]:
    """The slots that are taken, and the chunks that are archived."""
    slots: set[int] = set()
    chunks: set[int] = set()
    for folder, parse, found in (
        (lane_folder(lane), parse_slot, slots),
        (archive_folder(lane), parse_archive, chunks),
    ):
        for name, _ in store.list(folder):
            number = parse(name)
            if number:
                found.add(number)
            elif findings is not None:
                findings.info(
                    f"{folder}/{name}", "it is not an entry; nobody reads it", "remove it, if it is not yours"
                )
    return sorted(slots.union(*(slots_of_chunk(chunk) for chunk in chunks))), chunks


def is_taken(store: ObjectStore, lane: LaneName, seq: int) -> bool:
    """Whether there is an entry in a slot, readable or not."""
    with normalise_errors(slot_path(lane, seq)):
        try:
            return Archives(store).taken((lane, seq))
        except TableError:
            return True  # its archive is damaged


def check_archives(store: ObjectStore, lane: LaneName, findings: Findings) -> None:
    """Tell of objects in slots that are archived: what was not deleted yet, and what came too late."""
    slots = sorted(seq for name, _ in store.list(lane_folder(lane)) if (seq := parse_slot(name)))
    _, chunks = _listed(store, lane, findings=None)
    archives = Archives(store)
    left = late = 0
    for seq in (seq for seq in slots if chunk_of(seq) in chunks):
        try:
            with normalise_errors(slot_path(lane, seq)):
                data = store.get(slot_path(lane, seq))
                archives.ask([(lane, seq)])
                same = data is None or data == archives.content((lane, seq))
        except TableError:
            continue  # told of where its entries are read
        left, late = left + (same and data is not None), late + (not same)
    where = f"lane {lane!r}" if lane else "the table lane"
    if left:
        findings.info(where, f"{left} entries stand in their slots and in an archive: a clean has not ended", _CLEANED)
    if late:
        what = f"{late} slots hold what was put there after they were archived, by processes that had been frozen"
        findings.info(where, what, _CLEANED)


def read_slots(
    store: ObjectStore, lane: LaneName, slots: Sequence[int], findings: Findings
) -> Iterator[tuple[int, Entry | None]]:
    """(slot, entry) of every slot up to the last one that is taken; None for one that is missing or damaged.

    A gap gives its first slot only. Lists are where the entry has them, be it in a sidecar.
    """
    expected = 1
    reader = _Reader(store, lane, findings)
    for start in range(0, len(slots), AT_ONCE):
        part = slots[start : start + AT_ONCE]
        for seq, content in zip(part, reader.contents(part), strict=True):
            if seq != expected:
                _tell_gap(lane, expected, seq, findings)
                yield expected, None
            yield seq, _decoded(content, lane, seq, findings, told=reader.is_told(seq))
            expected = seq + 1
            findings.count("entries")
            findings.done()


class _Reader:
    """Reads slots wherever their entries are; a chunk whose archive is damaged as far as its slots are there."""

    def __init__(self, store: ObjectStore, lane: LaneName, findings: Findings) -> None:
        self._store, self._lane, self._findings = store, lane, findings
        self._archives = Archives(store)
        self._asked: set[int] = set()
        self._damaged: set[int] = set()

    def is_told(self, seq: int) -> bool:
        """Whether the slot's archive was told to be damaged."""
        return chunk_of(seq) in self._damaged

    def contents(self, slots: Sequence[int]) -> list[bytes | None]:
        wanted = [(self._lane, seq) for seq in slots]
        with normalise_errors(slot_path(*wanted[0])):
            for chunk in sorted({chunk_of(seq) for seq in slots} - self._asked):
                self._ask(chunk)
            try:
                return self._archives.read(wanted)
            except TableError:
                return list(self._store.get_many([slot_path(*slot) for slot in wanted]))

    def _ask(self, chunk: int) -> None:
        self._asked.add(chunk)
        try:
            if self._archives.ask([(self._lane, first_slot(chunk))]):
                self._findings.count("archives")
        except CorruptData as error:
            self._damaged.add(chunk)
            self._findings.error("S20", str(archive_path(self._lane, chunk)), error.message, FROM_COPY)
        except UnsupportedFormat as error:
            self._damaged.add(chunk)
            what = f"{error.message}: its entries cannot be checked"
            self._findings.warning("", str(archive_path(self._lane, chunk)), what, "verify with a newer version")


def _tell_gap(lane: LaneName, first: int, following: int, findings: Findings) -> None:
    chunk = chunk_of(first)
    missing = f"entry {first} is" if following == first + 1 else f"entries {first} to {following - 1} are"
    what = f"{missing} missing, but later ones are there: nobody reads beyond, and their rows are not seen"
    if first == first_slot(chunk) and following > last_slot(chunk):
        where, mend = archive_path(lane, chunk), "restore this archive, or the entries, from a copy of the store"
        findings.error("S2", str(where), f"{what}; if they were archived, it is this archive that is missing", mend)
    else:
        findings.error("S2", str(slot_path(lane, first)), what, FROM_COPY)


def _decoded(data: bytes | None, lane: LaneName, seq: int, findings: Findings, *, told: bool) -> Entry | None:
    where = str(slot_path(lane, seq))
    if data is None:
        if not told:
            findings.error("S2", where, "the entry was listed, and is gone", FROM_COPY)
        return None
    try:
        return entries.decode_entry(data, lane, seq)
    except CorruptData as error:
        findings.error("S1", where, f"{error.message}; readers and writers stop here", FROM_COPY)
    except UnsupportedFormat as error:
        findings.warning("", where, f"{error.message}: it cannot be checked", "verify with the version that wrote it")
    return None
