"""Evaluation on environments that are kept apart from those learned in."""

from collections.abc import Callable

from rl_core.algorithm import AnyAlgorithm
from rl_core.env import AnyEnv, VecEnv, as_vec_env
from rl_core.errors import ConfigError
from rl_core.evaluation import EvaluationResult, evaluate_policy


class Tester:
    """Evaluates policies on test environments, which are opened when they are first needed.

    Args:
        test_envs: the environments, or what makes them; None where there are none.
    """

    def __init__(self, test_envs: AnyEnv | Callable[[], AnyEnv] | None) -> None:
        self._test_envs = test_envs
        self._open: VecEnv | None = None

    @property
    def has_envs(self) -> bool:
        """Whether there is anything to evaluate in."""
        return self._test_envs is not None

    def evaluate(
        self,
        algorithm: AnyAlgorithm,
        num_episodes: int,
        seed: int,
        is_stopping: Callable[[], bool] | None = None,
    ) -> EvaluationResult:
        """Evaluate the current policy deterministically; see `evaluate_policy`.

        Raises:
            EvaluationStoppedError: when ``is_stopping`` broke it off.
            ConfigError: when there are no test environments.
        """
        given = self._test_envs
        if given is None:
            raise ConfigError("give the Trainer test_envs to evaluate on")
        if self._open is None:
            self._open = as_vec_env(given() if callable(given) else given)
        return evaluate_policy(
            algorithm, self._open, num_episodes, seed=seed, is_stopping=is_stopping
        )

    def close(self) -> None:
        """Close environments that were made here; given ones belong to the giver."""
        if self._open is not None and callable(self._test_envs):
            self._open.close()
        self._open = None
