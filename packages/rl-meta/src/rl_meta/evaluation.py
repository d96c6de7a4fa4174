"""Evaluation on test tasks: the returns before and after each step of adaptation."""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rl_core.batch import Rollout
from rl_core.env import TaskVecEnv
from rl_core.errors import ConfigError
from rl_core.gradients.trust_region import Parameters
from rl_core.seeding import spawn_generators, spawn_seed
from rl_core.types import Observation
from rl_meta.rollouts import collect_episodes

if TYPE_CHECKING:
    from rl_meta.maml import MAML


@torch.no_grad()
def evaluate_adaptation(
    algorithm: "MAML[Any]",
    envs: TaskVecEnv,
    num_tasks: int,
    *,
    seed: int = 0,
    deterministic: bool = True,
    before_step: Callable[[], None] = lambda: None,
) -> Mapping[str, list[float]]:
    """Adapt to test tasks, and play an episode with each policy on the way.

    Each step of adaptation learns from at least ``num_exploration_episodes`` episodes that are
    sampled from the policy so far. These are not part of the results.

    Args:
        algorithm: whose policy adapts; it stays as it is.
        envs: rows are divided among the tasks.
        num_tasks: how many test tasks.
        seed: of tasks, environments and actions.
        deterministic: take the mode of the policies in the episodes that count.
        before_step: called before each step of the environments.

    Returns:
        The return on each task, by stage.

    Raises:
        ConfigError: when there are fewer test tasks.
    """
    available = envs.num_tasks("test")
    if available is not None and available < num_tasks:
        raise ConfigError(
            f"{envs.spec_id} has only {available} test tasks; evaluate on at most so many, got "
            f"{num_tasks}"
        )
    config, device = algorithm.config, algorithm.device
    generator = spawn_generators(seed, ["evaluation"], device=device)["evaluation"]
    tasks = envs.sample_tasks(num_tasks, spawn_generators(seed, ["tasks"])["tasks"], "test")
    steps = range(1, config.num_grad_updates + 1)
    stages = ["before adaptation", *(f"after step {step}" for step in steps)]
    returns: dict[str, list[float]] = {stage: [] for stage in stages}
    env_seed: int | None = spawn_seed(seed, "evaluation")
    while len(tasks):
        # as many tasks at a time as divide the environments
        count = next(n for n in range(len(tasks), 0, -1) if envs.num_envs % n == 0)
        rows = envs.num_envs // count
        envs.set_tasks(tasks[:count].repeat_interleave(rows, 0))
        tasks = tasks[count:]
        policies: Parameters = {
            name: value.detach().expand(count, *value.shape)
            for name, value in algorithm.policy_parameters().items()
        }

        def play(num_episodes: int, mode: bool, at: Parameters, seed: int | None) -> Rollout:
            def choose(observation: Observation) -> tuple[Tensor, Tensor]:
                shape = (envs.num_envs,)
                noise = None if mode else algorithm.actor.draw_noise(shape, generator)
                return algorithm.act(at, observation, noise)

            return collect_episodes(
                envs, choose, num_episodes, device, seed=seed, before_step=before_step
            )

        for index, stage in enumerate(stages):
            judged = play(1, deterministic, policies, env_seed)
            env_seed = None
            totals = (judged.reward * judged.valid).sum(0).view(count, rows).mean(1)
            returns[stage] += totals.tolist()
            if index < config.num_grad_updates:
                episodes = math.ceil(config.num_exploration_episodes / rows)
                policies = algorithm.adapt_to(policies, play(episodes, False, policies, None))
    return returns
