"""Parts of entries that stand in objects of their own."""

from __future__ import annotations

import pytest

from storage.core import sidecars
from storage.core.file_refs import SliceFile


def slice_of(bucket: int) -> SliceFile:
    return SliceFile(
        partition="",
        bits=3,
        bucket=bucket,
        rev=1,
        parent={},
        cut={},
        groups=[1],
        base=None,
        shadow=None,
        ordering_max={},
        overflows={},
    )


def test_slices_that_are_read_again_are_not_decoded_again_unless_they_are_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, other = [slice_of(1), slice_of(2)], [slice_of(3)]
    first = sidecars.decode_slices(sidecars.encode_list(own))
    assert first == own
    assert sidecars.decode_slices(sidecars.encode_list(other)) == other
    again = sidecars.decode_slices(sidecars.encode_list(own))
    assert again[0] is first[0]
    first.clear()
    assert sidecars.decode_slices(sidecars.encode_list(own)) == own, "whoever has the list may change it"
    monkeypatch.setattr(sidecars, "KEPT_BYTES", 10)
    large = sidecars.decode_slices(sidecars.encode_list(own))
    assert large == own
    assert large[0] is not again[0]
