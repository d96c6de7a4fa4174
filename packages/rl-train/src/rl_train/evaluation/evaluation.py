"""Evaluation of a policy over a fixed number of episodes."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import numpy as np
import torch

from rl_core.actor import Actor, HasActor, evaluation_mode
from rl_core.arrays import to_tensors
from rl_core.config import Count, check_argument
from rl_core.env import VecEnv
from rl_core.errors import ConfigError, EnvironmentFaultError
from rl_core.seeding import spawn_generators, spawn_seed
from rl_core.spaces import check_same_space, made_up_observation
from rl_core.types import Json
from rl_envs import AnyEnv, as_vec_env, is_built
from rl_train.collecting import ActionMaskCheck, EpisodeTracker
from rl_train.evaluation.statistics import interquartile_mean, stratified_bootstrap_interval


class EvaluationStoppedError(Exception):
    """An evaluation was stopped by the caller; it changed nothing."""


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Statistics of the episodes of an evaluation, in the environment's own rewards.

    Attributes:
        num_episodes: number of episodes.
        mean: mean of the episode returns.
        std: standard deviation of the episode returns, population form.
        iqm: interquartile mean of the returns, the mean of the middle half.
        ci95: 95 % bootstrap interval of the interquartile mean, low and high.
        mean_length: mean number of steps per episode.
        success_rate: share of successful episodes; None where the environment reports none.
        returns: return of each episode.

    Source:
        Interquartile mean and interval: Agarwal et al. 2021, https://arxiv.org/abs/2108.13264.
    """

    num_episodes: int
    mean: float
    std: float
    iqm: float
    ci95: tuple[float, float]
    mean_length: float
    success_rate: float | None
    returns: tuple[float, ...]

    def as_dict(self) -> dict[str, Json]:
        """Return the statistics as a JSON object."""
        table: dict[str, Json] = asdict(self)
        return {**table, "ci95": list(self.ci95), "returns": list(self.returns)}

    def __str__(self) -> str:
        low, high = self.ci95
        text = (
            f"{self.mean:.1f} ± {self.std:.1f} over {self.num_episodes} episodes "
            f"(IQM {self.iqm:.1f}, 95 % interval {low:.1f} to {high:.1f})"
        )
        return text if self.success_rate is None else f"{text}, success {self.success_rate:.0%}"


@torch.no_grad()
def evaluate_policy(
    policy: HasActor | Actor,
    env: AnyEnv,
    num_episodes: int = 100,
    *,
    deterministic: bool = True,
    num_envs: int = 8,
    seed: int = 0,
    max_episode_steps: int = 100_000,
    is_stopping: Callable[[], bool] | None = None,
    on_episode: Callable[[int], None] | None = None,
) -> EvaluationResult:
    """Run a policy for a fixed number of episodes in each environment.

    The number is fixed before the first step, because counting whichever episodes end first would
    favour short ones.

    Args:
        policy: an actor, or an object with an attribute ``actor``.
        env: environments of any kind that `rl_train.make` takes. Those that are built are reset
            and stay open.
        num_episodes: number of episodes over all environments (>= 1).
        deterministic: True takes the mode of the distribution, False samples from it.
        num_envs: number of environments that step together, where they are built here.
        seed: seed of the environments and of the sampled actions.
        max_episode_steps: longest episode that is taken to end.
        is_stopping: called before each step; returning True stops the evaluation.
        on_episode: called with the number of finished episodes whenever it grows.

    Raises:
        EvaluationStoppedError: when it was stopped.
        ConfigError: when there is no actor, ``num_episodes`` is not a whole number of at least 1,
            or ``deterministic`` is False and the policy is deterministic (see `draws_actions`).
        SpaceError: when the actor was built for other spaces than the environments have.
        EnvironmentFaultError: when an episode does not end.
        DataError: when an action mask forbids every action.
    """
    check_argument("num_episodes", num_episodes, Count)
    actor = policy if isinstance(policy, Actor) else getattr(policy, "actor", None)
    if not isinstance(actor, Actor):
        raise ConfigError(
            f"policy is {type(policy).__name__}; expected an actor, or an object with one"
        )
    if not (deterministic or draws_actions(actor)):
        raise nothing_to_draw(actor)
    with evaluation_mode(actor):
        options = num_episodes, deterministic, seed, max_episode_steps, is_stopping, on_episode
        if is_built(env):
            return _run(actor, as_vec_env(env), *options)
        with as_vec_env(env, min(num_envs, num_episodes), testing=True) as envs:
            return _run(actor, envs, *options)


