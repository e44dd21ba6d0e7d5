"""What Py4J needs of the results of callbacks."""

from __future__ import annotations

import weakref
from typing import Any, cast
from unittest import mock

from streams.read.relation.callbacks import Callback, callback
from streams.read.relation.jvm import Jvm


class JvmObject:
    """A stand-in for an object of the JVM: Py4J lets the JVM forget it when this one has no reference any more."""


class Counted(Callback):
    @callback
    def made(self) -> Any:
        return JvmObject()


def test_a_result_exists_until_the_next_call_of_its_thread() -> None:
    counted = Counted(cast("Jvm", mock.Mock(spec=["connections"])), "counted")
    first = weakref.ref(counted.made())
    assert first() is not None, "the JVM has not received it yet"
    second = weakref.ref(counted.made())
    assert first() is None
    assert second() is not None
