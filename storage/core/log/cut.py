"""Cuts: the prefix of each lane that a snapshot or a slice contains.

A cut is one number per lane: the last entry that it contains. It contains no entry of a lane that is not in it. Cuts
are compared lane by lane. The cut of a *snapshot* also has T, the length of a prefix of the table lane; its text form
can be stored and used later. The cut of a snapshot of a table with references also has the cuts of the referenced
tables (`JoinedCut`).
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Never

from weft.storage.core.names import LaneName, lane_name
from weft.storage.errors import InvalidInput

Seqs = Mapping[LaneName, int]

Span = tuple[int, int]
"""Entries of a lane after the first number, up to the second."""

SpansByLane = Mapping[LaneName, Sequence[Span]]
"""Spans of entries that were rolled back, by lane, ascending."""

PREFIX: Final = "cut:1:"
_TEXT: Final = re.compile(r"(\d{1,18}):((?:[^=,]+=\d{1,18}(?:,|$))*)")
_REFERENCE: Final = "+"
"""In the text of a cut before a reference and the cut of its table: ``cut:1:7:orders=12+customer:3:crm=5``."""


@dataclass(frozen=True, slots=True)
class Cut:
    """(T, V): a prefix of the table lane and one of every writer's lane, which determine a snapshot.

    Attributes:
        table: Length of the prefix of the table lane.
        lanes: Length of the prefix of each lane.
    """

    table: int
    lanes: Seqs

    # A lane with 0 entries is the same as no lane: snapshots have it, the text form leaves it out.
    def __eq__(self, other: object) -> bool:
        return str(self) == str(other) if isinstance(other, Cut) else NotImplemented

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return f"{PREFIX}{_text(self)}"


@dataclass(frozen=True, slots=True, eq=False)
class JoinedCut(Cut):
    """The cut of a table, and the cuts of the tables that it refers to.

    Attributes:
        references: Cut of the referenced table, by the name of the reference.
    """

    references: Mapping[str, Cut] = field(default_factory=dict)

    def __str__(self) -> str:
        references = (f"{_REFERENCE}{name}:{_text(at)}" for name, at in sorted(self.references.items()))
        return f"{PREFIX}{_text(self)}{''.join(references)}"

    def of_table(self) -> Cut:
        """The cut of the table alone."""
        return Cut(self.table, self.lanes)


def _text(at: Cut) -> str:
    return f"{at.table}:" + ",".join(f"{lane}={seq}" for lane, seq in sorted(at.lanes.items()) if seq)


def parse_cut(text: str) -> JoinedCut:
    """The cut of a text form, as `str` of a `Cut` or `JoinedCut` returns it.

    Raises:
        InvalidInput: ``text`` is not the text form of a cut.
    """
    first, *others = text.removeprefix(PREFIX).split(_REFERENCE)
    at = _parse_part(text, first if text.startswith(PREFIX) else "")
    references: dict[str, Cut] = {}
    for reference in others:
        name, _, part = reference.partition(":")
        if not name or name in references:
            _refuse(text)
        references[name] = _parse_part(text, part)
    return JoinedCut(at.table, at.lanes, references)


def _parse_part(text: str, part: str) -> Cut:
    match = _TEXT.fullmatch(part)
    if match is None or part.endswith(","):
        _refuse(text)
    lanes = {}
    for item in filter(None, match.group(2).split(",")):
        name, _, seq = item.partition("=")
        lanes[lane_name(name)] = int(seq)
    return Cut(int(match.group(1)), lanes)


def _refuse(text: str) -> Never:
    raise InvalidInput(
        f"{text!r} is not a cut", hint="use the text that str(snapshot.cut) returns, for example cut:1:7:orders=12"
    )


def within(smaller: Seqs, larger: Seqs) -> bool:
    """Whether ``larger`` contains every entry that ``smaller`` contains."""
    return all(seq <= larger.get(lane, 0) for lane, seq in smaller.items())


def only(seqs: Seqs, lanes: Container[LaneName]) -> dict[LaneName, int]:
    """The part of a cut that is in some lanes.

    A cut from before a lane was retired names the lane, a later one does not. Both have all its entries
    (PROTOCOL.md, C6), so they are compared in the lanes that the later table state has.
    """
    return {lane: seq for lane, seq in seqs.items() if lane in lanes}


def lowest(first: Seqs, second: Seqs) -> dict[LaneName, int]:
    """The cut of the entries that both cuts contain."""
    return {lane: min(seq, second[lane]) for lane, seq in first.items() if lane in second}


def highest(first: Seqs, second: Seqs) -> dict[LaneName, int]:
    """The cut of the entries that at least one of the cuts contains."""
    return {lane: max(first.get(lane, 0), second.get(lane, 0)) for lane in {**first, **second}}


def in_spans(spans: Sequence[Span], seq: int) -> bool:
    """Whether an entry lies in one of the spans."""
    return any(after < seq <= until for after, until in spans)
