"""Blocks of log files: when and how much is fetched, and that no file stays open."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.faulty_store import FaultyStore
from tests.storage.files.test_log_file import live_files
from tests.storage.support.shop import SHOP, append, contents, new_uri, orders
from weft import Table
from weft.storage.core.names import LaneName
from weft.storage.core.plan.slices import LiveFile
from weft.storage.environment import Environment
from weft.storage.files.fetch_blocks import BlockId, LogBlocks
from weft.storage.store.object_store import ObjectStore, ReadRequest
from weft.storage.store.open_store import open_store

pytestmark = pytest.mark.usefixtures("small_files")


class Asked(FaultyStore):
    """Records the requests of each round: bytes of blocks per object."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.at_once: list[dict[str, int]] = []

    def read_ranges(self, wanted: list[ReadRequest]) -> list[list[pa.Buffer]]:  # type: ignore[override]
        self.at_once.append({asked.path: sum(length for _, length in asked.ranges) for asked in wanted})
        return super().read_ranges(wanted)


@pytest.fixture
def table() -> Table:
    return Table.create(new_uri(), {**SHOP, "buckets": 1})


@pytest.fixture
def files(table: Table) -> list[LiveFile]:
    for start in (0, 100, 200):
        append(table, orders(*range(start, start + 100)))
    files = [
        LiveFile(LaneName("orders"), seq, seq, *file_and_index) for seq, file_and_index in enumerate(live_files(table))
    ]
    assert all(len(live.index.blocks.rows) > 10 for live in files)
    return files


def blocks_of(store: ObjectStore, files: list[LiveFile], chosen: list[BlockId], **sizes: int) -> LogBlocks:
    blocks: dict[int, list[int]] = {}
    for number, block in chosen:
        blocks.setdefault(number, []).append(block)
    return LogBlocks(Environment(store).tuned(**sizes), files, blocks, {number: ["ots", "id"] for number in blocks})


@pytest.fixture
def store(table: Table) -> Asked:
    return Asked(open_store(table.uri))


def check(blocks: LogBlocks, files: list[LiveFile], block: BlockId) -> None:
    batch = blocks.take(block)
    assert sorted(batch.schema.names) == ["id", "ots"]
    assert len(batch) == files[block[0]].index.blocks.rows[block[1]]


def test_small_files_are_requested_together_and_once(store: Asked, files: list[LiveFile]) -> None:
    first, later = [(0, 3), (1, 0), (2, 7)], [(0, 5), (2, 8)]
    blocks = blocks_of(store, files, [*first, *later])
    assert store.at_once == []
    for part in (first, later):
        blocks.expect(part)
        for block in part:
            check(blocks, files, block)
    (asked,) = store.at_once
    index = [live.index.blocks for live in files]
    assert asked == {
        live.file.file.path: sum(index[n].length[b] for n, b in [*first, *later] if n == number)
        + live.file.file.tail_size
        for number, live in enumerate(files)
    }


@pytest.mark.parametrize("bound", [1, 2_000, 5_000])
def test_fetched_bytes_are_bounded(store: Asked, files: list[LiveFile], bound: int) -> None:
    """Except for a single larger block; a tail is read once, with the first blocks of a file."""
    runs = [[(number, block) for number in range(3) for block in range(4 * part, 4 * part + 4)] for part in (0, 1)]
    blocks = blocks_of(store, files, [block for run in runs for block in run], fetch_bytes=bound)
    tails = {live.file.file.path: live.file.file.tail_size for live in files}
    largest = max(length for live in files for length in live.index.blocks.length)
    for run in runs:
        blocks.expect(run)
        for block in run:
            before = len(store.at_once)
            check(blocks, files, block)
            for asked in store.at_once[before:]:
                size = sum(asked.values()) - sum(tails.pop(path, 0) for path in asked)
                assert size <= max(bound, largest)
    assert tails == {}
    assert len(store.at_once) > 1


def test_blocks_may_be_taken_in_any_order(store: Asked, files: list[LiveFile]) -> None:
    chosen = [(number, block) for number in range(3) for block in range(5)]
    blocks = blocks_of(store, files, chosen)
    blocks.expect(chosen)
    for block in reversed(chosen):
        check(blocks, files, block)


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    """Allow at most 16 more open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    more = 16
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (max(int(descriptor.name) for descriptor in Path("/dev/fd").iterdir()) + more, hard)
    )
    yield more
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
def test_a_table_may_have_more_log_files_than_a_process_may_open(tmp_path: Path, few_descriptors: int) -> None:
    table = Table.create(f"{tmp_path}/table", {**SHOP, "buckets": 2})
    commits = 4 * few_descriptors
    for number in range(commits):
        append(table, orders(number, number + commits))
    assert len(contents(table)) == 2 * commits
    table.compact()
    assert len(contents(table)) == 2 * commits
