"""MAML learns initial weights from which one step of adaptation decides, where others hesitate."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

import rl_train
from rl_core.env import EnvStep, TaskSplit, TaskVecEnv, as_numpy
from rl_core.types import Array, ArrayLike, Json

NUM_STEPS = 5


class Doors(TaskVecEnv):
    """A choice of two doors, five times in each episode.

    The task is what door 1 earns, from -1 to 1; door 0 costs as much. Tasks come in pairs in which
    the doors change places, and nothing of them is observed: only adaptation can earn anything.

    Args:
        num_envs: how many rows.
    """

    def __init__(self, num_envs: int) -> None:
        self._earned = self._next_earned = np.zeros(num_envs, np.float32)
        self._steps = 0

    @property
    def num_envs(self) -> int:
        """How many rows."""
        return len(self._earned)

    @property
    def single_observation_space(self) -> spaces.Box:
        """Always 1."""
        return spaces.Box(0.0, 1.0, (1,), np.float32)

    @property
    def single_action_space(self) -> spaces.Discrete[np.int64]:
        """The door."""
        return spaces.Discrete(2)

    @property
    def array_type(self) -> Literal["numpy", "torch"]:
        """NumPy."""
        return "numpy"

    @property
    def max_episode_steps(self) -> int:
        """The length of every episode."""
        return NUM_STEPS

    def sample_tasks(
        self, count: int, generator: torch.Generator, split: TaskSplit = "train"
    ) -> Tensor:
        """Draw what door 1 earns."""
        earned = torch.rand(-(-count // 2), 1, generator=generator)
        return torch.stack([earned, -earned], 1).flatten(0, 1)[:count]

    def oracle_returns(self, tasks: Tensor) -> Tensor:
        """Return what the better door earns."""
        return NUM_STEPS * tasks[:, 0].abs()

    def set_tasks(self, tasks: Tensor) -> None:
        """Give each row its task, from its next episode on."""
        self._next_earned = tasks[:, 0].numpy().copy()

    def reset(self, seed: int | None = None) -> Array:
        """Begin in every row."""
        self._steps = 0
        self._earned = self._next_earned
        return self._seen()

    def step(self, action: ArrayLike) -> EnvStep:
        """Open a door in every row."""
        reward = np.where(as_numpy(action) == 1, self._earned, -self._earned)
        self._steps += 1
        ends = self._steps == NUM_STEPS
        final = self._seen() if ends else None
        seen = self.reset() if ends else self._seen()
        terminated, no = (np.full(self.num_envs, flag) for flag in (ends, False))
        return EnvStep(seen, reward, terminated, no, final, np.full_like(no, True), {})

    def close(self) -> None:
        """Do nothing."""

    def _seen(self) -> Array:
        return np.ones((self.num_envs, 1), np.float32)


def _shares(agent: rl_train.Agent) -> Mapping[str, float]:
    """Return by stage what share of the oracle's return is earned; chance earns nothing."""
    result = rl_train.evaluate_policy(agent, Doors(400), 100, deterministic=False, seed=1)
    oracle = result.stages["oracle"].mean
    return {stage: found.mean / oracle for stage, found in result.stages.items()}


@pytest.mark.parametrize(
    ("name", "options", "num_meta_updates"),
    [
        ("maml-vpg", {"outer_lr": 0.02}, 40),
        ("maml-ppo", {"outer_lr": 0.01}, 20),
        ("maml-trpo", {}, 10),
    ],
)
def test_one_step_of_adaptation_decides_after_a_few_meta_updates(
    name: str, options: dict[str, Json], num_meta_updates: int
) -> None:
    agent = rl_train.make(
        name,
        Doors(160),
        seed=1,
        options={
            "actor": {"hidden_sizes": [32]},
            "algorithm": {"meta_batch_size": 8, "num_exploration_episodes": 20, **options},
        },
    )
    untrained = _shares(agent)
    agent.train(total_updates=2 * num_meta_updates, progress=False)
    trained = _shares(agent)
    for shares in (untrained, trained):
        assert abs(shares["before adaptation"]) < 0.2
    assert untrained["after step 1"] < 0.2
    assert trained["after step 1"] > 0.5
