"""The log of a published Delta table: its entries and checkpoints, and the state of the table.

An entry is put only if it is absent, so that of two publications of the same version one fails. Source: Delta
transaction log protocol, "Delta Log Entries", "Checkpoints", "Actions".
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from weft.storage.core.names import DELTA_LOG, Path
from weft.storage.core.types import parse_type
from weft.storage.errors import CommitUnknown, CorruptData, StoreUnavailable
from weft.storage.foreign_text import parse_json
from weft.storage.store.object_store import ObjectStore, normalise_errors

CHECKPOINT_EVERY: Final = 10
_READS: Final = 3
DOMAIN: Final = "weft.publication"

_ENTRY: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.parquet")
_CHECKPOINT_TYPE: Final = """struct<
    protocol: struct<minReaderVersion:int, minWriterVersion:int, readerFeatures:array<string>,
        writerFeatures:array<string>>,
    metaData: struct<id:string, description:string, format:struct<provider:string, options:map<string,string>>,
        schemaString:string, partitionColumns:array<string>, configuration:map<string,string>, createdTime:bigint>,
    add: struct<path:string, partitionValues:map<string,string>, size:bigint, modificationTime:bigint,
        dataChange:boolean, stats:string, deletionVector:struct<storageType:string, pathOrInlineDv:string, offset:int,
        sizeInBytes:int, cardinality:bigint>>,
    domainMetadata: struct<domain:string, configuration:string, removed:boolean>>"""
_CHECKPOINT_SCHEMA: Final = pa.schema(list(parse_type(_CHECKPOINT_TYPE)))


@dataclass(slots=True)
class DeltaState:
    """The state of a Delta table: its newest actions, as JSON values.

    Attributes:
        version: The newest version; -1 if there is no table.
        protocol: Action ``protocol``.
        metadata: Action ``metaData``.
        files: Actions ``add`` by path.
        publication: Properties of the newest publication, the domain `DOMAIN`.
        checkpoints: Versions of the checkpoints, ascending.
        entries: Versions of the entries in the log, ascending.
    """

    version: int = -1
    protocol: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    files: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    publication: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: Sequence[int] = ()
    entries: Sequence[int] = ()

    def apply(self, actions: Iterable[Mapping[str, Any]]) -> None:
        """Apply the actions of one version."""
        actions = list(actions)
        for action in actions:
            if remove_action := action.get("remove"):
                self.files.pop(remove_action["path"], None)
        for action in actions:
            if add_action := action.get("add"):
                self.files[add_action["path"]] = add_action
            self.protocol = action.get("protocol") or self.protocol
            self.metadata = action.get("metaData") or self.metadata
            domain = action.get("domainMetadata")
            if domain and domain["domain"] == DOMAIN:
                self.publication = parse_json(domain["configuration"])

    @property
    def actions(self) -> list[Mapping[str, Any]]:
        """The actions of a checkpoint of this state."""
        domain = {"domain": DOMAIN, "configuration": json.dumps(self.publication), "removed": False}
        other_actions: list[Mapping[str, Any]] = [
            {"protocol": self.protocol},
            {"metaData": self.metadata},
            {"domainMetadata": domain},
        ]
        return [*other_actions, *({"add": add_action} for add_action in self.files.values())]


def read_log(store: ObjectStore) -> DeltaState:
    """Read the newest state of the Delta table in the folder of base files. The version is -1 if there is none.

    Raises:
        CorruptData: An object is missing or damaged.
        StoreUnavailable: The store does not answer.
    """
    missing_path = ""
    for _ in range(_READS):
        try:
            return _read_listed(store)
        except _MissingObject as error:  # another publication has written a checkpoint, and deleted what is older
            missing_path = str(error)
    raise _damaged_log(f"{missing_path} is missing")


def _read_listed(store: ObjectStore) -> DeltaState:
    names = [name for name, _ in store.list(DELTA_LOG)]
    entries, checkpoints = (sorted(number for name in names for number in _versions(name, kind)) for kind in _KINDS)
    state = DeltaState(checkpoints=checkpoints, entries=entries)
    if checkpoints:
        state.version = checkpoints[-1]
        state.apply(_read_checkpoint(store, state.version))
    later_versions = [number for number in entries if number > state.version]
    if later_versions and later_versions[0] != state.version + 1:
        raise _MissingObject(entry_path(state.version + 1))
    paths = [entry_path(number) for number in later_versions]
    with normalise_errors(DELTA_LOG):
        contents = store.get_many(paths)
    for number, path, data in zip(later_versions, paths, contents, strict=True):
        if data is None or number != state.version + 1:
            raise _MissingObject(path if data is None else entry_path(state.version + 1))
        try:
            state.apply(parse_json(line) for line in data.splitlines() if line.strip())
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _damaged_log(f"{path} does not decode: {error}") from error
        state.version = number
    return state


def put_entry(store: ObjectStore, version: int, actions: Sequence[Mapping[str, Any]]) -> bool:
    """Publish a version. Returns False if it already exists. The content of each entry must be unique.

    Raises:
        InvalidInput: The entry is too large.
        StoreUnavailable: The store does not answer, and has not published the version.
        CommitUnknown: It is unknown whether the version is published.
    """
    path = entry_path(version)
    data = "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions).encode()
    try:
        # A client that repeats a request after a lost answer finds its own object.
        return store.put_if_absent(path, data) or store.get(path) == data
    except OSError as error:
        try:
            content = store.get(path)
        except (OSError, StoreUnavailable):
            content = None
        if content is None:
            raise CommitUnknown(
                f"the store did not say whether {path} was written: {error}",
                hint="publish again: what is published already is not published twice",
            ) from error
        return content == data


def put_checkpoint(store: ObjectStore, state: DeltaState) -> None:
    """Write a state as a checkpoint. Every process writes the same actions for the same version."""
    columns = [
        pa.array([action.get(name) for action in state.actions], kind.type)
        for name, kind in zip(_CHECKPOINT_SCHEMA.names, _CHECKPOINT_SCHEMA, strict=True)
    ]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(columns, schema=_CHECKPOINT_SCHEMA), sink, compression="snappy")
    store.put(checkpoint_path(state.version), sink.getvalue())


def delete_old(store: ObjectStore, state: DeltaState) -> None:
    """Delete objects older than the second newest checkpoint, which readers that began earlier may still read."""
    if len(state.checkpoints) > 1:
        first = state.checkpoints[-2]
        old_checkpoints = [checkpoint_path(number) for number in state.checkpoints if number < first]
        store.delete_many([*(entry_path(number) for number in state.entries if number < first), *old_checkpoints])


def entry_path(version: int) -> Path:
    """Path of an entry, in the table's folder."""
    return Path(f"{DELTA_LOG}/{version:020d}.json")


