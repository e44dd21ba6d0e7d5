"""Fetches blocks of log files for a run of file groups: each block once, many files at once, no file left open.

A run may read thousands of small files, each with a range of every file group. So one request fetches blocks of many
files, in the order in which they are needed and up to a limit (`Tuning.fetch_bytes`). Within the limit it also fetches
the blocks of these files that later file groups need, so that a small file is opened once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import pyarrow as pa

from weft.storage.core.plan.slices import LiveFile
from weft.storage.environment import Environment
from weft.storage.files.log_file import BlockDecoder, block_lead
from weft.storage.store.object_store import ReadRequest, tail_range

BlockId = tuple[int, int]
"""Position of a file in the list, and block number."""


class LogBlocks:
    """Fetches blocks: call `expect` with the blocks of a file group, then `take` each of them, about in that order."""

    def __init__(
        self,
        env: Environment,
        files: Sequence[LiveFile],
        blocks: Mapping[int, Collection[int]],
        columns: Mapping[int, Collection[str]],
    ) -> None:
        """Prepare the reads; nothing is read yet.

        Args:
            env: The environment of the table.
            files: Log files with their indexes.
            blocks: Numbers of the blocks that will be taken from each file, by position of the file.
            columns: Names of the columns to decode, by position of the file; columns that a file does not have are
                skipped.
        """
        self._env, self._files, self._columns = env, files, columns
        self._unfetched = {number: set(numbers) for number, numbers in blocks.items()}
        self._decoders: dict[int, BlockDecoder] = {}
        self._expected: tuple[BlockId, ...] = ()
        self._fetched: dict[BlockId, pa.Buffer] = {}
        self._fetched_bytes = 0

    def expect(self, blocks: Iterable[BlockId]) -> None:
        """Announce the blocks that will be taken next, in this order. Blocks that were fetched before are ignored."""
        self._expected = tuple(blocks)

    def take(self, block: BlockId) -> pa.RecordBatch:
        """The rows of a block as they are stored. Each block can be taken once.

        Raises:
            CorruptData: The file is missing or damaged.
        """
        if block not in self._fetched:
            self._fetch((block, *self._expected))
        data = self._fetched.pop(block)
        self._fetched_bytes -= data.size
        return self._decoders[block[0]].decode(block[1], data)

    def _fetch(self, expected: Iterable[BlockId]) -> None:
        blocks = self._choose(expected)
        answers = self._env.store.read_ranges([self._request(number, numbers) for number, numbers in blocks.items()])
        for (number, numbers), parts in zip(blocks.items(), answers, strict=True):
            if number not in self._decoders:
                live, tail = self._files[number], parts.pop()
                self._decoders[number] = BlockDecoder(live.file, live.index.blocks, self._columns[number], tail)
            for block, data in zip(numbers, parts, strict=True):
                self._fetched[number, block] = data
                self._fetched_bytes += data.size

    def _choose(self, expected: Iterable[BlockId]) -> dict[int, list[int]]:
        """Blocks to fetch, by position of their file: the first expected one, and as many more as the limit allows."""
        free_bytes = self._env.tuning.fetch_bytes - self._fetched_bytes
        blocks_by_file: dict[int, list[int]] = {}
        for number, block in expected:
            if block in self._unfetched[number]:
                free_bytes -= self._length(number, block)
                if free_bytes < 0 and blocks_by_file:
                    break
                blocks_by_file.setdefault(number, []).append(block)
                self._unfetched[number].remove(block)
        for number, numbers in blocks_by_file.items():
            rest_bytes = sum(self._length(number, block) for block in self._unfetched[number])
            if rest_bytes <= free_bytes:
                free_bytes -= rest_bytes
                numbers.extend(self._unfetched[number])
                self._unfetched[number].clear()
            numbers.sort()
        return blocks_by_file

    def _request(self, number: int, numbers: Sequence[int]) -> ReadRequest:
        file = self._files[number].file.file
        blocks = self._files[number].index.blocks
        ranges = [(blocks.offset[block], blocks.length[block]) for block in numbers]
        if number not in self._decoders:
            ranges.append(tail_range(file))
        return ReadRequest(file.path, file.size, ranges, block_lead(file))

    def _length(self, number: int, block: int) -> int:
        return self._files[number].index.blocks.length[block]
