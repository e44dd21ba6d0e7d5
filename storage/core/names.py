"""Every name and path of a table: built here, parsed here, nowhere else.

Rules of this room: no user text reaches a path unencoded; a name that matters to the protocol (lane, slot, log file)
can be parsed back exactly; hidden columns are named by id, never by user names. Layout: FORMAT.md, "Files".
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, NewType
from urllib.parse import quote

from storage.errors import InvalidInput

LaneName = NewType("LaneName", str)
StreamName = NewType("StreamName", str)
Path = NewType("Path", str)
"""Relative to the table's root, with forward slashes."""

TIMELINE: Final = "_weft/timeline"
TABLE_LANE: Final = LaneName("")
"""The table lane has no name of its own, so no writer's lane can ever be called like it."""

HIDDEN_PREFIX: Final = "__weft_"
KEY: Final = "__weft_key"
"""Order-preserving binary form of a composite or decimal key (see `storage.core.keys`)."""
OP: Final = "__weft_op"
"""Operation of an event row in a log file: int8, see `storage.core.events`."""
SUPPLIED: Final = "__weft_supplied"
"""Which NULLs of an event row are values (`latest_non_null`): list of column ids, NULL for none."""

PINS: Final = Path("_weft/pins")
HEARTBEATS: Final = Path("_weft/heartbeats")
FOLDS: Final = "_fold"
"""Folder below ``log`` of register-form files; no lane's name starts like it."""

_MAX_FOLDER: Final = 200  # file systems take names of 255 bytes
_LONG_FOLDER_KEPT: Final = 100
_LANE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_SLOT: Final = re.compile(r"(\d{20})\.json")
_LOG_FILE: Final = re.compile(r"(\d{10})-(\d{20})-(\d{5})-([0-9a-f]{32})\.(?:arrow|json)")
_BY_SLOT: Final = re.compile(r"(\d{20})-([0-9a-f]{32})\.(?:arrow|json|parquet)")


def lane_name(text: str) -> LaneName:
    """Check a lane (or stream, which gives its lane its default name).

    Raises:
        InvalidInput: It does not match the pattern.
    """
    if not _LANE.fullmatch(text):
        raise InvalidInput(
            f"{text!r} is not a lane or stream name",
            hint="1 to 64 letters, digits, '_' or '-', starting with a letter or digit",
        )
    return LaneName(text)


def slot_path(lane: LaneName, seq: int) -> Path:
    """Path of entry ``seq`` (1, 2, ...) of a lane; `TABLE_LANE` for the table lane."""
    return Path(f"{lane_folder(lane)}/{seq:020d}.json")


def lane_folder(lane: LaneName) -> Path:
    return Path(f"{TIMELINE}/lanes/{lane}" if lane else f"{TIMELINE}/table")


def log_path(lane: LaneName, epoch: int, seq: int, task: int, uuid: str) -> Path:
    """A log file names the claim and the slot it was written for, so that an orphan is known without a clock."""
    return Path(f"log/{lane}/{epoch:010d}-{seq:020d}-{task:05d}-{uuid}.arrow")


def log_index_path(log_file: Path) -> Path:
    """Sidecar of a log file whose index is too large to stand in its entry; named like it."""
    return Path(f"_weft/index/{log_file.removeprefix('log/').removesuffix('.arrow')}.json")


def table_index_path(seq: int, uuid: str) -> Path:
    """Sidecar of the entry of the table lane that is meant for slot ``seq``."""
    return Path(f"_weft/index/_table/{seq:020d}-{uuid}.json")


def base_path(file_group: str, plan: int, uuid: str) -> Path:
    """A base file names the slot of the PLAN that made it: whether that is still open says whether it is garbage."""
    return Path(f"base/{file_group}/{plan:020d}-{uuid}.parquet")


def shadow_path(file_group: str, plan: int, uuid: str) -> Path:
    return Path(f"shadow/{file_group}/{plan:020d}-{uuid}.parquet")


