"""Evaluation of a policy over a fixed number of episodes."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from rl_core.actor import ActionOutput, Actor, HasActor, distribution_class, evaluation_mode
from rl_core.algorithm import Algorithm, AnyAlgorithm
from rl_core.config import Count, check_argument
from rl_core.env import TaskVecEnv, VecEnv
from rl_core.errors import ConfigError
from rl_core.seeding import spawn_generator, spawn_seed
from rl_core.spaces import check_same_space
from rl_core.types import Json, Observation, State, to_tensors
from rl_envs import AnyEnv, as_vec_env, is_built
from rl_train.collecting import ActionMaskCheck, Episode, EpisodeTracker
from rl_train.evaluation.statistics import (
    in_words,
    interquartile_mean,
    stratified_bootstrap_interval,
)

if TYPE_CHECKING:
    from rl_train.trainer.trainer import Trainer

_MOST_STEPS = 5_000
"""Limit of an episode that has no other: 2.5 times the longest of Gymnasium's own environments."""

_Act: TypeAlias = Callable[[Observation, State, Tensor], ActionOutput]
"""From observation, recurrent state and episode starts, each with axis `B`, to actions."""


TRAINERS: WeakSet["Trainer"] = WeakSet()
"""Every trainer, to be told before environments are reset that it may be learning in."""


class StoppedError(Exception):
    """Somebody asked to stop in the middle of an iteration or an evaluation."""


