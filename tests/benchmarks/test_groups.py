"""The benchmark of growth checks its arguments before it measures anything."""

from __future__ import annotations

import pytest

from tests.benchmarks.groups import parsed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lanes"], "argument --lanes: expected at least one argument"),
        (["--groups"], "argument --groups: expected at least one argument"),
        (["--groups", "many"], "argument --groups: 'many' is not a number from 1 on"),
        (["--lanes", "0", "8"], "argument --lanes: '0' is not a number from 1 on"),
        (["--groups", "2000", "500"], r"argument --groups: [2000, 500] does not ascend"),
        (["--lanes", "8", "8"], r"argument --lanes: [8, 8] does not ascend"),
        (["--groups", "500", "--lanes", "8"], "nothing to compare"),
    ],
)
def test_wrong_arguments_are_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_of:
        parsed(words)
    assert exit_of.value.code == 2
    assert message in capsys.readouterr().err


def test_a_single_size_is_not_a_series() -> None:
    assert parsed(["--lanes", "8"]).groups == [500, 2000, 8000]
    assert parsed(["--groups", "500", "2000", "--lanes", "8"]).lanes == [8]