@torch.no_grad()
def draws_actions(actor: Actor) -> bool:
    """Return whether a policy is stochastic: whether it samples its actions.

    Exploration that an algorithm adds, such as ε-greedy actions or noise, is not counted.
    """
    device = actor.device
    observation = made_up_observation(actor.observation_space, device)
    begins = torch.ones(1, dtype=torch.bool, device=device)
    with evaluation_mode(actor):
        distribution, _ = actor.distribution(observation, actor.actor_initial_states(1), begins)
    return distribution.noise_kind != "none"


def nothing_to_draw(actor: Actor) -> ConfigError:
    """Return the error for sampling from a policy that is not stochastic."""
    return ConfigError(
        f"deterministic=False, but the policy of {type(actor).__name__} is deterministic: it takes "
        "one action for each observation, and the exploration of its algorithm is not part of it; "
        "leave deterministic out"
    )


def _run(
    actor: Actor,
    envs: VecEnv,
    num_episodes: int,
    deterministic: bool,
    seed: int,
    max_episode_steps: int,
    is_stopping: Callable[[], bool] | None,
    on_episode: Callable[[int], None] | None,
) -> EvaluationResult:
    check_same_space(
        actor.observation_space, envs.single_observation_space, "environments' observation space"
    )
    check_same_space(actor.action_space, envs.single_action_space, "environments' action space")
    device = actor.device
    generator = spawn_generators(seed, ["evaluation"], device=device)["evaluation"]
    tracker = EpisodeTracker(envs.num_envs)
    check_masks = ActionMaskCheck(envs.single_observation_space, envs.single_action_space)
    observation = envs.reset(spawn_seed(seed, "evaluation"))
    check_masks(observation)
    state = actor.actor_initial_states(envs.num_envs)
    quota = np.full(envs.num_envs, num_episodes // envs.num_envs)
    quota[: num_episodes % envs.num_envs] += 1
    returns: list[list[float]] = [[] for _ in range(envs.num_envs)]
    lengths: list[int] = []
    successes: list[bool] = []
    while quota.any():
        if is_stopping is not None and is_stopping():
            raise EvaluationStoppedError
        start = torch.from_numpy(tracker.episode_start).to(device)
        noise = None if deterministic else actor.draw_noise((envs.num_envs,), generator)
        output = actor.get_action(
            to_tensors(observation, device), state, noise, deterministic, start
        )
        action = output.env_action
        outcome = envs.step(action if envs.array_type == "torch" else action.cpu().numpy())
        check_masks.check_step(outcome)
        observation, state = outcome.observation, output.state
        for episode in tracker.track(outcome):
            if quota[episode.env] > 0:
                quota[episode.env] -= 1
                returns[episode.env].append(episode.episode_return)
                lengths.append(episode.length)
                if episode.success is not None:
                    successes.append(episode.success)
                if on_episode is not None:
                    on_episode(len(lengths))
        if tracker.longest > max_episode_steps:
            raise EnvironmentFaultError(
                f"{envs.spec_id}: an episode has not ended after {max_episode_steps} steps of an "
                "evaluation; give the environment a time limit (gymnasium's TimeLimit wrapper, or "
                "max_episode_steps when it is made)"
            )
    return summarize([value for row in returns for value in row], lengths, successes, seed=seed)


def summarize(
    returns: list[float], lengths: list[int], successes: list[bool], *, seed: int = 0
) -> EvaluationResult:
    """Return the statistics of finished episodes.

    Args:
        returns: return of each episode.
        lengths: number of steps of each episode.
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
        mean_length=float(np.mean(lengths)),
        success_rate=float(np.mean(successes)) if successes else None,
        returns=tuple(values.tolist()),
    )


def evaluation_metrics(result: EvaluationResult) -> Mapping[str, float]:
    """Return the statistics as metrics for loggers."""
    metrics = {
        "test/episode_return": result.mean,
        "test/episode_return_std": result.std,
        "test/episode_return_iqm": result.iqm,
        "test/episode_length": result.mean_length,
    }
    if result.success_rate is not None:
        metrics["test/success_rate"] = result.success_rate
    return metrics
