"""No stored table, message or other data of the repository has a path of the machine that it was made on."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.test_repo import FILES, ROOT, breaking

TEXTS = {".py", ".md", ".sh", ".toml", ".yaml"}
"""Checked by `tests.test_repo`, where every place of a machine is refused, also as an example."""
DATA = [path for path in FILES if path.suffix not in TEXTS]
HOMES = re.compile(rb"/(?:home|Users)/\w|/ro[o]t/|[A-Z]:\\\\?Users")
HERE = [str(place).encode() for place in {ROOT, Path.home(), Path.home().resolve()} if len(place.parts) > 1]


def content(path: Path) -> bytes:
    """The bytes of a file; of one that is compressed also what is in it, with its metadata."""
    data = path.read_bytes()
    match path.suffix:
        case ".parquet":
            table, stored = pq.read_table(path), pq.read_metadata(path).metadata or {}
            return b"\n".join([data, _rows(table), base64.b64decode(stored.get(b"ARROW:schema", b""))])
        case ".arrow":
            return data + _rows(pa.ipc.open_file(pa.BufferReader(data)).read_all())
        case ".entries":
            _, head, body = data.split(b"\n", 2)
            return data + pa.decompress(body, sum(json.loads(head)["sizes"]), codec="zstd", asbytes=True)
    return data


def _rows(table: pa.Table) -> bytes:
    return f"{table.schema.metadata} {table.to_pylist()}".encode()


def places(found: bytes) -> list[bytes]:
    return [match.group() for match in HOMES.finditer(found)] + [place for place in HERE if place in found]


def test_no_data_has_a_path_of_a_machine() -> None:
    assert breaking(DATA, lambda path: places(content(ROOT / path))) == {}


def test_every_kind_of_fixture_is_read(tmp_path: Path) -> None:
    """The check finds what no file shows as it is."""
    assert {".parquet", ".arrow", ".entries", ".json"} <= {path.suffix for path in DATA}
    place = f"{Path('/', 'home', 'someone')}/checkout"
    table = pa.table({"a": [place] * 10})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd")
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema, options=options) as file:
        file.write_table(table)
    entry = json.dumps({"owner": place}).encode()
    packed = pa.compress(entry, codec="zstd", asbytes=True)
    (tmp_path / "a.entries").write_bytes(b"sum\n" + json.dumps({"sizes": [len(entry)]}).encode() + b"\n" + packed)
    (tmp_path / "a.json").write_bytes(entry)
    assert {path.suffix for path in tmp_path.iterdir() if places(content(path))} == {
        ".parquet",
        ".arrow",
        ".entries",
        ".json",
    }
