"""A message format of tests: the value is the key of the row, and some values end the process that decodes them."""

from __future__ import annotations

import os
import signal

import pyarrow as pa
import pyarrow.compute as pc

from weft.streams.formats.format_options import FormatSettings
from weft.streams.formats.worker_format import WorkerFormat

KILLS = b"kills"
FAILS = b"fails"
CANNOT_SAY = b"cannot say"
RESULT = pa.struct([("message", pa.struct([("id", pa.int64())])), ("reason", pa.string())])


class CannotPickle(Exception):
    """An error that pickle cannot make again from its text."""

    def __init__(self, who: str, what: str) -> None:
        super().__init__(f"{who} {what}")


def decode(values: pa.Array) -> pa.Array:
    """Decode keys; a value `KILLS` ends this process, a value `FAILS` is an error of the decoder."""
    if KILLS in values.to_pylist():
        os.kill(os.getpid(), signal.SIGSEGV)
    if FAILS in values.to_pylist():
        raise LookupError("the registry is away")
    if CANNOT_SAY in values.to_pylist():
        raise CannotPickle("the registry", "is away")
    keys = pc.cast(values.cast(pa.string()), pa.int64())
    message = pa.StructArray.from_arrays([keys], names=["id"])
    return pa.StructArray.from_arrays([message, pa.nulls(len(values), pa.string())], fields=list(RESULT))


class KillingFormat(WorkerFormat):
    """Messages that are numbers, or end the worker."""

    @staticmethod
    def decode(_settings: FormatSettings, values: pa.Array) -> pa.Array:
        return decode(values)

    @staticmethod
    def result(_settings: FormatSettings) -> pa.DataType:
        return RESULT
