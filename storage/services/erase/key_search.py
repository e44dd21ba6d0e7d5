"""Finds keys in the stored objects of a table: in rows of files, and in the key ranges of indexes.

A search reads everything that is stored, also what readers do not see: rows of shared files that no slice refers to,
log files of commits that are in slices already, entries in archives. Files are immutable, so results are cached.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from weft.storage.core import keys
from weft.storage.core.keys import KeyVector
from weft.storage.core.log.archive_codec import Chunks, decode_archive
from weft.storage.core.log.checkpoint_codec import state_json
from weft.storage.core.log.cut import Seqs
from weft.storage.core.log.file_refs import FileRef, LogFile, LogIndex
from weft.storage.core.log.redaction import has_key_bound
from weft.storage.core.log.table_state import TableState
from weft.storage.core.merge.locate_keys import key_columns, sort_keys
from weft.storage.core.names import Kind, ParsedPath, Path
from weft.storage.core.schema.evolution import widens
from weft.storage.core.schema.table_schema import TableSchema
from weft.storage.core.types import decode_scalar, encode_scalar
from weft.storage.environment import Environment
from weft.storage.errors import CorruptData, InvalidInput
from weft.storage.files.footers import Footer, read_footers
from weft.storage.files.log_file import open_columns
from weft.storage.files.row_group_statistics import key_span
from weft.storage.log import live_files
from weft.storage.log.table_log import TableLog
from weft.storage.read.plan.divide_file_group import FOOTERS_AT_ONCE
from weft.storage.read.plan.pruning import KeyRows, key_table
from weft.storage.services.steps.progress import OnStage, Stage, unobserved
from weft.storage.store.object_store import missing, normalise_errors

_BOUND: Final = b'"key_min"'
_DATA_FILE: Final = ParsedPath(Kind.LOG)


@dataclass(frozen=True, slots=True)
class KeySearch:
    """The keys to erase, and where they are stored.

    Attributes:
        env: Environment of the table.
        schema: The newest schema.
        vector: The keys as values of the sort column, ascending and distinct.
        forms: The keys in JSON form, as in key ranges.
        progress: Called with the number of files that were searched.
    """

    env: Environment
    schema: TableSchema
    vector: KeyVector
    forms: frozenset[Any]
    progress: OnStage = field(default=unobserved, repr=False, compare=False)
    _results: dict[Path, bool] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, env: Environment, schema: TableSchema, key_rows: KeyRows, progress: OnStage = unobserved) -> KeySearch:
        """Create a search.

        Args:
            env: Environment of the table.
            schema: The newest schema.
            key_rows: The keys to search for, see `weft.storage.read.plan.pruning.KeyRows`.
            progress: Called with the number of files that were searched.

        Raises:
            InvalidInput: There are no keys, or a key has another type or number of columns, or contains null.
        """
        column = keys.one_array(sort_keys(schema, key_columns(schema, key_table(schema, key_rows))))
        if len(column) == 0:
            raise InvalidInput("there are no keys to erase", hint="give at least one key")
        forms = frozenset(encode_scalar(value) for value in column.to_pylist())
        return cls(env, schema, keys.union([keys.key_vector(column)]), forms, progress)

    def __len__(self) -> int:
        return len(self.vector)

    def without_results(self) -> KeySearch:
        """A search for the same keys, without cached results."""
        return KeySearch(self.env, self.schema, self.vector, self.forms)

    def in_snapshot(self, table_log: TableLog, state: TableState, lanes: Seqs) -> bool:
        """Whether a snapshot needs data files with these keys: of slices, folds, or commits that are not covered.

        Raises:
            CorruptData: A file is missing or damaged.
        """
        # Search both, because a missing file shows that the snapshot cannot be read.
        return bool([*self.in_slices(state), *self.in_logs(table_log, state, lanes)])

    def in_slices(self, state: TableState) -> list[Path]:
        """Files of a state's slices with these keys, in rows of any file group. Reads statistics, then rows.

        Raises:
            CorruptData: A file is missing or damaged.
        """
        files = {file.path: file for slice_file in state.slices.values() for file in slice_file.objects}
        unread = [file for file in files.values() if file.path not in self._results]
        for start in range(0, len(unread), FOOTERS_AT_ONCE):
            batch = unread[start : start + FOOTERS_AT_ONCE]
            for file, footer in zip(batch, read_footers(self.env, batch), strict=True):
                self._results[file.path] = self._in_slice_file(file, footer)
        return [path for path in files if self._results[path]]

    def in_logs(self, table_log: TableLog, state: TableState, lanes: Seqs) -> list[Path]:
        """Fold files, and log files of commits after `TableState.covered`, with these keys. Reads indexes, then rows.

        Raises:
            CorruptData: A file is missing or damaged.
        """
        folds = [file for fold in state.folds for file in fold.files]
        indexed_files = [*zip(folds, table_log.commit_log.sidecars.indexes(folds), strict=True)]
        committed_files = live_files.committed_files(table_log, state, state.covered, lanes)
        indexed_files += [(live_file.file, live_file.index) for live_file in committed_files]
        return [file.file.path for file, index in indexed_files if self._in_log_file(file, index)]

    def _in_slice_file(self, file: FileRef, footer: Footer) -> bool:
        spans = (key_span(footer, self.schema, number) for number in range(footer.metadata.num_row_groups))
        row_groups = [number for number, span in enumerate(spans) if span is None or self._any_between(*span)]
        with _decoding(file.path):
            return bool(row_groups) and self._in_parquet(file.path, file.size, row_groups)

    def _in_log_file(self, file: LogFile, index: LogIndex) -> bool:
        path, size = file.file.path, file.file.size
        return self._search_once(path, lambda: self._in_blocks(index) and self.in_object(_DATA_FILE, path, size))

    def _in_blocks(self, index: LogIndex) -> bool:
        blocks = zip(index.blocks.key_min, index.blocks.key_max, strict=True)
        return any(self._any_between(*(decode_scalar(bound, self._sort_type) for bound in block)) for block in blocks)

    @property
    def _sort_type(self) -> pa.DataType:
        # The largest integer type, because the key column may have been widened since.
        kind = self.schema.slice.field(self.schema.sort_column).type
        return pa.int64() if pa.types.is_integer(kind) else kind

    def _any_between(self, smallest: Any, largest: Any) -> bool:
        return keys.any_within(self.vector, keys.key_vector(pa.array([smallest, largest], self._sort_type)))

    def in_object(self, parsed: ParsedPath, path: Path, size: int) -> bool:
        """Whether a stored object has one of the keys. Reads every part of it that may have keys.

        Args:
            parsed: The parts of its path. The kind decides how the object is read.
            path: Its path.
            size: Its size in bytes.

        Raises:
            CorruptData: It is missing or damaged, so its keys are unknown.
            StoreUnavailable: The store does not answer.
        """
        with _decoding(path):
            match parsed.kind:
                case Kind.BASE | Kind.SHADOW | Kind.OVERLAY:
                    return self._search_once(path, lambda: self._in_parquet(path, size))
                case Kind.LOG | Kind.FOLD:
                    return self._search_once(path, lambda: self._in_arrow(path, size))
            with normalise_errors(path):
                data = self.env.store.get(path)
            if data is None:
                raise missing(path)
            if parsed.kind is Kind.ARCHIVE:
                return any(map(self.in_json, self.contents(parsed, data)))
            return self.in_json(data)

    def contents(self, parsed: ParsedPath, data: bytes) -> list[bytes]:
        """The entries in an archive, in the order of slots."""
        chunks = Chunks(self.env.tuning.archive_chunk)
        return decode_archive(data, parsed.lane, parsed.slot, chunks).contents()

    def in_json(self, data: bytes) -> bool:
        """Whether an index in an entry, sidecar or checkpoint has a block that begins or ends with one of the keys."""
        if _BOUND not in data:
            return False
        # In a checkpoint of the table lane, packed slices without key bounds come before the JSON object. In other
        # objects a line comes before it.
        text = state_json(data) or data[data.index(b"{") :]
        return has_key_bound(json.loads(text), self.forms)

    def _search_once(self, path: Path, search_object: Callable[[], bool]) -> bool:
        if path not in self._results:
            self._results[path] = search_object()
            self.progress(Stage("looking for the keys", len(self._results), None, "objects"))
        return self._results[path]

    def _in_parquet(self, path: Path, size: int, row_groups: Iterable[int] | None = None) -> bool:
        with self.env.store.open_input(path, size) as source, pq.ParquetFile(source) as parquet:
            numbers = range(parquet.num_row_groups) if row_groups is None else row_groups
            parts = (parquet.read_row_group(i, columns=list(self.schema.key), use_threads=False) for i in numbers)
            return any(self._in_rows(part) for part in parts)

    def _in_arrow(self, path: Path, size: int) -> bool:
        with self.env.store.open_input(path, size) as source:
            reader = open_columns(source, self.schema.key)
            return any(self._in_rows(reader.get_batch(number)) for number in range(reader.num_record_batches))

    def _in_rows(self, rows: pa.Table | pa.RecordBatch) -> bool:
        columns = {name: self._cast_key_column(name, keys.one_array(rows.column(name))) for name in self.schema.key}
        return bool(keys.find(self.vector, keys.key_vector(sort_keys(self.schema, columns)))[1].any())

    def _cast_key_column(self, name: str, column: pa.Array) -> pa.Array:
        """A key column of a file, widened to the schema's type. A file newer than the schema may have a wider type."""
        kind = self.schema.column_by_name[name].type
        return column if widens(kind, column.type) else column.cast(kind)


@contextmanager
def _decoding(path: Path) -> Iterator[None]:
    """Turn errors of the block into `CorruptData`: the object does not decode."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise CorruptData(f"{path} does not decode: {error}", hint="restore it from a copy of the store") from error
