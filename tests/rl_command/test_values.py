"""Words of the command line become data of the declared type, and the other way round."""

from collections.abc import Mapping, Sequence
from typing import Literal

import pytest

from rl_command.errors import UsageError
from rl_command.values import is_switch, metavar, read_value, takes_list, write_value
from rl_core.config import Schedule
from rl_core.types import Json


@pytest.mark.parametrize(
    ("type_", "word", "expected"),
    [
        (int, "12", 12),
        (int, "1e6", 1_000_000),
        (int, "1_000", 1000),
        (int, "-3", -3),
        (float, "3e-4", 3e-4),
        (float, ".5", 0.5),
        (str, "./a.5", "./a.5"),
        (float, "1", 1),
        (float | Schedule, "3e-4", 3e-4),
        (float | Schedule, "linear(3e-4, 0)", "linear(3e-4, 0)"),
        (float | Schedule | None, "none", "none"),
        (bool, "true", True),
        (bool, "False", False),
        (str, "12", "12"),
        (str, "true", "true"),
        (str, "a=b", "a=b"),
        (int | None, "none", "none"),
        (int | str, "3", 3),
        (Literal["minibatch", "none"], "none", "none"),
        (tuple[int, ...], "64", [64]),
        (tuple[int, ...], "64,32", [64, 32]),
        (tuple[int, ...], "[64, 32]", [64, 32]),
        (tuple[int, ...], "[]", []),
        (tuple[int, ...] | None, "none", "none"),
        (tuple[str, ...], "1,b", ["1", "b"]),
        (Sequence[float], "0.1,2", [0.1, 2]),
        (Mapping[str, Json], "{size = 3, name = 'x'}", {"size": 3, "name": "x"}),
        (Mapping[str, Json], '{"size": 3, "sizes": [1, null]}', {"size": 3, "sizes": [1, None]}),
        (
            list[dict[str, Json]],
            '[{"name": "rnd", "x": {"y": 1}}]',
            [{"name": "rnd", "x": {"y": 1}}],
        ),
        (list[dict[str, Json]], '[\n  {"name": "rnd"}\n]\n', [{"name": "rnd"}]),
        (list[dict[str, Json]], "[\n  {name = 'rnd'},\n]\n", [{"name": "rnd"}]),
        (list[dict[str, Json]], "{name = 'rnd', x = 1}", [{"name": "rnd", "x": 1}]),
        (str, "{a", "{a"),
        (str, "1\n2 = 3", "1\n2 = 3"),
    ],
)
def test_a_word_is_read_by_the_declared_type(type_: object, word: str, expected: Json) -> None:
    value = read_value(type_, [word], "--x")
    assert value == expected
    assert type(value) is type(expected)


def test_several_words_are_a_list() -> None:
    assert read_value(tuple[int, ...], ["64", "32"], "--x") == [64, 32]
    assert read_value(tuple[float, ...], ["-1", "2e3"], "--x") == [-1, 2000.0]


@pytest.mark.parametrize(
    ("type_", "word"),
    [
        (int, "1.5"),
        (int, "true"),
        (float, "nan"),
        (float, "abc"),
        (bool, "1"),
        (Literal["on", "off"], "of"),
        (float | Schedule, "linear(a)"),
        (tuple[int, ...], "64,x"),
        (tuple[int, int], "1,2,3"),
    ],
)
def test_what_does_not_fit_is_refused_by_the_option_it_was_given_to(
    type_: object, word: str
) -> None:
    with pytest.raises(UsageError, match=r"^--some\.option"):
        read_value(type_, [word], "--some.option")


@pytest.mark.parametrize(
    ("type_", "word", "expected"),
    [
        (
            list[dict[str, Json]],
            "rnd",
            "--x: got 'rnd' (str); expected a list of tables; write a table as "
            """{key = "value"} or {"key": "value"}""",
        ),
        (
            list[dict[str, Json]],
            "[{name = rnd}]",
            "; it is not valid TOML (Invalid value); write a table as {",
        ),
        (
            list[dict[str, Json]],
            '[{"a": 1, "a": 2}]',
            "not valid JSON (the key 'a' is there twice)",
        ),
        (Mapping[str, Json], "x=3", """; write a table as {key = "value"} or {"key": "value"}"""),
        (
            tuple[int, ...],
            "[64, x]",
            "expected a list of whole numbers; it is not valid JSON (Expecting value",
        ),
        (
            tuple[str, ...],
            "[a, b]",
            "expected a list of text; it is not valid JSON (Expecting value",
        ),
        (Mapping[str, Json], "[" * 100_000, "it is not valid JSON (maximum recursion depth"),
        (Mapping[str, Json], "{}\nb = 1", "it is not valid TOML (too many values"),
    ],
)
def test_a_refused_list_or_table_is_told_why_and_how_to_write_it(
    type_: object, word: str, expected: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read_value(type_, [word], "--x")
    assert expected in str(caught.value)


def test_data_of_the_wrong_form_is_not_told_how_to_write_data() -> None:
    with pytest.raises(UsageError, match=r"^--x\[0\]: got 1 \(int\); expected a table$"):
        read_value(list[dict[str, Json]], ["[1]"], "--x")


@pytest.mark.parametrize(
    ("data", "type_"),
    [
        (True, bool),
        (3e-4, float),
        (None, int | None),
        ([64, 32], tuple[int, ...]),
        ([], tuple[int, ...]),
        ({"a": [1, 2], "b": "x"}, Mapping[str, Json]),
        ({"a": [{"b c": "\U0001f600\x7f\n"}, [True, 1e-9]]}, Mapping[str, Json]),
        ("linear(0.1, 0.0)", float | Schedule),
    ],
)
def test_written_values_are_read_back(data: Json, type_: object) -> None:
    words = write_value(data).split() if takes_list(type_) else [write_value(data)]
    expected = "none" if data is None else data
    assert read_value(type_, words, "--x") == expected


def test_placeholders_say_what_an_option_takes() -> None:
    assert metavar(float | Schedule | None) == "FLOAT|SCHEDULE|none"
    assert metavar(Literal["a", "b"]) == "a|b"
    assert metavar(tuple[int, ...]) == "[INT ...]"
    assert metavar(tuple[int, float]) == "[INT FLOAT]"
    assert metavar(Mapping[str, Json]) == "TABLE"


def test_only_truth_values_are_switches() -> None:
    assert is_switch(bool)
    assert is_switch(bool | None)
    assert not is_switch(int)
    assert not is_switch(tuple[int, ...])


def test_lists_of_tables_are_written_so_that_they_are_read_back() -> None:
    layers: Json = [{"func": "Linear", "kwargs": {"out_features": 8}}, {"func": "Tanh"}]
    assert read_value(list[dict[str, Json]], [write_value(layers)], "--x") == layers
