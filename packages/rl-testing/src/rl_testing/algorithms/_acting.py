"""Tests of acting, and of what becomes of a rollout."""

import pytest
import torch

from rl_core.batch import PREPARED_COLUMNS, RolloutBatch
from rl_testing.algorithms._case import AlgorithmCase
from rl_testing.algorithms._probes import NUM_ENVS, act
from rl_testing.rollouts import make_rollout
from rl_testing.stateful import check_same_state, copy_state


class ActingTests(AlgorithmCase):
    """What acting answers, and the columns that learning needs."""

    def test_acting_answers_what_it_declares(self) -> None:
        """Actions and extras have the shapes that storages allocate by, and no graph."""
        algorithm = self._algorithm()
        output = act(algorithm)
        spec = algorithm.actor.action_spec
        assert output.action.shape == (NUM_ENVS, *spec.shape)
        assert output.action.dtype == spec.dtype
        assert set(output.extras) == set(algorithm.extras)
        for name, extra in algorithm.extras.items():
            assert output.extras[name].shape == (NUM_ENVS, *extra.shape), name
            assert output.extras[name].dtype == extra.dtype, name
        for action in output.env_action.cpu().numpy():
            assert algorithm.actor.action_space.contains(action)

    def test_deterministic_acting_explores_nothing(self) -> None:
        """Without exploration the same observation gets the same action."""
        algorithm = self._algorithm()
        one, other = act(algorithm, None), act(algorithm, None)
        assert torch.equal(one.action, other.action)

    def test_preparing_a_rollout_gives_the_columns_of_a_batch(self) -> None:
        """Every transition gets its behaviour's view, an advantage and a target."""
        algorithm = self._algorithm()
        if algorithm.batch_type is not RolloutBatch:
            pytest.skip("does not learn from rollouts")
        rollout = algorithm.prepare_add_ons(make_rollout(algorithm, seed=1)).rollout
        before = copy_state(algorithm.state_dict())
        columns, metrics = algorithm.prepare(rollout)
        check_same_state(algorithm.state_dict(), before)
        assert set(columns) >= set(PREPARED_COLUMNS)
        for name, column in columns.items():
            assert column.shape[:2] == rollout.reward.shape, name
            assert not column.requires_grad, name
            assert column.isfinite().all(), name
        assert all(value.dim() == 0 for value in metrics.values())
