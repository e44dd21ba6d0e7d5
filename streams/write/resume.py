"""Where a query goes on: in its checkpoint, or where the live commits of its lane end (`resume: table`).

A checkpoint knows which batches it has handed over, the lane knows which of them are in the table. The two agree, or
the lane is one batch ahead (a crash between the two), until the table is restored or a stream undone:

    checkpoint   0  1  2  3  4  5  6            finished: 6, the next batch is 7
    lane         0  1  2  3 (4  5  6) |         4 to 6 are rolled back: batch 7 would leave a gap, and is refused

To go on, batch 4 has to be read again. Spark cannot turn a checkpoint back, so a new query is begun: in a folder beside
the old one, which stays as it is, from the offsets that the lane's last live commit recorded. Rules:

1. **The lane decides.** A checkpoint is good if its query wrote the lane's last live commit and is not ahead of it.
   Else a new one is begun. Its name says what it starts from, so that a start that crashed is found again.
2. **Each message once, as far as the table is concerned.** What the lane recorded is exactly what its live commits
   hold. Whoever commits between the look at the lane and its claim makes the look worthless: `ResumePoint.check`.
3. **What cannot be known is refused**, never guessed: a commit that does not say where its source was, another topic,
   a topic that was deleted and created again since (which the source refuses: offsets say which topic they are of).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from storage.engine import LaneProgress, lane_progress
from storage.errors import Conflict, GapError, InvalidInput
from streams.kafka.options import ANY_PARTITION, EARLIEST
from streams.kafka.topic_identity import IDENTITY_KEYS
from streams.write.query_checkpoint import Checkpoint, read_checkpoint, sibling_folders

__all__ = ["GAP_HINT", "LaneMoved", "ResumePoint", "check_follows", "resume_point"]

MARK: Final = "-resumed-"
"""Between a checkpoint's name and what a new one beside it starts from."""

GAP_HINT: Final = (
    "begin where the table's live commits end, messages after that are read again, each once: `resume: table` in the "
    "pipeline's writer, streams.resume_point in Python; or restore the table to where it was"
)

Offsets = Mapping[str, Mapping[str, int]]
"""Of a Kafka source: next offset by topic and partition."""
Recorded = Mapping[str, Mapping[str, Any]]
"""The same as recorded in a commit, with the identity of each topic (`streams.kafka.topic_identity`)."""


class LaneMoved(Conflict):
    """Somebody committed to the lane between the look at it and the claim of it: look again."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a query of a lane begins; for `streams.write_stream`.

    Attributes:
        lane: The lane.
        checkpoint: Folder to give to `streams.write_stream`.
        anew: The folder's query starts at ``offsets``; else its checkpoint, or nothing at all, says where.
        offsets: Of the last live commit; None if the lane's live commits are none, and nobody knows where they began.
        source: What the last live commit recorded, as it stands there.
        identities: By topic, which topic the offsets are of, as the commit recorded it: ``{"topic_id": ...}``; commits
            of older versions recorded none.
    """

    lane: str
    checkpoint: str
    anew: bool
    offsets: Offsets | None
    source: Mapping[str, Any]
    identities: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def starting_offsets(self, default: str, topics: Sequence[str] | None = None) -> str:
        """The option ``startingOffsets`` of ``weft_kafka``.

        Args:
            default: What it is for a query that begins without a past.
            topics: Those that are subscribed to; the recorded ones by default. A new one is read from its beginning.

        Raises:
            InvalidInput: The lane was not written from Kafka, or from none of the topics; or nothing is known of where
                it began, and ``default`` is the end of the topics.
        """
        if not self.anew:
            return default
        if self.offsets is None:
            if self.source:
                raise InvalidInput(
                    f"the last live commit of lane {self.lane!r} does not come from one Kafka source",
                    hint="give a new checkpoint, takeover, and a frame that starts where `source` of this point says",
                )
            if default.strip().lower() == "latest":
                raise InvalidInput(
                    f"lane {self.lane!r} has no live commit, and does not tell where its source began",
                    hint="give starting_offsets: earliest, or offsets by topic and partition",
                )
            return default
        wanted = list(self.offsets) if topics is None else topics
        if not set(wanted) & set(self.offsets):
            raise InvalidInput(
                f"lane {self.lane!r} was written from topics {', '.join(self.offsets)}, not from {', '.join(wanted)}",
                hint="to go on with other topics give the writer a new checkpoint and takeover: true",
            )
        # A partition that the live commits never saw was never read.
        return json.dumps(
            {
                topic: {**self.offsets.get(topic, {}), ANY_PARTITION: EARLIEST, **self.identities.get(topic, {})}
                for topic in wanted
            }
        )

    def check(self, source: Mapping[str, Any]) -> None:
        """Make sure, once the lane is claimed, that it is where it was when this point was taken.

        Raises:
            LaneMoved: It is not; nothing was written.
        """
        if self.anew and dict(source) != dict(self.source):
            raise LaneMoved(
                f"lane {self.lane!r} has moved on since the look at where it ends",
                hint="is another writer running on it? Stop it, and start again",
            )


