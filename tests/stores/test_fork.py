"""A forked child and the connections of its parent. Real servers keep connections open, so this needs one."""

from __future__ import annotations

import gc
import multiprocessing
from typing import Any

import pytest
from fsspec import asyn

from tests.stores.places import JOIN_SECONDS, Backend, Place
from weft.storage.core.names import Path

NAME = Path("folder/object")
READ_SECONDS = 60  # a slow server answers sooner; a closed connection never does


async def collect() -> None:
    gc.collect()


def use_and_forget(place: Place, results: Any) -> None:
    gc.disable()
    store = place.open()
    store.get(NAME)
    asyn.sync(asyn.get_loop(), collect)  # in a running loop, which would close inherited sessions
    results.put(store.get(NAME))


@pytest.mark.integration
def test_a_forked_child_does_not_close_its_parents_connections(s3: Backend) -> None:
    """Both share an epoll instance: a child that closes connections would remove those of its parent from it."""
    once = {"retries": {"mode": "standard", "total_max_attempts": 1}, "read_timeout": READ_SECONDS}
    place = Place(s3.new_place().uri, {**s3.options, "config_kwargs": once})
    store = place.open()
    store._fs.retries = 1
    store.put(NAME, b"x")
    del store  # its connection stays open, referenced only by the cache of fsspec
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=use_and_forget, args=(place, results))
    child.start()
    try:
        assert results.get(timeout=JOIN_SECONDS) == b"x"
        child.join(JOIN_SECONDS)
    finally:
        child.kill()
    assert place.open().get(NAME) == b"x"