def checkpoint_path(version: int) -> Path:
    """Path of a checkpoint, in the table's folder."""
    return Path(f"{DELTA_LOG}/{version:020d}.checkpoint.parquet")


_KINDS: Final = (_ENTRY, _CHECKPOINT)


def _versions(name: str, kind: re.Pattern[str]) -> list[int]:
    match = kind.fullmatch(name)
    return [] if match is None else [int(match.group(1))]


def _read_checkpoint(store: ObjectStore, version: int) -> list[dict[str, Any]]:
    path = checkpoint_path(version)
    with normalise_errors(path):
        data = store.get(path)
    if data is None:
        raise _MissingObject(path)
    try:
        rows = pq.read_table(io.BytesIO(data)).cast(_CHECKPOINT_SCHEMA).to_pylist(maps_as_pydicts="strict")
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise _damaged_log(f"{path} does not decode: {error}") from error
    return [{name: _without_nulls(value) for name, value in row.items() if value is not None} for row in rows]


def _without_nulls(value: Any) -> Any:
    """Remove members that are None, as in JSON entries."""
    if isinstance(value, dict):
        return {name: _without_nulls(member) for name, member in value.items() if member is not None}
    return value


class _MissingObject(Exception):
    """An object of the log is missing that was listed, or that other objects need."""


def _damaged_log(problem: str) -> CorruptData:
    return CorruptData(
        f"the Delta log in {DELTA_LOG}: {problem}",
        hint="delete this folder, which has no data, and publish again",
    )
