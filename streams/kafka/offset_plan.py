"""Offset arithmetic of the Kafka source: from what was read and what the brokers hold to what is read next. Pure.

A partition enters the stream in two steps. The batch that first sees it only writes its
first offset into Spark's checkpoint and reads nothing of it; the next batch reads from there:

    batch        0                   1                    2
    checkpoint   {} -> {t-0: 40}     {t-0: 40 -> 90}      {t-0: 90 -> 95, t-1: 0}      t-1 is new, read from batch 3 on
    reads        nothing             t-0 [40, 90)         t-0 [90, 95)

Spark writes down only where a batch *ends*. A first offset that was merely computed ("latest", or the head of a log
that ages) would come out differently when the batch is replayed after a crash, and records would be lost without a
trace. With this rule every range that is ever read lies between two offsets of the checkpoint. The same step begins a
topic anew that was deleted and created again, where ``failOnDataLoss=false`` allows it: to these rules its partitions
are new ones, and no range lies between offsets of two topics (`streams.kafka.topic_identity`).

Offsets are exclusive ends: ``{t-0: 90}`` means that 90 is the next to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from pyspark.sql.datasource import InputPartition

from storage.errors import InvalidInput
from streams.kafka.errors import name_some
from streams.kafka.options import ANY_PARTITION, EARLIEST, LATEST, OTHERS, Partition, Starting
from streams.kafka.topic_identity import IDENTITY_KEYS, Identity, find_recreated, format_identity, parse_identities

Offsets = dict[Partition, int]


class Log(NamedTuple):
    """What one partition holds: offsets ``low`` (first kept) up to ``high`` (next to be written)."""

    low: int
    high: int


class Topics(NamedTuple):
    """What the brokers hold: all partitions of the subscribed topics, and which topics they are."""

    logs: dict[Partition, Log]
    identities: dict[str, Identity]


class Position(NamedTuple):
    """Offsets, and which topics they are of (as far as that is known)."""

    offsets: Offsets
    identities: dict[str, Identity]


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """One Spark task's work: offsets ``start`` up to, not including, ``end`` of one partition.

    ``topic_id`` is of the topic that the offsets are of; "" if that is not known.
    """

    partition: Partition
    start: int
    end: int
    topic_id: str = ""

    def __str__(self) -> str:
        return f"{self.partition} [{self.start}, {self.end})"


def parse_offsets(json: Mapping[str, Mapping[str, Any]]) -> Offsets:
    """Read the offsets in what Spark keeps in its checkpoint: ``{"topic": {"0": 23, "topic_id": "..."}}``."""
    return {
        Partition(topic, int(number)): offset
        for topic, partitions in json.items()
        for number, offset in partitions.items()
        if number not in IDENTITY_KEYS
    }


def format_offsets(offsets: Mapping[Partition, int]) -> dict[str, dict[str, int]]:
    """Inverse of `parse_offsets`, sorted: Spark compares offsets as text to see whether there is anything new."""
    json: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets):
        json.setdefault(partition.topic, {})[str(partition.number)] = offsets[partition]
    return json


def parse_position(json: Mapping[str, Mapping[str, Any]]) -> Position:
    """Read what Spark keeps in its checkpoint; offsets of older versions have no identities."""
    return Position(parse_offsets(json), parse_identities(json))


def format_position(position: Position) -> dict[str, dict[str, Any]]:
    """Inverse of `parse_position`, sorted as `format_offsets` does."""
    return {
        topic: {**partitions, **format_identity(position.identities.get(topic, Identity()))}
        for topic, partitions in format_offsets(position.offsets).items()
    }


class OffsetPlan(NamedTuple):
    """Where to go, and what is lost on the way there (one sentence for each partition, for `report_losses`)."""

    offsets: Offsets
    losses: list[str]


def plan_start(starting: Starting, logs: Mapping[Partition, Log]) -> OffsetPlan:
    """First offsets of a query without a checkpoint.

    Raises:
        InvalidInput: ``startingOffsets`` leaves a partition out, or names one, or an offset, that is not there yet.
    """
    if starting == "earliest":
        return OffsetPlan({partition: log.low for partition, log in logs.items()}, [])
    if starting == "latest":
        return OffsetPlan({partition: log.high for partition, log in logs.items()}, [])
    assert not isinstance(starting, str)
    named = {partition: offset for partition, offset in starting.items() if partition.number != OTHERS}
    for partition in logs:
        if partition not in named and (others := starting.get(Partition(partition.topic, OTHERS))) is not None:
            named[partition] = others
    if odd := sorted(set(named) ^ set(logs)):
        raise InvalidInput(
            "option 'startingOffsets' must name exactly the partitions that exist: "
            + name_some(f"{p} is {'not named' if p in logs else 'no partition'}" for p in odd),
            hint=f"use {EARLIEST} (earliest) or {LATEST} (latest) for a partition without an offset, and "
            f'"{ANY_PARTITION}" for all that are not named',
        )
    wanted = {p: {EARLIEST: log.low, LATEST: log.high}.get(named[p], named[p]) for p, log in logs.items()}
    if beyond := sorted(p for p, log in logs.items() if wanted[p] > log.high):
        raise InvalidInput(
            "option 'startingOffsets' is beyond the end of the log: "
            + name_some(f"{p} wanted offset {wanted[p]}, {describe_log(logs[p])}" for p in beyond),
            hint=f"use {LATEST} to start at the end",
        )
    losses = [describe_loss(p, wanted[p], log) for p, log in sorted(logs.items()) if wanted[p] < log.low]
    return OffsetPlan({p: max(offset, logs[p].low) for p, offset in wanted.items()}, losses)


def drop_recreated(start: Position, found: Mapping[str, Identity]) -> tuple[Position, list[str]]:
    """Take out of a position the topics that are others by now.

    Returns:
        What is left, and one sentence for each topic that was taken out.
    """
    recreated = find_recreated(start.identities, found)
    offsets = {partition: offset for partition, offset in start.offsets.items() if partition.topic not in recreated}
    identities = {topic: identity for topic, identity in start.identities.items() if topic not in recreated}
    return Position(offsets, identities), list(recreated.values())


def restart_recreated(starting: Starting, recreated: Iterable[str]) -> Starting:
    """``startingOffsets`` in which topics that are others by now begin at their beginning."""
    names = set(recreated)
    if isinstance(starting, str) or not names:
        return starting
    kept = {partition: offset for partition, offset in starting.items() if partition.topic not in names}
    return kept | {Partition(topic, OTHERS): EARLIEST for topic in names}


def identify(offsets: Offsets, before: Position, found: Mapping[str, Identity]) -> Position:
    """Say of which topics offsets are.

    Args:
        offsets: End of a batch.
        before: Where it begins, without topics that are others by now.
        found: What the brokers say.

    Returns:
        A position that differs from ``before`` only if the offsets do, or an identity was not known: leader epochs
        alone are no reason for a batch.
    """
    identities: dict[str, Identity] = {}
    for topic in {partition.topic for partition in offsets}:
        known, now = before.identities.get(topic, Identity()), found.get(topic, Identity())
        if topic_id := now.topic_id or known.topic_id:
            identities[topic] = Identity(topic_id)
            continue
        epochs = dict(known.epochs)
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
    """Where the batch that begins at ``start`` ends.

    A partition that Kafka no longer has, or that is no longer subscribed to, keeps its offset: should it come back, the
    stream goes on where it was. New partitions are added at the head of their log (see the module).

    Args:
        start: End of the batch before, without topics that are others by now.
        logs: All partitions of the subscribed topics.
        topics: The subscribed topics; losses are only told of these.
        limit: Most offsets to admit, shared out by `share_limit`; None for all.
        target: Offsets not to pass, and the only partitions to look at (``Trigger.AvailableNow``); None for no target.
    """
    subscribed = set(topics)
    losses = [
        f"{partition} wanted offset {start[partition]}, the partition does not exist any more"
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
            end[partition] = log.low  # read from there in the next batch, as a new partition would be
            continue
        first = max(offset, log.low)  # what has aged out is not there to be read and takes nothing of the limit
        last = log.high if target is None else min(log.high, target[partition])
        if first < last:
            end[partition] = last
            backlog[partition] = last - first
    if limit is not None and sum(backlog.values()) > limit:
        for partition, share in share_limit(backlog, limit).items():
            end[partition] += share - backlog[partition]
    return OffsetPlan(end, losses)


def plan_ranges(
    start: Mapping[Partition, int],
    end: Mapping[Partition, int],
    min_partitions: int | None,
    identities: Mapping[str, Identity] | None = None,
) -> list[OffsetRange]:
    """Ranges of one batch: one for each partition with something to read, or more for ``min_partitions`` in all."""
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
    """Share ``limit`` out in proportion to each partition's backlog.

    Every partition gets at least one, so that a small one never starves beside a large one; only where there are more
    partitions than ``limit`` do the shares add up to more than it. Otherwise they add up to exactly ``limit``, or to
    the whole backlog where that is less.

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
    # What rounding down left over goes to the largest remainders; names break ties, so a replay shares alike.
    left = spare + len(backlog) - sum(shares.values())
    by_remainder = sorted(backlog, key=lambda p: (-(spare * (backlog[p] - 1) % rest), p))
    for partition in by_remainder[:left]:
        shares[partition] += 1
    return shares


def describe_loss(partition: Partition, wanted: int, log: Log) -> str:
    """One partition's loss in words: topic and number, wanted and available offsets, and the likely cause."""
    cause = "older records have aged out" if wanted < log.low else "the topic was truncated or recreated"
    return f"{partition} wanted offset {wanted}, {describe_log(log)}: {cause}"


def describe_log(log: Log) -> str:
    """What is available, in words."""
    return f"the log holds [{log.low}, {log.high})"
