"""The checksum of stored bytes: CRC-32, as zlib computes it (FORMAT.md, "Log files").

zlib-ng computes the same numbers with vector instructions. Each read of a log checks every stored byte, also those of
columns that are not decoded. With the zlib of Python these checks take longer than decoding 5 of 20 columns
(`python -m tests.benchmarks.layout --only checksums`).
"""

from zlib_ng.zlib_ng import crc32

__all__ = ["crc32"]
