"""Names and paths of a table. All of them are built and parsed in this module.

User text is encoded before it becomes part of a path. Names that matter to the protocol (lane, slot, log file) can be
parsed exactly. Hidden columns are named by id, never by user names. Layout: FORMAT.md, "Files".
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NewType
from urllib.parse import quote

from weft.storage.errors import InvalidInput

LaneName = NewType("LaneName", str)
StreamName = NewType("StreamName", str)
Path = NewType("Path", str)
"""A path relative to the table's root, with forward slashes."""

TIMELINE: Final = "_weft/timeline"
ARCHIVE: Final = "_weft/archive"
TABLE_LANE: Final = LaneName("")
"""The table lane has an empty name, which no writer's lane can have."""

HIDDEN_PREFIX: Final = "__weft_"
KEY: Final = "__weft_key"
"""Order-preserving binary form of a composite or decimal key (see `weft.storage.core.keys`)."""
OP: Final = "__weft_op"
"""Operation of an event row in a log file: int8, see `weft.storage.core.model.Op`."""
SLICE_ORDINAL: Final = "__weft_slice_ordinal"
"""In memory only: the position of a row's file group in the list of slices that are read together, 0, 1, ..."""
SUPPLIED: Final = "__weft_supplied"
"""Which NULLs of an event row are values (`latest_non_null`): a list of column ids, or NULL."""

LANE_ENTRIES: Final = Path(f"{TIMELINE}/lanes")
LANE_ARCHIVES: Final = Path(f"{ARCHIVE}/lanes")
LANE_LOGS: Final = Path("log")
LANE_INDEXES: Final = Path("_weft/index")
LANE_CHECKPOINTS: Final = Path("_weft/checkpoints/lanes")
PINS: Final = Path("_weft/pins")
HEARTBEATS: Final = Path("_weft/heartbeats")
PROBES: Final = Path("_weft/probe")
SERVICES: Final = Path("_weft/services")
BASES: Final = Path("base")
SHADOWS: Final = Path("shadow")
OVERLAYS: Final = Path("overlay")
DELTA_LOG: Final = Path("base/_delta_log")
"""Folder of the log of the published Delta table; no file group's folder has this name. Cleaning leaves it alone."""
SHARED: Final = "shared"
"""Folder in ``base`` and ``shadow`` for files that hold several file groups; no file group's folder has this name."""
FOLDS: Final = "_fold"
"""Folder in ``log`` for register-form files; no lane name starts with an underscore."""
FOLD_FILES: Final = Path(f"log/{FOLDS}")
FOLD_INDEXES: Final = Path(f"_weft/index/{FOLDS}")
TABLE_INDEXES: Final = Path("_weft/index/_table")

_MAX_FOLDER: Final = 200  # file systems allow names of 255 bytes
_LONG_FOLDER_KEPT: Final = 100
_LANE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_BATCH_LANE: Final = re.compile(r".+-batches-\d+")
_QUERY_LANE: Final = re.compile(r".+-query-[0-9a-f]{16}")
_SLOT: Final = re.compile(r"(\d{20})\.json")
_ARCHIVE: Final = re.compile(r"(\d{20})\.entries")
_BY_SLOT: Final = re.compile(r"(\d{20})-([0-9a-f]{32})\.(?:arrow|json|parquet)")


def fold_case(name: str) -> str:
    """Fold a column name: two names have the same result exactly if Spark may treat them as equal.

    Spark compares some names in lower case, and others with Java's ``equalsIgnoreCase``, for which more letters are
    equal: i, dotless \u0131 and dotted \u0130, or both forms of a small sigma. This function folds letter by letter, to
    upper and then to lower case; a letter whose upper case has two letters is only folded to lower case.
    """
    return "".join((letter.upper() if len(letter.upper()) == 1 else letter).lower()[0] for letter in name)


def lane_name(text: str) -> LaneName:
    """Check the name of a lane, or of a stream, which is the default name of its lane.

    Raises:
        InvalidInput: The name does not match the pattern.
    """
    if not _LANE.fullmatch(text):
        raise InvalidInput(
            f"{text!r} is not a lane or stream name",
            hint="use 1 to 64 letters, digits, '_' or '-', starting with a letter or digit",
        )
    return LaneName(text)


