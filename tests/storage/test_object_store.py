"""The object-store seam: what every backend must do, and what `check_capability` refuses."""

from __future__ import annotations

import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path as LocalPath

import pyarrow as pa
import pytest

from storage import Table
from storage.core.names import Path
from storage.errors import CorruptData, InvalidInput, StoreUnavailable
from storage.object_store import ObjectStore, check_capability, open_store
from tests.faulty_store import FaultyStore
from tests.storage.shop import SHOP, append, new_uri, orders, statuses

NAME = Path("folder/deeper/object.json")


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: LocalPath) -> ObjectStore:
    return open_store(str(tmp_path / "root") if request.param == "local" else new_uri())


def test_the_first_create_wins_and_the_second_changes_nothing(store: ObjectStore) -> None:
    assert store.put_if_absent(NAME, b"first")
    assert not store.put_if_absent(NAME, b"second")
    assert store.get(NAME) == b"first"


def test_what_is_not_there_is_none_and_not_an_error(store: ObjectStore) -> None:
    assert store.get(NAME) is None
    assert store.list(Path("folder")) == []
    store.delete(NAME)


def test_written_objects_are_listed_below_their_folder_with_their_size(store: ObjectStore) -> None:
    store.put(NAME, b"12345")
    store.put(Path("folder/other"), pa.py_buffer(b"123"))
    store.put(Path("elsewhere"), b"1")
    assert store.list(Path("folder")) == [("deeper/object.json", 5), ("other", 3)]
    store.delete(NAME)
    assert store.list(Path("folder")) == [("other", 3)]
    assert store.get(NAME) is None


def test_an_object_written_in_pieces_is_there_only_when_it_is_whole(store: ObjectStore) -> None:
    with store.open_output(NAME) as file:
        file.write(b"one, ")
        file.write(b"two")
    assert store.get(NAME) == b"one, two"
    other = Path("folder/broken")
    with pytest.raises(TypeError), store.open_output(other) as file:
        file.writelines([b"half", "not bytes"])
    assert store.list(Path("folder")) == [("deeper/object.json", 8)]


def test_ranges_are_read_back_as_written(store: ObjectStore) -> None:
    data = os.urandom(300_000)
    store.put(NAME, data)
    ranges = [(0, 10), (10, 5), (100_000, 50_000), (299_990, 10)]
    with store.open_input(NAME, len(data), ranges) as source:
        for offset, length in [*reversed(ranges), (200_000, 77), (299_000, 1_000)]:
            source.seek(offset)
            assert source.read(length) == data[offset : offset + length]
    with store.open_input(NAME, len(data)) as source:
        assert source.read() == data


def test_a_missing_object_is_corrupt_data_when_the_log_refers_to_it(store: ObjectStore) -> None:
    with pytest.raises(CorruptData, match=r"object\.json is missing"), store.open_input(NAME, 10, [(0, 10)]) as f:
        f.read(10)


def test_a_truncated_object_is_corrupt_data(store: ObjectStore) -> None:
    store.put(NAME, b"12345")
    wrong = pytest.raises(CorruptData, match=r"has \d bytes, but the log says")
    with wrong, store.open_input(NAME, 10, [(0, 10)]) as source:
        source.read(10)


def test_a_store_can_be_pickled(store: ObjectStore) -> None:
    store.put(NAME, b"x")
    copy = pickle.loads(pickle.dumps(store))
    assert copy.get(NAME) == b"x"
    assert copy.uri == store.uri


def test_many_threads_on_one_name_have_one_winner(store: ObjectStore) -> None:
    threads = 8
    gate = threading.Barrier(threads)

    def race(number: int) -> bool:
        gate.wait(30)
        return store.put_if_absent(NAME, b"%d" % number)

    with ThreadPoolExecutor(threads) as pool:
        won = list(pool.map(race, range(threads)))
    assert won.count(True) == 1
    assert store.get(NAME) == b"%d" % won.index(True)


def test_a_capable_store_passes_and_keeps_nothing_of_the_probe(store: ObjectStore) -> None:
    check_capability(store)
    assert store.list(Path("_weft")) == []


class OverwritingStore(FaultyStore):
    """As a store that ignores the condition: it says yes every time."""

    def put_if_absent(self, path: Path, data: bytes) -> bool:
        self.inner.delete(path)
        return self.inner.put_if_absent(path, data)


class ShruggingStore(FaultyStore):
    """Says no to the second create, and overwrites all the same."""

    def put_if_absent(self, path: Path, data: bytes) -> bool:
        there = self.inner.get(path) is not None
        self.inner.delete(path)
        self.inner.put_if_absent(path, data)
        return not there


@pytest.mark.parametrize("kind", [OverwritingStore, ShruggingStore])
def test_a_store_that_overwrites_is_refused(store: ObjectStore, kind: type[FaultyStore]) -> None:
    with pytest.raises(StoreUnavailable, match="does not create objects exclusively") as error:
        check_capability(kind(store))
    assert "conditional" in error.value.hint
    assert store.list(Path("_weft")) == []


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: LocalPath) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreUnavailable, match="cannot write"):
        Table.create(str(tmp_path / "table"), SHOP)
    tmp_path.chmod(0o700)


def test_a_path_below_a_file_is_refused(tmp_path: LocalPath) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreUnavailable, match="cannot write"):
        Table.create(str(tmp_path / "file" / "table"), SHOP)


@pytest.mark.parametrize(("uri", "message"), [("", "empty"), ("nosuchscheme://bucket/table", "nosuchscheme")])
def test_a_location_that_names_no_store_is_refused(uri: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as error:
        open_store(uri)
    assert error.value.hint


def test_local_paths_and_file_urls_name_the_same_folder(tmp_path: LocalPath) -> None:
    folder = tmp_path / "a folder with % and ü"
    table = Table.create(folder, SHOP)
    append(table, orders(1))
    for uri in (str(folder), folder.as_uri(), table.uri):
        assert statuses(Table.open(uri)) == {1: "new"}


def test_no_temporary_file_is_left_and_none_is_listed(tmp_path: LocalPath) -> None:
    table = Table.create(tmp_path / "table", SHOP)
    append(table, orders(1, 2))
    table.compact()
    assert list(tmp_path.rglob(".tmp-*")) == []
    (tmp_path / "table" / "log" / ".tmp-crashed").write_bytes(b"half")
    assert all(".tmp" not in path for path, _ in open_store(table.uri).list(Path("log")))
    assert statuses(table) == {1: "new", 2: "new"}
