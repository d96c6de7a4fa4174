"""Suggestions for names that do not exist."""

import re

import pytest

from rl_core.errors import in_brief, nearest
from rl_core.other_names import other_names


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("PPO", ["ppo", "dqn"], "; did you mean 'ppo'?"),
        ("cartpole-V1", ["CartPole-v1"], "; did you mean 'CartPole-v1'?"),
        ("lr", ["gamma", "learning_rate"], "; did you mean 'learning_rate'?"),
        ("lr", ["policy_learning_rate"], "; did you mean 'policy_learning_rate'?"),
        ("n_steps", ["num_steps", "n_step"], "; did you mean 'num_steps'?"),
        ("clip", ["epsilon", "clip_range", "lips"], "; did you mean 'clip_range'?"),
        ("verbose", ["a", "b"], "; known: a, b"),
        ("x", [], ""),
    ],
)
def test_the_nearest_name_is_suggested(name: str, known: list[str], expected: str) -> None:
    assert nearest(name, known) == expected


def test_names_of_other_libraries_are_written_as_they_are_looked_up() -> None:
    for name, ours in other_names().items():
        assert name == name.lower()
        assert name not in ours


class _MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def test_an_exception_whose_message_cannot_be_read_is_shown_by_its_class() -> None:
    assert in_brief(_MuteError()) == "_MuteError: its message cannot be shown"


def test_an_exception_without_a_message_says_where_it_was_raised() -> None:
    def fail() -> None:
        raise AssertionError

    with pytest.raises(AssertionError) as caught:
        fail()
    assert re.fullmatch(
        r"AssertionError: raised in .*test_errors.py, line \d+", in_brief(caught.value)
    )
    assert in_brief(KeyError()) == "KeyError"