def is_batch_lane(lane: LaneName) -> bool:
    """Whether a lane was added for batches, as its name says (PROTOCOL.md, W10)."""
    return _BATCH_LANE.fullmatch(lane) is not None


def is_query_lane(lane: LaneName) -> bool:
    """Whether the name of a lane is for the query id of a batch (`weft.streams.write.write_batch.lane_for`)."""
    return _QUERY_LANE.fullmatch(lane) is not None


def slot_path(lane: LaneName, seq: int) -> Path:
    """Path of entry ``seq`` (1, 2, ...) of a lane; `TABLE_LANE` for the table lane."""
    return Path(f"{lane_folder(lane)}/{seq:020d}.json")


def describe_lane(lane: LaneName) -> str:
    """Name a lane in a message."""
    return f"lane {lane!r}" if lane else "the table lane"


def lane_folder(lane: LaneName) -> Path:
    return Path(f"{LANE_ENTRIES}/{lane}" if lane else f"{TIMELINE}/table")


def archive_folder(lane: LaneName) -> Path:
    return Path(f"{LANE_ARCHIVES}/{lane}" if lane else f"{ARCHIVE}/table")


def archive_path(lane: LaneName, chunk: int) -> Path:
    """Path of the archive of a lane's chunk number 1, 2, ... (`weft.storage.core.log.archive_codec`)."""
    return Path(f"{archive_folder(lane)}/{chunk:020d}.entries")


def log_path(lane: LaneName, epoch: int, seq: int, task: int, uuid: str) -> Path:
    """Path of a log file, with the epoch and the slot that it is written for, so orphans are found without a clock."""
    return Path(f"log/{lane}/{epoch:010d}-{seq:020d}-{task:05d}-{uuid}.arrow")


def log_index_path(log_file: Path) -> Path:
    """Path of the sidecar of a log file whose index is too large for its entry; named like the log file."""
    return Path(f"_weft/index/{log_file.removeprefix('log/').removesuffix('.arrow')}.json")


def table_index_path(seq: int, uuid: str) -> Path:
    """Path of a sidecar of the table-lane entry in slot ``seq``."""
    return Path(f"_weft/index/_table/{seq:020d}-{uuid}.json")


def base_path(file_group: str, plan: int, uuid: str) -> Path:
    """Path of a base file, with the slot of its PLAN: if that PLAN is not open, the file may be garbage."""
    return Path(f"base/{file_group}/{plan:020d}-{uuid}.parquet")


def shadow_path(file_group: str, plan: int, uuid: str) -> Path:
    return Path(f"shadow/{file_group}/{plan:020d}-{uuid}.parquet")


def overlay_path(file_group: str, plan: int, uuid: str) -> Path:
    return Path(f"overlay/{file_group}/{plan:020d}-{uuid}.parquet")


def fold_path(plan: int, uuid: str) -> Path:
    return Path(f"log/{FOLDS}/{plan:020d}-{uuid}.arrow")


def log_folder(lane: LaneName) -> Path:
    return Path(f"{LANE_LOGS}/{lane}")


def log_index_folder(lane: LaneName) -> Path:
    return Path(f"{LANE_INDEXES}/{lane}")


def pin_path(uuid: str) -> Path:
    return Path(f"{PINS}/{uuid}.json")


def heartbeat_folder(lane: LaneName) -> Path:
    return Path(f"{HEARTBEATS}/{lane}")


def heartbeat_path(lane: LaneName, epoch: int, at_ms: int, uuid: str) -> Path:
    """Path of a heartbeat. All its data is in the name, so a listing is enough to read it."""
    return Path(f"{heartbeat_folder(lane)}/{epoch:010d}-{at_ms:015d}-{uuid}.json")


def service_path(name: str) -> Path:
    """Path of the report of a service.

    Raises:
        InvalidInput: The name does not match the pattern of lanes.
    """
    return Path(f"{SERVICES}/{lane_name(name)}.json")


