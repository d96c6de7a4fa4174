"""Evaluation on test tasks: the returns before and after each step of adaptation."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from rl_core.actor import Actor
from rl_core.batch import Rollout
from rl_core.env import TaskVecEnv, VecEnv
from rl_core.errors import ConfigError
from rl_core.gradients.trust_region import Parameters
from rl_core.seeding import spawn_generators, spawn_seed
from rl_core.types import Observation
from rl_meta.inner_algorithm import with_tasks
from rl_meta.rollouts import collect_episodes


class AdaptiveAlgorithm(Protocol):
    """What adapts to tasks: MAML by its parameters, PEARL by its beliefs.

    The policies of M tasks are tensors by name, each `(M, ...)`.
    """

    device: torch.device

    @property
    def actor(self) -> Actor:
        """What acts."""
        ...

    @property
    def exploration_episodes(self) -> Sequence[int]:
        """How many episodes each step of adaptation learns from."""
        ...

    def unadapted(self, num_tasks: int) -> Parameters:
        """Return the policies before adaptation."""
        ...

    def explorers(
        self, policies: Parameters, num_envs: int, generator: torch.Generator
    ) -> Parameters:
        """Return the policies that explore, from those that would be evaluated."""
        ...

    def act(
        self, policies: Parameters, observation: Observation, noise: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Choose the actor's and the environment's actions; without noise they are the modes."""
        ...

    def adapt_to(self, policies: Parameters, rollout: Rollout) -> Parameters:
        """Take one step of adaptation, for a rollout whose rows are those of M tasks."""
        ...


@torch.no_grad()
def evaluate_adaptation(
    algorithm: AdaptiveAlgorithm,
    envs: VecEnv,
    num_episodes: int,
    *,
    seed: int = 0,
    deterministic: bool = True,
    before_step: Callable[[], None] = lambda: None,
) -> Mapping[str, list[float]]:
    """Adapt to test tasks, and play an episode with each policy on the way.

    Each step of adaptation learns from episodes in which the policy so far explores. These are not
    part of the results.

    Args:
        algorithm: whose policy adapts; it stays as it is.
        envs: a `TaskVecEnv`, whose rows are divided among the tasks.
        num_episodes: how many test tasks; each has an episode in every stage.
        seed: of tasks, environments and actions.
        deterministic: take the mode of the policies in the episodes that count.
        before_step: called before each step of the environments.

    Returns:
        The return on each task, by stage; that of a policy which knows its task comes first, as
        ``"oracle"``, where the environments know it.

    Raises:
        ConfigError: when there are no tasks, or fewer test tasks.
    """
    envs = with_tasks(envs)
    device = algorithm.device
    generator = spawn_generators(seed, ["evaluation"], device=device)["evaluation"]
    tasks = _test_tasks(envs, num_episodes, seed)
    explored = algorithm.exploration_episodes
    stages = ["before adaptation", *(f"after step {n}" for n in range(1, len(explored) + 1))]
    returns: dict[str, list[float]] = {stage: [] for stage in stages}
    oracle = envs.oracle_returns(tasks)
    env_seed: int | None = spawn_seed(seed, "evaluation")

    def play(num_episodes: int, mode: bool, policies: Parameters) -> Rollout:
        nonlocal env_seed
        first, env_seed = env_seed, None

        def choose(observation: Observation) -> tuple[Tensor, Tensor]:
            shape = (envs.num_envs,)
            noise = None if mode else algorithm.actor.draw_noise(shape, generator)
            return algorithm.act(policies, observation, noise)

        return collect_episodes(
            envs, choose, num_episodes, device, seed=first, before_step=before_step
        )

    while len(tasks):
        # as many tasks at a time as divide the environments
        count = next(n for n in range(len(tasks), 0, -1) if envs.num_envs % n == 0)
        rows = envs.num_envs // count
        envs.set_tasks(tasks[:count].repeat_interleave(rows, 0))
        tasks = tasks[count:]
        policies = algorithm.unadapted(count)
        for index, stage in enumerate(stages):
            judged = play(1, deterministic, policies)
            totals = (judged.reward * judged.valid).sum(0).view(count, rows).mean(1)
            returns[stage] += totals.tolist()
            if index < len(explored):
                used = min(rows, explored[index])
                explorers = algorithm.explorers(policies, envs.num_envs, generator)
                rollout = play(-(-explored[index] // used), False, explorers)
                kept = [env for env in range(envs.num_envs) if env % rows < used]
                policies = algorithm.adapt_to(policies, rollout.select(kept))
    return returns if oracle is None else {"oracle": oracle.tolist(), **returns}


def _test_tasks(envs: TaskVecEnv, count: int, seed: int) -> Tensor:
    """Return the test tasks, and warn where they are train tasks too."""
    available, trained = envs.num_tasks("test"), envs.num_tasks("train")
    if available is not None and available < count:
        raise ConfigError(
            f"{envs.spec_id} has only {available} test tasks; evaluate on at most so many, got "
            f"{count}"
        )
    tasks = envs.tasks_of_evaluation(count, seed)
    if trained is not None:
        # All of them, also where each is drawn with replacement.
        known = envs.sample_tasks(10 * trained, torch.Generator(), "train")
        same = tasks.flatten(1).unsqueeze(1) == known.flatten(1)
        overlap = int(same.all(2).any(1).sum())
        if overlap:
            warnings.warn(
                f"{envs.spec_id}: {overlap} of {count} test tasks are train tasks too, so that "
                "returns on them say nothing of new tasks; draw others in sample_tasks where "
                "split is 'test'",
                RuntimeWarning,
                stacklevel=2,
            )
    return tasks