def fold_path(plan: int, uuid: str) -> Path:
    return Path(f"log/{FOLDS}/{plan:020d}-{uuid}.arrow")


def pin_path(uuid: str) -> Path:
    return Path(f"{PINS}/{uuid}.json")


def checkpoint_folder(lane: LaneName) -> Path:
    return Path(f"_weft/checkpoints/lanes/{lane}" if lane else "_weft/checkpoints/table")


def checkpoint_path(lane: LaneName, head: int, uuid: str) -> Path:
    return Path(f"{checkpoint_folder(lane)}/{head:020d}-{uuid}.json")


def parse_slot(file_name: str) -> int | None:
    match = _SLOT.fullmatch(file_name)
    return int(match.group(1)) if match else None


def parse_log_file(file_name: str) -> tuple[int, int] | None:
    """(epoch, target seq) of the name of a log file or of its sidecar, or None for a name that is not one."""
    match = _LOG_FILE.fullmatch(file_name)
    return (int(match.group(1)), int(match.group(2))) if match else None


def parse_by_slot(file_name: str) -> int | None:
    """The slot of the table lane that a base, shadow, fold or sidecar file names, or None for another name."""
    match = _BY_SLOT.fullmatch(file_name)
    return int(match.group(1)) if match else None


def parse_checkpoint(file_name: str) -> int | None:
    """The head that a checkpoint stands on, or None for a name that is not one."""
    return parse_by_slot(file_name)


def encode_partition(column: str, value: str | None) -> str:
    """One folder of a partitioned file group; percent-encoded, and never parsed back (values stand in the files)."""
    text = "__null__" if value is None else quote(value, safe="") or "__empty__"
    folder = f"{quote(column, safe='')}={text}"
    if len(folder) <= _MAX_FOLDER:
        return folder
    return f"{folder[:_LONG_FOLDER_KEPT]}~{hashlib.sha256(folder.encode()).hexdigest()}"


def arrival(group_id: int) -> str:
    """Hidden slice column: the arrival of the group's register; non-null exactly when the group is present."""
    return f"{HIDDEN_PREFIX}g{group_id}_arrival"


def floor_arrival(group_id: int) -> str:
    """Hidden slice column: the arrival of the largest surviving delete, null where there is none."""
    return f"{HIDDEN_PREFIX}g{group_id}_floor_arrival"


def floor_kind(group_id: int) -> str:
    """Hidden slice column: what kind of delete the floor is (`storage.core.events.Op`)."""
    return f"{HIDDEN_PREFIX}g{group_id}_floor_kind"


def floor_ordering(group_id: int, position: int) -> str:
    """Hidden slice column: the floor's value of the group's ordering column number ``position``."""
    return f"{HIDDEN_PREFIX}g{group_id}_floor_o{position}"


def versions(group_id: int) -> str:
    """Hidden slice column (`latest_non_null`): the versions below the largest that still supply a column."""
    return f"{HIDDEN_PREFIX}g{group_id}_versions"


def suppliers(group_id: int) -> str:
    """Hidden slice column (`latest_non_null`): per value column one byte, see `storage.core.modes.partial`."""
    return f"{HIDDEN_PREFIX}g{group_id}_suppliers"


def column_state(column_id: int, what: str) -> str:
    """Hidden slice column (aggregates): state of one user column apart from the value shown."""
    return f"{HIDDEN_PREFIX}c{column_id}_{what}"


def top_arrival(group_id: int) -> str:
    """Hidden slice column (custom mergers): arrival of the largest upsert, present or not."""
    return f"{HIDDEN_PREFIX}g{group_id}_top_arrival"


def top_ordering(group_id: int, position: int) -> str:
    """Hidden slice column (custom mergers): that upsert's value of ordering column number ``position``."""
    return f"{HIDDEN_PREFIX}g{group_id}_top_o{position}"


def group_state(group_id: int, name: str) -> str:
    """Hidden slice column (custom mergers): a state column that the configuration declares."""
    return f"{HIDDEN_PREFIX}g{group_id}_state_{name}"
