"""Parses the options of a table: a ``CREATE TABLE`` statement of Paimon, Hudi or Doris, or properties.

Properties are lines ``name = value`` (or ``name: value``); ``#`` starts a comment line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Final, Literal

from weft.storage.errors import InvalidInput
from weft.storage.imports.translation import Declaration, split_names

Dialect = Literal["paimon", "hudi", "doris"]

_TOKEN: Final = re.compile(
    r"""\s+|--[^\n]*|/\*.*?\*/|(?P<quoted>`[^`]*`|'(?:[^']|'')*'|"[^"]*")|(?P<word>[A-Za-z_0-9.$-]+)|(?P<mark>.)""",
    re.DOTALL,
)
_PROPERTY: Final = re.compile(r"\s*([^\s=:#!][^\s=:]*)\s*[=:]\s*(.*?)\s*")
_LISTS: Final = ("WITH", "TBLPROPERTIES", "PROPERTIES", "OPTIONS")
_TYPES: Final = {
    "BOOL": "boolean",
    "INTEGER": "int",
    "LARGEINT": "decimal(38,0)",
    "VARCHAR": "string",
    "CHAR": "string",
    "TEXT": "string",
    "JSON": "string",
    "JSONB": "string",
    "VARIANT": "string",
    "IPV4": "string",
    "IPV6": "string",
    "BYTES": "binary",
    "VARBINARY": "binary",
    "DATEV2": "date",
    "DATETIME": "timestamp_ntz",
    "DATETIMEV2": "timestamp_ntz",
    "DECIMALV3": "decimal",
    "DECIMALV2": "decimal",
    "TIMESTAMP_LTZ": "timestamp",
    "LONG": "bigint",
}
"""Spark SQL types for type names that Spark SQL lacks, or to which it gives another meaning."""
_NO_COMMENT: Final = "OLAP"  # Doris prints the name of its engine for a table without a comment
_WITHOUT_LENGTH: Final = ("tinyint", "smallint", "int", "bigint", "string", "binary", "timestamp", "timestamp_ntz")


@dataclass(frozen=True, slots=True)
class TableText:
    """The declaration of a table in a text, and its dialect.

    Attributes:
        dialect: The system whose options these are.
        declaration: The table. A file of properties declares no columns.
    """

    dialect: Dialect
    declaration: Declaration


def read_table_text(text: str) -> TableText:
    """Parse a ``CREATE TABLE`` statement, or properties.

    Raises:
        InvalidInput: The text is neither of them, or is incomplete.
    """
    create_match = re.search(r"\bCREATE\s+(?:EXTERNAL\s+)?TABLE\b", text, re.IGNORECASE)
    table = _statement(text[create_match.start() :]) if create_match else _properties(text)
    return TableText(_dialect(text, table), table)


def _properties(text: str) -> Declaration:
    options = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip()[0] in "#!":
            continue
        property_match = _PROPERTY.fullmatch(line)
        if property_match is None:
            raise InvalidInput(
                f"line {number} is neither NAME = VALUE nor a part of CREATE TABLE: {line.strip()[:60]!r}",
                hint="give a file of properties, or a CREATE TABLE statement",
            )
        options[property_match[1]] = property_match[2].strip("'\"")
    return Declaration(
        {}, split_names(options.get("primary-key", "")), split_names(options.get("partition", "")), options
    )


def _dialect(text: str, declaration: Declaration) -> Dialect:
    options = declaration.options
    using = re.search(r"\bUSING\s+(\w+)", text, re.IGNORECASE)
    if any(name.startswith("hoodie.") for name in options) or (using and using[1].lower() == "hudi"):
        return "hudi"
    if declaration.key_model or any(name.startswith(("sequence_mapping.", "function_column.")) for name in options):
        return "doris"
    return "paimon"


def _tokens(text: str) -> Iterator[str]:
    for token_match in _TOKEN.finditer(text):
        if token_match["quoted"] or token_match["word"] or token_match["mark"]:
            yield token_match[0]


@dataclass(slots=True)
class _Statement:
    """The part of a statement that was parsed so far. Fields are those of `Declaration`."""

    columns: dict[str, str] = field(default_factory=dict)
    aggregates: dict[str, str] = field(default_factory=dict)
    key: list[str] = field(default_factory=list)
    partition_by: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    key_model: str = ""
    buckets: str = ""
    comments: dict[str, str] = field(default_factory=dict)
    comment: str = ""


def _statement(text: str) -> Declaration:
    tokens = list(_tokens(text))
    try:
        opening = tokens.index("(")
    except ValueError:
        raise InvalidInput("CREATE TABLE without columns", hint="give the whole statement") from None
    inner, end = _inside(tokens, opening)
    statement = _Statement()
    for part in _parts(inner):
        _column(part, statement)
    _clauses(tokens[end:], statement)
    if "primary-key" in statement.options and not statement.key:
        statement.key = split_names(statement.options["primary-key"])
    return Declaration(**asdict(statement))


def _inside(tokens: Sequence[str], opening: int) -> tuple[list[str], int]:
    """The tokens inside a pair of parentheses, and the position after the closing one."""
    depth = 0
    for position in range(opening, len(tokens)):
        depth += {"(": 1, ")": -1}.get(tokens[position], 0)
        if depth == 0:
            return list(tokens[opening + 1 : position]), position + 1
    raise InvalidInput("CREATE TABLE: a parenthesis is not closed", hint="give the whole statement")


def _parts(tokens: Sequence[str]) -> Iterator[list[str]]:
    """Split tokens at commas outside of parentheses and angle brackets."""
    part: list[str] = []
    depth = 0
    for word in tokens:
        depth += {"(": 1, "<": 1, ")": -1, ">": -1}.get(word, 0)
        if word == "," and depth == 0:
            yield part
            part = []
        else:
            part.append(word)
    if part:
        yield part


def _plain(token: str) -> str:
    return token[1:-1].replace("''", "'") if token[:1] in "`'\"" and len(token) > 1 else token


