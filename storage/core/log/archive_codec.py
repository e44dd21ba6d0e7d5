"""Archives: the bytes of one chunk of a lane's entries, packed into one object (FORMAT.md, "Archives").

A lane's slots are divided into chunks of 256: 1 to 256, 257 to 512, and so on. An archive holds all entries of its
chunk, else it does not decode. PROTOCOL.md, "Archives", says what readers and writers do with archives.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from weft.storage.core.log.sealed import seal, unseal
from weft.storage.core.names import LaneName, archive_path
from weft.storage.errors import CorruptData, UnsupportedFormat

VERSION: Final = 1
_CODEC: Final = "zstd"
_HINT: Final = "restore it from a copy of the store: it is the only copy of its entries"


@dataclass(frozen=True, slots=True)
class Chunks:
    """How the slots of a lane are divided into chunks.

    Attributes:
        size: Slots of a chunk; part of the format, which says 256. Tests use less.
    """

    size: int

    def of(self, seq: int) -> int:
        """Number of the chunk that a slot is in: 1, 2, ..."""
        return (seq - 1) // self.size + 1

    def first_slot(self, chunk: int) -> int:
        """The chunk's first slot."""
        return self.last_slot(chunk - 1) + 1

    def last_slot(self, chunk: int) -> int:
        """The chunk's last slot."""
        return chunk * self.size

    def slots(self, chunk: int) -> range:
        """All slots of a chunk, ascending."""
        return range(self.first_slot(chunk), self.last_slot(chunk) + 1)


@dataclass(frozen=True, slots=True)
class Archive:
    """The entries of one archived chunk.

    Attributes:
        lane: The lane of the entries.
        chunk: Number of the chunk.
        first: Its first slot.
        ends: Offset in ``body`` at which the entry of each slot ends.
        body: Bytes of the entries, one after the other.
    """

    lane: LaneName
    chunk: int
    first: int
    ends: tuple[int, ...]
    body: bytes

    def content(self, seq: int) -> bytes:
        """Bytes of the entry in a slot of the chunk."""
        i = seq - self.first
        return self.body[self.ends[i - 1] if i else 0 : self.ends[i]]

    def contents(self) -> list[bytes]:
        """Bytes of all entries, in the order of slots."""
        return [self.content(self.first + i) for i in range(len(self.ends))]


def encode_archive(lane: LaneName, chunk: int, contents: Sequence[bytes], chunks: Chunks) -> bytes:
    """Bytes of an archive.

    Args:
        lane: The lane of the entries.
        chunk: Number of the chunk.
        contents: Bytes of the entries in all slots of the chunk, ascending.
        chunks: How the lane is divided into chunks.
    """
    assert len(contents) == chunks.size, "an incomplete chunk is not archived"
    header = {
        "version": VERSION,
        "lane": lane,
        "first": chunks.first_slot(chunk),
        "sizes": [len(content) for content in contents],
    }
    body = pa.compress(b"".join(contents), codec=_CODEC, asbytes=True)
    return seal(json.dumps(header, separators=(",", ":")).encode() + b"\n" + body)


def decode_archive(data: bytes, lane: LaneName, chunk: int, chunks: Chunks) -> Archive:
    """The archive that `encode_archive` made for this chunk.

    Raises:
        CorruptData: The bytes are damaged, or belong to another chunk.
        UnsupportedFormat: A newer version wrote it.
    """
    path = archive_path(lane, chunk)
    content = unseal(data)
    if content is None:
        raise CorruptData(f"archive {path} is damaged: the checksum does not match its {len(data)} bytes", hint=_HINT)
    header, _, body = content.partition(b"\n")
    values = json.loads(header)
    if values["version"] != VERSION:
        raise UnsupportedFormat(
            f"archive {path} has version {values['version']}, which this version of weft does not know",
            hint="upgrade weft",
        )
    sizes = values["sizes"]
    if (values["lane"], values["first"], len(sizes)) != (lane, chunks.first_slot(chunk), chunks.size):
        raise CorruptData(
            f"archive {path} contains {len(sizes)} entries of lane {values['lane']!r} from entry {values['first']} on",
            hint="an object was copied or moved: restore it from a copy of the store",
        )
    ends = tuple(itertools.accumulate(sizes))
    return Archive(
        lane, chunk, chunks.first_slot(chunk), ends, pa.decompress(body, ends[-1], codec=_CODEC, asbytes=True)
    )
