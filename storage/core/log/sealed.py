"""Puts a digest before the bytes of checkpoints and archives, and verifies it.

The first line is the SHA-256 of the rest as 64 hexadecimal digits (FORMAT.md, "Archives").
"""

from __future__ import annotations

import hashlib


def digest(data: bytes) -> str:
    """The SHA-256 of some bytes as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def seal(body: bytes) -> bytes:
    """A line with the digest of the body, then the body."""
    return digest(body).encode() + b"\n" + body


def unseal(data: bytes) -> bytes | None:
    """The body of sealed bytes; None if the digest does not match."""
    line, _, body = data.partition(b"\n")
    return body if digest(body).encode() == line else None
