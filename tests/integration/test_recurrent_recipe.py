"""An actor with memory gets sequences to learn from without being asked."""

from dataclasses import dataclass
from typing import Any

import pytest

from rl_core import plugins
from rl_train.builder import Sections, compose


@dataclass(frozen=True, kw_only=True, slots=True)
class Sequences:
    """How long sequences are."""

    length: int = 7


class Storage:
    """A storage that gives sequences when it is told to."""

    def __init__(
        self, size: int = 10, n_step: int = 1, *, sequences: Sequences | None = None
    ) -> None: ...


@pytest.fixture(autouse=True)
def _storage_of_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    load = plugins.load

    def loaded(kind: str, name: str) -> Any:
        return Storage if kind == "storage" else load(kind, name)

    monkeypatch.setattr(plugins, "load", loaded)


def test_memory_brings_sequences_and_larger_minibatches() -> None:
    plain = compose("dqn", "CartPole-v1")
    recurrent = compose("dqn", "CartPole-v1", {"actor": {"recurrent_net": "gru"}})
    assert plain.storage["sequences"] == "none"
    assert plain.algorithm["minibatch_size"] == 128
    assert recurrent.storage["sequences"] == {"length": 7}
    assert recurrent.storage["size"] == plain.storage["size"]
    assert recurrent.algorithm["minibatch_size"] == 640


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"storage": {"sequences": {"length": 3}}}, ({"length": 3}, 640)),
        ({"algorithm": {"minibatch_size": 8}}, ({"length": 7}, 8)),
        ({"storage": {"sequences": "none"}}, ("none", 640)),
    ],
)
def test_what_is_given_wins(options: Sections, expected: tuple[object, int]) -> None:
    recipe = compose("sac", "Pendulum-v1", {**options, "actor": {"recurrent_net": "lstm"}})
    assert (recipe.storage["sequences"], recipe.algorithm["minibatch_size"]) == expected
