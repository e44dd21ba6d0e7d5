"""Lists of slices that are decoded lazily, one slice at a time.

The list of a table with thousands of file groups has megabytes of JSON. To compute the table state, three values of
each slice are enough: its file group, the cut of the slice that it was made from, and its cut. A look-up needs the
other values only of the slices that contain its keys. So one pattern finds the three values in the JSON text, and the
model decodes the rest on demand.

The pattern matches exactly the form that this version writes: all members, in order, with their types. Any other text
is decoded by the model at once, which accepts every form of JSON, and refuses members that this version does not know.
So nothing that a reader must refuse is skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, overload

from pydantic import TypeAdapter

from weft.storage.core.log import cut
from weft.storage.core.log.file_refs import FileGroup, Seqs, SharedSeqs, SliceFile

_SLICES: Final = TypeAdapter(list[SliceFile])
_SEQS: Final[TypeAdapter[Seqs]] = TypeAdapter(SharedSeqs)


def _object_of(value: str) -> str:
    return rf'\{{(?:"{_NUMBER}":{value}(?:,"{_NUMBER}":{value})*+)?\}}'


_NUMBER: Final = r"(?:0|[1-9]\d{0,18}+)"
_NAME: Final = r'[^"\\\x00-\x1f]*+'  # name of a folder or file: text without escapes
_SCALAR: Final = rf'(?:-?{_NUMBER}|"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt])*+"|true|false|null)'
_STORED: Final = (
    rf'\{{"path":"{_NAME}","size":{_NUMBER},"crc32":{_NUMBER},"tail_size":{_NUMBER},'
    rf'"tail_crc32":{_NUMBER},"rows":{_NUMBER}\}}'
)
_FILE: Final = rf"(?:null|{_STORED})"
_PART: Final = rf'\{{"first":{_NUMBER},"rows":[1-9]\d{{0,18}}+\}}'
_OVERLAY: Final = rf'\{{"file":{_STORED},"groups":\[{_NUMBER}(?:,{_NUMBER})*+\]\}}'
_REPLACED: Final = rf'\{{"bits":{_NUMBER},"bucket":{_NUMBER},"cut":\{{[^{{}}]*+\}}\}}'
_SLICE: Final = re.compile(
    rf'(\{{"partition":"({_NAME})","bits":({_NUMBER}),"bucket":({_NUMBER}),"rev":{_NUMBER},)'
    # Thousands of slices share a few cuts, which may have hundreds of lanes: each cut is decoded once.
    r'"parent":(\{[^{}]*+\}),"cut":(\{[^{}]*+\}),'
    rf'("groups":\[(?:{_NUMBER}(?:,{_NUMBER})*+)?\],"base":{_FILE},"shadow":{_FILE},'
    rf'"ordering_max":{_object_of(_SCALAR)},"overflows":{_object_of(_NUMBER)}'
    rf'(?:,"base_part":{_PART})?(?:,"shadow_part":{_PART})?'
    rf'(?:,"overlays":\[{_OVERLAY}(?:,{_OVERLAY})*+\])?(?:,"replaces":\[{_REPLACED}(?:,{_REPLACED})*+\])?\}})([,\]])',
    re.ASCII,
)


class SliceSizes(NamedTuple):
    """Rows and stored bytes of the base and the shadow of a slice."""

    base_rows: int
    shadow_rows: int
    base_bytes: int
    shadow_bytes: int


NO_SIZES: Final = SliceSizes(0, 0, 0, 0)


def sizes_of(file: SliceFile | None) -> SliceSizes:
    """The sizes of a slice; those of a file group without a slice are 0."""
    if file is None:
        return NO_SIZES
    return SliceSizes(file.base_rows, file.shadow_rows, file.base_bytes, file.shadow_bytes)


class StoredSlice:
    """One slice of a list: the values that the table state needs, decoded, and the rest as stored text.

    Attributes:
        group: Its file group.
        parent: Cut of the slice that it was made from; empty for the first.
        cut: Last entry of each lane that is in it.
    """

    __slots__ = ("_sizes", "_stored", "cut", "group", "parent")

    def __init__(self, group: FileGroup, parent: Seqs, cut: Seqs, stored: SliceFile | tuple[str, str]) -> None:
        """``stored``: the decoded slice, or the JSON texts of its members before and after the two cuts."""
        self.group, self.parent, self.cut, self._stored = group, parent, cut, stored
        self._sizes: SliceSizes | None = None

    @classmethod
    def of(cls, file: SliceFile) -> StoredSlice:
        """Wrap a decoded slice."""
        return cls(file.group, file.parent, file.cut, file)

    @property
    def file(self) -> SliceFile:
        """The whole slice; decoded once."""
        # Several threads may do this at once: in the worst case it is decoded twice.
        if isinstance(self._stored, tuple):
            prefix, suffix = self._stored
            file = SliceFile.model_validate_json(f'{prefix}"parent":{{}},"cut":{{}},{suffix}')
            # No other code has this frozen object yet, so it may be changed. A copy would take a quarter of the time of
            # decoding.
            vars(file).update(parent=self.parent, cut=self.cut)
            self._stored = file
        return self._stored

    @property
    def text(self) -> str:
        """The slice as JSON, as it is stored in lists."""
        if isinstance(self._stored, tuple):
            prefix, suffix = self._stored
            return f'{prefix}"parent":{_seqs_text(self.parent)},"cut":{_seqs_text(self.cut)},{suffix}'
        return json.dumps(self._stored.model_dump(), separators=(",", ":"), ensure_ascii=False)

    @property
    def sizes(self) -> SliceSizes:
        """The sizes of its files; computed once, because every plan needs those of all slices."""
        if self._sizes is None:
            self._sizes = sizes_of(self.file)
        return self._sizes


def _seqs_text(seqs: cut.Seqs) -> str:
    return json.dumps(seqs, separators=(",", ":"))


class SliceList(Sequence[SliceFile]):
    """A read-only list of lazily decoded slices. Equal to any sequence of equal slices."""

    __slots__ = ("stored",)

    def __init__(self, entries: Iterable[StoredSlice]) -> None:
        self.stored = tuple(entries)

    @classmethod
    def of(cls, slices: Sequence[SliceFile]) -> SliceList:
        """Convert a sequence of slices."""
        return slices if isinstance(slices, SliceList) else cls(map(StoredSlice.of, slices))

    def __len__(self) -> int:
        return len(self.stored)

    @overload
    def __getitem__(self, place: int) -> SliceFile: ...

    @overload
    def __getitem__(self, place: slice) -> SliceList: ...

    def __getitem__(self, place: int | slice) -> SliceFile | SliceList:
        return SliceList(self.stored[place]) if isinstance(place, slice) else self.stored[place].file

    def __iter__(self) -> Iterator[SliceFile]:
        return (item.file for item in self.stored)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # ruff wants what __eq__ implies written out; typeshed has a method


NOTHING: Final[cut.Seqs] = {}
"""The cut of file groups without a slice. Always this object, so that callers may compare it by identity."""


def distinct_cuts(slices: Iterable[StoredSlice]) -> Collection[cut.Seqs]:
    """The cuts of slices, each object once. Slices of one compaction share the object of their cut."""
    return {id(item.cut): item.cut for item in slices}.values()


def decode_list(data: bytes) -> SliceList:
    """Decode a list of slices, lazily if the pattern matches.

    Raises:
        ValidationError: The data is not a list of slices, or a slice has a member that this version does not know.
    """
    result = _scan(data)
    return result if result is not None else SliceList.of(_SLICES.validate_json(data, context={}))


def _scan(data: bytes) -> SliceList | None:
    """The slices of a list; None if the pattern does not match."""
    cuts: dict[str, Seqs] = {}
    entries: list[StoredSlice] = []
    try:
        text = data.decode()
        end = len("[")
        for match in _SLICE.finditer(text, end):
            if match.start() != end:
                return None
            prefix, partition, bits, bucket, parent, cut_text, suffix, separator = match.groups()
            for seqs in (parent, cut_text):
                if seqs not in cuts:
                    cuts[seqs] = _SEQS.validate_json(seqs)
            group = FileGroup(partition, int(bits), int(bucket))
            entries.append(StoredSlice(group, cuts[parent], cuts[cut_text], (prefix, suffix)))
            end = match.end()
            if separator == "]":
                return SliceList(entries) if text[0] == "[" and end == len(text) else None
    except ValueError:  # not UTF-8, or not a cut
        return None
    return None
