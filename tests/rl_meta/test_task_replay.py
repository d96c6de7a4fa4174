from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_core.batch import Transition
from rl_core.errors import CheckpointError, ConfigError, DataError
from rl_core.stateful import Stateful
from rl_core.storage import StorageSpec, TensorSpec
from rl_core.types import StateValue
from rl_meta import TaskReplayStorage
from rl_testing.stateful import StatefulSuite, check_same_state, copy_state
from rl_testing.storages import columns_of

NUM_ENVS = 4
SPEC = StorageSpec(
    TensorSpec((1,), torch.float32),
    TensorSpec((1,), torch.float32),
    NUM_ENVS,
    {},
    {},
    torch.device("cpu"),
)


def _storage(spec: StorageSpec = SPEC, **options: int) -> TaskReplayStorage:
    given = {"num_steps": 3, "capacity": 14, "meta_batch_size": 2, "context_size": 5, **options}
    storage = TaskReplayStorage(**given)
    storage.allocate(spec, torch.Generator().manual_seed(0))
    return storage


def _collect(
    storage: TaskReplayStorage, first: float, steps: int = 3, terminated: Sequence[int] = ()
) -> None:
    """Insert steps whose observations count up from ``first`` plus 100 times the environment.

    Environment 0 is truncated in the second step, and those of ``terminated`` are terminated.
    """
    for step in range(steps):
        here = (100.0 * torch.arange(NUM_ENVS) + first + step).unsqueeze(1)
        ended = torch.arange(NUM_ENVS) == (0 if step == 1 else -1)
        storage.insert_transition(
            Transition(
                observation=here,
                action=here,
                reward=here[:, 0],
                terminated=np.isin(np.arange(NUM_ENVS), terminated) & (step == 1),
                truncated=ended.numpy(),
                valid=~(torch.arange(NUM_ENVS) == (3 if step == 0 else -1)).numpy(),
                episode_start=np.zeros(NUM_ENVS, bool),
                next_observation=torch.where(ended.unsqueeze(1), -7.0, here + 1.0),
                final_observation=here + 0.5,
                state={},
                extras={},
            )
        )


TASKS = torch.tensor([2, 2, 0, 0])
"""The tasks of the four environments."""


class TestTaskReplayState(StatefulSuite):
    """A storage with whole rollouts of tasks, and one that is half collected."""

    keeps_its_state = True

    def make_part(self) -> Stateful:
        return _storage()

    def use_part(self, part: Stateful) -> StateValue:
        storage = cast("TaskReplayStorage", part)
        missing = storage.num_steps - len(storage)
        _collect(storage, 10.0, missing)
        storage.store_rollout(TASKS, is_context=True)
        batches = list(storage.generate_batches(2, 4))
        _collect(storage, 50.0, 2)
        return [columns_of(batch) for batch in batches]


def test_a_truncated_step_is_not_terminated() -> None:
    storage = _storage()
    _collect(storage, 0.0, terminated=[1])
    storage.store_rollout(TASKS, is_context=True)
    ends = set[tuple[float, bool]]()
    for batch in storage.generate_batches(20, 50):
        assert isinstance(batch.observation, Tensor)
        ends |= {*zip(batch.observation[:, 0].tolist(), batch.terminated.tolist(), strict=True)}
    shown = [0.0, 1.0, 2.0, 100.0, 101.0, 102.0, 200.0, 201.0, 202.0, 301.0, 302.0]
    assert ends == {(seen, seen == 101.0) for seen in shown}  # 1.0 is truncated


def test_transitions_are_kept_by_task_with_their_true_successors() -> None:
    storage = _storage()
    _collect(storage, 0.0)
    assert len(storage) == 3
    storage.store_rollout(TASKS, is_context=True)
    assert len(storage) == 0
    columns, mask = storage.context(torch.tensor([2, 0]))
    assert mask.sum(1).tolist() == [6, 5]  # environment 3 only reset in its first row
    assert columns["reward"][0].tolist() == [0.0, 1.0, 2.0, 100.0, 101.0, 102.0]
    assert columns["reward"][1, :5].tolist() == [200.0, 201.0, 202.0, 301.0, 302.0]
    assert columns["next_observation"][0, :3, 0].tolist() == [1.0, 1.5, 3.0]


def test_a_context_is_what_was_stored_as_such_since_it_was_cleared() -> None:
    storage = _storage()
    for first, is_context in ((0.0, True), (10.0, False)):
        _collect(storage, first)
        storage.store_rollout(TASKS, is_context=is_context)
    assert storage.context(TASKS[:1])[0]["reward"].max() == 102.0
    storage.clear_context(torch.tensor([0, 2, 9]))
    assert storage.context(torch.tensor([2, 0]))[1].shape == (2, 0)
    with pytest.raises(ConfigError, match="no task has a context yet"):
        next(iter(storage.generate_batches(1, 4)))
    _collect(storage, 20.0)
    storage.store_rollout(TASKS, is_context=True)  # the ring of 14 has wrapped around
    columns, mask = storage.context(torch.tensor([2, 0]))
    assert columns["reward"][0].tolist() == [20.0, 21.0, 22.0, 120.0, 121.0, 122.0]
    assert mask.sum(1).tolist() == [6, 5]