_OF_STAGES = ("mean", "std", "iqm", "ci95", "success_rate", "returns")
"""Statistics of a stage that are kept with those of the evaluation."""


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Statistics of the episodes of an evaluation, in the environment's own rewards.

    Attributes:
        num_episodes: number of episodes; of tasks, where there are ``tasks``.
        mean: mean of the episode returns.
        std: standard deviation of the episode returns, population form.
        iqm: interquartile mean of the returns, the mean of the middle half.
        ci95: 95 % bootstrap interval of the interquartile mean, low and high.
        mean_length: mean number of steps per episode; None where it is not known.
        success_rate: share of successful episodes, which those that were cut off are not; None
            where the environment reports no success.
        returns: return of each episode.
        stages: statistics by stage, where an algorithm evaluates in its own way; the others are
            those of the last one.
        tasks: of each episode in a stage, where these are of different tasks.
        num_cut: number of episodes that were cut off at the limit of steps.

    Source:
        Interquartile mean and interval: Agarwal et al. 2021, https://arxiv.org/abs/2108.13264.
    """

    num_episodes: int
    mean: float
    std: float
    iqm: float
    ci95: tuple[float, float]
    mean_length: float | None
    success_rate: float | None
    returns: tuple[float, ...]
    stages: "Mapping[str, EvaluationResult]" = field(default_factory=dict)
    tasks: tuple[Json, ...] = ()
    num_cut: int = 0

    def as_dict(self) -> dict[str, Json]:
        """Return the statistics as a JSON object."""
        table: dict[str, Json] = asdict(self)
        del table["stages"], table["tasks"]
        if self.stages:
            table["tasks"] = list(self.tasks)
            table["stages"] = {
                name: {key: stage[key] for key in _OF_STAGES}
                for name, stage in ((n, s.as_dict()) for n, s in self.stages.items())
            }
        return {**table, "ci95": list(self.ci95), "returns": list(self.returns)}

    def __str__(self) -> str:
        mean, std, iqm, low, high = in_words(self.mean, self.std, self.iqm, *self.ci95)
        unit = f"{'task' if self.tasks else 'episode'}{'s' * (self.num_episodes > 1)}"
        text = (
            f"{mean} ± {std} over {self.num_episodes} {unit} "
            f"(IQM {iqm}, 95 % interval {low} to {high})"
        )
        for name, stage in self.stages.items():
            mean, iqm, low, high = in_words(stage.mean, stage.iqm, *stage.ci95)
            text += f"; {name} {mean} (IQM {iqm}, {low} to {high})"
        text += "" if self.success_rate is None else f", success {self.success_rate:.0%}"
        return text if not self.num_cut else f"{text}, {self.num_cut} cut at the limit of steps"


@torch.no_grad()
def evaluate_policy(
    policy: HasActor | Actor,
    env: AnyEnv,
    num_episodes: int = 100,
    *,
    deterministic: bool = True,
    explore: bool = False,
    num_envs: int = 8,
    seed: int = 0,
    max_episode_steps: int | None = None,
    is_stopping: Callable[[], bool] | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> EvaluationResult:
    """Evaluate a policy over a fixed number of episodes in each environment.

    The number is fixed before the first step, because counting whichever episodes end first would
    favor short ones.

    Args:
        policy: an actor, or an object with an attribute ``actor``.
        env: environments of any kind that `rl_train.make` takes. Environments that are built
            already are reset and stay open. If an agent is evaluated in those that it learns in,
            it goes on with new episodes.
        num_episodes: number of episodes over all environments (>= 1).
        deterministic: True takes the mode of the distribution, False samples from it.
        explore: act as in training, with the exploration of the algorithm; ``policy`` must be an
            algorithm or have one.
        num_envs: number of environments that step together, if they are built here.
        seed: seed of the environments and of the sampled actions.
        max_episode_steps: steps after which an episode is cut off and counts as it is; None takes
            the environments' own limit, or 5,000 if they have none. Algorithms that evaluate in
            their own way play whole episodes.
        is_stopping: called before each step; returning True stops the evaluation.
        on_step: called after each step with the number of finished episodes, and of steps.

    Raises:
        StoppedError: when ``is_stopping`` returned True.
        ConfigError: when there is no actor, a number of episodes or steps is not whole or below 1,
            a flag is not True or False, ``deterministic`` is False and the policy is deterministic
            (see `draws_actions`), or the algorithm evaluates in its own way and there are
            ``max_episode_steps``.
        SpaceError: when the actor was built for other spaces than the environments have.
        DataError: when an action mask forbids every action.
    """
    num_episodes = check_argument("num_episodes", num_episodes, Count)
    max_episode_steps = check_argument("max_episode_steps", max_episode_steps, Count | None)
    deterministic = check_argument("deterministic", deterministic, bool)
    explore = check_argument("explore", explore, bool)
    actor = policy if isinstance(policy, Actor) else getattr(policy, "actor", None)
    if not isinstance(actor, Actor):
        raise ConfigError(
            f"policy is {type(policy).__name__}; expected an actor, or an object with one"
        )
    whole = getattr(policy, "algorithm", policy)
    algorithm = whole if isinstance(whole, Algorithm) else None
    if algorithm is not None:
        check_limit(algorithm, max_episode_steps, "max_episode_steps")
    if explore and algorithm is None:
        raise ConfigError(f"explore needs an algorithm, got {type(policy).__name__}; leave it out")
    if not (deterministic or explore or draws_actions(actor)):
        raise deterministic_policy_error(actor)
    generator = spawn_generator(seed, "evaluation", actor.device)
    explorer = algorithm.explorer() if algorithm is not None and explore else None

    def act(observation: Observation, state: State, start: Tensor) -> ActionOutput:
        if algorithm is not None and explorer is not None:
            noise = algorithm.draw_noise((len(start),), generator)
            return explorer(observation, state, noise, start)
        drawn = None if deterministic else actor.draw_noise((len(start),), generator)
        return actor.get_action(observation, state, drawn, deterministic, start)

    def before_step() -> None:
        if is_stopping is not None and is_stopping():
            raise StoppedError

    with ExitStack() as stack:
        count = None if is_built(env) else min(num_envs, num_episodes)
        envs = as_vec_env(env, count, testing=True)
        if not is_built(env):
            stack.enter_context(envs)
        stack.enter_context(evaluation_mode(actor))
        check_spaces(actor, envs)
        for trainer in tuple(TRAINERS):
            trainer.before_evaluation(env)
        if algorithm is not None:
            by_stage = algorithm.custom_evaluation(
                envs,
                num_episodes,
                seed=seed,
                deterministic=deterministic and not explore,
                before_step=before_step,
                on_step=on_step or (lambda *_: None),
            )
            if by_stage is not None:
                stages = {
                    name: summarize(found.returns, found.lengths, found.successes, seed=seed)
                    for name, found in by_stage.items()
                }
                tasks = _tasks_of(envs, num_episodes, seed)
                return replace(list(stages.values())[-1], stages=stages, tasks=tasks)
        limit = max_episode_steps or envs.max_episode_steps or _MOST_STEPS
        return _run(act, actor, envs, num_episodes, seed, limit, before_step, on_step)


def has_custom_evaluation(algorithm: AnyAlgorithm) -> bool:
    """Return whether an algorithm evaluates in its own way; see `Algorithm.custom_evaluation`."""
    return type(algorithm).custom_evaluation is not Algorithm.custom_evaluation


def check_limit(algorithm: AnyAlgorithm, limit: int | None, name: str) -> None:
    """Refuse a limit of an evaluation's episodes where the algorithm has its own evaluation.

    Raises:
        ConfigError: calling the limit by ``name``.
    """
    if limit is not None and has_custom_evaluation(algorithm):
        raise ConfigError(
            f"{name}={limit}, but {type(algorithm).__name__} evaluates whole episodes; leave it out"
        )


def _tasks_of(envs: VecEnv, num_episodes: int, seed: int) -> tuple[Json, ...]:
    if not isinstance(envs, TaskVecEnv):
        return ()
    tasks: list[Json] = envs.tasks_of_evaluation(num_episodes, seed).tolist()
    return tuple(tasks)


def draws_actions(actor: Actor) -> bool:
    """Return whether a policy is stochastic: whether it samples its actions.

    Exploration that an algorithm adds, such as ε-greedy actions or noise, is not counted.
    """
    return distribution_class(actor).noise_kind != "none"


def deterministic_policy_error(actor: Actor) -> ConfigError:
    """Return the error for sampling from a policy that is not stochastic."""
    return ConfigError(
        f"deterministic=False, but the policy of {type(actor).__name__} is deterministic: it takes "
        "one action for each observation, and the exploration of its algorithm is not part of it; "
        "leave deterministic out"
    )


def check_spaces(actor: Actor, envs: VecEnv, name: str = "environments") -> None:
    """Check that an actor was built for the spaces of environments.

    Raises:
        SpaceError: when it was not; the message uses ``name`` for the environments.
    """
    for kind, expected, actual in (
        ("observation", actor.observation_space, envs.single_observation_space),
        ("action", actor.action_space, envs.single_action_space),
    ):
        check_same_space(expected, actual, f"{kind} space of the {name}")


def _run(
    act: _Act,
    actor: Actor,
    envs: VecEnv,
    num_episodes: int,
    seed: int,
    limit: int,
    before_step: Callable[[], None],
    on_step: Callable[[int, int], None] | None,
) -> EvaluationResult:
    """Step the environments until each has its share of episodes.

    Rows whose episode was cut wait for one that begins: their environment may end it after all,
    and when all rows wait, all are reset.
    """
    tracker = EpisodeTracker(envs.num_envs)
    check_masks = ActionMaskCheck(envs.single_observation_space, envs.single_action_space)
    observation = envs.reset(spawn_seed(seed, "evaluation"))
    check_masks(observation)
    state = actor.actor_initial_states(envs.num_envs)
    quota = np.full(envs.num_envs, num_episodes // envs.num_envs)
    quota[: num_episodes % envs.num_envs] += 1
    waits = np.zeros(envs.num_envs, bool)
    episodes: list[list[Episode]] = [[] for _ in range(envs.num_envs)]
    num_cut = num_steps = 0
    reports_success = False
    while quota.any():
        before_step()
        start = torch.from_numpy(tracker.episode_start).to(actor.device)
        output = act(to_tensors(observation, actor.device), state, start)
        action = output.env_action
        outcome = envs.step(action if envs.array_type == "torch" else action.cpu().numpy())
        check_masks.check_step(outcome)
        observation, state = outcome.observation, output.state
        ended, cut = tracker.track(outcome), tracker.cut(limit)
        for episode in (*ended, *cut):
            if quota[episode.env] > 0 and not waits[episode.env]:
                quota[episode.env] -= 1
                episodes[episode.env].append(episode)
                num_cut += int(episode in cut)
        if cut and not reports_success:
            reports_success = "is_success" in outcome.info
        num_steps += envs.num_envs
        if on_step is not None:
            on_step(num_episodes - int(quota.sum()), num_steps)
        waits[[episode.env for episode in ended]] = False
        waits[[episode.env for episode in cut]] = True
        if (ended or cut) and quota.any() and waits[quota > 0].all():
            observation = envs.reset()
            check_masks(observation)
            tracker.reset()
            waits[:] = False
    every = [episode for row in episodes for episode in row]
    successes = [episode.success for episode in every if episode.success is not None]
    successes += [False] * num_cut if successes or reports_success else []
    result = summarize(
        [episode.episode_return for episode in every],
        [episode.length for episode in every],
        successes,
        seed=seed,
    )
    return replace(result, num_cut=num_cut)


def summarize(
    returns: Sequence[float],
    lengths: Sequence[int] = (),
    successes: Sequence[bool] = (),
    *,
    seed: int = 0,
) -> EvaluationResult:
    """Return the statistics of finished episodes.

    Args:
        returns: return of each episode.
        lengths: number of steps of each episode; empty where that is not known.
        successes: whether each episode succeeded, of those that reported it.
        seed: seed of the bootstrap.
    """
    values = np.asarray(returns, dtype=np.float64)
    interval = stratified_bootstrap_interval(
        [values], interquartile_mean, generator=np.random.default_rng(seed)
    )
    return EvaluationResult(
        num_episodes=len(values),
        mean=float(values.mean()),
        std=float(values.std()),
        iqm=float(interquartile_mean(values)),
        ci95=interval,
        mean_length=float(np.mean(lengths)) if lengths else None,
        success_rate=float(np.mean(successes)) if successes else None,
        returns=tuple(values.tolist()),
    )


def evaluation_metrics(result: EvaluationResult) -> Mapping[str, float]:
    """Return the statistics as metrics for loggers."""
    metrics = {
        "test/episode_return": result.mean,
        "test/episode_return_std": result.std,
        "test/episode_return_iqm": result.iqm,
    }
    if result.mean_length is not None:
        metrics["test/episode_length"] = result.mean_length
    for name, stage in result.stages.items():
        metrics[f"test/return_{name.replace(' ', '_')}"] = stage.mean
    if result.success_rate is not None:
        metrics["test/success_rate"] = result.success_rate
    return metrics
