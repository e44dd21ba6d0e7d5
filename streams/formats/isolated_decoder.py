"""Decodes values in a separate process, and finds the values that kill it.

A value that kills the process that decodes it (SIGSEGV in a library, no memory left) would kill Spark's worker, and so
fail the batch, which would be tried again for ever. So after a batch has lost workers
(`weft.streams.write.worker_deaths`), each task decodes in a process beside its worker. This process forks a child for a
part of the values. If the child dies, new children decode the two halves, one after the other. A single value that
kills two children becomes a dead letter. Other values are decoded as usual.

    worker  -- pickled decoder, then values as Arrow streams -->  python -m weft.streams.formats.isolated_decoder
            <-- results as Arrow streams, a pickled error, or how the child died --                | fork
                                                                                                   child
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Final, Self

import pyarrow as pa
from pyspark import TaskContext

Decode = Callable[[pa.Array], pa.Array]

ISOLATE: Final = "weft.isolate"
"""Local property of a Spark job whose tasks decode in separate processes."""
ANSWER_SECONDS: Final = 120.0
"""A child that takes longer to decode some values is killed, as if the values had killed it."""
MAX_DEATHS: Final = 10_000
"""Limit of the child processes that may die while a batch is decoded. If more die, no single message is the cause."""
_TRIES: Final = 2
_LENGTH: Final = struct.Struct("!Q")
_RESULT, _ERROR, _DIED = b"R", b"E", b"D"


class DecoderDied(RuntimeError):
    """Decoding processes have died for another reason than a single message. Try again."""


@dataclass(frozen=True, slots=True)
class MayIsolate:
    """A decoder that runs in a separate process if the Spark job has the property `ISOLATE`.

    Attributes:
        decode: The decoder, which can be pickled.
        result: Type of its result, a struct with the field ``reason``.
    """

    decode: Decode
    result: pa.DataType

    def __call__(self, values: pa.Array) -> pa.Array:
        """Decode n values to n rows."""
        context = TaskContext.get()
        if context is None or context.getLocalProperty(ISOLATE) is None:
            return self.decode(values)
        return decode_isolated(self.decode, values, self.result)


def decode_isolated(decode: Decode, values: pa.Array, result: pa.DataType) -> pa.Array:
    """Decode values in another process; values that kill it get a reason.

    Args:
        decode: The decoder.
        values: Values.
        result: Type of the result, a struct with the field ``reason``.

    Returns:
        One row per value, in the same order. Rows of values that killed the process are NULL in all fields but
        ``reason``.

    Raises:
        DecoderDied: More than `MAX_DEATHS` processes have died.
        Exception: The error of the decoder.
    """
    parts: list[pa.Array] = []
    waiting = [(values, 1)]
    deaths = 0
    with _Process(decode) as process:
        while waiting:
            part, tries = waiting.pop()
            answer = process.ask(part)
            if not isinstance(answer, str):
                parts.append(answer)
                continue
            deaths += 1
            if deaths > MAX_DEATHS:
                raise DecoderDied(f"{deaths} processes that decode messages have died, the last one {answer}")
            half = len(part) // 2
            if half:
                waiting += [(part.slice(half), 1), (part.slice(0, half), 1)]
            elif tries < _TRIES:
                waiting.append((part, tries + 1))
            else:
                reason = f"it ended the worker: {answer}"
                parts.append(pa.array([{"reason": reason}] * len(part), result))
    return pa.concat_arrays([part.cast(result) for part in parts])


class _Process:
    """The process that forks children; a context manager."""

    def __init__(self, decode: Decode) -> None:
        self._payload = pickle.dumps(decode)
        self._running: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def ask(self, values: pa.Array) -> pa.Array | str:
        """Return the result for some values, or how the child died that decoded them.

        Raises:
            DecoderDied: The process that forks has died, which no value can cause.
            Exception: The error of the decoder.
        """
        process = self._start()
        assert process.stdin is not None, "it was started with pipes"
        assert process.stdout is not None, "it was started with pipes"
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(ANSWER_SECONDS, end)
        timer.start()
        try:
            _send(process.stdin, _RESULT, _to_stream(values))
            kind, answer = _receive(process.stdout)
        except (EOFError, BrokenPipeError) as error:
            self._end()
            if is_late.is_set():
                if len(values) == 1:  # perhaps a schema registry does not answer, so the message is not a dead letter
                    raise DecoderDied(f"a message was not decoded within {ANSWER_SECONDS:.0f} s") from error
                return f"they were not decoded within {ANSWER_SECONDS:.0f} s"
            raise DecoderDied("the process that decodes messages has died") from error
        finally:
            timer.cancel()
        if kind == _ERROR:
            raise pickle.loads(answer)  # noqa: S301 - written by our own process
        return answer.decode() if kind == _DIED else _from_stream(answer)

    def _start(self) -> subprocess.Popen[bytes]:
        if self._running is None:
            path = os.pathsep.join(entry for entry in sys.path if entry)
            self._running = subprocess.Popen(  # noqa: S603 - this Python
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,  # one signal kills it and its children
            )
            assert self._running.stdin is not None, "it was started with pipes"
            with contextlib.suppress(BrokenPipeError):  # `ask` will notice that it is dead
                _send(self._running.stdin, _RESULT, self._payload)
        return self._running

    def _end(self) -> None:
        if self._running is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._running.pid, signal.SIGKILL)
            self._running.communicate()
            self._running = None


def main() -> None:
    """Decode the values on standard input, until its end."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # so that output of a library is not taken for an answer
    decode: Decode = pickle.loads(_receive(sys.stdin.buffer)[1])  # noqa: S301 - written by our own worker
    with contextlib.suppress(EOFError):
        while True:
            _, values = _receive(sys.stdin.buffer)
            _send(answers, *_in_child(decode, values))


