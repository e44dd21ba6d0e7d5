"""`check_capability` refuses stores that overwrite, whatever they answer. The stores are tested in `tests.stores`."""

from __future__ import annotations

import errno
from pathlib import Path as LocalPath

import pytest

from tests.faulty_store import Fault, FaultyStore
from tests.storage.support.shop import new_uri
from weft.storage.core.names import Path
from weft.storage.environment import RandomIds
from weft.storage.errors import StoreRefused, StoreUnavailable
from weft.storage.store.object_store import ObjectStore, check_capability, normalise_errors
from weft.storage.store.open_store import open_store


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: LocalPath) -> ObjectStore:
    return open_store(str(tmp_path / "root") if request.param == "local" else new_uri())


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (PermissionError(errno.EACCES, "denied"), True),
        (NotADirectoryError(errno.ENOTDIR, "a file"), True),
        (FileNotFoundError("The specified bucket does not exist"), True),
        (OSError(errno.ENOSPC, "full"), False),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), False),
        (TimeoutError("no answer"), False),
    ],
)
def test_refused_access_and_a_missing_answer_are_different_errors(error: OSError, *, refused: bool) -> None:
    """Waiting helps only for the second kind."""
    with pytest.raises(StoreUnavailable) as caught, normalise_errors(Path("a/b")):
        raise error
    assert isinstance(caught.value, StoreRefused) is refused


def test_the_hint_for_a_bucket_that_does_not_exist_is_not_to_wait() -> None:
    with pytest.raises(StoreRefused) as caught, normalise_errors(Path("a/b")):
        raise FileNotFoundError("The specified bucket does not exist")
    assert caught.value.hint == "a folder or bucket of the path does not exist: check the location, or create it"


class OverwritingStore(FaultyStore):
    """Ignores the condition: reports success every time."""

    def put_if_absent(self, path: Path, data: bytes) -> bool:
        self.inner.delete(path)
        return self.inner.put_if_absent(path, data)


class ShruggingStore(FaultyStore):
    """Reports failure of the second create, but overwrites."""

    def put_if_absent(self, path: Path, data: bytes) -> bool:
        there = self.inner.get(path) is not None
        self.inner.delete(path)
        self.inner.put_if_absent(path, data)
        return not there


class ForgetfulStore(FaultyStore):
    """Reports success, but stores nothing."""

    def get(self, path: Path) -> bytes | None:
        return None


@pytest.mark.parametrize("kind", [OverwritingStore, ShruggingStore, ForgetfulStore])
def test_a_store_that_overwrites_is_refused(store: ObjectStore, kind: type[FaultyStore]) -> None:
    with pytest.raises(StoreUnavailable, match="does not create objects exclusively") as error:
        check_capability(kind(store), RandomIds().new)
    assert "conditional" in error.value.hint
    assert store.list(Path("_weft")) == []


@pytest.mark.parametrize("call", ["put_if_absent", "get"])
def test_a_store_that_does_not_answer_the_probe_is_an_error_and_the_probe_is_deleted(
    store: ObjectStore, call: str
) -> None:
    faulty = FaultyStore(store)
    faulty.faults.append(Fault(call, "probe", when="after"))
    with pytest.raises(StoreUnavailable, match=r"cannot write to .*the network is down"):
        check_capability(faulty, RandomIds().new)
    assert store.list(Path("_weft")) == []
