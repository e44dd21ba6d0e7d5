"""Decoding a list of slices lazily gives the same slices as decoding it as a whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from weft.storage.core.log import sidecar_codec
from weft.storage.core.log.entries import Base
from weft.storage.core.log.entry_codec import encode_entry
from weft.storage.core.log.file_refs import FilePart, FileRef, Overlay, SliceFile
from weft.storage.core.log.slice_list import SliceList, decode_list
from weft.storage.core.names import LaneName, Path

WHOLE: TypeAdapter[list[SliceFile]] = TypeAdapter(list[SliceFile])

numbers = st.integers(0, 2**63 - 1)
lanes = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,8}", fullmatch=True).map(LaneName)
seqs = st.dictionaries(lanes, numbers, max_size=4)
names = st.text(max_size=8)
stored = st.builds(
    FileRef, path=names.map(Path), size=numbers, crc32=numbers, tail_size=numbers, tail_crc32=numbers, rows=numbers
)
files = st.none() | stored
overlays = st.builds(Overlay, file=stored, groups=st.lists(st.integers(1, 9), min_size=1, max_size=3))
parts = st.none() | st.builds(FilePart, first=numbers, rows=st.integers(1, 2**40))
scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
slices = st.builds(
    SliceFile,
    partition=names,
    bits=st.integers(0, 30),
    bucket=numbers,
    rev=numbers,
    parent=seqs,
    cut=seqs,
    groups=st.lists(st.integers(1, 9), max_size=3),
    base=files,
    shadow=files,
    ordering_max=st.dictionaries(st.integers(1, 9), scalars, max_size=3),
    overflows=st.dictionaries(st.integers(1, 9), numbers, max_size=3),
    base_part=parts,
    shadow_part=parts,
    overlays=st.lists(overlays, max_size=2),
)


def is_lazy(found: SliceList) -> bool:
    return all(isinstance(item._stored, tuple) for item in found.stored)


def slice_of(**members: Any) -> SliceFile:
    plain: dict[str, Any] = {
        "partition": "day=2024-01-01",
        "bits": 3,
        "bucket": 5,
        "rev": 1,
        "parent": {},
        "cut": {"orders": 7},
        "groups": [1, 2],
        "base": {"path": "base/a.parquet", "size": 1, "crc32": 2, "tail_size": 3, "tail_crc32": 4, "rows": 5},
        "shadow": None,
        "ordering_max": {"1": 9, "2": None},
        "overflows": {},
    }
    return SliceFile.model_validate({**plain, **members})


@given(st.lists(slices, max_size=4))
def test_decoded_sidecars_equal_the_stored_ones(made: list[SliceFile]) -> None:
    decoded = decode_list(sidecar_codec.encode_list(made))
    assert [item.cut for item in decoded.stored] == [item.cut for item in made]
    assert [item.parent for item in decoded.stored] == [item.parent for item in made]
    assert [item.group for item in decoded.stored] == [item.group for item in made]
    assert decoded == made
    assert [type(value) for item in decoded for value in vars(item).values()] == [
        type(value) for item in made for value in vars(item).values()
    ]


@given(st.lists(slices, min_size=1, max_size=3), st.data())
def test_a_changed_text_is_accepted_exactly_if_the_model_accepts_it(made: list[SliceFile], data: st.DataObject) -> None:
    """The pattern accepts only texts that the model accepts, so nothing that a reader must refuse is skipped."""
    text = sidecar_codec.encode_list(made).decode()
    at = data.draw(st.integers(0, len(text) - 1))
    until = data.draw(st.integers(at, min(at + 3, len(text))))
    put = data.draw(st.sampled_from(["null", *' \n0-1"{}[],:\\x', ""]))
    changed = (text[:at] + put + text[until:]).encode()
    try:
        expected = WHOLE.validate_json(changed)
    except ValidationError:
        with pytest.raises(ValidationError):
            list(decode_list(changed))
        return
    assert decode_list(changed) == expected


def test_lists_that_this_version_writes_are_decoded_lazily() -> None:
    made = [
        slice_of(),
        slice_of(partition="a=%22/b=ö", cut={"orders": 7, "a-b_C": 0}, base=None, ordering_max={}),
        slice_of(shadow=slice_of().base, ordering_max={"1": '} {"\\', "2": -3}, overflows={"4": 2}),
        slice_of(
            base_part=FilePart(first=0, rows=2),
            shadow=slice_of().base,
            shadow_part=FilePart(first=1, rows=1),
            groups=[],
        ),
        slice_of(overlays=[{"file": slice_of().base, "groups": groups} for groups in ([1], [2, 7])]),
    ]
    found = decode_list(sidecar_codec.encode_list(made))
    assert is_lazy(found)
    assert found == made
    assert not any(isinstance(item._stored, tuple) for item in found.stored), "each is decoded once"
    assert decode_list(sidecar_codec.encode_list(made[:1]))[0].cut == {"orders": 7}


@pytest.mark.parametrize(
    "change",
    [
        lambda item: item.update(surprise=1),
        lambda item: item.pop("rev"),
        lambda item: item.update(bits="many"),
        lambda item: item.update(cut={"orders": None}),
        lambda item: item["base"].update(surprise=1),
        lambda item: item.update(base_part={"first": 0, "rows": 0}),
        lambda item: item.update(overlays=[{"file": None, "groups": [1]}]),
        lambda item: item.update(overlays=[{"file": item["base"], "groups": []}]),
    ],
)
def test_unknown_members_are_refused_at_once(change: Any) -> None:
    values = [slice_of().model_dump(mode="json") for _ in range(3)]
    change(values[1])
    with pytest.raises(ValidationError):
        decode_list(json.dumps(values, separators=(",", ":")).encode())


def test_equivalent_json_texts_are_read() -> None:
    made = [slice_of(), slice_of(bucket=6)]
    values = [item.model_dump(mode="json") for item in made]
    assert decode_list(json.dumps(values, indent=1).encode()) == made
    assert decode_list(json.dumps([dict(reversed(item.items())) for item in values]).encode()) == made
    assert decode_list(b"[]") == []


def test_slices_of_one_list_share_their_cuts() -> None:
    found = decode_list(
        sidecar_codec.encode_list([slice_of(bucket=bucket, parent={"orders": 7}) for bucket in range(4)])
    )
    assert len({id(cut) for item in found.stored for cut in (item.parent, item.cut)}) == 1
    assert len({id(cut) for item in found for cut in (item.parent, item.cut)}) == 1


def test_an_entry_has_the_same_bytes_with_lazy_slices() -> None:
    made = [slice_of(), slice_of(bucket=6)]
    header = {"lane": "", "seq": 3, "epoch": 0, "commit_id": "b", "prev_id": "a", "table_rev": 0, "stamp": 1}
    plain = Base(**header, committed_at_ms=1, plan_id="p", last=True, covered={}, slices=made)  # type: ignore[arg-type]
    lazy = plain.model_copy(update={"slices": decode_list(sidecar_codec.encode_list(made))})
    assert encode_entry(lazy) == encode_entry(plain)
    assert lazy.model_dump_json() == plain.model_dump_json()
