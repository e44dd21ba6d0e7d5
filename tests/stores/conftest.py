"""The stores that the conformance suite runs against, each started once, when a test first needs it.

memory, local, moto   always
s3                    a real server; marked `integration`; skipped, with the reason, if its program is missing
given                 the store that the environment names (`tests.stores.real_server`)
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path as LocalPath

import pytest

from tests.stores.moto_server import moto_server
from tests.stores.places import Backend, Place
from tests.stores.real_server import real_server
from weft.storage.store.object_store import ObjectStore

GIVEN_URL = "WEFT_STORE_URL"
GIVEN_OPTIONS = "WEFT_STORE_OPTIONS"
ROOT = LocalPath(__file__).parents[2]
BACKENDS = [
    "memory",
    "local",
    pytest.param("moto", marks=pytest.mark.slow),
    pytest.param("s3", marks=pytest.mark.integration),
]
if GIVEN_URL in os.environ:
    BACKENDS.append(pytest.param("given", marks=pytest.mark.integration))


@pytest.fixture(autouse=True)
def importable_in_new_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.fixture(scope="session")
def memory() -> Backend:
    return Backend("memory://stores/", rounds=50)


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Backend:
    return Backend(f"{tmp_path_factory.mktemp('local')}/", rounds=50)


@pytest.fixture(scope="session")
def moto() -> Iterator[Backend]:
    with moto_server() as backend:
        yield backend


@pytest.fixture(scope="session")
def s3() -> Iterator[Backend]:
    with real_server() as backend:
        yield backend


@pytest.fixture(scope="session")
def given() -> Backend:
    base = os.environ[GIVEN_URL].rstrip("/")
    return Backend(f"{base}/{uuid.uuid4().hex}/", json.loads(os.environ.get(GIVEN_OPTIONS, "{}")), rounds=6)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return request.getfixturevalue(request.param)


@pytest.fixture
def place(backend: Backend) -> Place:
    return backend.new_place()


@pytest.fixture
def store(place: Place) -> ObjectStore:
    return place.open()
