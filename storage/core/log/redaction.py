"""Redaction: removes key values from entries that nothing needs any more (PROTOCOL.md, "Erase", X4).

The only key values in entries are in the indexes of log files: the smallest and largest key of each block. Only readers
of the log files read them. So once no snapshot needs the log files of an entry, its indexes are replaced by references
to sidecars that do not exist, as if they had been large and cleaning had deleted them with the log files. A reader of
an expired snapshot then notices that something is missing. (An empty index would say that the commit has no rows.)
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any, Final

from weft.storage.core.log.entries import Data, Entry, Fold
from weft.storage.core.log.entry_codec import Unresolved, decode_entry, encode_entry
from weft.storage.core.log.file_refs import LogFile, Sidecar
from weft.storage.core.names import LaneName, Path, log_index_path

NO_DIGEST: Final = "0" * 64
"""Digest of the sidecars that redacted entries name: no object has it."""


def redacted(data: bytes, lane: LaneName, seq: int) -> bytes:
    """The bytes of an entry without the indexes in it. Entries without indexes are returned unchanged.

    The result does not depend on the keys that are erased, so all erasers write the same bytes. Indexes in sidecars are
    objects of their own, which cleaning deletes with their log files.

    Raises:
        CorruptData: The bytes are damaged, or belong to another slot.
        UnsupportedFormat: A newer version wrote them.
    """
    entry = decode_entry(data, lane, seq)
    sidecar = entry.sidecar if isinstance(entry, Unresolved) else None
    outline = entry.outline if isinstance(entry, Unresolved) else entry
    if not isinstance(outline, Data | Fold):
        return data
    return encode_entry(outline.model_copy(update={"files": [redacted_file(file) for file in outline.files]}), sidecar)


def is_fold_of(entry: Entry | Unresolved, files: AbstractSet[Path]) -> bool:
    """Whether an entry is a FOLD that names one of these files. The index of such an entry is needed with its file."""
    outline = entry.outline if isinstance(entry, Unresolved) else entry
    return isinstance(outline, Fold) and not files.isdisjoint(file.file.path for file in outline.files)


def redacted_file(file: LogFile) -> LogFile:
    """A file of an entry without an index in the entry."""
    if isinstance(file.index, Sidecar):
        return file
    removed_index = Sidecar(path=log_index_path(file.file.path), size=0, sha256=NO_DIGEST)
    return file.model_copy(update={"index": removed_index})


def has_key_bound(value: Any, forms: frozenset[Any]) -> bool:
    """Whether an index anywhere in a JSON value has a block that begins or ends with one of these keys.

    Args:
        value: A decoded JSON value: an entry, a checkpoint, a sidecar.
        forms: The keys, as `weft.storage.core.types.encode_scalar` encodes values of the sort column.
    """
    if isinstance(value, list):
        return any(has_key_bound(item, forms) for item in value if isinstance(item, dict | list))
    if not isinstance(value, dict):
        return False
    bounds = (value.get(name) for name in ("key_min", "key_max"))
    if any(item in forms for bound in bounds if isinstance(bound, list) for item in bound if not _is_nested(item)):
        return True
    return any(has_key_bound(item, forms) for item in value.values() if isinstance(item, dict | list))


def _is_nested(item: Any) -> bool:
    return isinstance(item, dict | list)
