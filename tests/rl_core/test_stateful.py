import re
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import cast

import numpy as np
import pytest
import torch

from rl_core.errors import CheckpointError
from rl_core.stateful import StateFields, Stateful, StateReader
from rl_core.types import StateDict, StateValue
from rl_testing.stateful import StatefulSuite, check_same_state, copy_state

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
    assert {type(number) for number in saved.numbers("recent")} == {float}
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


def test_counts_are_not_negative() -> None:
    saved = StateReader({"none": 0, "less": -1}, "part")
    assert saved.count("none") == 0
    with pytest.raises(CheckpointError, match="part: 'less' should not be negative, got -1"):
        saved.count("less")


def test_a_tensor_must_look_like_its_place() -> None:
    saved = StateReader(STATE, "part")
    message = r"part: 'weights' should have shape \(3,\) .* but the saved one has \(2,\)"
    with pytest.raises(CheckpointError, match=message):
        saved.tensor("weights", like=torch.zeros(3))
    with pytest.raises(CheckpointError, match=r"float64.*float32"):
        saved.tensor("weights", like=torch.zeros(2, dtype=torch.float64))


def test_a_tensor_may_be_none_where_that_is_asked_for() -> None:
    saved = StateReader({"a": None, "b": torch.tensor(1)}, "part")
    assert saved.tensor_or_none("a") is None
    assert saved.tensor_or_none("b") == torch.tensor(1)
    with pytest.raises(CheckpointError, match="the saved state has no 'c'"):
        saved.tensor_or_none("c")


@dataclass(frozen=True)
class _Start:
    at: torch.Tensor


@dataclass(frozen=True)
class _Batch:
    observation: torch.Tensor | Mapping[str, torch.Tensor]
    start: _Start | None


@pytest.mark.parametrize("start", [None, _Start(torch.tensor([2]))])
@pytest.mark.parametrize("observation", [torch.ones(2), {"a": torch.ones(2)}])
def test_a_dataclass_of_tensors_is_what_was_saved(
    observation: torch.Tensor | Mapping[str, torch.Tensor], start: _Start | None
) -> None:
    batch = _Batch(observation, start)
    again = StateReader(asdict(batch), "batch").as_dataclass(_Batch)
    assert type(again.start) is type(start)
    check_same_state(asdict(again), asdict(batch), "the batch")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"observation": "x"}, "batch: 'observation' should be a tensor"),
        ({"observation": {"a": 1.0}}, "batch/observation: 'a' should be a tensor"),
        ({"start": {"at": 1}}, "batch/start: 'at' should be a tensor"),
        ({"start": {}}, "batch/start: the saved state has no 'at'"),
        ({"more": None}, "batch: the saved state has 'more', which is not expected"),
    ],
)
def test_a_dataclass_of_other_things_is_refused(change: StateDict, message: str) -> None:
    saved = {**asdict(_Batch(torch.ones(2), _Start(torch.tensor([2])))), **change}
    with pytest.raises(CheckpointError, match=re.escape(message)):
        StateReader(saved, "batch").as_dataclass(_Batch)


def test_messages_name_the_path_of_inner_parts() -> None:
    with pytest.raises(CheckpointError, match="part/inner: the saved state has no 'c'"):
        StateReader(STATE, "part").reader("inner").tensor("c")


def test_a_list_of_other_things_is_refused() -> None:
    with pytest.raises(CheckpointError, match="list of numbers"):
        StateReader({"recent": [1.0, "two"]}, "part").numbers("recent")


def test_parts_in_a_list_are_read_and_named_by_their_place() -> None:
    saved = StateReader({"steps": [{"a": 1}, {"a": "x"}], "mixed": [{}, 1], "text": ""}, "part")
    first, second = saved.readers("steps")
    assert first.integer("a") == 1
    with pytest.raises(CheckpointError, match="part/steps/1: 'a' should be a whole number"):
        second.integer("a")
    for key in ("mixed", "text"):
        with pytest.raises(CheckpointError, match=f"'{key}' should be a list of mappings"):
            saved.readers(key)


class _Inner(StateFields):
    state_fields = ("hits",)

    def __init__(self) -> None:
        self.hits = 0


class _Part(StateFields):
    state_fields = (
        "count", "_rate", "on", "note", "best", "weights", "_sums", "flags", "generator",
        "_numpy_generator", "_recent", "history", "totals", "inner",
    )  # fmt: skip

    def __init__(self) -> None:
        self.count = 0
        self._rate = 0.5
        self.on = False
        self.note = "new"
        self.best: float | None = None
        self.weights = torch.zeros(2, requires_grad=True)
        self._sums = np.zeros((2, 3))
        self.flags = np.zeros(2, np.bool_)
        self.generator = torch.Generator().manual_seed(1)
        self._numpy_generator = np.random.default_rng(2)
        self._recent: deque[float] = deque(maxlen=3)
        self.history: list[float] = []
        self.totals: dict[str, float] = {}
        self.inner = _Inner()
        self.not_saved = object()

    def use(self) -> StateValue:
        noise = torch.randn(2, generator=self.generator)
        self.count += 1
        self._rate *= 0.5
        self.on = not self.on
        self.note += "+"
        self.best = max(self.best or 0.0, float(noise[0]))
        self.weights.data.add_(noise)
        self._sums += self._numpy_generator.normal(size=(2, 3))
        self.flags[self.count % 2] ^= True
        self._recent.append(self._rate)
        self.history.append(float(self._sums.sum()))
        self.totals[f"update {self.count}"] = self.count
        self.inner.hits += 2
        return [
            self.count, self._rate, self.on, self.note, self.best, self.weights.detach().clone(),
            torch.from_numpy(self._sums.copy()), self.flags.tolist(), list(self._recent),
            list(self.history), dict(self.totals), self.inner.hits,
        ]  # fmt: skip


