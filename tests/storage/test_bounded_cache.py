"""The cache that is bounded by sizes, compared with a list of the keys in the order of their last use."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.storage.bounded_cache import BoundedCache

LIMIT: Final = 10
USES: Final = st.lists(st.tuples(st.sampled_from(["find", "get", "put"]), st.sampled_from("abcde"), st.integers(0, 12)))


@pytest.mark.parametrize("keeps_newest", [False, True])
@given(uses=USES)
def test_it_keeps_the_values_that_were_used_last(keeps_newest: bool, uses: list[tuple[str, str, int]]) -> None:  # noqa: FBT001
    cache: BoundedCache[str, tuple[int]] = BoundedCache(LIMIT, lambda value: value[0], keeps_newest=keeps_newest)
    expected: list[tuple[str, int]] = []  # least recently used first
    for use, key, size in uses:
        known = next((each for each in expected if each[0] == key), None)
        if known is not None:
            expected.remove(known)
        if use == "find" or (use == "get" and known is not None):
            found = cache.find(key) if use == "find" else cache.get(key, lambda: pytest.fail("it is kept"))
            assert found == (None if known is None else (known[1],))
            expected += [known] if known is not None else []
            continue
        if use == "get":
            assert cache.get(key, lambda size=size: (size,)) == (size,)  # type: ignore[misc]
        else:
            cache.put(key, (size,))
        if size <= LIMIT or keeps_newest:
            expected.append((key, size))
            while sum(each for _, each in expected) > LIMIT and len(expected) > keeps_newest:
                expected.pop(0)
    for key, size in expected:
        assert cache.find(key) == (size,)
    assert all(cache.find(key) is None for key in "abcde" if key not in dict(expected))
    cache.clear()
    assert all(cache.find(key) is None for key in "abcde")
