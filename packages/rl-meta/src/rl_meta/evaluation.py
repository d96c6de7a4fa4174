"""Evaluation on test tasks: the returns before and after each step of adaptation."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_core.algorithm import EvaluatedEpisodes
from rl_core.batch import Rollout
from rl_core.config import Count, check_argument
from rl_core.env import EnvStep, TaskVecEnv, VecEnv
from rl_core.gradients.trust_region import Parameters
from rl_core.seeding import spawn_generator, spawn_seed
from rl_core.types import Observation
from rl_meta.inner_algorithm import with_tasks
from rl_meta.rollouts import collect_episodes

if TYPE_CHECKING:
    from rl_meta.maml import MAML
    from rl_meta.pearl import PEARL


@torch.no_grad()
def evaluate_adaptation(
    algorithm: "MAML[Any] | PEARL",
    envs: VecEnv,
    num_episodes: int,
    *,
    seed: int = 0,
    deterministic: bool = True,
    before_step: Callable[[], None] = lambda: None,
    on_step: Callable[[int, int], None] = lambda *_: None,
) -> Mapping[str, EvaluatedEpisodes]:
    """Adapt to test tasks, and play with each policy on the way.

    Each policy of a task plays ``num_judged_episodes`` of the algorithm's options, whose mean
    return counts. Each step of adaptation learns from other episodes, in which the policy so far
    explores.

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
    tasks = envs.tasks_of_evaluation(num_episodes, seed)
    _warn_of_known_tasks(algorithm, envs, tasks)
    generator = spawn_generator(seed, "evaluation", algorithm.device)
    player = _Player(
        algorithm, envs, generator, spawn_seed(seed, "evaluation"), before_step, on_step
    )
    explored, judged_by = algorithm.exploration_episodes, algorithm.config.num_judged_episodes
    stages = {"before adaptation": _Stage()}
    stages |= {f"after step {number}": _Stage() for number in range(1, len(explored) + 1)}
    oracle = envs.oracle_returns(tasks)
    while player.num_done < len(tasks):
        # as many tasks at a time as divide the environments
        left = len(tasks) - player.num_done
        count = next(n for n in range(left, 0, -1) if envs.num_envs % n == 0)
        chosen = tasks[player.num_done : player.num_done + count]
        envs.set_tasks(chosen.repeat_interleave(envs.num_envs // count, 0))
        policies = algorithm.unadapted(count)
        for index, stage in enumerate(stages.values()):
            judged = player.play(policies, count, judged_by, deterministic, stage.successes)
            totals = (judged.reward * judged.valid).sum(0).view(count, -1).sum(1) / judged_by
            stage.returns += totals.tolist()
            stage.lengths += _lengths(judged)
            if index < len(explored):
                explorers = algorithm.explorers(policies, envs.num_envs, generator)
                rollout = player.play(explorers, count, explored[index], False, [])
                policies = algorithm.adapt_to(policies, rollout)
        player.num_done += count
    by_stage = {
        name: EvaluatedEpisodes(stage.returns, stage.lengths, stage.successes)
        for name, stage in stages.items()
    }
    if oracle is None:
        return by_stage
    return {"oracle": EvaluatedEpisodes(oracle.tolist()), **by_stage}


@dataclass(slots=True)
class _Player:
    """Plays episodes of several tasks, and counts tasks and steps."""

    algorithm: "MAML[Any] | PEARL"
    envs: TaskVecEnv
    generator: torch.Generator
    seed: int | None  # of the first reset
    before_step: Callable[[], None]
    on_step: Callable[[int, int], None]
    num_done: int = 0
    num_steps: int = 0

    def play(
        self,
        policies: Parameters,
        num_tasks: int,
        num_episodes: int,
        deterministic: bool,
        successes: list[bool],
    ) -> Rollout:
        """Play so many episodes of each task; rows that are left over are not returned.

        Args:
            policies: one for each task, or for each row.
            num_tasks: how many tasks the rows have.
            num_episodes: of each task.
            deterministic: take the mode of the policies.
            successes: gets whether each episode succeeded.
        """
        rows = self.envs.num_envs // num_tasks
        each = np.bincount(np.arange(num_episodes) % rows, minlength=rows)  # in turn
        quota = np.tile(each, num_tasks)
        seed, self.seed = self.seed, None
        rollout = collect_episodes(
            self.envs,
            partial(self._choose, policies, deterministic),
            quota,
            self.algorithm.device,
            seed=seed,
            before_step=self.before_step,
            after_step=partial(self._after_step, successes),
        )
        return rollout.select(np.flatnonzero(quota).tolist())

    def _choose(
        self, policies: Parameters, deterministic: bool, observation: Observation
    ) -> tuple[Tensor, Tensor]:
        noise = None
        if not deterministic:
            noise = self.algorithm.actor.draw_noise((self.envs.num_envs,), self.generator)
        return self.algorithm.act(policies, observation, noise)

    def _after_step(
        self, successes: list[bool], step: EnvStep, ended: npt.NDArray[np.bool_]
    ) -> None:
        self.num_steps += self.envs.num_envs
        self.on_step(self.num_done, self.num_steps)
        each = (step.success(int(env)) for env in np.flatnonzero(ended))
        successes += [success for success in each if success is not None]


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


def _warn_of_known_tasks(algorithm: "MAML[Any] | PEARL", envs: TaskVecEnv, tasks: Tensor) -> None:
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
