"""Bytes with their digest in front: the framing of checkpoints and archives.

The first line is the SHA-256 of the rest as 64 hexadecimal digits (FORMAT.md, "Archives").
"""

from __future__ import annotations

import hashlib


def seal(body: bytes) -> bytes:
    """The body behind the line with its digest."""
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def unseal(data: bytes) -> bytes | None:
    """The body; None if it does not match the digest."""
    digest, _, body = data.partition(b"\n")
    return body if hashlib.sha256(body).hexdigest().encode() == digest else None
