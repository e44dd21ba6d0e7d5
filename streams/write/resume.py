"""Decides where a query continues: at its checkpoint, or where the live commits of its lane end (`resume: table`).

A checkpoint records the batches that Spark has finished, the lane the batches that are in the table. The two agree, or
the lane is one batch ahead (after a crash between the two), unless the table is restored or a stream is undone:

    checkpoint   0  1  2  3  4  5  6            finished: 6, the next batch is 7
    lane         0  1  2  3 (4  5  6) |         4 to 6 are rolled back: batch 7 would leave a gap, and is refused

To continue, batch 4 has to be read again. Spark cannot set a checkpoint back, so a new query is started, with a new
checkpoint folder beside the old one, at the offsets that the lane's last live commit recorded. The same is done if the
checkpoint was lost, is an older copy, or lacks files. Rules:

1. **The lane decides.** A checkpoint is used if its query wrote the lane's last live commit, and it is neither ahead of
   that commit nor behind it. With a checkpoint that is behind, Spark would plan batches of the lane again, with other
   messages, and the lane would take them for repetitions. Otherwise a new checkpoint is created. Its name is derived
   from the commit, so that the next start after a crash uses the same folder.
2. **Each message is in the table once.** The recorded offsets are exactly the end of the lane's live commits. If
   another process commits to the lane after they were read and before the lane is claimed, `ResumePoint.check` fails.
3. **Each dead letter exists once.** At most one batch was begun and not committed: the one after the lane's newest
   commit. Its messages are read again, by a query with another id, so `write_stream` removes its dead letters after the
   claim. Dead letters of commits that were rolled back stay, because a restore can be undone.
4. **Unknown offsets are refused**, never guessed: a commit that did not record them, another topic, or a topic that was
   deleted and created again since (the source refuses it, because offsets are stored with the id of their topic).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from weft.storage.errors import Conflict, GapError, InvalidInput
from weft.storage.write.lane_progress import LaneProgress, lane_progress
from weft.storage.write.write_task import Batch
from weft.streams.kafka.options import ANY_PARTITION, EARLIEST
from weft.streams.kafka.recreated_topic import IDENTITY_KEYS
from weft.streams.write.query_checkpoint import Checkpoint, read_checkpoint, read_offsets, sibling_folders

__all__ = ["GAP_HINT", "LaneMoved", "ResumePoint", "check_follows", "resume_point"]

MARK: Final = "-resumed-"
"""Part of the name of a new checkpoint folder, between the name of the old one and the commit that it starts from."""

GAP_HINT: Final = (
    "continue where the table's live commits end, so that later messages are read again, each once: `resume: table` in "
    "the pipeline's writer, weft.resume_point in Python; or restore the table to its state before "
    "(guide: deploy/docs/recovery.md#one-stream-wrote-nonsense)"
)
_OLDER_HINT: Final = (
    "continue where the table's live commits end: `resume: table` in the pipeline's writer, weft.resume_point in "
    "Python; or bring back the whole checkpoint"
)

Offsets = Mapping[str, Mapping[str, int]]
"""Offsets of a Kafka source: next offset by topic and partition."""
Recorded = Mapping[str, Mapping[str, Any]]
"""Offsets as a commit records them, with the identity of each topic (`weft.streams.kafka.recreated_topic`)."""


class LaneMoved(Conflict):
    """Another process committed to the lane after it was read and before it was claimed. Read the lane again."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a query of a lane starts or continues; an argument of `weft.write_stream`.

    Attributes:
        lane: The lane.
        checkpoint: Checkpoint folder for `weft.write_stream`.
        anew: Whether the checkpoint is new and the query starts at ``offsets``. Otherwise the query continues at the
            checkpoint, or the lane has no commits yet.
        offsets: End offsets of the last live commit. None if the lane has no live commit and its start is not recorded.
        source: The source position that the last live commit recorded.
        identities: Identity of each topic that the offsets belong to, as the commit recorded it: ``{"topic_id": ...}``.
            Commits of older versions did not record them.
        abandoned: Query id and number of the batch that the previous query may have begun and has not committed; None
            unless ``anew``.
    """

    lane: str
    checkpoint: str
    anew: bool
    offsets: Offsets | None
    source: Mapping[str, Any]
    identities: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    abandoned: Batch | None = None

    def starting_offsets(self, default: str, topics: Sequence[str] | None = None) -> str:
        """Return the value of the option ``startingOffsets`` of ``weft_kafka``.

        Args:
            default: The value for a query without commits.
            topics: The subscribed topics; the recorded ones by default. A new topic is read from its beginning.

        Raises:
            InvalidInput: The lane was not written from Kafka, or not from any of the topics. Or the start of the lane
                is not recorded, and ``default`` is ``latest``.
        """
        if not self.anew:
            return default
        if self.offsets is None:
            if self.source:
                raise InvalidInput(
                    f"the last live commit of lane {self.lane!r} does not come from one Kafka source",
                    hint="use a new checkpoint, takeover, and a DataFrame that starts at `source` of this resume point",
                )
            if default.strip().lower() == "latest":
                raise InvalidInput(
                    f"lane {self.lane!r} has no live commit, and the start of its source is not recorded",
                    hint="give starting_offsets: earliest, or offsets by topic and partition",
                )
            return default
        sources = list(self.offsets) if topics is None else topics
        if not set(sources) & set(self.offsets):
            raise InvalidInput(
                f"lane {self.lane!r} was written from topics {', '.join(self.offsets)}, not from {', '.join(sources)}",
                hint="to continue with other topics give the writer a new checkpoint and takeover: true",
            )
        # A partition that is missing from the recorded offsets was never read.
        return json.dumps(
            {
                topic: {**self.offsets.get(topic, {}), ANY_PARTITION: EARLIEST, **self.identities.get(topic, {})}
                for topic in sources
            }
        )

    def check(self, source: Mapping[str, Any]) -> None:
        """Check, after the lane was claimed, that it has no commit that is newer than this resume point.

        Raises:
            LaneMoved: The lane has a newer commit; nothing was written.
        """
        if self.anew and dict(source) != dict(self.source):
            raise LaneMoved(
                f"lane {self.lane!r} has a new commit since its end was read",
                hint="stop the other writer of the lane, and start again",
            )


def resume_point(
    spark: SparkSession,
    uri: str | Path,
    lane: str,
    *,
    checkpoint: str,
    storage_options: Mapping[str, Any] | None = None,
) -> ResumePoint:
    """Find where a query of a lane continues, also after the table was restored or the checkpoint was lost.

    As long as table and checkpoint agree, the query continues at its checkpoint. Otherwise (after a restore, an undo,
    or the loss of the checkpoint or of a part of it) it continues with a new checkpoint folder beside the old one, at
    the offsets of the lane's last live commit::

        point = weft.resume_point(spark, uri, "orders", checkpoint="lake/checkpoints/orders")
        df = spark.readStream.format("weft_kafka").options(...)
        df = df.option("startingOffsets", point.starting_offsets("earliest")).load()...
        weft.write_stream(df, uri, "orders", checkpoint=point.checkpoint, resume=point)

    Call it at every start, with the same ``checkpoint``. `write_stream` cannot do this, because the starting offsets of
    a DataFrame are fixed when it is created. For a source other than ``weft_kafka`` use ``point.source``, which has
    the end offsets in the form of Spark's checkpoint: ``{"offsets": [...]}`` with one item per source.

    Args:
        spark: The session, with which the checkpoints are read.
        uri: Path or URL of the table.
        lane: The query's lane; it need not exist yet.
        checkpoint: Folder of the query's first checkpoint.
        storage_options: Options of the fsspec file system.

    Raises:
        NotFound: There is no such table.
        InvalidInput: The lane's last live commit has not recorded the position of its source.
    """
    state = lane_progress(uri, lane, storage_options)
    checkpoints = [read_checkpoint(spark, folder) for folder in (checkpoint, *sibling_folders(spark, checkpoint, MARK))]
    for candidate in checkpoints:
        if candidate.query_id and candidate.query_id == state.query_id and _difference(spark, state, candidate) is None:
            return ResumePoint(lane, candidate.folder, False, None, state.source)
    damaged = {candidate.folder for candidate in checkpoints if candidate.damaged}
    folder = f"{checkpoint}{MARK}{_name_of(state)}"
    names = itertools.chain([folder], (f"{folder}-{number}" for number in itertools.count(2)))
    folder = next(name for name in names if name not in damaged)
    if not state.query_id and not state.rolled_back_from:
        return ResumePoint(lane, folder if checkpoint in damaged else checkpoint, False, None, state.source)
    if state.query_id:
        recorded = _kafka_offsets(state.source)
        if recorded is None and not (state.source.get("offsets") or ()):
            raise InvalidInput(
                f"the last live commit of lane {lane!r} has not recorded the position of its source",
                hint="give the writer a new checkpoint, explicit starting offsets, and takeover: true",
            )
    else:
        # The first batch of a Kafka query is empty, and records the start of the lane.
        recorded = None if state.first_source is None else _kafka_offsets(state.first_source)
    offsets, identities = (None, {}) if recorded is None else _split_offsets(recorded)
    abandoned = None if state.newest is None else (state.newest[0], state.newest[1] + 1)
    return ResumePoint(lane, folder, True, offsets, state.source, identities, abandoned)


def check_follows(
    spark: SparkSession, uri: str, storage_options: Mapping[str, Any] | None, lane: str, checkpoint: Checkpoint
) -> None:
    """Refuse a checkpoint that does not agree with the lane.

    Raises:
        GapError: The checkpoint has finished batches that are not, or no longer, in the table; it lacks batches that
            are in the table; or files of it are missing. Nothing was claimed.
    """
    if not checkpoint.query_id and not checkpoint.damaged:
        return  # the query has not begun
    state = lane_progress(uri, lane, storage_options)
    if (problem := _difference(spark, state, checkpoint)) is not None:
        raise problem


def _difference(spark: SparkSession, state: LaneProgress, checkpoint: Checkpoint) -> GapError | None:
    """Return an error that says how checkpoint and lane disagree; None if the query can continue at the checkpoint."""
    if (first := _gap(state, checkpoint)) is not None:
        return _ahead(state, checkpoint, first)
    if checkpoint.damaged:
        return GapError(f"checkpoint {checkpoint.folder} is incomplete: files of it were deleted", hint=_OLDER_HINT)
    if _is_behind(spark, state, checkpoint):
        live, folder = state.batches[checkpoint.query_id], checkpoint.folder
        finished = "no batch" if checkpoint.last is None else f"batches up to {checkpoint.last}"
        return GapError(
            f"the table has batches of this query up to {live}, but checkpoint {folder} has finished {finished}, and "
            "its plan of the next batch is not the batch in the table: it is an older copy, or files of it are missing",
            hint=_OLDER_HINT,
        )
    return None


def _ahead(state: LaneProgress, checkpoint: Checkpoint, first: int) -> GapError:
    """Return the error for a checkpoint with finished batches, from ``first`` on, that the lane does not have."""
    lane = state.lane
    batches = f"batch {first}" if first == checkpoint.last else f"batches {first} to {checkpoint.last}"
    if state.restored:
        what = f"the table was restored, or its stream undone: {batches} of this query in lane {lane!r}"
        return GapError(f"{what} no longer count, but checkpoint {checkpoint.folder} has finished them", hint=GAP_HINT)
    what = f"checkpoint {checkpoint.folder} has finished {batches} of this query, but lane {lane!r} does not have them"
    return GapError(f"{what}: it may be an older copy of the table, or another table", hint=GAP_HINT)


def _gap(state: LaneProgress, checkpoint: Checkpoint) -> int | None:
    """Return the first batch that a checkpoint has finished and the table does not have; None without such a batch."""
    live = state.batches.get(checkpoint.query_id)
    # A query that has not written to the lane may begin with any batch: it may have written to another lane before.
    first = state.rolled_back_from.get(checkpoint.query_id) if live is None else live + 1
    return None if first is None or checkpoint.last is None or checkpoint.last < first else first


def _is_behind(spark: SparkSession, state: LaneProgress, checkpoint: Checkpoint) -> bool:
    """Whether the table has a batch of the query that Spark would plan again, instead of repeating it."""
    live = state.batches.get(checkpoint.query_id)
    if live is None or (checkpoint.last is not None and live <= checkpoint.last):
        return False
    if checkpoint.planned is None or not live <= checkpoint.planned <= live + 1:
        return True
    if checkpoint.query_id != state.query_id:
        return False  # another query has written later, and only its position is recorded
    planned_offsets = read_offsets(spark, checkpoint.folder, live)
    return bool(planned_offsets and state.source) and planned_offsets != state.source


def _name_of(state: LaneProgress) -> str:
    """Name the state of a lane by the claim of its newest restore and its last live commit."""
    return f"{state.fenced}-{state.last_commit}"


def _kafka_offsets(source: Mapping[str, Any]) -> Recorded | None:
    """Return the offsets that a commit recorded; None if its query did not read exactly one Kafka source."""
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
    """Split recorded offsets into the offsets, and the identities of their topics."""
    offsets = {
        topic: {name: offset for name, offset in parts.items() if name not in IDENTITY_KEYS}
        for topic, parts in recorded.items()
    }
    identities = {
        topic: {name: parts[name] for name in sorted(IDENTITY_KEYS & parts.keys())} for topic, parts in recorded.items()
    }
    return offsets, {topic: identity for topic, identity in identities.items() if identity}
