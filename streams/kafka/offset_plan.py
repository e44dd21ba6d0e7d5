"""Decides which offsets a batch reads, from the offsets already read and the logs of the brokers, by pure functions.

A partition enters the stream in two steps. The batch that first sees it only stores its first offset in Spark's
checkpoint and reads nothing of it; the next batch reads from there:

    batch        0                   1                    2
    checkpoint   {} -> {t-0: 40}     {t-0: 40 -> 90}      {t-0: 90 -> 95, t-1: 0}      t-1 is new, read from batch 3 on
    reads        nothing             t-0 [40, 90)         t-0 [90, 95)

Spark stores only the *end* of a batch. If the first offset were computed when the batch is read ("latest", or the first
offset that retention has not deleted), a replay after a crash could compute another one, and records would be lost
silently. With this rule every range is between two offsets of the checkpoint. A topic that was deleted and created
again starts in the same way, if ``failOnDataLoss=false`` allows it: its partitions count as new, and no range is
between offsets of two topics (`weft.streams.kafka.recreated_topic`).

Offsets are exclusive ends: ``{t-0: 90}`` means that 90 is the next offset to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from pyspark.sql.datasource import InputPartition

from weft.storage.errors import InvalidInput
from weft.streams.kafka.errors import name_some
from weft.streams.kafka.options import ANY_PARTITION, EARLIEST, LATEST, OTHERS, Partition, Starting
from weft.streams.kafka.recreated_topic import (
    IDENTITY_KEYS,
    Identity,
    find_recreated,
    format_identity,
    parse_identities,
)

Offsets = dict[Partition, int]


class Log(NamedTuple):
    """The log of one partition: offsets from ``low`` (the first that exists) to ``high`` (the next to be written)."""

    low: int
    high: int


class Topics(NamedTuple):
    """The logs of all partitions of the subscribed topics, and the identities of the topics."""

    logs: dict[Partition, Log]
    identities: dict[str, Identity]


class Position(NamedTuple):
    """Offsets, and the known identities of their topics."""

    offsets: Offsets
    identities: dict[str, Identity]


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """The work of one Spark task: offsets from ``start`` to ``end`` (exclusive) of one partition.

    ``topic_id`` is the id of the topic; "" if it is not known.
    """

    partition: Partition
    start: int
    end: int
    topic_id: str = ""

    def __str__(self) -> str:
        return f"{self.partition} [{self.start}, {self.end})"


def parse_offsets(json: Mapping[str, Mapping[str, Any]]) -> Offsets:
    """Parse the offsets of an offset in Spark's checkpoint: ``{"topic": {"0": 23, "topic_id": "..."}}``."""
    return {
        Partition(topic, int(number)): offset
        for topic, partitions in json.items()
        for number, offset in partitions.items()
        if number not in IDENTITY_KEYS
    }


def format_offsets(offsets: Mapping[Partition, int]) -> dict[str, dict[str, int]]:
    """Format offsets for `parse_offsets`, sorted, because Spark compares the texts of offsets to detect new ones."""
    json: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets):
        json.setdefault(partition.topic, {})[str(partition.number)] = offsets[partition]
    return json


def parse_position(json: Mapping[str, Mapping[str, Any]]) -> Position:
    """Parse an offset in Spark's checkpoint; offsets of older versions have no identities."""
    return Position(parse_offsets(json), parse_identities(json))


def format_position(position: Position) -> dict[str, dict[str, Any]]:
    """Format a position for `parse_position`, sorted as by `format_offsets`."""
    return {
        topic: {**partitions, **format_identity(position.identities.get(topic, Identity()))}
        for topic, partitions in format_offsets(position.offsets).items()
    }


class OffsetPlan(NamedTuple):
    """End offsets of a batch, and the losses: one sentence per partition, for `report_losses`."""

    offsets: Offsets
    losses: list[str]


