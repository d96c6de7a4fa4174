"""Hindsight experience replay: goals that were achieved replace those that were desired.

Source: Andrychowicz et al. 2017, https://arxiv.org/abs/1707.01495, sections 3.2 and 4.5.

A share of k / (k + 1) of the samples gets an achieved goal in place of the desired one. Rewards are
recomputed for it, and so are terminations where they depend on goals. An episode that terminated
without reaching its own goal did so for another reason, and terminates with new goals too.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_core.env import GoalFunctions
from rl_core.env.goals import GoalFunction
from rl_core.errors import ConfigError
from rl_core.storage import OBSERVATION_COLUMN, StorageSpec, TensorSpec
from rl_core.types import Array
from rl_storages.config import HindsightConfig
from rl_storages.replay.episodes import Episodes
from rl_storages.replay.flags import TERMINATED, VALID, Mask, Positions
from rl_storages.replay.ring import ReplayRing
from rl_storages.sampling.uniform import UniformSampler

Rewards = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class NewGoals:
    """New goals of some samples, and the rewards and terminations that come with them.

    Attributes:
        which: which samples, `(M,)`.
        goals: their goals, `(M, ...)`.
        reward: rewards of the L rows from each sample on, `(L, M)`; 0 where there is no transition.
        ends: where episodes terminate, `(L, M)`; None where that does not depend on goals.
    """

    which: Positions
    goals: Tensor
    reward: Rewards
    ends: Mask | None

    def cut(self, num_steps: Positions) -> tuple[Positions, Mask]:
        """Shorten windows to where the new goals terminate the episode.

        Args:
            num_steps: lengths of the windows that begin with the first T rows, `(T, M)`.

        Returns:
            New lengths, and whether the episode terminates with the window's last step, `(T, M)`.
        """
        assert self.ends is not None
        step = np.arange(len(self.ends))[:, None]
        ends_at = np.where(self.ends, step, len(step) + num_steps.max())
        next_end = np.minimum.accumulate(ends_at[::-1])[::-1][: len(num_steps)]
        to_end: Positions = next_end - step[: len(num_steps)] + 1
        return np.minimum(num_steps, to_end), to_end <= num_steps


class Relabeler:
    """Assigns new goals to some samples, and recomputes their rewards.

    Args:
        ring: the rows.
        generator: generator on the CPU.
        config: options.
        functions: reward and termination of goals.
        is_own: whether the environments gave the functions, which then have to agree with the
            rewards that their steps returned.
    """

    def __init__(
        self,
        ring: ReplayRing,
        generator: torch.Generator,
        config: HindsightConfig,
        functions: GoalFunctions,
        is_own: bool,
    ) -> None:
        self._ring = ring
        self._generator = generator
        self._strategy = config.strategy
        self._share = config.k / (config.k + 1.0)
        self._functions = functions
        self._is_unchecked = is_own
        achieved, self._goal = goal_columns(config)
        self._achieved = ring.columns.by_slot[achieved]
        self._desired = ring.columns.by_slot[self._goal]
        self._episodes = Episodes(ring)
        self._all = UniformSampler(VALID)
        self._all.attach(ring, generator)

    def begin_anew(self) -> None:
        """Process all rows again, after they were replaced."""
        self._episodes.begin_anew()

    def choose(self, slots: Positions) -> tuple[Positions, Positions]:
        """Choose which samples are relabeled, and the transitions whose goals they get.

        Args:
            slots: slots of transitions, or of the first ones of sequences, `(N,)`.

        Returns:
            Which of them, `(M,)`, and the slots of the transitions that achieved the new goals,
            `(M,)`.
        """
        chosen = torch.rand(len(slots), generator=self._generator).numpy() < self._share
        which: Positions = chosen.nonzero()[0]
        if len(which) == 0:
            return which, which
        if self._strategy == "random":
            return which, next(self._all.draw(1, len(which)))[0].numpy()
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
        """Return the goals that transitions achieved, `(M, ...)`."""
        following = (slots + self._ring.num_envs) % self._ring.num_slots
        return self._achieved.index_select(0, torch.from_numpy(following).to(self._achieved.device))

    def recompute(
        self, rows: Positions, goals: Tensor, counts: Mask
    ) -> tuple[Rewards, Mask | None]:
        """Compute the rewards and terminations of rows for other goals.

        Args:
            rows: slots, `(T, M)`.
            goals: one goal for the T rows of each column, `(M, ...)`.
            counts: which rows are transitions, `(T, M)`; the others get zeros.

        Returns:
            Rewards `(T, M)`, and terminations `(T, M)`; None where they do not depend on goals.

        Raises:
            EnvironmentFaultError: when the environment's functions return something unusable.
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
        ended = counts & ((self._ring.flags.take(rows) & TERMINATED) > 0)
        if ended.any():
            ends[ended] |= ~self._ended_by_goal(rows[ended])
        return rewards, ends

    def _ended_by_goal(self, slots: Positions) -> Mask:
        """Return which terminations were due to the episode's own goal, `(M,)`."""
        by_goal = self._functions.terminations(*self._own_goals(slots))
        assert by_goal is not None
        return by_goal

    def _own_goals(self, slots: Positions) -> tuple[Array, Array]:
        """Return the goals that transitions achieved, and those they had, `(M, ...)` each."""
        index = torch.from_numpy(slots).to(self._desired.device)
        achieved: Array = self.achieved_after(slots).numpy(force=True)
        desired: Array = self._desired.index_select(0, index).numpy(force=True)
        return achieved, desired

    def relabel(self, slots: Positions, lengths: Positions, num_rows: int) -> NewGoals | None:
        """Choose new goals, one for all rows of a sample, and compute their rewards.

        Args:
            slots: first rows of the samples, `(N,)`.
            lengths: number of consecutive transitions from each, `(N,)`.
            num_rows: L, the maximum number of rows that are needed.
        """
        if self._is_unchecked:
            self._check_rewards(slots)
            self._is_unchecked = False
        which, goal_slots = self.choose(slots)
        if len(which) == 0:
            return None
        goals = self.achieved_after(goal_slots)
        ahead = np.arange(num_rows)[:, None]
        rows = (slots[which] + ahead * self._ring.num_envs) % self._ring.num_slots
        return NewGoals(which, goals, *self.recompute(rows, goals, ahead < lengths[which]))

    def _check_rewards(self, slots: Positions) -> None:
        """Compare the rewards of some transitions with those computed for their own goals.

        Raises:
            ConfigError: when more than one in 20 and more than one differ; goals at the edge of a
                tolerance may be judged otherwise once they are rounded to float32.
        """
        computed = self._functions.rewards(*self._own_goals(slots))
        stored = self._ring.reward[slots]
        differs = ~np.isclose(computed, stored, rtol=1e-3, atol=1e-3)
        if differs.sum() > max(1, len(slots) // 20):
            first = int(differs.argmax())
            raise ConfigError(
                f"storage.hindsight: {self._functions.name} returns {computed[first]:.6g} for a "
                f"transition whose reward was {stored[first]:.6g} ({int(differs.sum())} of "
                f"{len(slots)} differ), so rewards of new goals would not fit the others; a "
                "wrapper may change goals or rewards, or a step may reward more than its goal: "
                "give the ReplayBuffer a her_function that returns rewards as they are to be "
                "learned from"
            )

    def write(self, columns: Mapping[str, Tensor], new: NewGoals, axis: int = 0) -> None:
        """Write new goals into observations, and into next observations if they are there.

        Args:
            columns: columns of the samples, which are changed.
            new: new goals of some samples.
            axis: axis of the samples; a goal is written to all indices of the axes before it.
        """
        which = torch.from_numpy(new.which).to(new.goals.device)
        for name in (self._goal, f"next_{self._goal}"):
            if name in columns:
                shape = columns[name].shape[:axis] + new.goals.shape
                columns[name].index_copy_(axis, which, new.goals.expand(shape))


def goal_columns(config: HindsightConfig) -> tuple[str, str]:
    """Name the columns with the achieved and the desired goal."""
    prefix = OBSERVATION_COLUMN
    return f"{prefix}/{config.achieved_goal}", f"{prefix}/{config.desired_goal}"


def checked_functions(
    spec: StorageSpec,
    config: HindsightConfig,
    her_function: GoalFunction | GoalFunctions | None,
) -> GoalFunctions:
    """Check that observations have goals, and return how these are rewarded.

    Args:
        spec: what is stored.
        config: options.
        her_function: the user's own function; None asks the environments.

    Raises:
        ConfigError: when there are no goals, or no function that rewards them.
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
        return GoalFunctions(her_function, name="her_function")
    functions = None if spec.goal_functions is None else spec.goal_functions()
    if functions is None:
        raise ConfigError(
            "storage.hindsight needs rewards of other goals, but the environment has no "
            "compute_reward(achieved_goal, desired_goal, info); give the ReplayBuffer a "
            "her_function that returns them"
        )
    return functions
