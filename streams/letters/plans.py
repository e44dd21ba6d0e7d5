"""Plans: which letters a replay or a drop handles. A plan is published once, and never changed.

    <folder>/_plans/<lane>/<number>.json

Plans of a lane have the numbers 1, 2, ... A process publishes the next number after it has read all plans before, and
only if that number does not exist yet (*put if absent*). So two processes never choose letters from the same state of
the folder: the second one reads the plan of the first one, and chooses again.
"""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal

from weft.storage.core.names import LaneName, Path, lane_name
from weft.storage.errors import CorruptData, StoreUnavailable
from weft.storage.foreign_text import parse_json
from weft.storage.store.object_store import ObjectStore
from weft.streams.letters.letter_files import read_object

FOLDER: Final = "_plans"
Span = tuple[int, int]
"""First and last line, both included."""
Kind = Literal["replay", "drop"]

_FILE: Final = re.compile(r"(\d{8})\.json")
_LANE_LETTERS: Final = 64  # limit of the name of a lane
_VERSION: Final = 1
_IN_PATH: Final = frozenset({"lane", "number"})  # the path of a plan has these fields, its content does not
_REPLAY_LANE: Final = re.compile(r"-replay-[0-9a-f]{16}$")


def is_replay_lane(lane: str) -> bool:
    """Whether a lane is that of a replay (`Plan.replay_lane`)."""
    return _REPLAY_LANE.search(lane) is not None


@dataclass(frozen=True, slots=True)
class Plan:
    """A replay or a drop.

    Attributes:
        lane: The lane of its letters.
        number: Its number among the plans of the lane.
        id: 16 random hexadecimal digits.
        kind: ``replay`` or ``drop``.
        made_at_ms: When it was made, in Unix milliseconds.
        where: The condition that chose the letters; empty if there was none.
        fenced: `weft.storage.write.lane_progress.LaneProgress.fenced` of the lane when it was made: it changes with
            each restore.
        letters: Lines by file.
    """

    lane: str
    number: int
    id: str
    kind: Kind
    made_at_ms: int
    where: str
    fenced: int
    letters: Mapping[str, Sequence[Span]]

    @property
    def query_id(self) -> str:
        """The query id of the replay's commit, whose batch is 0."""
        return f"replay-{self.id}"

    @property
    def replay_lane(self) -> LaneName:
        """The lane of the replay, which is closed at its end."""
        suffix = f"-{self.query_id}"
        return lane_name(self.lane[: _LANE_LETTERS - len(suffix)] + suffix)

    @property
    def count(self) -> int:
        """Number of its letters."""
        return sum(map(count_lines, self.letters.values()))

    def has(self, file: str, line: int) -> bool:
        """Whether a letter is in the plan."""
        return in_spans(self.letters.get(file, ()), line)


def spans_of(lines: Iterable[int]) -> list[Span]:
    """Ascending lines as spans."""
    spans: list[Span] = []
    for line in lines:
        if spans and spans[-1][1] + 1 == line:
            spans[-1] = (spans[-1][0], line)
        else:
            spans.append((line, line))
    return spans


def count_lines(spans: Iterable[Span]) -> int:
    """Number of the lines."""
    return sum(last - first + 1 for first, last in spans)


def in_spans(spans: Sequence[Span], line: int) -> bool:
    """Whether a line is in one of the spans, which ascend."""
    place = bisect.bisect_right(spans, line, key=lambda span: span[0])
    return place > 0 and line <= spans[place - 1][1]


def read_plans(store: ObjectStore, lane: str) -> list[Plan]:
    """The plans of a lane, by number.

    Raises:
        CorruptData: A plan is damaged.
        StoreUnavailable: The store does not answer.
    """
    folder = f"{FOLDER}/{lane}"
    names = sorted(name for name, _ in store.list(Path(folder)) if _FILE.fullmatch(name))
    plans = []
    for name in names:
        data = read_object(store, f"{folder}/{name}")
        if data is not None:  # a retention may have deleted it meanwhile
            plans.append(_parse(f"{store.uri}/{folder}/{name}", lane, int(name.removesuffix(".json")), data))
    return plans


def publish_plan(store: ObjectStore, plan: Plan) -> bool:
    """Publish a plan; False if another process has published a plan of that number.

    Raises:
        StoreUnavailable: The store does not answer. The plan may have been published.
    """
    content = {"version": _VERSION, **{name: value for name, value in asdict(plan).items() if name not in _IN_PATH}}
    try:
        return store.put_if_absent(plan_path(plan), json.dumps(content, ensure_ascii=False).encode())
    except OSError as error:
        raise StoreUnavailable(f"cannot write to {store.uri}: {error}", hint="repeat the command") from error


def plan_path(plan: Plan) -> Path:
    """Path of a plan in the folder."""
    return Path(f"{FOLDER}/{plan.lane}/{plan.number:08d}.json")


def _parse(where: str, lane: str, number: int, data: bytes) -> Plan:
    try:
        content: dict[str, Any] = parse_json(data)
        if content["version"] != _VERSION:
            raise CorruptData(f"{where} is from a newer version of weft", hint="upgrade weft")
        letters = {file: [(first, last) for first, last in spans] for file, spans in content["letters"].items()}
        stored = {field.name: content[field.name] for field in fields(Plan) if field.name not in _IN_PATH}
        return Plan(**{**stored, "lane": lane, "number": number, "letters": letters})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptData(f"{where} is damaged: {error}", hint="restore it from a copy") from None
