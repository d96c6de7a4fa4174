"""Tests of weights on their way to workers."""

import pytest
import torch

from rl_core.errors import ConfigError
from rl_core.gradients import Weights
from rl_testing.algorithms._case import AlgorithmCase
from rl_testing.algorithms._probes import act, tensors_of
from rl_testing.stateful import check_same_state, copy_state


class WeightTests(AlgorithmCase):
    """What weights carry over, and which are refused."""

    def test_weights_carry_over(self) -> None:
        """A worker that takes weights computes the same loss and chooses the same actions."""
        for acting_only in (False, True):
            learner, worker = self._algorithm(seed=1), self._algorithm(seed=2)
            self._step(learner, 1)
            weights = learner.get_weights(acting_only)
            assert weights.version == 1
            assert worker.set_weights(weights, acting_only)
            assert torch.equal(act(worker).action, act(learner).action)
            if not acting_only:
                check_same_state(dict(tensors_of(worker)), dict(tensors_of(learner)))
            held = copy_state(dict(weights.tensors))
            self._step(learner, 2)
            check_same_state(dict(weights.tensors), held)

    def test_older_weights_are_not_taken(self) -> None:
        """Weights that were overtaken on their way change nothing."""
        learner, worker = self._algorithm(seed=1), self._algorithm(seed=2)
        old = learner.get_weights()
        self._step(learner, 1)
        assert worker.set_weights(learner.get_weights())
        before = tensors_of(worker)
        assert not worker.set_weights(old)
        check_same_state(dict(tensors_of(worker)), dict(before))

    def test_weights_of_other_networks_are_refused(self) -> None:
        """A missing tensor is an error, not a weight left as it was."""
        algorithm = self._algorithm()
        name, *others = algorithm.get_weights().tensors
        tensors = {other: algorithm.get_weights().tensors[other] for other in others}
        with pytest.raises(ConfigError, match=name):
            algorithm.set_weights(Weights(9, tensors))
