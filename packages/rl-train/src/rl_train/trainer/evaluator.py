"""Evaluation on environments that are kept apart from those learned in."""

from collections.abc import Callable
from typing import TypeAlias

import gymnasium
from gymnasium.vector import VectorEnv

from rl_core.algorithm import AnyAlgorithm
from rl_core.env import TaskVecEnv, VecEnv
from rl_core.errors import ConfigError
from rl_envs import AnyEnv, as_vec_env, is_built
from rl_train.evaluation import (
    EvaluationResult,
    check_limit,
    check_spaces,
    evaluate_policy,
    has_custom_evaluation,
)
from rl_train.trainer.config import TrainerConfig

TestEnvs: TypeAlias = AnyEnv | Callable[[], VecEnv | VectorEnv]
"""Environments to evaluate in, or what makes them: also a function that makes a vector of them."""


class Evaluator:
    """Evaluates an algorithm on test environments, which are made when they are first needed.

    Args:
        algorithm: what learns.
        test_envs: the environments, or an id, class or function that makes them; None if there are
            none.
        envs: those learned in, which an evaluation would reset in the middle of their episodes.
        config: says how to act in tests, and for how long.

    Raises:
        ConfigError: when both are, or wrap, the same environment, or there are none to test in
            and ``test_every`` asks for evaluations.
        SpaceError: when they have other spaces.
    """

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        test_envs: TestEnvs | None,
        envs: VecEnv,
        config: TrainerConfig,
    ) -> None:
        self._algorithm = algorithm
        self._test_envs = test_envs
        self._config = config
        self._envs = envs
        self._open: VecEnv | None = None
        if config.test_every is not None and test_envs is None:
            raise ConfigError(
                "test_every needs test environments: give the Trainer test_envs, or make the class "
                "of the environment or a function that builds one"
            )
        if test_envs is not None and is_built(test_envs):
            self._check(as_vec_env(test_envs, testing=True))

    @property
    def has_envs(self) -> bool:
        """Whether there is anything to evaluate in."""
        return self._test_envs is not None

    def evaluate(
        self,
        num_episodes: int,
        seed: int,
        is_stopping: Callable[[], bool] | None = None,
        on_step: Callable[[int, int], None] | None = None,
    ) -> EvaluationResult:
        """Evaluate the current policy; see `evaluate_policy`.

        Raises:
            StoppedError: when ``is_stopping`` returned True.
            ConfigError: when there are no test environments, or those that were made are those
                learned in.
        """
        return evaluate_policy(
            self._algorithm,
            self._opened(),
            num_episodes,
            seed=seed,
            explore=self._config.explore_in_tests,
            max_episode_steps=self._config.max_test_steps,
            is_stopping=is_stopping,
            on_step=on_step,
        )

    def check_tasks(self) -> None:
        """Refuse what an algorithm's own evaluation cannot do, before anything is learned.

        Raises:
            ConfigError: for more tasks than there are, or a limit of steps.
        """
        if not (self.has_envs and has_custom_evaluation(self._algorithm)):
            return
        check_limit(self._algorithm, self._config.max_test_steps, "max_test_steps")
        if not isinstance(self._envs, TaskVecEnv):
            return
        envs, config = self._opened(), self._config
        if isinstance(envs, TaskVecEnv):
            count = max(config.num_test_episodes, config.final_test_episodes or 1)
            envs.tasks_of_evaluation(count, seed=0)

    def close(self) -> None:
        """Close environments that were made here; given ones stay open."""
        if self._open is not None and not is_built(self._test_envs):
            self._open.close()
        self._open = None

    def _opened(self) -> VecEnv:
        given = self._test_envs
        if given is None:
            raise ConfigError("give the Trainer test_envs to evaluate on")
        if self._open is None:
            made = given if is_built(given) or not callable(given) else given()
            envs = as_vec_env(made, testing=True)
            try:
                self._check(envs)
            except BaseException:
                if not is_built(given):
                    envs.close()
                raise
            self._open = envs
        return self._open

    def _check(self, test_envs: VecEnv) -> None:
        """Check that a policy can be evaluated there."""
        if share_environments(test_envs, self._envs):
            raise ConfigError(
                "test_envs are, or wrap, the environments that are learned in, whose episodes an "
                "evaluation would break off; make others for it"
            )
        check_spaces(self._algorithm.actor, test_envs, "test environments")


def share_environments(some: AnyEnv, others: AnyEnv) -> bool:
    """Return whether an environment is among both, or within both."""
    return bool(_inside(some) & _inside(others))


def _inside(envs: AnyEnv) -> set[int]:
    """Return the ids of environments, of those that they hold, and so on."""
    found: set[int] = set()
    waiting: list[object] = [envs]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list | tuple):
            waiting += [entry for entry in item if isinstance(entry, gymnasium.Env)]
        elif isinstance(item, VecEnv | VectorEnv | gymnasium.Env) and id(item) not in found:
            found.add(id(item))
            waiting += getattr(item, "__dict__", {}).values()
    return found
