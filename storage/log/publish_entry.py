"""Publishes an entry in its slot, exactly once, and decides who won the slot.

This module implements these rules of PROTOCOL.md: a slot is written once (S1), a publication ends in won, lost or
unknown, whatever the store answers (L2), and what was published is in the same table as the entry before it (W8).
"""

from __future__ import annotations

from typing import Final

from weft.storage.core.log.entries import Data, Entry
from weft.storage.core.log.entry_codec import encode_entry
from weft.storage.core.names import TABLE_LANE, describe_lane, slot_path
from weft.storage.environment import Environment
from weft.storage.errors import CommitUnknown, CorruptData, StoreUnavailable
from weft.storage.log.archived_entries import Archives, Slot
from weft.storage.log.entry_cache import EntryCache
from weft.storage.log.sidecar_store import Sidecars
from weft.storage.store.object_store import no_answer

PUBLISH_DEADLINE_MS: Final = 60_000  # longer than short outages of a store
RETRY_FIRST_MS: Final = 50
RETRY_LAST_MS: Final = 2_000


class Publisher:
    """Publishes entries in the lanes of one table."""

    def __init__(self, env: Environment, archives: Archives, sidecars: Sidecars, cache: EntryCache) -> None:
        self._env, self._archives, self._sidecars, self._cache = env, archives, sidecars, cache

    def publish(self, entry: Entry) -> Entry:
        """Put an entry into its slot; returns the entry that the slot then has, see `CommitLog.publish`."""
        store, clock = self._env.store, self._env.clock
        path = slot_path(entry.lane, entry.seq)
        data = encode_entry(entry, self._sidecars.write_list(entry))
        started_ms = clock.now_ms()
        delay_ms = RETRY_FIRST_MS
        failure = ""
        # The clock may jump, so the number of tries is bounded too.
        for _ in range(PUBLISH_DEADLINE_MS // RETRY_FIRST_MS):
            try:
                if store.put_if_absent(path, data):
                    failure = "it was written, and the store does not answer whether the slot was archived before"
                    # If the slot was archived and deleted since the lane was read, the archive has the entry that won.
                    is_archived, previous = self._archives.request_after_put(
                        (entry.lane, entry.seq), _slot_before(entry)
                    )
                    if not is_archived:
                        self._check_before(entry, previous)
                        return self._cache.add(entry)
                winner = self._cache.load(entry.lane, entry.seq)
                if winner is not None:
                    if winner.commit_id != entry.commit_id:
                        return winner
                    # An earlier put has succeeded although its answer was lost.
                    self._check_before(entry, None)
                    return self._cache.add(entry)
                failure = "the store answered that the slot is taken, and returned no object for it"
            except PermissionError as error:
                if failure:  # an earlier put may have succeeded before the credentials expired
                    failure = f"{failure}; then no access: {error}"
                    break
                raise no_answer(path, error) from error
            # What an entry or an archive refers to is read by other methods, which raise errors of weft.
            except (OSError, StoreUnavailable) as error:
                failure = str(error)
                if self._is_published(entry):
                    return self._cache.add(entry)
            if clock.now_ms() - started_ms > PUBLISH_DEADLINE_MS:
                break
            clock.sleep(delay_ms / 1000)
            delay_ms = min(delay_ms * 2, RETRY_LAST_MS)
        batch = (entry.query_id, entry.batch) if isinstance(entry, Data) and entry.query_id else None
        raise CommitUnknown(
            f"it is not known whether {entry.kind} {entry.seq} of {describe_lane(entry.lane)} was written: {failure}",
            hint="open the table again and replay the same batch: a batch is never applied twice",
            batch=batch,
        )

    def _is_published(self, entry: Entry) -> bool:
        """Whether the slot has this entry; False if the store does not answer."""
        try:
            winner = self._cache.load(entry.lane, entry.seq)
            if winner is None or winner.commit_id != entry.commit_id:
                return False
            self._check_before(entry, None)
        except (OSError, StoreUnavailable):
            return False
        return True

    def _check_before(self, entry: Entry, previous: bytes | None) -> None:
        """Check that the entry was published in the table that was read, which may be moved or deleted at any time.

        A store that makes folders as needed accepts the entry at the place where the table was, and nobody would ever
        read it. This is checked afterwards: whatever happens later happens to the entry, too.

        Args:
            entry: An entry that was published.
            previous: The object that was read from the slot before it; None if there was none, or if it was not read.

        Raises:
            CorruptData: The entry before it is not there.
        """
        slot = _slot_before(entry)
        if slot is None or (previous is not None and entry.prev_id.encode() in previous):
            return
        (previous,) = self._archives.read([slot])
        if previous is None or entry.prev_id.encode() not in previous:
            raise CorruptData(
                f"the table at {self._env.store.uri} was moved, deleted or replaced: {slot_path(*slot)} is gone, so "
                f"{entry.kind} {entry.seq} of {describe_lane(entry.lane)} was written where nobody reads it",
                hint="stop its writers and services, delete what they left there, move it back, and start them again",
            )


def _slot_before(entry: Entry) -> Slot | None:
    """The slot that had an entry when this one was made: of its lane, or the first of the table; None for CREATE."""
    if entry.seq > 1:
        return entry.lane, entry.seq - 1
    return None if entry.lane == TABLE_LANE else (TABLE_LANE, 1)