def test_a_batch_has_transitions_and_contexts_of_the_same_tasks() -> None:
    storage = _storage()
    for first, is_context in ((0.0, True), (10.0, False)):
        _collect(storage, first)
        storage.store_rollout(TASKS, is_context=is_context)
    seen = set()
    for batch in storage.generate_batches(20, 8):
        assert isinstance(batch.observation, Tensor)
        assert batch.observation.shape == (16, 1)
        context = batch.extras["context/observation"]
        assert context.shape == (2, 5, 1)
        for task in range(2):
            own = batch.observation[8 * task : 8 * task + 8, 0]
            assert bool((own >= 200.0).all()) is bool((context[task] >= 200.0).all())
            assert bool((own >= 200.0).any()) is bool((context[task] >= 200.0).any())
            assert bool((context[task] % 100.0 < 10.0).all())
            seen |= set(own.tolist())
    assert {0.0, 10.0, 210.0} <= seen


def test_contexts_end_after_any_of_their_rollouts() -> None:
    storage = _storage(context_size=40)
    for first in (0.0, 10.0):
        _collect(storage, first)
        storage.store_rollout(TASKS, is_context=True)
    largest = [
        float((batch.extras["context/observation"][task] % 100.0).max())
        for batch in storage.generate_batches(40, 1)
        for task in range(2)
    ]
    share = sum(one < 10.0 for one in largest) / len(largest)
    assert 0.3 < share < 0.7  # of the first rollout alone
    assert max(largest) >= 10.0


def test_a_cleared_context_counts_its_rollouts_anew() -> None:
    storage = _storage(context_size=40)
    for first in (0.0, 10.0):
        _collect(storage, first)
        storage.clear_context(TASKS)
        storage.store_rollout(TASKS, is_context=True)
    for batch in storage.generate_batches(20, 1):
        shown = batch.extras["context/observation"] % 200.0  # of both of a task's environments
        assert ((shown < 100.0).any(1) & (shown > 100.0).any(1)).all()


def test_a_reset_storage_is_like_a_new_one() -> None:
    storage = _storage()
    _collect(storage, 0.0)
    storage.store_rollout(TASKS, is_context=True)
    _collect(storage, 10.0)
    storage.reset()
    check_same_state(storage.state_dict(), _storage().state_dict())
    _collect(storage, 20.0)
    storage.store_rollout(TASKS // 2, is_context=True)  # of fewer tasks than before
    assert storage.context(torch.tensor([1]))[0]["reward"].tolist() == [
        [20.0, 21.0, 22.0, 120.0, 121.0, 122.0]
    ]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (_storage(capacity=20), r"hold 14 transitions of each task, these 20"),
        (_storage(num_steps=1), r"'valid' should have shape \(1, 4\)"),
        (_storage(replace(SPEC, num_envs=2)), r"'valid' should have shape \(2, 2\)"),
        (
            _storage(replace(SPEC, observation=TensorSpec((3,), torch.float32))),
            r"columns: 'observation' should have shape \(3, 6, 3\)",
        ),
    ],
)
def test_a_state_of_another_storage_is_refused(other: TaskReplayStorage, message: str) -> None:
    storage = _storage()
    _collect(storage, 0.0)
    storage.store_rollout(TASKS, is_context=True)
    _collect(storage, 10.0, steps=2)
    before = copy_state(other.state_dict())
    with pytest.raises(CheckpointError, match=message):
        other.load_state_dict(storage.state_dict())
    check_same_state(other.state_dict(), before)


def test_transitions_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match=r"observation: got torch.float32 of shape \(4, 1\); expe"):
        _collect(_storage(replace(SPEC, observation=TensorSpec((3,), torch.float32))), 0.0)
    with pytest.raises(DataError, match=r"of shape \(4, 1\); expected torch.float32 of shape \(1,"):
        _collect(_storage(replace(SPEC, num_envs=1)), 0.0)
    with pytest.raises(DataError, match=r"action: got torch.float32 .* expected torch.int64"):
        _collect(_storage(replace(SPEC, action=TensorSpec((1,), torch.int64))), 0.0)


def test_buffers_take_memory_as_they_are_filled() -> None:
    storage = _storage(capacity=10**9)  # 21 GB for each task
    _collect(storage, 0.0)
    storage.store_rollout(TASKS[2:].repeat(2), is_context=True)
    _collect(storage, 10.0)
    storage.store_rollout(TASKS[2:].repeat(2) + 1, is_context=True)  # a second task
    assert storage.context(torch.tensor([0]))[0]["reward"][0, :3].tolist() == [0.0, 1.0, 2.0]
    too_large = _storage(capacity=10**15)
    _collect(too_large, 0.0)
    with pytest.raises(ConfigError, match=r"no memory for 1 x 1000000000000000 transitions"):
        too_large.store_rollout(TASKS[2:].repeat(2), is_context=True)


def test_misuse_is_refused() -> None:
    storage = _storage(capacity=5)
    with pytest.raises(ConfigError, match="no task has a context"):
        next(storage.generate_batches(1, 4))
    _collect(storage, 0.0)
    with pytest.raises(ConfigError, match="complete after 3 steps"):
        _collect(storage, 0.0, steps=1)
    with pytest.raises(ConfigError, match=r"capacity=5 is less than the 6"):
        storage.store_rollout(TASKS, is_context=True)


def test_scaled_rewards_are_refused() -> None:
    # contexts in evaluations have the environment's own rewards
    spec = replace(SPEC, scales_rewards=True)
    with pytest.raises(ConfigError, match=r"trainer.scale_rewards to False, and reward_scale"):
        TaskReplayStorage().allocate(spec, torch.Generator())