class TestStateFields(StatefulSuite):
    def make_part(self) -> _Part:
        return _Part()

    def use_part(self, part: Stateful) -> StateValue:
        return [cast("_Part", part).use() for _ in range(3)]


def test_fields_are_saved_without_the_underscore_of_private_names() -> None:
    state = _Part().state_dict()
    assert set(state) == {name.lstrip("_") for name in _Part.state_fields}
    assert state["rate"] == 0.5
    assert state["inner"] == {"hits": 0}
    assert not cast("torch.Tensor", state["weights"]).requires_grad


def test_arrays_and_containers_are_overwritten_in_place() -> None:
    used, part = _Part(), _Part()
    used.use()
    for _ in range(2):
        part.use()  # what it has so far goes
    held = [part.weights, part._sums, part._recent, part.history, part.totals]
    part.load_state_dict(used.state_dict())
    assert (part._recent, part.history, part.totals) == (used._recent, used.history, used.totals)
    assert [type(number) for number in part.totals.values()] == [int]  # as it was saved
    assert part.weights.tolist() == used.weights.tolist() != [0.0, 0.0]
    assert all(
        value is before
        for value, before in zip(
            [part.weights, part._sums, part._recent, part.history, part.totals], held, strict=True
        )
    )
    assert part._recent.maxlen == 3
    used.use()
    assert part.count == 1
    assert part.history != used.history


def test_a_state_that_is_refused_changes_nothing() -> None:
    used, part = _Part(), _Part()
    used.use()
    before = copy_state(part.state_dict())
    last = _Part.state_fields[-1].lstrip("_")
    with pytest.raises(CheckpointError):
        part.load_state_dict({**used.state_dict(), last: "something else"})
    check_same_state(part.state_dict(), before)


def test_numbers_may_be_negative() -> None:
    used, part = _Part(), _Part()
    used.count, used._rate, used.best = -1, -0.5, -2.0
    part.load_state_dict(used.state_dict())
    assert (part.count, part._rate, part.best) == (-1, -0.5, -2.0)


def test_saved_arrays_and_containers_share_no_memory() -> None:
    part = _Part()
    state = part.state_dict()
    part.use()
    assert cast("torch.Tensor", state["sums"]).count_nonzero() == 0
    assert (state["recent"], state["history"], state["totals"]) == ([], [], {})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("count", 1.5, "_Part: 'count' should be a whole number, but the saved state has float"),
        ("count", None, "'count' should be a whole number, but the saved state has NoneType"),
        ("rate", "fast", "'rate' should be a number"),
        ("on", 1, "'on' should be true or false"),
        ("note", 1, "'note' should be a string"),
        ("best", [1.0], "'best' should be a number, a string, true, false or None"),
        ("weights", [0.0, 0.0], "'weights' should be a tensor"),
        ("weights", torch.zeros(3), "'weights' should have shape (2,)"),
        ("weights", torch.zeros(1, 2), "'weights' should have shape (2,)"),
        ("sums", torch.zeros(2, 3), "'sums' should have shape (2, 3) and dtype torch.float64"),
        ("flags", torch.zeros(2), "dtype torch.bool"),
        ("generator", 1, "'generator' should be a tensor"),
        ("numpy_generator", {}, "does not fit a PCG64: KeyError"),
        ("recent", {"a": 1.0}, "'recent' should be a list of numbers"),
        ("history", ["a"], "'history' should be a list of numbers"),
        ("totals", [1.0], "'totals' should be a mapping"),
        ("totals", {"a": True}, "'totals' should be a mapping of numbers"),
        ("inner", {"misses": 0}, "_Inner: the saved state has 'misses'"),
    ],
)
def test_a_field_of_another_kind_is_refused(key: str, value: StateValue, message: str) -> None:
    part = _Part()
    with pytest.raises(CheckpointError, match=re.escape(message)):
        part.load_state_dict({**part.state_dict(), key: value})


def test_missing_and_unknown_fields_are_refused() -> None:
    part = _Part()
    state = dict(part.state_dict())
    with pytest.raises(CheckpointError, match="_Part: the saved state has 'more'"):
        part.load_state_dict({**state, "more": 1})
    del state["note"]
    with pytest.raises(CheckpointError, match="_Part: the saved state has no 'note'"):
        part.load_state_dict(state)


def test_load_fields_ignores_what_a_class_restores_by_itself() -> None:
    inner = _Inner()
    inner.load_fields(StateReader({"hits": 3, "more": 1}, "inner"))
    assert inner.hits == 3


def test_an_attribute_that_cannot_be_saved_is_refused() -> None:
    class Odd(StateFields):
        state_fields = ("thing",)
        thing = object()

    with pytest.raises(TypeError, match="StateFields cannot save a object"):
        Odd().state_dict()
    with pytest.raises(TypeError, match="StateFields cannot restore a object"):
        Odd().load_state_dict({"thing": 1})
