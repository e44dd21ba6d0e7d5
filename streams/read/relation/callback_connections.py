"""Closes the connections of callbacks whose JVM threads have ended.

Py4J gives each JVM thread that calls a callback its own connection, with a thread of this process, and keeps both
until the gateway is shut down. Spark runs parts of a query in pools (broadcasts, subqueries) whose threads end after a
minute without work, so a process with many joins would collect thousands of them:

    JVM thread "broadcast-exchange-7"   makes its first call: Py4J creates a connection and a Python thread, and `note`
                                        remembers the connection
    JVM thread ends                     Py4J does nothing
    `_watch`, a thread of this process  notices that the JVM thread is not alive, and closes the connection, which ends
                                        the Python thread

Only the connection of an ended thread is closed. Py4J finds a connection by the thread that calls, so nothing can use
it any more, and no callback can be running on it. Connections that Python has opened belong to Python threads.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Final, NamedTuple

__all__ = ["CallbackConnections", "connections_of"]

CHECK_SECONDS: Final = 10.0
"""Time between two checks, while there are connections."""
NEW_CONNECTIONS: Final = 64
"""If at least so many connections are new, the next check begins at once."""

_noted: Final = threading.local()
_of_gateways: Final[weakref.WeakKeyDictionary[Any, CallbackConnections]] = weakref.WeakKeyDictionary()
_making: Final = threading.Lock()


class _Open(NamedTuple):
    """A connection that a JVM thread has opened; both are JVM objects."""

    thread: Any
    connection: Any


class CallbackConnections:
    """The connections that threads of one JVM have opened to call this process."""

    def __init__(self, gateway: Any) -> None:
        # Not the gateway itself, which is the weak key of this object.
        self._server = gateway.java_gateway_server
        self._threads = gateway.jvm.java.lang.Thread
        self._open: list[_Open] = []
        self._news = threading.Condition()
        self._watching = False

    def note(self) -> None:
        """Remember the connection of the JVM thread that is calling; only its first call costs anything."""
        if getattr(_noted, "done", False):
            return
        _noted.done = True
        connection = self._server.getCallbackClient().getPerThreadConnection()
        if connection is None or not connection.isInitiatedFromClient():
            return  # this thread belongs to Python, which has called a method itself
        new_connection = _Open(self._threads.currentThread(), connection)
        with self._news:
            self._open.append(new_connection)
            self._news.notify()
            if not self._watching:
                self._watching = True
                threading.Thread(target=self._watch, name="weft-callback-connections", daemon=True).start()

    def _watch(self) -> None:
        """Close the connections of ended threads, as long as there are connections."""
        seen_count = 0
        while True:
            with self._news:
                self._news.wait_for(lambda: len(self._open) >= seen_count + NEW_CONNECTIONS, CHECK_SECONDS)  # noqa: B023
                connections = list(self._open)
            try:
                closable = [entry for entry in connections if not entry.thread.isAlive()]
                for entry in closable:
                    self._close(entry.connection)
            except Exception:  # Py4J raises several types if the JVM has ended, and with it all connections
                closable = connections
            closable_ids = set(map(id, closable))
            with self._news:
                self._open = [entry for entry in self._open if id(entry) not in closable_ids]
                seen_count = len(self._open)
                if not seen_count:
                    self._watching = False
                    return

    def _close(self, connection: Any) -> None:
        self._server.getCallbackClient().connectionStopped(connection)  # removes it from the list of connections
        connection.shutdown()


def connections_of(gateway: Any) -> CallbackConnections:
    """Return the connections of a Py4J gateway; there is one object for each gateway."""
    with _making:
        connections = _of_gateways.get(gateway)
        if connections is None:
            connections = _of_gateways[gateway] = CallbackConnections(gateway)
    return connections
