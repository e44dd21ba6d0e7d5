"""The file groups of a fold. Few processes look at them.

A fold of a large table has all of its file groups. They are kept *packed*: a compressed JSON list, which is unpacked
when a file group is looked up. A writer looks up none, so its memory does not grow with them.

Each compaction takes file groups out of folds, often in many entries. They are remembered beside the packed list, and
the rest is packed again when they are many: so the work of all these entries is proportional to their file groups.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import accumulate, chain, groupby, pairwise
from typing import Any, Final

import pydantic

from weft.storage.core.log.file_refs import FileGroup, Strict
from weft.storage.core.log.packed_json import pack, unpack

_PART_REMOVED: Final = 8
"""An eighth of the file groups may be removed from a packed list before the rest is packed again."""


class StoredGroups(Strict):
    """A set of file groups in a checkpoint.

    Attributes:
        count: How many they are.
        bits: Their numbers of bits, ascending.
        size: Bytes of the JSON list.
        packed: The list, compressed; base64 in JSON.
    """

    count: int
    bits: list[int]
    size: int
    packed: pydantic.Base64Bytes


class GroupSet(Collection[FileGroup]):
    """An immutable set of file groups, packed. It is iterated in order of file group."""

    __slots__ = ("_removed", "_stored", "_unpacked")

    def __init__(self, content: StoredGroups, removed: frozenset[FileGroup] = frozenset()) -> None:
        """The file groups of a packed list without some others, which are fewer, and may be in it or not."""
        self._stored, self._removed = content, removed
        self._unpacked: Mapping[tuple[str, int], set[int]] | None = None

    @classmethod
    def of(cls, groups: Iterable[FileGroup]) -> GroupSet:
        """The set of some distinct file groups."""
        sorted_groups = sorted(groups)
        runs = groupby(sorted_groups, key=lambda group: (group.partition, group.bits))
        # Differences of neighbouring buckets compress to a hundredth of the buckets, since most are 1.
        lists = [[*run, _gaps(group.bucket for group in groups_of_run)] for run, groups_of_run in runs]
        text = json.dumps(lists, separators=(",", ":"), ensure_ascii=False).encode()
        bits = sorted({group.bits for group in sorted_groups})
        # The packed bytes are not base64, so they are not validated.
        return cls(StoredGroups.model_construct(count=len(sorted_groups), bits=bits, size=len(text), packed=pack(text)))

    def dump(self) -> StoredGroups:
        """The form for a checkpoint."""
        return GroupSet.of(self).dump() if self._removed else self._stored

    @property
    def levels(self) -> frozenset[int]:
        """The numbers of bucket bits of the file groups."""
        if self._removed and len(self._stored.bits) > 1:
            return frozenset(bits for _, bits in self._buckets())
        return frozenset(self._stored.bits)

    def without(self, groups: Collection[FileGroup]) -> GroupSet:
        """The set without some file groups, which may be in it or not."""
        removed = self._removed.union(groups)
        if len(removed) * _PART_REMOVED <= self._stored.count:
            return GroupSet(self._stored, removed)
        return GroupSet.of(group for group in self if group not in removed)

    def __contains__(self, group: object) -> bool:
        return isinstance(group, FileGroup) and group.bucket in self._buckets().get((group.partition, group.bits), ())

    def __iter__(self) -> Iterator[FileGroup]:
        for run, buckets in self._buckets().items():
            yield from (FileGroup(*run, bucket) for bucket in sorted(buckets))

    def __len__(self) -> int:
        return sum(map(len, self._buckets().values())) if self._removed else self._stored.count

    def __bool__(self) -> bool:
        return self._stored.count > len(self._removed)

    def __eq__(self, other: object) -> bool:
        return self._buckets() == other._buckets() if isinstance(other, GroupSet) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # ruff wants what __eq__ implies written out; typeshed has a method

    def __reduce__(self) -> tuple[Any, ...]:
        return GroupSet, (self._stored, self._removed)

    def __repr__(self) -> str:
        return f"GroupSet({len(self)} file groups)"

    def _buckets(self) -> Mapping[tuple[str, int], set[int]]:
        """The buckets, by partition and bits; unpacked once.

        Raises:
            CorruptData: They do not unpack.
        """
        if self._unpacked is None:
            content = self._stored
            unpacked = unpack(content.packed, content.size, _decode, "file groups of a fold")
            for group in self._removed:
                unpacked.get((group.partition, group.bits), set()).discard(group.bucket)
            self._unpacked = {run: buckets for run, buckets in unpacked.items() if buckets}
        return self._unpacked


class GroupUnion:
    """The file groups of several sets."""

    def __init__(self, sets: Iterable[GroupSet] = ()) -> None:
        self._sets = tuple(sets)

    @property
    def levels(self) -> frozenset[int]:
        """The numbers of bucket bits of the file groups."""
        return frozenset[int]().union(*(groups.levels for groups in self._sets))

    def __contains__(self, group: FileGroup) -> bool:
        return any(group in groups for groups in self._sets)


def _gaps(buckets: Iterable[int]) -> list[int]:
    """The first bucket, and the difference of each other bucket from the one before it."""
    return [bucket - previous for previous, bucket in pairwise(chain([0], buckets))]


def _decode(text: bytes) -> dict[tuple[str, int], set[int]]:
    return {(partition, bits): set(accumulate(gaps)) for partition, bits, gaps in json.loads(text)}
