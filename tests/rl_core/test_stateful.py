import re

import pytest
import torch

from rl_core.errors import CheckpointError
from rl_core.stateful import StateReader
from rl_core.types import StateDict

STATE: StateDict = {
    "count": 3,
    "rate": 0.5,
    "whole_rate": 2,
    "name": "adam",
    "on": True,
    "recent": [1.0, 2, float("inf")],
    "weights": torch.tensor([1.0, 2.0]),
    "inner": {"a": torch.tensor([1]), "b": torch.tensor([2])},
}


def test_values_are_read_by_their_type() -> None:
    saved = StateReader(STATE, "part")
    assert saved.integer("count") == 3
    assert saved.number("rate") == 0.5
    assert saved.number("whole_rate") == 2.0
    assert saved.text("name") == "adam"
    assert saved.flag("on") is True
    assert saved.numbers("recent") == [1.0, 2.0, float("inf")]
    assert saved.tensor("weights", like=torch.zeros(2)).tolist() == [1.0, 2.0]
    assert {name: t.item() for name, t in saved.tensors("inner").items()} == {"a": 1, "b": 2}
    assert saved.reader("inner").tensor("b").item() == 2


@pytest.mark.parametrize(
    ("method", "key", "message"),
    [
        ("integer", "missing", "part: the saved state has no 'missing'"),
        ("integer", "rate", "part: 'rate' should be a whole number, but the saved state has float"),
        ("integer", "on", "has bool"),
        ("number", "name", "part: 'name' should be a number, but the saved state has str"),
        ("number", "on", "has bool"),
        ("text", "count", "'count' should be a string"),
        ("flag", "count", "'count' should be true or false"),
        ("numbers", "name", "'name' should be a list of numbers"),
        ("numbers", "inner", "'inner' should be a list of numbers"),
        ("tensor", "count", "'count' should be a tensor"),
        ("tree", "weights", "'weights' should be a mapping"),
        ("tensors", "recent", "'recent' should be a mapping"),
    ],
)
def test_what_does_not_fit_is_said(method: str, key: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=re.escape(message)):
        getattr(StateReader(STATE, "part"), method)(key)


def test_a_tensor_must_look_like_its_place() -> None:
    saved = StateReader(STATE, "part")
    message = r"part: 'weights' should have shape \(3,\) .* but the saved one has \(2,\)"
    with pytest.raises(CheckpointError, match=message):
        saved.tensor("weights", like=torch.zeros(3))
    with pytest.raises(CheckpointError, match=r"float64.*float32"):
        saved.tensor("weights", like=torch.zeros(2, dtype=torch.float64))


def test_messages_name_the_path_of_inner_parts() -> None:
    with pytest.raises(CheckpointError, match="part/inner: the saved state has no 'c'"):
        StateReader(STATE, "part").reader("inner").tensor("c")


def test_a_list_of_other_things_is_refused() -> None:
    with pytest.raises(CheckpointError, match="list of numbers"):
        StateReader({"recent": [1.0, "two"]}, "part").numbers("recent")
