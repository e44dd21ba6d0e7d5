"""`write_batch`: writes a DataFrame as one commit.

The arguments determine the lane, and how long the lane holds back the watermark of its stream:

    neither lane nor batch   one of the stream's lanes for batches, until the job ends (`weft.Table.batch_writer`)
    batch=(query id, n)      the lane of the query id, so that a repeated batch is found there. The lane stays in use
                             for the next number; close it with `Table.close_lane` after the last batch, or let
                             cleaning close silent lanes (``close_after``)
    lane=                    that lane; it stays in use until the caller closes it

A job that was killed leaves its lane in use: ``weft show URI streams`` shows it as silent, and ``weft fence URI LANE``
finishes a lane for batches, as cleaning does after a day.

The lane of a query id that was closed is never written to again: a batch of it is refused with Conflict, also long
after cleaning has retired the lane (storage/PROTOCOL.md, C6). So a batch is applied at most once, however late it is
repeated; while the lane is open, a repeated batch returns its commit (``replayed``).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pyspark.sql import DataFrame

from weft.storage import Commit, Table, Writer
from weft.storage.core.names import LaneName
from weft.storage.errors import CommitUnknown, Conflict, Fenced, GapError, InvalidInput
from weft.storage.write.write_task import Batch
from weft.streams.write.dead_letter import DeadLetters, open_dead_letters
from weft.streams.write.repeated_call import call_every
from weft.streams.write.sink import check_columns, check_frame, check_lateness, run_tasks

_STREAM_LETTERS: Final = 40  # letters of the stream's name in the name of the lane, which has at most 64
_ID_LETTERS: Final = 16  # 64 bits of a digest
_BEAT_SECONDS: Final = 5.0  # seconds between calls of `Writer.heartbeat`, which decides whether one is due


def write_batch(
    df: DataFrame,
    uri: str,
    stream: str,
    *,
    batch: Batch | None = None,
    lane: str | None = None,
    lateness: str | int | dt.timedelta | None = None,
    storage_options: Mapping[str, Any] | None = None,
    dead_letter: str | None = None,
) -> Commit:
    """Append a DataFrame that is not a stream as one commit: a backfill or a correction beside live writers.

    Without ``batch`` every call appends. With it a repeated call has no effect, for example in ``foreachBatch``, where
    Spark repeats a batch after a crash::

        def write(df, number):
            weft.write_batch(df, uri, "orders", batch=("orders-query", number))

    Args:
        df: As for `weft.write_stream`.
        uri: The table.
        stream: A stream of its configuration.
        batch: (query id, number), which makes the call idempotent. The id is a text that no other query of this table
            uses. Numbers begin anywhere and increase by one, so write batches without rows, too. A job that uses the
            query id of a running job fences it. When the lane of the id is closed, its batches are refused.
        lane: Name of the lane. By default a job without ``batch`` uses a lane that no other job uses, and each query id
            has its own lane. Never name the lane of a running query: claiming it fences that query.
        lateness: As for `weft.write_stream`, from one batch of the lane to the next: rows never make others of the same
            batch late. The watermark of the stream does not advance beyond that of an open lane.
        storage_options: Options of the fsspec file system.
        dead_letter: Folder for messages that cannot be stored. Without it the first such message is an error.

    Returns:
        The commit. Its ``replayed`` is true if the batch was committed before; then nothing was written.

    Raises:
        InvalidInput, NotFound, StoreUnavailable, Conflict: As for `weft.write_stream`; nothing was written.
        InvalidInput: A row cannot be stored. The table is unchanged.
        GapError: ``batch`` is not the next batch of its query. The table is unchanged.
        Fenced: Another job has claimed the lane. The table is unchanged.
        CommitUnknown: The store did not say whether the commit took place: call again with the same ``batch``.
    """
    check_frame(df, streaming=False)
    _check_batch(batch)
    within = check_lateness(lateness)
    table = Table.open(uri, storage_options=storage_options)
    check_columns(df, table, stream)
    folder = None if dead_letter is None else open_dead_letters(dead_letter, table.uri, storage_options)
    query_id = None if batch is None else batch[0]
    if query_id is not None:
        lane = lane or lane_for(stream, query_id)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_explain_hints(query_id))
        writer = stack.enter_context(
            table.batch_writer(stream, lateness=within)
            if lane is None
            else table.writer(stream, lane, query_id=query_id, lateness=within)
        )
        ticket = writer.begin(batch)
        if isinstance(ticket, Commit):
            return ticket
        letters = None
        if folder is not None:
            part, number = (f"batch-{uuid.uuid4().hex}", 0) if batch is None else (writer.lane, batch[1])
            letters = DeadLetters(folder, part, number, stream, writer.lane)
        with send_heartbeats(writer):
            reports = run_tasks(df, ticket, letters)
        if letters is not None and batch is not None:
            letters.discard_others({report.task for report in reports if report.letters})
        return writer.commit(ticket, [report.written for report in reports])


def lane_for(stream: str, query_id: str) -> LaneName:
    """Return the name of the lane of a query id.

    Args:
        stream: Name of the stream, whose first letters begin the name of the lane.
        query_id: Any text. The same id gives the same lane, different ids give different lanes.
    """
    digest = hashlib.sha256(json.dumps([stream, query_id]).encode()).hexdigest()
    return LaneName(f"{stream[:_STREAM_LETTERS]}-query-{digest[:_ID_LETTERS]}")


def send_heartbeats(writer: Writer, every: float = _BEAT_SECONDS) -> contextlib.AbstractContextManager[None]:
    """Send heartbeats of a writer while its tasks run, so that a long job does not look like a dead one.

    Args:
        writer: An open writer, which no other thread uses during the block.
        every: Seconds between two calls of `Writer.heartbeat`.
    """
    return call_every(every, writer.heartbeat, "weft-heartbeat")


def _check_batch(batch: Batch | None) -> None:
    if batch is None:
        return
    if isinstance(batch, tuple) and len(batch) == 2:
        query_id, number = batch
        if isinstance(query_id, str) and query_id and type(number) is int and number >= 0:
            return
    raise InvalidInput(f"batch {batch!r} is not (query id, number)", hint='give for example ("orders-query", 7)')


@contextlib.contextmanager
def _explain_hints(query_id: str | None) -> Iterator[None]:
    """Replace hints of the writer by hints for callers of `write_batch`."""
    try:
        yield
    except Fenced as error:
        if query_id is None:
            raise
        raise Fenced(
            f"{error.message}: another job writes batches of query {query_id!r}",
            hint="use different query ids for jobs that run at the same time; nothing of this batch was written",
        ) from None
    except CommitUnknown as error:
        if query_id is not None:
            raise
        raise CommitUnknown(
            error.message,
            hint="see whether weft show URI timeline lists it. With batch=(query id, number) a call can be repeated: "
            "a batch is never applied twice",
        ) from None
    except GapError as error:
        raise GapError(
            error.message,
            hint="write every batch, also one without rows; if earlier batches cannot be repeated, use a new query id",
        ) from None
    except Conflict as error:
        if query_id is None:
            raise
        raise Conflict(
            error.message, hint="leave out lane, or use another query id, which then gets another lane"
        ) from None
