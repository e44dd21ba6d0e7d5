"""Checks the slots of a lane: each taken slot must have a readable entry, in the slot itself or in an archive.

A problem with a slot or an archive is reported, and reading continues with the next one. Rules such as S20 are in
PROTOCOL.md, "Invariants".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from weft.storage.core.log.archive_codec import Chunks
from weft.storage.core.log.entries import Entry
from weft.storage.core.log.entry_codec import Unresolved, decode_entry
from weft.storage.core.log.file_refs import Sidecar
from weft.storage.core.names import (
    LaneName,
    Path,
    archive_folder,
    archive_path,
    describe_lane,
    lane_folder,
    parse_archive,
    parse_slot,
    slot_path,
)
from weft.storage.environment import Environment
from weft.storage.errors import CorruptData, TableError, UnsupportedFormat
from weft.storage.log.archived_entries import Archives
from weft.storage.services.verify.findings import Findings
from weft.storage.store.object_store import ObjectStore, normalise_errors

AT_ONCE: Final = 64  # entries in memory: each may have megabytes
_CLEANED: Final = "they are ignored; clean deletes them"


def read_object(store: ObjectStore, path: Path) -> bytes | None:
    """Content of an object; None if it does not exist."""
    with normalise_errors(path):
        return store.get(path)


def read_sidecar(store: ObjectStore, sidecar: Sidecar, findings: Findings, consequence: str) -> bytes | None:
    """Content of a sidecar. If it is missing or damaged, reports this with the consequence, and returns None."""
    data = read_object(store, sidecar.path)
    if data is not None and Sidecar.of(sidecar.path, data) == sidecar:
        return data
    findings.at(sidecar.path).damage("S7", f"it is {'missing' if data is None else 'damaged'}: {consequence}")
    return None


def list_slots(env: Environment, lane: LaneName, findings: Findings) -> list[int]:
    """List the taken slots of a lane, ascending."""
    for attempt in range(2):
        slots, chunks, other_paths = _list(env, lane)
        all_slots = sorted(slots.union(*map(Chunks(env.tuning.archive_chunk).slots, chunks)))
        # A listing may miss objects that are created meanwhile, so list again before reporting a gap.
        if not all_slots or all_slots[-1] == len(all_slots):
            return all_slots
        if attempt:
            for path in other_paths:
                findings.at(path).info("it is not an entry; it is ignored", "delete it, unless you need it")
    return all_slots


def _list(env: Environment, lane: LaneName) -> tuple[set[int], set[int], list[str]]:
    """List the slots with objects, the archived chunks, and the paths of other objects.

    Archives are listed after slots, so an entry that is moved to an archive meanwhile is in at least one listing.
    """
    slots: set[int] = set()
    chunks: set[int] = set()
    other_paths = []
    sources = ((lane_folder(lane), parse_slot, slots), (archive_folder(lane), parse_archive, chunks))
    for folder, parse, numbers in sources:
        for name, _ in env.store.list(folder):
            number = parse(name)
            if number:
                numbers.add(number)
            else:
                other_paths.append(f"{folder}/{name}")
    return slots, chunks, other_paths


def check_archives(env: Environment, lane: LaneName, findings: Findings) -> None:
    """Report objects in archived slots: they are not deleted yet, or were written too late."""
    slots, chunks, _ = _list(env, lane)
    archives = Archives(env.store, env.tuning)
    duplicates = late = 0
    for seq in sorted(seq for seq in slots if archives.chunks.of(seq) in chunks):
        try:
            with normalise_errors(slot_path(lane, seq)):
                data = env.store.get(slot_path(lane, seq))
                archives.request([(lane, seq)])
                is_same = data is None or data == archives.content((lane, seq))
        except TableError:
            continue  # reported where the entries are read
        duplicates, late = duplicates + (is_same and data is not None), late + (not is_same)
    place = findings.at(describe_lane(lane))
    if duplicates:
        place.info(f"{duplicates} entries are in their slots and in an archive: a clean has not finished", _CLEANED)
    if late:
        text = f"{late} slots were written again after they were archived, by processes that had stalled"
        place.info(text, _CLEANED)


def read_slots(
    env: Environment, lane: LaneName, slots: Sequence[int], findings: Findings
) -> Iterator[tuple[int, Entry | Unresolved | None]]:
    """Yield (slot, entry) for every slot up to the last taken one; None for a missing or damaged entry.

    Of a gap, only the first slot is yielded. Sidecars of entries are not loaded.
    """
    next_seq = 1
    reader = _SlotReader(env, lane, findings)
    for start in range(0, len(slots), AT_ONCE):
        part = slots[start : start + AT_ONCE]
        for seq, content in zip(part, reader.contents(part), strict=True):
            if seq != next_seq:
                reader.report_gap(next_seq, seq)
                yield next_seq, None
            yield seq, reader.decode(seq, content)
            next_seq = seq + 1
            findings.count("entries")
            findings.done()


class _SlotReader:
    """Reads entries from slots and archives. If an archive is damaged, reads the remaining slots of its chunk."""

    def __init__(self, env: Environment, lane: LaneName, findings: Findings) -> None:
        self._store, self._lane, self._findings = env.store, lane, findings
        self._archives = Archives(env.store, env.tuning)
        self._chunks = self._archives.chunks
        self._requested: set[int] = set()
        self._damaged: set[int] = set()

    def contents(self, slots: Sequence[int]) -> list[bytes | None]:
        """Bytes of the entry in each slot; None for a missing entry."""
        lane_slots = [(self._lane, seq) for seq in slots]
        with normalise_errors(slot_path(*lane_slots[0])):
            for chunk in sorted({self._chunks.of(seq) for seq in slots} - self._requested):
                self._ask(chunk)
            try:
                return self._archives.read(lane_slots)
            except TableError:
                return list(self._store.get_many([slot_path(*slot) for slot in lane_slots]))

    def _ask(self, chunk: int) -> None:
        self._requested.add(chunk)
        place = self._findings.at(archive_path(self._lane, chunk))
        try:
            if self._archives.request([(self._lane, self._chunks.first_slot(chunk))]):
                self._findings.count("archives")
        except CorruptData as error:
            self._damaged.add(chunk)
            place.damage("S20", error.message)
        except UnsupportedFormat as error:
            self._damaged.add(chunk)
            place.warning(f"{error.message}: its entries cannot be checked", "verify with a newer version")

    def decode(self, seq: int, data: bytes | None) -> Entry | Unresolved | None:
        """Decode the entry in a slot. Reports a problem, unless its cause is a damaged archive."""
        place = self._findings.at(slot_path(self._lane, seq))
        if data is None:
            if self._chunks.of(seq) not in self._damaged:
                place.damage("S2", "the entry was listed, but is missing")
            return None
        try:
            return decode_entry(data, self._lane, seq)
        except CorruptData as error:
            place.damage("S1", f"{error.message}; readers and writers stop here")
        except UnsupportedFormat as error:
            place.warning(f"{error.message}: it cannot be checked", "verify with the version that wrote it")
        return None

    def report_gap(self, first: int, following: int) -> None:
        """Report that the slots from ``first`` to the one before ``following`` are free."""
        chunk = self._chunks.of(first)
        subject = f"entry {first} is" if following == first + 1 else f"entries {first} to {following - 1} are"
        text = f"{subject} missing, but later ones exist: readers stop at the gap, and later rows are not visible"
        if first == self._chunks.first_slot(chunk) and following > self._chunks.last_slot(chunk):
            path, text = (archive_path(self._lane, chunk), f"{text}; if they were archived, this archive is missing")
            hint = "restore this archive, or the entries, from a copy of the store"
            self._findings.at(path).damage("S2", text, hint)
        else:
            self._findings.at(slot_path(self._lane, first)).damage("S2", text)