def plan_start(starting: Starting, logs: Mapping[Partition, Log]) -> OffsetPlan:
    """Plan the first offsets of a query without a checkpoint.

    Raises:
        InvalidInput: ``startingOffsets`` lacks a partition, or names a partition or offset that does not exist.
    """
    if starting == "earliest":
        return OffsetPlan({partition: log.low for partition, log in logs.items()}, [])
    if starting == "latest":
        return OffsetPlan({partition: log.high for partition, log in logs.items()}, [])
    assert not isinstance(starting, str)
    starts = {partition: offset for partition, offset in starting.items() if partition.number != OTHERS}
    for partition in logs:
        if partition not in starts and (others := starting.get(Partition(partition.topic, OTHERS))) is not None:
            starts[partition] = others
    if mismatched := sorted(set(starts) ^ set(logs)):
        raise InvalidInput(
            "option 'startingOffsets' must name exactly the partitions that exist: "
            + name_some(f"{p} is {'not named' if p in logs else 'not a partition'}" for p in mismatched),
            hint=f"use {EARLIEST} (earliest) or {LATEST} (latest) for a partition without an offset, and "
            f'"{ANY_PARTITION}" for all other partitions',
        )
    offsets = {p: {EARLIEST: log.low, LATEST: log.high}.get(starts[p], starts[p]) for p, log in logs.items()}
    if beyond := sorted(p for p, log in logs.items() if offsets[p] > log.high):
        raise InvalidInput(
            "option 'startingOffsets' is beyond the end of the log: "
            + name_some(f"{p} needs offset {offsets[p]}, {describe_log(logs[p])}" for p in beyond),
            hint=f"use {LATEST} to start at the end of the log",
        )
    losses = [describe_loss(p, offsets[p], log) for p, log in sorted(logs.items()) if offsets[p] < log.low]
    return OffsetPlan({p: max(offset, logs[p].low) for p, offset in offsets.items()}, losses)


def drop_recreated(start: Position, brokers: Mapping[str, Identity]) -> tuple[Position, list[str]]:
    """Remove topics that were deleted and created again from a position.

    Returns:
        The rest of the position, and one sentence per removed topic.
    """
    recreated = find_recreated(start.identities, brokers)
    offsets = {partition: offset for partition, offset in start.offsets.items() if partition.topic not in recreated}
    identities = {topic: identity for topic, identity in start.identities.items() if topic not in recreated}
    return Position(offsets, identities), list(recreated.values())


def restart_recreated(starting: Starting, recreated: Iterable[str]) -> Starting:
    """Change ``startingOffsets`` so that topics that were deleted and created again are read from their beginning."""
    names = set(recreated)
    if isinstance(starting, str) or not names:
        return starting
    others = {partition: offset for partition, offset in starting.items() if partition.topic not in names}
    return others | {Partition(topic, OTHERS): EARLIEST for topic in names}


def identify(offsets: Offsets, before: Position, brokers: Mapping[str, Identity]) -> Position:
    """Add the identities of the topics to offsets.

    Args:
        offsets: End of a batch.
        before: Start of the batch, without topics that were created again.
        brokers: Identities of the topics in the brokers.

    Returns:
        The position. It equals ``before`` if the offsets are the same and ``before`` has all identities: new leader
        epochs alone do not cause a batch.
    """
    identities: dict[str, Identity] = {}
    for topic in {partition.topic for partition in offsets}:
        stored, now = before.identities.get(topic, Identity()), brokers.get(topic, Identity())
        if topic_id := now.topic_id or stored.topic_id:
            identities[topic] = Identity(topic_id)
            continue
        epochs = dict(stored.epochs)
        for number, epoch in now.epochs.items():
            partition = Partition(topic, number)
            if partition in offsets and (number not in epochs or offsets[partition] != before.offsets.get(partition)):
                epochs[number] = epoch
        if epochs:
            identities[topic] = Identity(epochs=epochs)
    return Position(offsets, identities)


