"""Blocks of log files for a run of file groups: many files at once, no file left open, each block fetched once.

A run may read thousands of small files, each of which every file group has a range of. So what is fetched at once are
blocks of many files, in the order in which they are needed and up to a bound; while there is room in it, all that a
file has for later file groups too, so that a small file is opened once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import pyarrow as pa

from storage.core.plan.slices import LiveFile
from storage.environment import Environment
from storage.files.log_file import BlockDecoder, block_lead
from storage.store.object_store import Wanted, tail_range

BlockId = tuple[int, int]
"""Position of a file in the list, and block number."""


class LogBlocks:
    """Fetches blocks: `expect` those of a file group, and `take` them, about in that order."""

    def __init__(
        self,
        env: Environment,
        files: Sequence[LiveFile],
        blocks: Mapping[int, Collection[int]],
        columns: Mapping[int, Collection[str]],
    ) -> None:
        """Plan; nothing is read yet.

        Args:
            env: The table's.
            files: Log files, with their indexes.
            blocks: Per position of a file which of its blocks will be taken.
            columns: Per position the columns to decode, where the file has them.
        """
        self._env, self._files, self._columns = env, files, columns
        self._left = {number: set(own) for number, own in blocks.items()}
        self._decoders: dict[int, BlockDecoder] = {}
        self._expected: tuple[BlockId, ...] = ()
        self._fetched: dict[BlockId, pa.Buffer] = {}
        self._fetched_bytes = 0

    def expect(self, blocks: Iterable[BlockId]) -> None:
        """Say what will be taken next, and in which order; what has been taken already does no harm."""
        self._expected = tuple(blocks)

    def take(self, block: BlockId) -> pa.RecordBatch:
        """Rows of a block as they are stored; each block once.

        Raises:
            CorruptData: Its file is missing, or damaged.
        """
        if block not in self._fetched:
            self._fetch((block, *self._expected))
        data = self._fetched.pop(block)
        self._fetched_bytes -= data.size
        return self._decoders[block[0]].decode(block[1], data)

    def _fetch(self, expected: Iterable[BlockId]) -> None:
        chosen = self._choose(expected)
        answers = self._env.store.read_ranges([self._wanted(number, own) for number, own in chosen.items()])
        for (number, own), parts in zip(chosen.items(), answers, strict=True):
            if number not in self._decoders:
                live, tail = self._files[number], parts.pop()
                self._decoders[number] = BlockDecoder(live.file, live.index.blocks, self._columns[number], tail)
            for block, data in zip(own, parts, strict=True):
                self._fetched[number, block] = data
                self._fetched_bytes += data.size

    def _choose(self, expected: Iterable[BlockId]) -> dict[int, list[int]]:
        """Blocks by position of their file: the first of what is expected, and as much more as there is room for."""
        room = self._env.tuning.fetch_bytes - self._fetched_bytes
        chosen: dict[int, list[int]] = {}
        for number, block in expected:
            if block in self._left[number]:
                room -= self._length(number, block)
                if room < 0 and chosen:
                    break
                chosen.setdefault(number, []).append(block)
                self._left[number].remove(block)
        for number, own in chosen.items():
            rest = sum(self._length(number, block) for block in self._left[number])
            if rest <= room:
                room -= rest
                own.extend(self._left[number])
                self._left[number].clear()
            own.sort()
        return chosen

    def _wanted(self, number: int, own: Sequence[int]) -> Wanted:
        file = self._files[number].file.file
        blocks = self._files[number].index.blocks
        ranges = [(blocks.offset[block], blocks.length[block]) for block in own]
        if number not in self._decoders:
            ranges.append(tail_range(file))
        return Wanted(file.path, file.size, ranges, block_lead(file))

    def _length(self, number: int, block: int) -> int:
        return self._files[number].index.blocks.length[block]
