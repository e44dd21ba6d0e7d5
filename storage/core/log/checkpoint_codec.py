"""Checkpoints: folded state as bytes, so that nobody has to fold a long history again.

A checkpoint only accelerates: replay gives the same state, and one that is damaged, unknown or of another log is not
used. It says which features its maker could read: whoever knows fewer replays the log, and meets there what it must not
pass over. Its first line is the digest of the rest. Shapes: FORMAT.md, "Checkpoints".
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from storage.core.log.cut import Cut
from storage.core.log.entries import Intent, Promise, SpansByLane
from storage.core.log.file_refs import LogFile, Seqs, SliceFile
from storage.core.log.lane_state import Committed, LaneState
from storage.core.log.table_state import FileGroup, Lane, LiveFold, LiveSavepoint, OpenPlan, TableState
from storage.core.modes import known_features
from storage.core.names import LaneName
from storage.core.schema.table_schema import TableSchema
from storage.errors import TableError


class _Model(BaseModel):
    # NaN in what a source recorded is JSON as Python writes it, as it is in the entry.
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


M = TypeVar("M", bound=_Model)


class _Lane(_Model):
    name: LaneName
    lane_id: int
    stream: str
    closed: int | None


class _Fold(_Model):
    slot: int
    to: Seqs
    files: list[LogFile]
    groups: list[tuple[str, int, int]]


class _Plan(_Model):
    slot: int
    table: int
    cut: Seqs
    committed_at_ms: int


class _Savepoint(_Model):
    table: int
    lanes: Seqs
    note: str
    committed_at_ms: int


class _Table(_Model):
    version: Literal[1] = 1
    features: list[str]
    head: int
    head_id: str
    committed_at_ms: int
    stamp: int
    rev: int
    schema_rev: int
    restored: int
    table_id: str
    table_schema: dict[str, Any]
    writer_features: list[str]
    lanes: list[_Lane]
    slices: list[SliceFile]
    covered: Seqs
    folds: list[_Fold]
    folded: Seqs
    plans: dict[str, _Plan]
    savepoints: dict[str, _Savepoint]
    oldest_retained: int
    intent: Intent | None
    rolled_back: SpansByLane
    archived: Seqs = {}  # one from before there were archives is of a table that has none
    seen: Seqs
    first_mark: int
    mark: int
    marked_at_ms: int


class _LaneState(_Model):
    version: Literal[1] = 1
    rolled_back: list[tuple[int, int]]
    head: int
    head_id: str
    epoch: int
    owner: str
    intent: int
    stamp: int
    committed_at_ms: int
    table_rev: int
    query_id: str
    batches: dict[str, int]
    rolled_back_from: dict[str, int]
    source: dict[str, Any]
    recent: list[tuple[str, int, int, int, int]]
    watermarks: dict[int, Promise] = {}  # one from before there were any was of a lane that had none


def encode_table(state: TableState) -> bytes:
    """Bytes of a table state."""
    return _sealed(
        _Table(
            features=sorted(known_features()),
            head=state.head,
            head_id=state.head_id,
            committed_at_ms=state.committed_at_ms,
            stamp=state.stamp,
            rev=state.rev,
            schema_rev=state.schema_rev,
            restored=state.restored,
            table_id=state.table_id,
            table_schema=state.schema.to_json(),
            writer_features=sorted(state.writer_features),
            lanes=[
                _Lane(name=v.name, lane_id=v.lane_id, stream=v.stream, closed=v.closed) for v in state.lanes.values()
            ],
            slices=list(state.slices.values()),
            covered=dict(state.covered),
            folds=[
                _Fold(
                    slot=fold.slot,
                    to=dict(fold.to),
                    files=list(fold.files),
                    groups=[(group.partition, group.bits, group.bucket) for group in sorted(fold.groups)],
                )
                for fold in state.folds
            ],
            folded=dict(state.folded),
            plans={
                plan_id: _Plan(
                    slot=plan.slot,
                    table=plan.at.table,
                    cut=dict(plan.at.lanes),
                    committed_at_ms=plan.committed_at_ms,
                )
                for plan_id, plan in state.plans.items()
            },
            savepoints={
                name: _Savepoint(
                    table=kept.at.table, lanes=dict(kept.at.lanes), note=kept.note, committed_at_ms=kept.committed_at_ms
                )
                for name, kept in state.savepoints.items()
            },
            oldest_retained=state.oldest_retained,
            intent=state.intent,
            rolled_back={lane: list(spans) for lane, spans in state.rolled_back.items()},
            archived=dict(state.archived),
            seen=dict(state.seen),
            first_mark=state.first_mark,
            mark=state.mark,
            marked_at_ms=state.marked_at_ms,
        )
    )


def decode_table(data: bytes) -> TableState | None:
    """The state that `encode_table` was given; None if the bytes are not that of this version."""
    own = _opened(data, _Table)
    if own is None or not known_features().issuperset(own.features):
        return None
    try:
        schema = TableSchema.from_json(own.table_schema)
    except (TableError, KeyError, TypeError, ValueError):
        return None  # of a version that describes schemas otherwise: so do the entries, and they say so
    return TableState(
        head=own.head,
        head_id=own.head_id,
        committed_at_ms=own.committed_at_ms,
        stamp=own.stamp,
        rev=own.rev,
        schema_rev=own.schema_rev,
        restored=own.restored,
        table_id=own.table_id,
        schema=schema,
        writer_features=frozenset(own.writer_features),
        lanes={lane.name: Lane(lane.name, lane.lane_id, lane.stream, lane.closed) for lane in own.lanes},
        slices={FileGroup(file.partition, file.bits, file.bucket): file for file in own.slices},
        covered=own.covered,
        folds=tuple(
            LiveFold(fold.slot, fold.to, tuple(fold.files), frozenset(FileGroup(*group) for group in fold.groups))
            for fold in own.folds
        ),
        folded=own.folded,
        plans={
            plan_id: OpenPlan(plan.slot, Cut(plan.table, plan.cut), plan.committed_at_ms)
            for plan_id, plan in own.plans.items()
        },
        savepoints={
            name: LiveSavepoint(Cut(kept.table, kept.lanes), kept.note, kept.committed_at_ms)
            for name, kept in own.savepoints.items()
        },
        oldest_retained=own.oldest_retained,
        intent=own.intent,
        rolled_back={lane: tuple(spans) for lane, spans in own.rolled_back.items()},
        archived=own.archived,
        seen=own.seen,
        first_mark=own.first_mark,
        mark=own.mark,
        marked_at_ms=own.marked_at_ms,
    )


def encode_lane(state: LaneState) -> bytes:
    """Bytes of a lane state."""
    return _sealed(
        _LaneState(
            rolled_back=list(state.rolled_back),
            head=state.head,
            head_id=state.head_id,
            epoch=state.epoch,
            owner=state.owner,
            intent=state.intent,
            stamp=state.stamp,
            committed_at_ms=state.committed_at_ms,
            table_rev=state.table_rev,
            query_id=state.query_id,
            batches=state.batches,
            rolled_back_from=state.rolled_back_from,
            source=state.source,
            recent=[
                (query, batch, known.seq, known.rows, known.rows_ignored)
                for (query, batch), known in state.recent.items()
            ],
            watermarks=state.watermarks,
        )
    )


def decode_lane(data: bytes) -> LaneState | None:
    """The state that `encode_lane` was given; None if the bytes are not that of this version."""
    own = _opened(data, _LaneState)
    if own is None:
        return None
    return LaneState(
        rolled_back=tuple(own.rolled_back),
        head=own.head,
        head_id=own.head_id,
        epoch=own.epoch,
        owner=own.owner,
        intent=own.intent,
        stamp=own.stamp,
        committed_at_ms=own.committed_at_ms,
        table_rev=own.table_rev,
        query_id=own.query_id,
        batches=dict(own.batches),
        rolled_back_from=dict(own.rolled_back_from),
        source=dict(own.source),
        recent={(query, batch): Committed(seq, rows, ignored) for query, batch, seq, rows, ignored in own.recent},
        watermarks=own.watermarks,
    )


def _sealed(model: _Model) -> bytes:
    body = model.model_dump_json().encode()
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _opened(data: bytes, kind: type[M]) -> M | None:
    digest, _, body = data.partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        return None
    try:
        return kind.model_validate_json(body)
    except ValidationError:
        return None