def checkpoint_folder(lane: LaneName) -> Path:
    return Path(f"{LANE_CHECKPOINTS}/{lane}" if lane else "_weft/checkpoints/table")


def checkpoint_path(lane: LaneName, head: int, uuid: str) -> Path:
    return Path(f"{checkpoint_folder(lane)}/{head:020d}-{uuid}.json")


def parse_slot(file_name: str) -> int | None:
    match = _SLOT.fullmatch(file_name)
    return int(match.group(1)) if match else None


def parse_archive(file_name: str) -> int | None:
    """The chunk of an archive, or None if this is not the name of an archive."""
    match = _ARCHIVE.fullmatch(file_name)
    return int(match.group(1)) if match else None


def parse_by_slot(file_name: str) -> int | None:
    """The table-lane slot in the name of a base, shadow, overlay, fold or sidecar file; None for any other name."""
    match = _BY_SLOT.fullmatch(file_name)
    return int(match.group(1)) if match else None


def parse_plan(path: Path) -> int | None:
    """The slot of the PLAN that a base, shadow, overlay or fold file was written for; None for any other path."""
    return parse_by_slot(path.rpartition("/")[2])


def parse_checkpoint(file_name: str) -> int | None:
    """The head up to which a checkpoint reaches, or None if this is not the name of a checkpoint."""
    return parse_by_slot(file_name)


class Kind(StrEnum):
    """Kinds of objects of a table; they follow from the path of the object."""

    ENTRY = "entry"
    ARCHIVE = "archive"
    LOG = "log"
    LOG_INDEX = "log index"
    FOLD = "fold"
    FOLD_INDEX = "fold index"
    BASE = "base"
    SHADOW = "shadow"
    OVERLAY = "overlay"
    TABLE_INDEX = "table index"
    CHECKPOINT = "checkpoint"
    PIN = "pin"
    HEARTBEAT = "heartbeat"
    PROBE = "probe"
    SERVICE = "service report"


@dataclass(frozen=True, slots=True)
class ParsedPath:
    """A parsed path.

    Attributes:
        kind: Kind of the object.
        lane: The lane of the object; `TABLE_LANE` if it belongs to the whole table.
        epoch: The claim under which a log file, its index or a heartbeat was written; 0 for other objects.
        slot: The slot of an entry; the chunk of an archive; the head of a checkpoint; the slot that a log file or
            sidecar is written for; the PLAN of a base, shadow, overlay or fold file; 0 for other objects.
        at_ms: Time of a heartbeat; 0 for other objects.
    """

    kind: Kind
    lane: LaneName = TABLE_LANE
    epoch: int = 0
    slot: int = 0
    at_ms: int = 0


_OF_LANE: Final = rf"(?:table|lanes/(?P<lane>{_LANE.pattern}))"
_FOR_SLOT: Final = r"(?P<slot>\d{20})-[0-9a-f]{32}"
_FOR_COMMIT: Final = r"(?P<epoch>\d{10})-(?P<slot>\d{20})-\d{5}-[0-9a-f]{32}"
_PATTERNS: Final = {
    Kind.ENTRY: re.compile(rf"{TIMELINE}/{_OF_LANE}/(?P<slot>\d{{20}})\.json"),
    Kind.ARCHIVE: re.compile(rf"{ARCHIVE}/{_OF_LANE}/(?P<slot>\d{{20}})\.entries"),
    Kind.LOG: re.compile(rf"log/(?P<lane>{_LANE.pattern})/{_FOR_COMMIT}\.arrow"),
    Kind.LOG_INDEX: re.compile(rf"_weft/index/(?P<lane>{_LANE.pattern})/{_FOR_COMMIT}\.json"),
    Kind.FOLD: re.compile(rf"{FOLD_FILES}/{_FOR_SLOT}\.arrow"),
    Kind.FOLD_INDEX: re.compile(rf"{FOLD_INDEXES}/{_FOR_SLOT}\.json"),
    Kind.BASE: re.compile(rf"{BASES}/.+/{_FOR_SLOT}\.parquet", re.DOTALL),
    Kind.SHADOW: re.compile(rf"{SHADOWS}/.+/{_FOR_SLOT}\.parquet", re.DOTALL),
    Kind.OVERLAY: re.compile(rf"{OVERLAYS}/.+/{_FOR_SLOT}\.parquet", re.DOTALL),
    Kind.TABLE_INDEX: re.compile(rf"{TABLE_INDEXES}/{_FOR_SLOT}\.json"),
    Kind.CHECKPOINT: re.compile(rf"_weft/checkpoints/{_OF_LANE}/{_FOR_SLOT}\.json"),
    Kind.PIN: re.compile(rf"{PINS}/[0-9a-f]{{32}}\.json"),
    Kind.PROBE: re.compile(rf"{PROBES}/[0-9a-f]{{32}}"),
    Kind.SERVICE: re.compile(rf"{SERVICES}/{_LANE.pattern}\.json"),
    Kind.HEARTBEAT: re.compile(
        rf"{HEARTBEATS}/(?P<lane>{_LANE.pattern})/(?P<epoch>\d{{10}})-(?P<at_ms>\d{{15}})-[0-9a-f]{{32}}\.json"
    ),
}


