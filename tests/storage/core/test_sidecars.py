"""Sidecars: parts of entries that are stored in separate objects."""

from __future__ import annotations

import pytest

from weft.storage.core.log import sidecar_codec
from weft.storage.core.log.file_refs import LogRanges, SliceFile
from weft.storage.core.log.slice_list import decode_list
from weft.storage.core.names import LaneName
from weft.storage.log.decoded_sidecars import Decoded


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


def test_slices_are_not_decoded_twice_unless_they_are_large() -> None:
    lists = Decoded(10_000, decode_list)
    slices, other = [slice_of(1), slice_of(2)], [slice_of(3)]
    first = lists.decode(sidecar_codec.encode_list(slices))
    assert first == slices
    assert lists.decode(sidecar_codec.encode_list(other)) == other
    again = lists.decode(sidecar_codec.encode_list(slices))
    assert again[0] is first[0]
    with pytest.raises(TypeError):
        first[0] = other[0]  # type: ignore[index]  # whoever has the list shares it with others
    assert lists.decode(sidecar_codec.encode_list(slices)) == slices
    large = Decoded(10, decode_list).decode(sidecar_codec.encode_list(slices))
    assert large == slices
    assert large[0] is not again[0]


def test_an_index_is_equal_after_its_arrays_were_made() -> None:
    ranges = {name: [0, 1] for name in LogRanges.model_fields}
    first, second = LogRanges(**ranges), LogRanges(**ranges)
    assert {name: values.tolist() for name, values in first.arrays.items()} == ranges
    assert first == second
    assert first.model_dump() == ranges


def test_the_cache_is_bounded_by_bytes() -> None:
    lists = [sidecar_codec.encode_list([slice_of(bucket)]) for bucket in range(8)]
    known = Decoded(2 * len(lists[0]), decode_list)
    first, second, third = (known.decode(data)[0] for data in lists[:3])
    assert known.decode(lists[1])[0] is second
    assert known.decode(lists[3])[0] is not None
    assert known.decode(lists[1])[0] is second, "it was used after the third"
    assert known.decode(lists[2])[0] is not third
    assert known.decode(lists[0])[0] is not first


def test_slices_of_one_compaction_share_their_cuts() -> None:
    """Otherwise, with n lanes, the cuts of g file groups would be g times n numbers in the memory of every reader."""
    cut = {LaneName(f"lane{number}"): number for number in range(100)}
    made = [slice_of(bucket).model_copy(update={"cut": cut, "parent": dict(cut)}) for bucket in range(8)]
    decoded = decode_list(sidecar_codec.encode_list(made))
    assert decoded == made
    assert len({id(seqs) for made in decoded for seqs in (made.cut, made.parent)}) == 1
