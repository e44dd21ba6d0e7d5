"""The checksum of stored bytes: CRC-32, as zlib computes it (FORMAT.md, "Log files").

zlib-ng gives the same numbers with vector instructions. Of a log every stored byte is checked by each read, also those
of columns that are not decoded: with the zlib of Python the checks take longer than decoding 5 of 20 columns
(`python -m tests.benchmarks.layout --only checksums`).
"""

from zlib_ng.zlib_ng import crc32

__all__ = ["crc32"]