def parse_path(path: Path) -> ParsedPath | None:
    """Parse a path; None for a path that no function of this module builds."""
    for kind, pattern in _PATTERNS.items():
        match = pattern.fullmatch(path)
        if match is not None:
            parts = match.groupdict()
            numbers = {name: int(parts[name]) for name in ("epoch", "slot", "at_ms") if parts.get(name)}
            return ParsedPath(kind, LaneName(parts.get("lane") or TABLE_LANE), **numbers)
    return None


def encode_partition(column: str, value: str | None) -> str:
    """Name of a partition folder. It is percent-encoded and never parsed, because files hold the values."""
    text = "__null__" if value is None else quote(value, safe="") or "__empty__"
    folder = f"{quote(column, safe='')}={text}"
    if len(folder) <= _MAX_FOLDER:
        return folder
    return f"{folder[:_LONG_FOLDER_KEPT]}~{hashlib.sha256(folder.encode()).hexdigest()}"


def arrival(group_id: int) -> str:
    """Hidden slice column: the arrival of the group's register; non-null exactly when the group is present."""
    return f"{HIDDEN_PREFIX}g{group_id}_arrival"


def floor_arrival(group_id: int) -> str:
    """Hidden slice column: the arrival of the delete floor, NULL without a floor."""
    return f"{HIDDEN_PREFIX}g{group_id}_floor_arrival"


def floor_kind(group_id: int) -> str:
    """Hidden slice column: the kind of the delete floor (`weft.storage.core.model.Op`)."""
    return f"{HIDDEN_PREFIX}g{group_id}_floor_kind"


def floor_ordering(group_id: int, position: int) -> str:
    """Hidden slice column: the delete floor's value of ordering column number ``position``."""
    return f"{HIDDEN_PREFIX}g{group_id}_floor_o{position}"


def versions(group_id: int) -> str:
    """Hidden slice column (`latest_non_null`): versions below the newest that still supply a column."""
    return f"{HIDDEN_PREFIX}g{group_id}_versions"


def suppliers(group_id: int) -> str:
    """Hidden slice column (`latest_non_null`): one byte per value column, see `weft.storage.core.modes.partial`."""
    return f"{HIDDEN_PREFIX}g{group_id}_suppliers"


def column_state(column_id: int, what: str) -> str:
    """Hidden slice column (aggregates): state of one user column besides the value that it shows."""
    return f"{HIDDEN_PREFIX}c{column_id}_{what}"


def top_arrival(group_id: int) -> str:
    """Hidden slice column (custom mergers): arrival of the newest upsert, also if the group is absent."""
    return f"{HIDDEN_PREFIX}g{group_id}_top_arrival"


def top_ordering(group_id: int, position: int) -> str:
    """Hidden slice column (custom mergers): the newest upsert's value of ordering column number ``position``."""
    return f"{HIDDEN_PREFIX}g{group_id}_top_o{position}"


def group_state(group_id: int, name: str) -> str:
    """Hidden slice column (custom mergers): a declared state column."""
    return f"{HIDDEN_PREFIX}g{group_id}_state_{name}"
