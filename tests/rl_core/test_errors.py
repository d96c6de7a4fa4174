"""Suggestions for names that do not exist."""

import pytest

from rl_core.errors import nearest
from rl_core.other_names import OTHER_NAMES


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("PPO", ["ppo", "dqn"], "; did you mean 'ppo'?"),
        ("cartpole-V1", ["CartPole-v1"], "; did you mean 'CartPole-v1'?"),
        ("lr", ["gamma", "learning_rate"], "; did you mean 'learning_rate'?"),
        ("lr", ["policy_learning_rate"], "; did you mean 'policy_learning_rate'?"),
        ("n_steps", ["num_steps", "n_step"], "; did you mean 'num_steps'?"),
        ("verbose", ["a", "b"], "; known: a, b"),
        ("x", [], ""),
    ],
)
def test_the_nearest_name_is_suggested(name: str, known: list[str], expected: str) -> None:
    assert nearest(name, known) == expected


def test_names_of_other_libraries_are_written_as_they_are_looked_up() -> None:
    assert list(OTHER_NAMES) == sorted(OTHER_NAMES)
    for name, ours in OTHER_NAMES.items():
        assert name == name.lower()
        assert name not in ours
