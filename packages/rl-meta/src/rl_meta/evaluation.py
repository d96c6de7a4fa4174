"""Evaluation on test tasks: the returns before and after each step of adaptation."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_core.actor import Actor
from rl_core.algorithm import EvaluatedEpisodes
from rl_core.batch import Rollout
from rl_core.config import Count, check_argument
from rl_core.env import EnvStep, TaskVecEnv, VecEnv
from rl_core.gradients.trust_region import Parameters
from rl_core.seeding import spawn_generator, spawn_seed
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

    @property
    def judged_episodes(self) -> int:
        """How many episodes of a task each of its policies is judged by."""
        ...

    @property
    def train_tasks(self) -> Tensor | None:
        """The tasks that it learns from, where it drew them once and for all."""
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
    on_step: Callable[[int, int], None] = lambda *_: None,
) -> Mapping[str, EvaluatedEpisodes]:
    """Adapt to test tasks, and play with each policy on the way.

    Each policy of a task plays ``algorithm.judged_episodes``, whose mean return counts. Each step
    of adaptation learns from other episodes, in which the policy so far explores.

    Args:
        algorithm: whose policy adapts; it stays as it is.
        envs: a `TaskVecEnv`, whose rows are divided among the tasks.
        num_episodes: how many test tasks.
        seed: of tasks, environments and actions.
        deterministic: take the mode of the policies in the episodes that count.
        before_step: called before each step of the environments.
        on_step: called after each, with the number of tasks that are done, and of steps.

    Returns:
        The return on each task, by stage, with the lengths and successes of all episodes; that of a
        policy that knows its task comes first, as ``"oracle"``, where the environments know it.

    Raises:
        ConfigError: when there are no tasks, or fewer test tasks, or none are asked for.
    """
    num_episodes = check_argument("num_episodes", num_episodes, Count)
    envs = with_tasks(envs)
    device = algorithm.device
    generator = spawn_generator(seed, "evaluation", device)
    tasks = envs.tasks_of_evaluation(num_episodes, seed)
    _warn_of_known_tasks(algorithm, envs, tasks)
    explored, judged_by = algorithm.exploration_episodes, algorithm.judged_episodes
    stages = {"before adaptation": _Stage()}
    stages |= {f"after step {number}": _Stage() for number in range(1, len(explored) + 1)}
    oracle = envs.oracle_returns(tasks)
    env_seed: int | None = spawn_seed(seed, "evaluation")
    num_done = num_steps = 0

    def play(
        num_episodes: int,
        policies: Parameters,
        *,
        mode: bool,
        successes: list[bool] | None = None,
    ) -> Rollout:
        """Play so many episodes of each task; rows that are left over are not returned."""
        nonlocal env_seed
        first, env_seed = env_seed, None
        each = np.bincount(np.arange(num_episodes) % rows, minlength=rows)  # in turn
        quota = np.tile(each, count)

        def choose(observation: Observation) -> tuple[Tensor, Tensor]:
            shape = (envs.num_envs,)
            noise = None if mode else algorithm.actor.draw_noise(shape, generator)
            return algorithm.act(policies, observation, noise)

        def after_step(step: EnvStep, ended: npt.NDArray[np.bool_]) -> None:
            nonlocal num_steps
            num_steps += envs.num_envs
            on_step(num_done, num_steps)
            if successes is not None:
                each = (step.success(int(env)) for env in np.flatnonzero(ended))
                successes.extend(success for success in each if success is not None)

        rollout = collect_episodes(
            envs,
            choose,
            quota,
            device,
            seed=first,
            before_step=before_step,
            after_step=after_step,
        )
        return rollout.select(np.flatnonzero(quota).tolist())

    while num_done < len(tasks):
        # as many tasks at a time as divide the environments
        left = len(tasks) - num_done
        count = next(n for n in range(left, 0, -1) if envs.num_envs % n == 0)
        rows = envs.num_envs // count
        envs.set_tasks(tasks[num_done : num_done + count].repeat_interleave(rows, 0))
        policies = algorithm.unadapted(count)
        for index, stage in enumerate(stages.values()):
            judged = play(judged_by, policies, mode=deterministic, successes=stage.successes)
            totals = (judged.reward * judged.valid).sum(0).view(count, -1).sum(1) / judged_by
            stage.returns += totals.tolist()
            stage.lengths += _lengths(judged)
            if index < len(explored):
                explorers = algorithm.explorers(policies, envs.num_envs, generator)
                rollout = play(explored[index], explorers, mode=False)
                policies = algorithm.adapt_to(policies, rollout)
        num_done += count
    by_stage = {
        name: EvaluatedEpisodes(stage.returns, stage.lengths, stage.successes)
        for name, stage in stages.items()
    }
    if oracle is None:
        return by_stage
    return {"oracle": EvaluatedEpisodes(oracle.tolist()), **by_stage}


@dataclass(slots=True)
class _Stage:
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    successes: list[bool] = field(default_factory=list)


def _lengths(rollout: Rollout) -> list[int]:
    """Return the lengths of a rollout's episodes, one row after the other."""
    ends = (rollout.terminated | rollout.truncated) & rollout.valid
    lengths: list[int] = []
    for valid, end in zip(rollout.valid.T, ends.T, strict=True):
        passed = valid.cumsum(0)[end]  # how many steps there were when each episode ended
        lengths += passed.diff(prepend=passed.new_zeros(1)).tolist()
    return lengths


def _warn_of_known_tasks(algorithm: AdaptiveAlgorithm, envs: TaskVecEnv, tasks: Tensor) -> None:
    """Warn where test tasks are train tasks too."""
    known, num_train, by_chance = algorithm.train_tasks, envs.num_tasks("train"), 0.0
    if known is None:
        # Ten times a known number, which leaves out none of them; else as many as are tested, of
        # which two may be equal because float32 has no more numbers between them.
        count, generator = num_train or len(tasks), torch.Generator()
        draws = range(10 if num_train else 1)
        known = torch.cat([envs.sample_tasks(count, generator, "train") for _ in draws])
        by_chance = 0.05 * len(tasks) if num_train is None else 0.0
    same = tasks.flatten(1).unsqueeze(1) == known.flatten(1)
    overlap = int(same.all(2).any(1).sum())
    if overlap > by_chance:
        warnings.warn(
            f"{envs.spec_id}: {overlap} of {len(tasks)} test tasks are train tasks too, so that "
            "returns on them say nothing of new tasks; where there are others, draw these in "
            "sample_tasks when split is 'test'",
            RuntimeWarning,
            stacklevel=2,
        )
