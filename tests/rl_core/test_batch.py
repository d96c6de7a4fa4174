import dataclasses
import math

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from rl_core.batch import PREPARED_COLUMNS, Rollout, RolloutBatch
from rl_core.gradients import masked_mean


def _batch(num_samples: int) -> RolloutBatch:
    numbers = torch.arange(num_samples, dtype=torch.float32)
    return RolloutBatch(
        observation={"a": numbers.unsqueeze(1), "b": numbers},
        action=numbers.long(),
        log_prob=-numbers,
        value=numbers,
        advantage=2 * numbers,
        value_target=3 * numbers,
        mask=torch.ones(num_samples),
        episode_start=numbers == 0,
        state={},
        extras={"surprise": numbers},
    )


def test_masked_mean_by_hand() -> None:
    values = torch.tensor([[1.0, 100.0], [3.0, 5.0]])
    mask = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    assert float(masked_mean(values, mask)) == 3.0


def test_masked_mean_of_nothing_is_zero() -> None:
    assert float(masked_mean(torch.ones(3), torch.zeros(3))) == 0.0


def test_masked_mean_sends_no_gradient_to_what_does_not_count() -> None:
    values = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    masked_mean(values, torch.tensor([1.0, 0.0, 1.0])).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    assert values.grad is not None
    assert values.grad.tolist() == [0.5, 0.0, 0.5]


@pytest.mark.parametrize("nothing", [math.inf, math.nan])
def test_masked_mean_does_not_look_at_what_does_not_count(nothing: float) -> None:
    values = torch.tensor([1.0, nothing, 4.0])
    assert float(masked_mean(values, torch.tensor([1.0, 0.0, 1.0]))) == 2.5
    assert float(masked_mean(values, torch.tensor([True, False, True]))) == 2.5


def test_prepared_columns_are_fields_of_a_batch() -> None:
    names = {field.name for field in dataclasses.fields(RolloutBatch)}
    assert set(PREPARED_COLUMNS) <= names


def test_batches_are_trees_of_tensors() -> None:
    leaves, _ = pytree.tree_flatten(_batch(3))
    assert len(leaves) == 10
    assert all(isinstance(leaf, Tensor) for leaf in leaves)
    doubled = pytree.tree_map(lambda leaf: torch.cat([leaf, leaf]), _batch(3))
    assert isinstance(doubled, RolloutBatch)
    assert doubled.extras["surprise"].tolist() == [0.0, 1.0, 2.0, 0.0, 1.0, 2.0]


def test_batches_pass_through_vmap() -> None:
    def total(batch: RolloutBatch) -> Tensor:
        assert not isinstance(batch.observation, Tensor)
        return batch.observation["a"].sum() + batch.advantage + batch.extras["surprise"]

    assert torch.vmap(total)(_batch(3)).tolist() == [0.0, 4.0, 8.0]


@pytest.mark.parametrize("cls", [Rollout, RolloutBatch])
def test_batches_are_frozen(cls: type) -> None:
    parameters = cls.__dataclass_params__  # type: ignore[attr-defined]  # of a dataclass
    assert parameters.frozen
    assert not hasattr(_batch(1), "__dict__")


def test_a_rollout_is_cut_along_environments() -> None:
    numbers = torch.arange(6.0).reshape(2, 3)  # (T, B)
    never = torch.zeros(2, 3, dtype=torch.bool)
    rollout = Rollout(
        observation={"a": numbers},
        next_observation={"a": torch.tensor([6.0, 7.0, 8.0])},
        action=numbers + 10.0,
        reward=numbers + 20.0,
        terminated=never,
        truncated=torch.tensor([[False, False, True], [True, False, False]]),
        valid=~never,
        episode_start=never,
        state={"policy": torch.tensor([[0.0], [1.0], [2.0]])},
        final_index=torch.tensor([[0, 2], [1, 0]]),
        final_observation={"a": torch.tensor([50.0, 60.0])},
        extras={"surprise": numbers},
    )
    part = rollout.select([2, 1])
    assert isinstance(part.observation, dict)
    assert isinstance(part.next_observation, dict)
    assert isinstance(part.final_observation, dict)
    assert part.observation["a"].tolist() == [[2.0, 1.0], [5.0, 4.0]]
    assert part.next_observation["a"].tolist() == [8.0, 7.0]
    assert part.action.tolist() == [[12.0, 11.0], [15.0, 14.0]]
    assert part.truncated.tolist() == [[True, False], [False, False]]
    assert part.state["policy"].tolist() == [[2.0], [1.0]]
    assert part.final_index.tolist() == [[0, 0]], "environment 2 is the first one now"
    assert part.final_observation["a"].tolist() == [50.0]
    assert part.extras["surprise"].tolist() == [[2.0, 1.0], [5.0, 4.0]]