def _names_in(tokens: Sequence[str]) -> list[str]:
    return [_plain(part[0]) for part in _parts(tokens) if part]


def _column(part: Sequence[str], statement: _Statement) -> None:
    words = [token.upper() for token in part]
    if words[:2] == ["PRIMARY", "KEY"] or (words[:1] == ["CONSTRAINT"] and "PRIMARY" in words):
        statement.key = _names_in(_inside(part, part.index("("))[0])
        return
    if words[:1] in (["INDEX"], ["WATERMARK"], ["KEY"]):
        return
    if len(part) < 2:
        raise InvalidInput(f"CREATE TABLE: column {' '.join(part)!r} has no type", hint="give the whole statement")
    name = _plain(part[0])
    statement.columns[name], end = _type(part, 1)
    rest_words = words[end:]
    if "PRIMARY" in rest_words:
        statement.key = [name]
    if comment := _comment(part[end:]):
        statement.comments[name] = comment
    for word in ("SUM", "MIN", "MAX", "REPLACE", "REPLACE_IF_NOT_NULL", "HLL_UNION", "BITMAP_UNION", "QUANTILE_UNION"):
        if rest_words[:1] == [word]:
            statement.aggregates[name] = word


def _comment(tokens: Sequence[str]) -> str:
    """The text after COMMENT; empty if there is none."""
    for word, text in pairwise(tokens):
        if word.upper() == "COMMENT" and text[:1] in "'\"":
            return _plain(text)
    return ""


def _type(part: Sequence[str], start: int) -> tuple[str, int]:
    """The Spark SQL name of a type, and the position after it."""
    word = part[start].upper()
    end = start + 1
    name = _TYPES.get(word, word.lower())
    if part[end : end + 1] == ["<"]:
        return _nested_type(name, part, end)
    if part[end : end + 1] == ["("]:
        inner, end = _inside(part, end)
        if name not in _WITHOUT_LENGTH and "(" not in name:
            name = f"{name}({','.join(number for number in inner if number != ',')})"
    words = [token.upper() for token in part[end : end + 4]]
    if words[:4] == ["WITH", "LOCAL", "TIME", "ZONE"]:
        return "timestamp", end + 4
    if word == "TIMESTAMP" and words[:3] == ["WITHOUT", "TIME", "ZONE"]:
        return "timestamp_ntz", end + 3
    return name, end


def _nested_type(name: str, part: Sequence[str], opening: int) -> tuple[str, int]:
    depth = 0
    for end in range(opening, len(part)):
        depth += {"<": 1, ">": -1}.get(part[end], 0)
        if depth == 0:
            break
    inner = list(_parts(part[opening + 1 : end]))
    if name in {"struct", "row"}:
        fields = [(_plain(item[0]), item[2:] if item[1:2] == [":"] else item[1:]) for item in inner]
        return f"struct<{','.join(f'`{field}`:{_type(kind, 0)[0]}' for field, kind in fields)}>", end + 1
    return f"{name}<{','.join(_type(item, 0)[0] for item in inner)}>", end + 1


def _clauses(tokens: Sequence[str], statement: _Statement) -> None:
    """Parse the clauses after the columns."""
    comment = _comment(tokens)
    statement.comment = "" if comment == _NO_COMMENT else comment
    words = [token.upper() for token in tokens]
    for position, word in enumerate(words):
        following = words[position + 1 : position + 2]
        if word in {"UNIQUE", "AGGREGATE", "DUPLICATE"} and following == ["KEY"]:
            statement.key_model = word
            statement.key = _names_in(_inside(tokens, position + 2)[0])
        elif word in {"PARTITION", "PARTITIONED"} and "BY" in words[position : position + 3]:
            opening = words.index("(", position)
            statement.partition_by = _names_in(_inside(tokens, opening)[0])
        elif word == "BUCKETS" and following:
            statement.buckets = following[0]
        elif word in _LISTS and following == ["("]:
            statement.options |= _options(_inside(tokens, position + 1)[0])


def _options(tokens: Sequence[str]) -> dict[str, str]:
    options = {}
    for part in _parts(tokens):
        if "=" not in part:
            raise InvalidInput(f"{' '.join(part)!r} is not NAME = VALUE", hint="give the whole statement")
        equals = part.index("=")
        options["".join(map(_plain, part[:equals]))] = "".join(map(_plain, part[equals + 1 :]))
    return options
