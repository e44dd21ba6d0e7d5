"""A schema registry for the tests of formats."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.streams.formats.registry_server import SchemaRegistry


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as running:
        yield running
