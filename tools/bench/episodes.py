"""The evaluation that ends every run: each episode begins from a seed of its own.

The seeds are the same for every policy, so that policies are compared on the same start states and
not on those that each happened to draw.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import gymnasium
import numpy as np
import numpy.typing as npt

from bench.child import Json

FIRST_SEED = 1_000_000
"""Seed of the first episode; the seeds of training are far below."""

NUM_EPISODES = 100
"""Of the evaluation that ends every run."""

_AT_ONCE = 10
"""Environments that step together; it changes nothing but the time."""

Observation: TypeAlias = Any
"""An array with one row for each environment, or a dict of such arrays."""

Predict: TypeAlias = Callable[
    [Observation, Any, npt.NDArray[np.bool_]], tuple[npt.NDArray[Any], Any]
]
"""Takes observations, recurrent states (None at first) and which rows start an episode, and
returns actions and the next states."""


@dataclass(frozen=True, slots=True)
class Episodes:
    """What an evaluation found.

    Attributes:
        returns: of each episode, in the order of the seeds.
        successes: whether each succeeded; empty where the environment does not say.
    """

    returns: tuple[float, ...]
    successes: tuple[bool, ...]

    @property
    def success_rate(self) -> float | None:
        """Share of the episodes, or None where the environment does not say."""
        return sum(self.successes) / len(self.successes) if self.successes else None

    def as_dict(self) -> dict[str, Json]:
        """Return plain data, with as many digits as figures need."""
        rate = self.success_rate
        return {
            "first_seed": FIRST_SEED,
            "returns": [round(value, 4) for value in self.returns],
            **({} if rate is None else {"success_rate": rate}),
        }


def make_env(
    env: str, testing: bool = False, *, mask_velocity: bool = False
) -> gymnasium.Env[Any, Any]:
    """Make one environment of a Gymnasium id, with the preprocessing of its family.

    Args:
        env: the id.
        testing: prepare it for testing, not for training.
        mask_velocity: hide velocities.
    """
    spec = importlib.import_module("rl_envs.registry").find_spec(env)
    family = importlib.import_module("rl_envs.families").family_of_spec(spec)
    made = gymnasium.make(spec, **(family.kwargs if family else {}))
    if family and family.prepare:
        made = family.prepare(made, testing)
    if mask_velocity:
        made = importlib.import_module("rl_envs.wrappers").MaskVelocity(made)
    return made


def evaluate(
    predict: Predict,
    make: Callable[[], gymnasium.Env[Any, Any]],
    num_episodes: int = NUM_EPISODES,
) -> Episodes:
    """Run one episode from each seed.

    Args:
        predict: the policy.
        make: builds one environment.
        num_episodes: how many; their seeds are ``FIRST_SEED``, ``FIRST_SEED + 1`` and so on.
    """
    seeds = [FIRST_SEED + number for number in range(num_episodes)]
    envs = [make() for _ in seeds[:_AT_ONCE]]
    found: list[tuple[float, bool | None]] = []
    for first in range(0, num_episodes, _AT_ONCE):
        block = seeds[first : first + _AT_ONCE]
        found += _together(predict, envs[: len(block)], block)
    for env in envs:
        env.close()
    returns, successes = zip(*found, strict=True)
    return Episodes(returns, tuple(told for told in successes if told is not None))


def _together(
    predict: Predict, envs: Sequence[gymnasium.Env[Any, Any]], seeds: Sequence[int]
) -> list[tuple[float, bool | None]]:
    """Run one episode in each environment, and return its return and whether it succeeded."""
    rows = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)]
    running = [True] * len(envs)
    returns = [0.0] * len(envs)
    successes: list[bool | None] = [None] * len(envs)
    state, starts = None, np.ones(len(envs), dtype=np.bool_)
    while any(running):
        actions, state = predict(_stacked(rows), state, starts)
        starts = np.zeros(len(envs), dtype=np.bool_)
        for row, env in enumerate(envs):
            if not running[row]:  # its last observation stays, and its actions go nowhere
                continue
            rows[row], reward, terminated, truncated, info = env.step(actions[row])
            returns[row] += float(reward)
            running[row] = not (terminated or truncated)
            if not running[row] and "is_success" in info:
                successes[row] = bool(info["is_success"])
    return list(zip(returns, successes, strict=True))


def _stacked(rows: Sequence[Any]) -> Observation:
    if isinstance(rows[0], Mapping):
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return np.stack(rows)
