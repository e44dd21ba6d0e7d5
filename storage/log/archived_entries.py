"""Reads entries from their slots or from the archives of their chunks (PROTOCOL.md, "Archives"; S20 FloorSafe).

Once the archive of a chunk exists, only the archive has the entries of the chunk. An object in one of its slots is a
copy that has not been deleted yet, or a ghost: an object that a slow process put into the slot after it was deleted. So
a reader of a slot requests the archive *afterwards*: a slot is deleted after its archive was created, so if there is no
archive, the slot had not been deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from weft.storage.bounded_cache import BoundedCache
from weft.storage.core.log.archive_codec import Archive, Chunks, decode_archive
from weft.storage.core.log.cut import Seqs
from weft.storage.core.log.needed_files import ENDLESS
from weft.storage.core.names import TABLE_LANE, LaneName, archive_path, slot_path
from weft.storage.environment import Tuning
from weft.storage.store.object_store import ObjectStore, get_all, missing

ARCHIVES_AT_ONCE: Final = 64  # number of archives in one round of requests; those that exist are read completely

Slot = tuple[LaneName, int]


class Archives:
    """The slots and archives of one table, as far as this process has read them. Thread-safe.

    Errors of the store are raised unchanged, because `publish_entry` distinguishes a refusal from no answer.
    """

    def __init__(self, store: ObjectStore, tuning: Tuning) -> None:
        self._store, self._tuning = store, tuning
        self.chunks = Chunks(tuning.archive_chunk)
        self._archived: set[tuple[LaneName, int]] = set()
        self._open: BoundedCache[tuple[LaneName, int], Archive] = BoundedCache(
            tuning.archive_kept_bytes, lambda archive: len(archive.body), keeps_newest=True
        )
        self.read_archivable: Callable[[], tuple[Seqs, int]] | None = None
        """Called to reduce requests: reads the table lane to its end, and returns the last slot of each lane that a
        CLEAN_INTENT allows to archive, and the free slot of the table lane. Later slots of these lanes, and those in
        the chunk of the free slot, are not archived, so no archive has to be requested for them. None: request all
        archives."""

    def knows(self, slot: Slot) -> bool:
        """Whether the slot is known to be archived, without a request; an archived slot stays archived."""
        return (slot[0], self.chunks.of(slot[1])) in self._archived

    def request(self, slots: Iterable[Slot]) -> bool:
        """Request the archives of slots that were read before; returns whether one of the slots is archived.

        Raises:
            CorruptData: An archive is damaged.
        """
        slot_list = list(slots)
        chunks = sorted({(lane, self.chunks.of(seq)) for lane, seq in slot_list} - self._archived)
        request_count = sum(lane != TABLE_LANE for lane, _ in chunks)
        if request_count > self._tuning.archive_single_requests and self.read_archivable is not None:
            archivable, free_slot = self.read_archivable()  # requests archives of the table lane only
            ends = {**archivable, TABLE_LANE: self.chunks.last_slot(self.chunks.of(free_slot) - 1)}
            last = self.chunks.last_slot
            chunks = [(lane, chunk) for lane, chunk in chunks if last(chunk) <= ends.get(lane, ENDLESS)]
        for start in range(0, len(chunks), ARCHIVES_AT_ONCE):
            part = chunks[start : start + ARCHIVES_AT_ONCE]
            for (lane, chunk), data in zip(
                part, get_all(self._store, [archive_path(*key) for key in part]), strict=True
            ):
                if data is not None:
                    self._keep(decode_archive(data, lane, chunk, self.chunks))
        return any(self.knows(slot) for slot in slot_list)

    def request_after_put(self, slot: Slot, previous: Slot | None) -> tuple[bool, bytes | None]:
        """Whether a slot is archived, and the object in the slot ``previous``; None if there is no object.

        One round of requests for both.

        Raises:
            CorruptData: The archive is damaged.
        """
        if previous is None or self.knows(slot):
            return self.request([slot]), None
        lane, chunk = slot[0], self.chunks.of(slot[1])
        archive, previous_object = get_all(self._store, [archive_path(lane, chunk), slot_path(*previous)])
        if archive is not None:
            self._keep(decode_archive(archive, lane, chunk, self.chunks))
        return archive is not None, previous_object

    def content(self, slot: Slot) -> bytes:
        """Bytes of the entry in a slot that is known to be archived.

        Raises:
            CorruptData: The archive is damaged or missing.
        """
        lane, seq = slot
        chunk = self.chunks.of(seq)
        archive = self._open.find((lane, chunk))
        if archive is None:
            path = archive_path(lane, chunk)
            data = self._store.get(path)
            if data is None:
                raise missing(path)
            archive = decode_archive(data, lane, chunk, self.chunks)
            self._keep(archive)
        return archive.content(seq)

    def read(self, slots: Sequence[Slot]) -> list[bytes | None]:
        """Bytes of the entries in slots, in that order; None for a free slot."""
        data = self.in_slots(slots)
        self.request(data)
        return [self.content(slot) if self.knows(slot) else data[slot] for slot in slots]

    def is_taken(self, slot: Slot) -> bool:
        """Whether there is an entry in a slot."""
        # A ghost in the slot also means that the slot is taken.
        return self.knows(slot) or self.in_slots([slot])[slot] is not None or self.request([slot])

    def in_slots(self, slots: Sequence[Slot]) -> dict[Slot, bytes | None]:
        """Content of the slots that are not known to be archived; None for a slot without an object."""
        unarchived = [slot for slot in slots if not self.knows(slot)]
        return dict(zip(unarchived, get_all(self._store, [slot_path(*slot) for slot in unarchived]), strict=True))

    def _keep(self, archive: Archive) -> None:
        key = (archive.lane, archive.chunk)
        self._open.put(key, archive)
        self._archived.add(key)