def _in_child(decode: Decode, values: bytes) -> tuple[bytes, bytes]:
    """Return the answer of a forked child. This process can fork, as it has no threads and does not use Arrow."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with os.fdopen(write_end, "wb") as pipe:
                signal.alarm(math.ceil(2 * ANSWER_SECONDS))  # if the worker was killed, nothing else ends this child
                try:
                    answer = _RESULT, _to_stream(decode(_from_stream(values)))
                except Exception as error:
                    answer = _ERROR, _pickle_error(error)
                _send(pipe, *answer)
        finally:
            os._exit(0)  # skips the clean-up of the parent process, of which this is a copy
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        try:
            reply = _receive(pipe)
        except EOFError:
            reply = None
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if reply is not None:
        return reply
    if code == 0:
        return _ERROR, pickle.dumps(DecoderDied("a process that decodes messages has ended without an answer"))
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return _DIED, how.encode()


def _pickle_error(error: Exception) -> bytes:
    """Pickle an error; if that fails, a RuntimeError with its text."""
    try:
        content = pickle.dumps(error)
        pickle.loads(content)  # noqa: S301 - what was pickled just now
    except Exception:
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return content


def _send(pipe: IO[bytes], kind: bytes, content: bytes) -> None:
    pipe.write(_LENGTH.pack(len(content)) + kind)
    pipe.write(content)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> tuple[bytes, bytes]:
    """Receive the kind and the content of a message.

    Raises:
        EOFError: The other process has ended.
    """
    header = pipe.read(_LENGTH.size + 1)
    if len(header) <= _LENGTH.size:
        raise EOFError
    length = _LENGTH.unpack(header[:-1])[0]
    content = pipe.read(length)
    if len(content) < length:
        raise EOFError
    return header[-1:], content


def _to_stream(values: pa.Array) -> bytes:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([values], names=["values"])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _from_stream(content: bytes) -> pa.Array:
    with pa.ipc.open_stream(content) as reader:
        batch: Any = reader.read_next_batch()
    return batch.column(0)


if __name__ == "__main__":
    main()
