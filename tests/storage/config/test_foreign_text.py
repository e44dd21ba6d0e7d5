"""YAML and JSON of others: bounded, and whatever is wrong is one kind of error."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from weft import Table
from weft.storage.config.config_file import read_yaml
from weft.storage.errors import InvalidInput
from weft.storage.foreign_text import MAX_CHARACTERS, MAX_DEPTH, MAX_VALUES, compose_yaml, parse_json, parse_yaml


def bomb(levels: int, width: int = 9) -> str:
    lines = [f"a0: &a0 [{', '.join('x' * width)}]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join(lines)


def merge_bomb(levels: int) -> str:
    lines = ["a0: &a0 {x0: 1}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}], x{n}: 1}}" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (bomb(7), f"more than {MAX_VALUES:,} values"),
        (bomb(60), f"more than {MAX_VALUES:,} values"),
        (merge_bomb(9), f"more than {MAX_VALUES:,} values"),
        ("[" * 20_000, "nested"),
        ("table: " + "[" * 20_000 + "]" * 20_000, "nested"),
        ("{a: " * 20_000, "nested"),
        ("- " * 20_000, "nested"),
        ("? " * 20_000, "nested"),
        ("a: &a [*a]", "an alias stands for a list or mapping that contains it"),
        ("a: &a {b: {<<: *a}}", "an alias stands for a list or mapping that contains it"),
        (" " * (MAX_CHARACTERS + 1), f"more than {MAX_CHARACTERS:,} characters"),
        (f"buckets: {'9' * 5_000}", "this is not a valid int"),
        ("since: 2026-02-30", "this is not a valid timestamp"),
        ("bits: 0b_", "this is not a valid int"),
        ("bits: !!float x", "this is not a valid float"),
        ("map: !!map x", "expected a mapping node"),
    ],
)
def test_yaml_beyond_a_bound_or_without_a_value_is_refused_at_its_line(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=problem) as raised:
        read_yaml(file)
    assert raised.value.hint
    with pytest.raises(InvalidInput, match=problem):
        Table.create(tmp_path / "table", file)
    assert not (tmp_path / "table").exists()


def test_yaml_within_the_bounds_is_read() -> None:
    assert parse_yaml("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    whole = parse_yaml(bomb(5))
    assert whole["a4"][8][8][8][8] == ["x"] * 9 or whole["a4"][8][8][8][8] == "x"
    assert parse_yaml("defaults: &d {every: 1 minute}\nfold: {<<: *d, on: 1}") == {
        "defaults": {"every": "1 minute"},
        "fold": {"every": "1 minute", "on": 1},
    }


FRAGMENTS = [
    *(
        "a",
        "b: ",
        "- ",
        "? ",
        ": ",
        "[",
        "]",
        "{",
        "}",
        ", ",
        "\n",
        "\n  ",
        "\n    ",
        "&a ",
        "*a",
        "&b ",
        "*b",
        "<<: ",
        "on",
        "~",
    ),
    *(
        "!!int ",
        "!!float ",
        "!!bool ",
        "!!null ",
        "!!map ",
        "!!seq ",
        "!!set ",
        "!!omap ",
        "!!pairs ",
        "!!binary ",
        "!x ",
    ),
    *(
        "!!timestamp ",
        "!!python/object:os.system ",
        "!!merge ",
        "!!value ",
        "=",
        "0x_",
        "0b",
        "1:99:99",
        "1e999",
        "2026-13-45",
    ),
    *(
        "2026-01-01T99:00:00Z",
        "'",
        '"',
        "\\x",
        "|\n",
        ">-9\n",
        "%YAML 1.1\n---\n",
        "---\n",
        "...\n",
        "\t",
        "\u0085",
        "\x00",
        "#",
    ),
]


@given(text=st.lists(st.sampled_from(FRAGMENTS), max_size=30).map("".join))
@example(text="!!timestamp x")
@example(text="!!bool x")
@example(text="!!binary \xe9")
@example(text="!!int ''")
def test_yaml_is_a_value_or_one_kind_of_error(text: str) -> None:
    for read in (parse_yaml, compose_yaml):
        with contextlib.suppress(yaml.YAMLError):
            read(text)


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 2_000 + "]" * 2_000, '{"a":' * 2_000 + "1" + "}" * 2_000])
def test_json_that_is_nested_too_deep_is_a_wrong_value(text: str) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)


@given(value=JSON, depth=st.integers(0, 2 * MAX_DEPTH))
def test_json_is_read_as_python_reads_it_up_to_the_bound(value: object, depth: int) -> None:
    assert parse_json(json.dumps(value)) == value
    nested: object = 1
    for _ in range(depth):
        nested = [nested]
    if depth <= MAX_DEPTH:
        assert parse_json(json.dumps(nested)) == nested
    else:
        with pytest.raises(ValueError, match="nested"):
            parse_json(json.dumps(nested))
