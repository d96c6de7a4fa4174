"""Weights of an earlier run: exactly those, or a message that says what differs."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from rl_core.errors import CheckpointError, ConfigError
from rl_testing.toy import ToyActor, ToyActorCritic
from rl_train.checkpoint import load_weights, save_checkpoint

VECTOR = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
WIDER = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
ACTIONS = gymnasium.spaces.Discrete(2)


def _actor(seed: int, space: gymnasium.Space[object] = VECTOR, **options: bool) -> ToyActor:
    torch.manual_seed(seed)
    return ToyActor(space, ACTIONS, **options)


def _save(actor: ToyActor, run: Path, step: int = 1) -> Path:
    state = {"algorithm": ToyActorCritic(actor).state_dict()}
    directory = run / "checkpoints"
    return save_checkpoint(directory, step, state, recipe=None, metadata={}, resume_grade="exact")


def _same(one: ToyActor, other: ToyActor, prefix: str = "") -> bool:
    others = other.state_dict()
    return all(
        torch.equal(tensor, others[name])
        for name, tensor in one.state_dict().items()
        if name.startswith(prefix)
    )


@pytest.mark.parametrize("kind", ["run", "checkpoint", "text"])
def test_all_weights_of_a_run_or_a_checkpoint(tmp_path: Path, kind: str) -> None:
    old, new = _actor(1, normalize=True), _actor(2, normalize=True)
    old.update_normalization(torch.randn(50, 3))
    _save(_actor(3, normalize=True), tmp_path, step=1)
    checkpoint = _save(old, tmp_path, step=20)
    sources: dict[str, str | Path] = {
        "run": tmp_path,
        "checkpoint": checkpoint,
        "text": str(tmp_path),
    }
    load_weights(new, sources[kind])
    assert _same(new, old)  # running statistics included


def test_parts_come_from_where_they_are_said_to(tmp_path: Path) -> None:
    one, other, new = _actor(1), _actor(2), _actor(3)
    untouched = _actor(3)
    _save(one, tmp_path / "one")
    _save(other, tmp_path / "other")
    load_weights(new, {"policy": tmp_path / "one"})
    assert _same(new, one, "policy")
    assert _same(new, untouched, "value_layer")
    load_weights(new, {"policy": tmp_path / "other", "value_layer": tmp_path / "one"})
    assert _same(new, other, "policy")
    assert _same(new, one, "value_layer")


def test_loading_writes_into_the_parameters_that_are_there(tmp_path: Path) -> None:
    old, new = _actor(1), _actor(2)
    _save(old, tmp_path)
    algorithm = ToyActorCritic(new)
    load_weights(new, tmp_path)
    algorithm.read_metrics()  # would say so if parameters had been replaced
    assert _same(new, old)


@pytest.mark.parametrize(
    ("old", "new", "messages"),
    [
        (
            _actor(1),
            _actor(2, WIDER),
            ["value_layer.weight (float32 (1, 3) there, float32 (1, 4) here)"],
        ),
        (
            _actor(1),
            _actor(2, normalize=True),
            ["encoder.encoders.0.norm", "missing there", "whole actor"],
        ),
        (_actor(1, normalize=True), _actor(2), ["encoder.encoders.0.norm", "missing here"]),
    ],
)
def test_every_misfit_is_named_and_nothing_changes(
    tmp_path: Path, old: ToyActor, new: ToyActor, messages: list[str]
) -> None:
    _save(old, tmp_path)
    before = {name: tensor.clone() for name, tensor in new.state_dict().items()}
    with pytest.raises(CheckpointError) as raised:
        load_weights(new, tmp_path)
    for message in messages:
        assert message in str(raised.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in new.state_dict().items())


def test_a_misfit_of_one_part_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    new, before = _actor(3), _actor(3)
    _save(_actor(1), tmp_path / "fits")
    _save(_actor(1, WIDER), tmp_path / "wider")
    with pytest.raises(CheckpointError, match="part 'value_layer'"):
        load_weights(new, {"policy": tmp_path / "fits", "value_layer": tmp_path / "wider"})
    assert _same(new, before)


def test_a_part_of_another_run_need_not_fit_elsewhere(tmp_path: Path) -> None:
    old, new = _actor(1, normalize=True), _actor(2)
    _save(old, tmp_path)
    load_weights(new, {"policy": tmp_path})
    assert _same(new, old, "policy")


def _critics(weight: float) -> nn.ModuleDict:
    layers = {name: nn.Linear(1, 1, bias=False) for name in ("critic", "critics")}
    for layer in layers.values():
        nn.init.constant_(layer.weight, weight)
    return nn.ModuleDict(layers)


def test_a_part_whose_name_goes_on_is_another_one(tmp_path: Path) -> None:
    for weight in (1.0, 2.0):
        modules = {f"actor.{name}": t for name, t in _critics(weight).state_dict().items()}
        save_checkpoint(tmp_path / f"{weight}", 1, {"algorithm": {"modules": modules}})
    one, two = tmp_path / "1.0", tmp_path / "2.0"
    for source, expected in (
        ({"critic": one}, [1.0, 0.0]),
        ({"critics": two, "critic": one}, [1.0, 2.0]),
    ):
        critics = _critics(0.0)
        load_weights(critics, source)
        assert [tensor.item() for tensor in critics.state_dict().values()] == expected


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(tmp_path: Path) -> None:
    old, new = _actor(1), _actor(3)
    _save(old, tmp_path, step=1)
    newest = _save(_actor(2), tmp_path, step=2)
    (newest / "tensors.safetensors").write_bytes(b"nothing")
    with pytest.warns(UserWarning, match=r"tensors\.safetensors"):
        load_weights(new, tmp_path)
    assert _same(new, old)
    with pytest.raises(CheckpointError, match=r"tensors\.safetensors"):
        load_weights(new, newest)


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("nowhere", CheckpointError, "nowhere is not a run"),
        ({"polcy": "nowhere"}, ConfigError, "no part 'polcy'; did you mean 'policy'"),
        ({}, ConfigError, "names no part"),
        ({"policy": "a", "policy.linear": "b"}, ConfigError, "is a part of 'policy'"),
        ({"policy": "a", "": "b"}, ConfigError, "'policy' is a part of ''"),
        (3, TypeError, "PathLike object"),
        ({"policy": 3}, TypeError, "PathLike object"),
    ],
)
def test_sources_that_are_none_are_refused(
    source: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        load_weights(_actor(1), source)  # type: ignore[arg-type]  # wrong on purpose
