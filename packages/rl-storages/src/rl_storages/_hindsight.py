"""Goals relabelled in hindsight: what was achieved is taken for what was wanted.

Source: Andrychowicz et al. 2017, https://arxiv.org/abs/1707.01495, sections 3.2 and 4.5.

A share of k / (k + 1) of what is drawn gets, instead of the goal that was pursued, one that was
achieved. Rewards are computed anew for it, and so are ends where they depend on goals.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_core.errors import ConfigError
from rl_core.goals import GoalFunction, GoalFunctions
from rl_core.storage import StorageSpec, TensorSpec
from rl_core.types import Array
from rl_storages._episodes import Episodes
from rl_storages._flags import Mask
from rl_storages._ring import Positions, ReplayRing
from rl_storages._samplers import UniformSampler
from rl_storages.hindsight import HindsightConfig

Rewards = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class NewGoals:
    """Goals that take the place of others in a batch.

    Attributes:
        which: samples of the batch, shape `(M,)`.
        goals: shape `(M, ...)`.
    """

    which: Tensor
    goals: Tensor


class Relabeller:
    """Chooses new goals for transitions, and judges rows by them.

    Args:
        ring: where transitions and goals are.
        generator: decides; lives on the CPU.
        config: options.
        functions: how goals are rewarded.
    """

    def __init__(
        self,
        ring: ReplayRing,
        generator: torch.Generator,
        config: HindsightConfig,
        functions: GoalFunctions,
    ) -> None:
        self._ring = ring
        self._generator = generator
        self._strategy = config.strategy
        self._share = config.k / (config.k + 1.0)
        self._functions = functions
        self._achieved = ring.columns.by_slot[f"observation/{config.achieved_goal}"]
        self._episodes = Episodes(ring)
        self._all = UniformSampler(ring, generator)
        self.goal_columns = tuple(
            f"{prefix}observation/{config.desired_goal}" for prefix in ("", "next_")
        )
        """Where the goals of a batch stand."""

    def begin_anew(self) -> None:
        """Look at all rows again, after they were replaced."""
        self._episodes.begin_anew()

    def choose(self, slots: Positions) -> tuple[Positions, Positions]:
        """Decide which transitions are relabelled, and with the goals of which others.

        Args:
            slots: of transitions, shape `(N,)`.

        Returns:
            Which of them, `(M,)`, and for each the slot of the transition after which its new
            goal had been achieved, `(M,)`.
        """
        chosen = torch.rand(len(slots), generator=self._generator).numpy() < self._share
        which: Positions = chosen.nonzero()[0]
        if len(which) == 0:
            return which, which
        if self._strategy == "random":
            return which, next(self._all.blocks(1, len(which)))[0].numpy()
        positions, first, last = self._episodes.bounds(slots[which])
        if self._strategy == "final":
            chosen_positions = last
        else:
            low = positions if self._strategy == "future" else first
            drawn = torch.rand(len(which), dtype=torch.float64, generator=self._generator).numpy()
            chosen_positions = low + (drawn * (last - low + 1)).astype(np.int64)
        rows = chosen_positions % self._ring.num_rows
        return which, rows * self._ring.num_envs + slots[which] % self._ring.num_envs

    def achieved_after(self, slots: Positions) -> Tensor:
        """Return the goals that had been achieved after transitions, `(M, ...)`."""
        following = (slots + self._ring.num_envs) % self._ring.num_slots
        return self._achieved.index_select(0, torch.from_numpy(following).to(self._achieved.device))

    def judge(self, rows: Positions, goals: Tensor, counts: Mask) -> tuple[Rewards, Mask | None]:
        """Compute the rewards and ends of rows, had they pursued other goals.

        Args:
            rows: slots, shape `(T, M)`.
            goals: one for all T rows of a column, shape `(M, ...)`.
            counts: which rows are transitions, shape `(T, M)`; the others get zeros.

        Returns:
            Rewards `(T, M)`, and where episodes end `(T, M)`; None where that has nothing to do
            with goals.

        Raises:
            EnvironmentFaultError: when the environment's functions answer nonsense.
        """
        achieved = self.achieved_after(rows[counts]).numpy(force=True)
        desired: Array = goals.numpy(force=True)[counts.nonzero()[1]]
        rewards: Rewards = np.zeros(rows.shape, dtype=np.float32)
        rewards[counts] = self._functions.rewards(achieved, desired)
        terminations = self._functions.terminations(achieved, desired)
        if terminations is None:
            return rewards, None
        ends: Mask = np.zeros(rows.shape, dtype=np.bool_)
        ends[counts] = terminations
        return rewards, ends

    def relabel(
        self, slots: Positions, reward: Rewards, num_steps: Positions, terminated: Mask
    ) -> NewGoals | None:
        """Relabel windows of n steps, each with one new goal for all its steps.

        A window ends earlier where the new goal would have ended the episode. Where the old goal
        ended it, but the new one would not, it is as if it had been cut.

        Args:
            slots: of the windows' first rows, shape `(N,)`.
            reward: shape `(N, n)`; written to, as are the others.
            num_steps: shape `(N,)`.
            terminated: shape `(N,)`.
        """
        which, goal_slots = self.choose(slots)
        if len(which) == 0:
            return None
        goals = self.achieved_after(goal_slots)
        ahead = np.arange(reward.shape[1])[:, None]
        rows = (slots[which] + ahead * self._ring.num_envs) % self._ring.num_slots
        steps = num_steps[which]
        rewards, ends = self.judge(rows, goals, ahead < steps)
        if ends is not None:
            terminated[which] = is_end = ends.any(0)
            num_steps[which] = steps = np.where(is_end, ends.argmax(0) + 1, steps)
            rewards[ahead >= steps] = 0.0
        reward[which] = rewards.T
        return NewGoals(torch.from_numpy(which).to(goals.device), goals)


def checked_functions(
    spec: StorageSpec,
    config: HindsightConfig,
    her_function: GoalFunction | GoalFunctions | None,
) -> GoalFunctions:
    """Make sure that there are goals, and learn how they are rewarded.

    Args:
        spec: what is stored.
        config: options.
        her_function: the user's own; None asks the environments.

    Raises:
        ConfigError: when there are no goals, or nobody knows how they are rewarded.
    """
    observation = spec.observation
    names = (config.achieved_goal, config.desired_goal)
    if isinstance(observation, TensorSpec) or any(name not in observation for name in names):
        has = (
            "an array" if isinstance(observation, TensorSpec) else f"a dict of {list(observation)}"
        )
        raise ConfigError(
            f"storage.hindsight needs goals, but the observation is {has}; expected a dict with "
            f"'{names[0]}' and '{names[1]}': use an environment with goals, or name its entries "
            "in storage.hindsight.achieved_goal and .desired_goal"
        )
    achieved, desired = (observation[name] for name in names)
    if achieved != desired:
        raise ConfigError(
            f"storage.hindsight: '{names[0]}' is {achieved.dtype} of shape {achieved.shape}, but "
            f"'{names[1]}' {desired.dtype} of shape {desired.shape}; expected the same, because "
            "the one takes the place of the other"
        )
    if spec.scales_rewards:
        raise ConfigError(
            "storage.hindsight computes rewards anew, which would not be scaled like the others; "
            "set trainer.scale_rewards to False"
        )
    if her_function is not None:
        if isinstance(her_function, GoalFunctions):
            return her_function
        return GoalFunctions(her_function)
    functions = None if spec.goal_functions is None else spec.goal_functions()
    if functions is None:
        raise ConfigError(
            "storage.hindsight needs rewards of other goals, but the environment has no "
            "compute_reward(achieved_goal, desired_goal, info); give the ReplayBuffer a "
            "her_function that answers them"
        )
    return functions
