"""Events of a page that follows a table: one for each change, and one if its store does not answer for long."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable

import pytest

from weft.streams.ui import live_events
from weft.streams.ui.live_events import follow


def events(
    state: Callable[[], tuple[str, str]],
    ending: threading.Event,
    most: int,
    on_event: Callable[[], None] = lambda: None,
) -> list[tuple[str, str]]:
    """The first events of a stream; ``on_event`` is called after each."""

    async def collect() -> list[tuple[str, str]]:
        found = []
        async for text in follow(ending, state):
            if text.startswith("event: "):
                name, data = text.strip().split("\n")
                found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
                on_event()
                if len(found) == most:
                    ending.set()
        return found

    return asyncio.run(collect())


def test_a_state_is_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_events, "_EVERY_SECONDS", 0.0)
    states = iter([("table", "a")] * 3 + [("trouble", "gone")] * 2 + [("table", "a")])
    assert events(lambda: next(states), threading.Event(), 3) == [("table", "a"), ("trouble", "gone"), ("table", "a")]


def test_a_store_that_does_not_answer_is_said_and_so_is_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_events, "_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(live_events, "SLOW_SECONDS", 0.05)
    answers = threading.Event()

    def state() -> tuple[str, str]:
        assert answers.wait(120)
        return "table", "a"

    found = events(state, threading.Event(), 2, answers.set)
    assert [name for name, _ in found] == ["trouble", "table"]
    assert "could not be read" in found[0][1]