def plan_end(
    start: Mapping[Partition, int],
    logs: Mapping[Partition, Log],
    topics: Iterable[str],
    *,
    limit: int | None,
    target: Mapping[Partition, int] | None = None,
) -> OffsetPlan:
    """Plan the end of the batch that begins at ``start``.

    A partition that no longer exists, or is no longer subscribed, keeps its offset, from which it continues if it
    appears again. New partitions are added with the first offset of their log (see the module).

    Args:
        start: End of the previous batch, without topics that were created again.
        logs: All partitions of the subscribed topics.
        topics: The subscribed topics; losses are reported for these only.
        limit: Maximum number of offsets in the batch, divided by `share_limit`; None for no limit.
        target: The partitions to read, and their ends (``Trigger.AvailableNow``); None for no target.
    """
    subscribed = set(topics)
    losses = [
        f"{partition} needs offset {start[partition]}, the partition does not exist any more: its topic was deleted"
        for partition in sorted(start)
        if partition.topic in subscribed and partition not in logs
    ]
    end = dict(start)
    backlog: Offsets = {}
    for partition, log in sorted(logs.items()):
        if target is not None and partition not in target:
            continue
        if partition not in start:
            end[partition] = log.low
            continue
        offset = start[partition]
        if not log.low <= offset <= log.high:
            losses.append(describe_loss(partition, offset, log))
        if offset > log.high:
            end[partition] = log.low  # like a new partition: the next batch reads from there
            continue
        first = max(offset, log.low)  # offsets that retention deleted do not count for the limit
        last = log.high if target is None else min(log.high, target[partition])
        if first < last:
            end[partition] = last
            backlog[partition] = last - first
    if limit is not None and sum(backlog.values()) > limit:
        for partition, share in share_limit(backlog, limit).items():
            end[partition] += share - backlog[partition]
    return OffsetPlan(end, losses)


def count_deleted(start: Mapping[Partition, int], logs: Mapping[Partition, Log]) -> int:
    """Count the offsets after ``start`` that retention has deleted from the logs."""
    return sum(max(0, log.low - start.get(partition, log.low)) for partition, log in logs.items())


def plan_ranges(
    start: Mapping[Partition, int],
    end: Mapping[Partition, int],
    min_partitions: int | None,
    identities: Mapping[str, Identity] | None = None,
) -> list[OffsetRange]:
    """Return the ranges of a batch: one per partition with new offsets, divided further to get ``min_partitions``."""
    ids = {topic: identity.topic_id for topic, identity in (identities or {}).items()}
    ranges = [
        OffsetRange(partition, start[partition], end[partition], ids.get(partition.topic, ""))
        for partition in sorted(end)
        if partition in start and start[partition] < end[partition]
    ]
    if min_partitions is None or len(ranges) >= min_partitions:
        return ranges
    pieces = share_limit({r.partition: r.end - r.start for r in ranges}, min_partitions)
    return [piece for r in ranges for piece in _split(r, pieces[r.partition])]


def _split(span: OffsetRange, pieces: int) -> list[OffsetRange]:
    size = span.end - span.start
    pieces = min(pieces, size)
    cuts = [span.start + size * i // pieces for i in range(pieces + 1)]
    return [OffsetRange(span.partition, a, b, span.topic_id) for a, b in pairwise(cuts)]


def share_limit(backlog: Mapping[Partition, int], limit: int) -> Offsets:
    """Divide ``limit`` in proportion to the backlog of each partition.

    Every partition gets at least one offset, so that a small one does not starve beside a large one. The shares add up
    to ``limit``, or to the whole backlog if that is less, or to the number of partitions if that is more.

    Args:
        backlog: Offsets to read; each at least 1.
        limit: At least 1.
    """
    spare = min(limit, sum(backlog.values())) - len(backlog)
    shares = dict.fromkeys(backlog, 1)
    rest = sum(backlog.values()) - len(backlog)
    if spare <= 0 or rest == 0:
        return shares
    for partition, count in backlog.items():
        shares[partition] += spare * (count - 1) // rest
    # What rounding down left over goes to the largest remainders. Ties are decided by name, so the result is stable.
    remainder = spare + len(backlog) - sum(shares.values())
    by_remainder = sorted(backlog, key=lambda p: (-(spare * (backlog[p] - 1) % rest), p))
    for partition in by_remainder[:remainder]:
        shares[partition] += 1
    return shares


def describe_loss(partition: Partition, offset: int, log: Log) -> str:
    """Describe the loss in one partition: topic and number, required and available offsets, the likely cause."""
    cause = "retention deleted older records" if offset < log.low else "the topic was truncated or recreated"
    return f"{partition} needs offset {offset}, {describe_log(log)}: {cause}"


def describe_log(log: Log) -> str:
    """Describe which offsets exist."""
    return f"the log has offsets [{log.low}, {log.high})"