def resume_point(
    spark: SparkSession,
    uri: str | Path,
    lane: str,
    *,
    checkpoint: str,
    storage_options: Mapping[str, Any] | None = None,
) -> ResumePoint:
    """Find where a query of a lane goes on, whatever became of the table since its checkpoint was written.

    As long as table and checkpoint agree, that is the checkpoint. After a restore or an undo, or if the checkpoint was
    lost, it is a new folder beside it, with the offsets of the lane's last live commit::

        point = streams.resume_point(spark, uri, "orders", checkpoint="lake/checkpoints/orders")
        df = spark.readStream.format("weft_kafka").options(...)
        df = df.option("startingOffsets", point.starting_offsets("earliest")).load()...
        streams.write_stream(df, uri, "orders", checkpoint=point.checkpoint, resume=point)

    Call it at every start, with the same ``checkpoint``. `write_stream` alone cannot do this: where a frame starts is
    decided when it is made. For a source other than ``weft_kafka`` use ``point.source``, which is what Spark's
    checkpoint held: ``{"offsets": [one a source]}``.

    Args:
        spark: The session; it reads the checkpoints.
        uri: The table.
        lane: The query's lane; it need not exist yet.
        checkpoint: Folder of the query's first checkpoint.
        storage_options: For the table's store.

    Raises:
        NotFound: There is no such table.
        InvalidInput: The lane's last live commit does not tell where its source was.
    """
    state = lane_progress(uri, lane, storage_options)
    known = [read_checkpoint(spark, folder) for folder in (checkpoint, *sibling_folders(spark, checkpoint, MARK))]
    for stored in known:
        if stored.query_id and stored.query_id == state.query_id and _gap(state, stored) is None:
            return ResumePoint(lane, stored.folder, False, None, state.source)
    if not state.query_id and not state.rolled_back_from:
        return ResumePoint(lane, checkpoint, False, None, state.source)
    if state.query_id:
        recorded = _kafka_offsets(state.source)
        if recorded is None and not (state.source.get("offsets") or ()):
            raise InvalidInput(
                f"the last live commit of lane {lane!r} does not tell where its source was",
                hint="give the writer a new checkpoint, starting offsets of your own, and takeover: true",
            )
    else:
        # A Kafka query's first batch is empty, and records where the lane began.
        recorded = None if state.first_source is None else _kafka_offsets(state.first_source)
    offsets, identities = (None, {}) if recorded is None else _split_offsets(recorded)
    return ResumePoint(lane, f"{checkpoint}{MARK}{_name_of(state)}", True, offsets, state.source, identities)


def check_follows(uri: str, storage_options: Mapping[str, Any] | None, lane: str, stored: Checkpoint) -> None:
    """Refuse a checkpoint that has handed over batches which are not, or no longer, in the table.

    Raises:
        GapError: It has; nothing was claimed.
    """
    if stored.last is None:
        return
    state = lane_progress(uri, lane, storage_options)
    first = _gap(state, stored)
    if first is None:
        return
    batches = f"batch {first}" if first == stored.last else f"batches {first} to {stored.last}"
    if state.restored:
        what = f"the table was restored, or its stream undone: {batches} of this query in lane {lane!r}"
        raise GapError(f"{what} count as never sent, but checkpoint {stored.folder} is past them", hint=GAP_HINT)
    what = f"checkpoint {stored.folder} has sent {batches} of this query, which lane {lane!r} does not have"
    raise GapError(f"{what}: is it an older copy of the table, or another one?", hint=GAP_HINT)


def _gap(state: LaneProgress, stored: Checkpoint) -> int | None:
    """The first batch that a checkpoint takes for stored, and that is not; None if there is none."""
    live = state.batches.get(stored.query_id)
    # A query that the lane never saw may begin with any batch: it may have written elsewhere before.
    first = state.rolled_back_from.get(stored.query_id) if live is None else live + 1
    return None if first is None or stored.last is None or stored.last < first else first


def _name_of(state: LaneProgress) -> str:
    """Of the point that the lane has reached: its newest restore, by the claim that fenced it, and last live commit."""
    return f"{state.fenced}-{state.last_commit}"


def _kafka_offsets(source: Mapping[str, Any]) -> Recorded | None:
    """What a commit of a query over one Kafka source recorded; None if it is something else."""
    recorded = source.get("offsets")
    if not isinstance(recorded, list) or len(recorded) != 1 or not isinstance(recorded[0], dict) or not recorded[0]:
        return None
    for parts in recorded[0].values():
        if not isinstance(parts, dict):
            return None
        if not all(isinstance(offset, int) for name, offset in parts.items() if name not in IDENTITY_KEYS):
            return None
    return recorded[0]


def _split_offsets(recorded: Recorded) -> tuple[Offsets, Recorded]:
    """Offsets by topic and partition, and beside them which topics they are of."""
    offsets = {
        topic: {name: offset for name, offset in parts.items() if name not in IDENTITY_KEYS}
        for topic, parts in recorded.items()
    }
    identities = {
        topic: {name: parts[name] for name in sorted(IDENTITY_KEYS & parts.keys())} for topic, parts in recorded.items()
    }
    return offsets, {topic: identity for topic, identity in identities.items() if identity}
