"""What the tests of an `Algorithm` start from."""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from rl_core.algorithm import AnyAlgorithm
from rl_core.batch import ReplayBatch
from rl_testing.replay_batches import make_replay_batch
from rl_testing.rollouts import make_batch, make_rollout
from rl_testing.stateful import StatefulSuite


class AlgorithmCase(StatefulSuite):
    """Makes the algorithms and batches that the tests work with."""

    is_smooth: ClassVar[bool] = True
    has_compile_test: ClassVar[bool] = True
    unweighted_groups: ClassVar[frozenset[str]] = frozenset()

    def make_algorithm(self, seed: int) -> AnyAlgorithm:
        """Return a new algorithm with a new actor, whose weights depend on the seed alone."""
        raise NotImplementedError

    def make_batch(self, algorithm: AnyAlgorithm, seed: int) -> object:
        """Return a made-up batch to learn from."""
        if algorithm.batch_type is ReplayBatch:
            return make_replay_batch(algorithm, seed)
        return make_batch(algorithm, make_rollout(algorithm, seed))

    def _algorithm(self, seed: int = 1) -> AnyAlgorithm:
        algorithm = self.make_algorithm(seed)
        algorithm.generator.manual_seed(seed)
        return algorithm

    def _step(self, algorithm: AnyAlgorithm, seed: int) -> Mapping[str, Tensor]:
        return algorithm.gradient_step(self.make_batch(algorithm, seed))
