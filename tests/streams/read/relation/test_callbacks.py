"""What Py4J needs of the results of callbacks."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any, cast
from unittest import mock

import pytest

from weft.streams.read.relation import callback_connections
from weft.streams.read.relation.callback_connections import CallbackConnections
from weft.streams.read.relation.callbacks import Callback
from weft.streams.read.relation.jvm import Jvm


class JvmObject:
    """A stand-in for an object of the JVM: Py4J lets the JVM forget it when this one has no reference any more."""


class Counted(Callback):
    def made(self) -> Any:
        return JvmObject()


def test_connections_of_a_jvm_that_has_ended_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callback_connections, "CHECK_SECONDS", 0.01)
    gateway = mock.Mock()
    gateway.jvm.java.lang.Thread.currentThread().isAlive.side_effect = ValueError("I/O operation on closed file")
    connections = CallbackConnections(gateway)
    for _ in range(2):
        caller = threading.Thread(target=connections.note)
        caller.start()
        caller.join()
        end = time.monotonic() + 120
        while connections._watching:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert not connections._open


def test_a_result_exists_until_the_next_call_of_its_thread() -> None:
    counted = Counted(cast("Jvm", mock.Mock(spec=["connections"])), "counted")
    first = weakref.ref(counted.made())
    assert first() is not None, "the JVM has not received it yet"
    second = weakref.ref(counted.made())
    assert first() is None
    assert second() is not None
