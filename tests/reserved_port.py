"""A port for a server that a test starts later, or again."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """A free port of 127.0.0.1 that the system gives to nobody else in the block.

    A socket holds it without listening. So connections are refused, and a server that binds this port with
    SO_REUSEADDR, as most servers do, can have it.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
