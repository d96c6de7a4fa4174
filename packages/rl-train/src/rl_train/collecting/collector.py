"""The collector: acts in environments and inserts the transitions into a storage."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from rl_core.actor import ActionOutput
from rl_core.algorithm import AnyAlgorithm
from rl_core.batch import Transition
from rl_core.env import EnvStep, VecEnv
from rl_core.errors import CheckpointError
from rl_core.seeding import resumed_seed
from rl_core.spaces import named_leaves
from rl_core.stateful import StateFields, StateReader
from rl_core.storage import AnyStorage, StorageSpec, observation_spec
from rl_core.types import (
    ArrayLike,
    ArrayObservation,
    Observation,
    State,
    StateDict,
    to_flags,
    to_numbers,
    to_tensors,
)
from rl_train.collecting.action_masks import ActionMaskCheck
from rl_train.collecting.episodes import Episode, EpisodeTracker
from rl_train.collecting.rewards import RewardScaler

_NOISE_STEPS = 128
"""Steps for which noise is drawn at once; drawing for many steps costs as much as for one."""


class Collector(StateFields):
    """Steps environments with an algorithm's acting step.

    Acting computes actions only, with noise drawn in advance; values and log-probabilities are
    computed later, in one pass per rollout.

    Args:
        envs: environments.
        algorithm: chooses the actions.
        generator: draws the acting noise; it is on the algorithm's device.
        reward_scaler: scales the stored rewards, never the reported returns.
        seed: seed of the environments' first reset; None leaves it to them.
    """

    state_fields = ("total_steps", "total_episodes", "warm_up_rows", "generator")

    def __init__(
        self,
        envs: VecEnv,
        algorithm: AnyAlgorithm,
        *,
        generator: torch.Generator,
        reward_scaler: RewardScaler | None = None,
        seed: int | None = None,
    ) -> None:
        self.envs = envs
        self.algorithm = algorithm
        self.generator = generator
        self.reward_scaler = reward_scaler
        self.seed = seed
        self.total_steps = 0
        self.total_episodes = 0
        self.warm_up_rows = 0
        self._device = algorithm.device
        self._is_on_cpu = self._device.type == "cpu"
        self.set_progress(0.0)
        self._set_noise(torch.zeros(0), 0)
        self._observation: ArrayObservation | None = None
        self._state: State = {}
        self._tracker = EpisodeTracker(envs.num_envs)
        mask_check = ActionMaskCheck(envs.single_observation_space, envs.single_action_space)
        self._mask_check = mask_check if mask_check.has_masks else None

    def storage_spec(self) -> StorageSpec:
        """Return the shapes and dtypes of what `collect` will insert."""
        return StorageSpec(
            observation_spec(self.envs.single_observation_space),
            self.algorithm.actor.action_spec,
            self.envs.num_envs,
            self.algorithm.actor.state_sizes,
            self.algorithm.extras,
            self._device,
            goal_functions=self.envs.goal_functions,
            scales_rewards=self.reward_scaler is not None,
        )

    @torch.no_grad()
    def collect(
        self,
        n: int,
        into: AnyStorage,
        is_stopping: Callable[[], bool] = lambda: False,
        on_row: Callable[[int, Sequence[Episode]], None] = lambda *_: None,
    ) -> list[Episode]:
        """Collect and store at least ``n`` rows, in whole steps of all environments.

        Args:
            n: number of rows over all environments, rounded up to a multiple of their number.
                Reset-only rows are included: they are stored as invalid and are not steps.
            into: an allocated storage.
            is_stopping: called before each step; returning True ends the collection early.
            on_row: called after each with the number of steps and the episodes that ended.

        Returns:
            The episodes that ended, in the order in which they did.
        """
        if self._observation is None:
            self.reset()
        envs, algorithm = self.envs, self.algorithm
        start_steps = algorithm.schedule.start_steps
        needs_start = algorithm.needs_episode_start
        begins_rollout = into.rollout_steps is not None and len(into) == 0
        episodes: list[Episode] = []
        rows = 0
        with algorithm.acting.phase(), self._ending_episodes_on_errors():
            while rows < n and not is_stopping():
                if begins_rollout and algorithm.before_rollout(envs):
                    self.reset()
                begins_rollout = False
                observation, state = self._observation, self._state
                assert observation is not None
                start = self._tracker.episode_start
                inputs = to_tensors(observation, self._device), state, self._next_noise()
                starts = torch.from_numpy(start).to(self._device) if needs_start else None
                if self.total_steps < start_steps:
                    output = random_step(algorithm, *inputs, self.generator, starts)
                else:
                    output = algorithm.acting_step(*inputs, episode_start=starts)
                is_stored = output.env_action.data_ptr() == output.action.data_ptr()
                outcome = envs.step(self._to_env(output.env_action, is_stored=is_stored))
                ended = self._tracker.track(outcome)
                if self._mask_check is not None:
                    self._mask_check.check_step(outcome)
                into.insert_transition(
                    Transition(
                        observation,
                        output.action,
                        self._learning_reward(outcome),
                        outcome.terminated,
                        outcome.truncated,
                        outcome.valid,
                        start,
                        outcome.observation,
                        outcome.final_observation,
                        state,
                        output.extras,
                    )
                )
                self._observation = outcome.observation
                self._state = output.state
                rows += len(outcome.reward)
                steps = int(np.count_nonzero(to_flags(outcome.valid)))
                self.total_steps += steps
                self.total_episodes += len(ended)
                episodes += ended
                on_row(steps, ended)
        return episodes

    @torch.no_grad()
    def warm_up(self, n: int, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Act at random to initialize the algorithm's observation statistics, then reset.

        Nothing is stored or counted. It is done once per run; if it is stopped early, the next call
        does the rest.

        Args:
            n: number of rows over all environments, rounded up to a multiple of their number.
            is_stopping: called before each step; returning True leaves the rest for the next call.
        """
        if self.warm_up_rows >= n:
            return
        envs, actor = self.envs, self.algorithm.actor
        if self._observation is None:
            self.reset()
        with self._ending_episodes_on_errors():
            while self.warm_up_rows < n:
                if is_stopping():
                    return
                assert self._observation is not None
                observation = to_tensors(self._observation, self._device)
                action = actor.random_actions(envs.num_envs, self.generator, observation)
                outcome = envs.step(self._to_env(actor.to_env_action(action)))
                if self._mask_check is not None:
                    self._mask_check.check_step(outcome)
                self._observation = outcome.observation
                self.algorithm.add_ons.observe(to_tensors(outcome.observation, self._device))
                self.warm_up_rows += envs.num_envs
        self.reset()

    @property
    def has_episodes(self) -> bool:
        """Whether episodes are running: none are before the first step and after an error."""
        return self._observation is not None

    def end_episodes(self) -> None:
        """Go on with new episodes, because something else has used the environments."""
        self._observation = None

    @contextmanager
    def _ending_episodes_on_errors(self) -> Iterator[None]:
        """Go on with new episodes after an error between a step and what is stored of it."""
        try:
            yield
        except BaseException:
            self.end_episodes()
            raise

    def set_progress(self, progress: float) -> None:
        """Set the discount of the reward scaler to the algorithm's current ``gamma``.

        Args:
            progress: fraction of the run that is done, in [0, 1].
        """
        schedules = self.algorithm.schedules
        if self.reward_scaler is not None and "gamma" in schedules:
            self.reward_scaler.gamma = schedules["gamma"].value(progress)

    def reset(self) -> None:
        """Start new episodes in all environments; only the first reset seeds them."""
        seed, self.seed = self.seed, None
        self._observation = None  # if it fails
        self._observation = self.envs.reset(seed)
        if self._mask_check is not None:
            self._mask_check(self._observation)
        self._state = self.algorithm.actor.actor_initial_states(self.envs.num_envs)
        self._tracker.reset()
        if self.reward_scaler is not None:
            self.reward_scaler.forget_running_sums()

    def state_dict(self) -> StateDict:
        """Return counters, noise, statistics and the state of the environments.

        Running episodes are included if the environments can resume theirs.
        """
        return {
            **super().state_dict(),
            "noise": self._noise,
            "noise_cursor": self._noise_cursor,
            "envs": self.envs.state_dict(),
            "running": self._running_episodes(),  # which asks what that could save
            "reward_scaler": (
                {} if self.reward_scaler is None else self.reward_scaler.state_dict()
            ),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`.

        Environments that cannot resume their episodes start new ones, with seeds other than at the
        start of the run, unless this is the start.
        """
        saved = StateReader(state, "collector")
        self.load_fields(saved)
        self._set_noise(*self._saved_noise(saved))
        scaler = saved.tree("reward_scaler")
        if (self.reward_scaler is not None) != bool(scaler):
            raise CheckpointError(
                f"collector: the saved run has scale_rewards={bool(scaler)}, but this one has "
                f"{not scaler}; resume with what it began with"
            )
        if self.reward_scaler is not None:
            self.reward_scaler.load_state_dict(scaler)
        envs = saved.tree("envs")
        if envs:
            self.envs.load_state_dict(envs)
        running = saved.tree("running")
        if self.total_steps or self.warm_up_rows or running:
            if envs:
                self.seed = None  # they resume their own random numbers
            elif self.seed is not None:
                self.seed = resumed_seed(self.seed, self.total_steps)
        self._observation = None
        if running:
            self._resume_episodes(saved.reader("running"))

    def _saved_noise(self, saved: StateReader) -> tuple[Tensor, int]:
        noise, cursor = saved.tensor("noise"), saved.count("noise_cursor")
        num_envs = noise.shape[1] if noise.dim() > 1 else self.envs.num_envs
        if num_envs != self.envs.num_envs:
            raise CheckpointError(
                f"collector: the saved run has {num_envs} environments, but this one has "
                f"{self.envs.num_envs}; resume with the original number, or begin a new run with "
                "its weights, as make(..., restart_model=...) does"
            )
        if noise.dim() == 0 or cursor > len(noise):
            raise CheckpointError("collector: 'noise_cursor' is beyond the saved noise")
        return noise.to(self._device, copy=True), cursor

    def _running_episodes(self) -> StateDict:
        if self._observation is None or self.envs.resume_grade != "exact":
            return {}
        observation = to_tensors(self._observation, torch.device("cpu"))
        return {
            "observation": {"": observation} if isinstance(observation, Tensor) else observation,
            "state": self._state,
            "episodes": self._tracker.state_dict(),
        }

    def _resume_episodes(self, running: StateReader) -> None:
        observation, state = running.reader("observation"), running.reader("state")
        observation.expect(named_leaves(self.envs.single_observation_space))
        state.expect(self.algorithm.actor.state_sizes)
        arrays = {
            key: self._to_array(value) for key, value in running.tensors("observation").items()
        }
        self._observation = arrays.get("", arrays)
        self._state = {
            name: state.tensor(name).to(self._device, copy=True)
            for name in self.algorithm.actor.state_sizes
        }
        self._tracker.load_state_dict(running.tree("episodes"))

    def _to_array(self, value: Tensor) -> ArrayLike:
        return value.clone() if self._takes_tensors else value.numpy().copy()

    @cached_property
    def _takes_tensors(self) -> bool:
        return self.envs.array_type == "torch"  # known after the first reset

    def _next_noise(self) -> Tensor:
        if self._noise_cursor == len(self._noise_rows):
            shape = (_NOISE_STEPS, self.envs.num_envs)
            self._set_noise(self.algorithm.draw_noise(shape, self.generator), 0)
        noise = self._noise_rows[self._noise_cursor]
        self._noise_cursor += 1
        return noise

    def _set_noise(self, noise: Tensor, cursor: int) -> None:
        self._noise = noise
        self._noise_rows = noise.unbind(0)
        self._noise_cursor = cursor

    def _learning_reward(self, outcome: EnvStep) -> ArrayLike:
        if self.reward_scaler is None:
            return outcome.reward
        ended = to_flags(outcome.terminated) | to_flags(outcome.truncated)
        return self.reward_scaler(to_numbers(outcome.reward), ended, to_flags(outcome.valid))

    def _to_env(self, action: Tensor, *, is_stored: bool = False) -> ArrayLike:
        """Give environments actions; they may write into them, so what is stored is copied."""
        if self._takes_tensors:
            return action.clone() if is_stored else action
        if not self._is_on_cpu:
            return action.cpu().numpy()
        return action.numpy().copy() if is_stored else action.numpy()


def random_step(
    algorithm: AnyAlgorithm,
    observation: Observation,
    state: State,
    noise: Tensor,
    generator: torch.Generator,
    episode_start: Tensor | None = None,
) -> ActionOutput:
    """Choose uniformly random actions, for the first ``start_steps`` of a run.

    Extras and state are those that acting would have returned, but for recurrent cores that see
    actions.

    Args:
        algorithm: in whose place actions are chosen.
        observation: shape `(B, ...)`.
        state: recurrent state, each `(B, S)`.
        noise: shape `(B, ...)`, as for `Algorithm.acting_step`.
        generator: draws the actions; on the actor's device.
        episode_start: shape `(B,)`, bool.
    """
    output = algorithm.acting_step(observation, state, noise, episode_start=episode_start)
    actor = algorithm.actor
    action = actor.random_actions(len(noise), generator, observation)
    return replace(
        output,
        action=action,
        env_action=actor.to_env_action(action),
        state=actor.remember_action(observation, action, state, output.state, episode_start),
    )
