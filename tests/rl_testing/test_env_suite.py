"""What the suite of vectorized environments accepts, and what it catches."""

from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces

from rl_core.env import EnvStep, VecEnv
from rl_core.errors import DataError, EnvironmentFaultError
from rl_core.types import Array, ArrayLike, StateDict
from rl_testing.envs import VecEnvSuite
from rl_testing.scripted import WalkVecEnv
from support.envs import LateWalkVecEnv

NUM_ENVS = 3


class TestWalks(VecEnvSuite):
    def make_env(self) -> VecEnv:
        return WalkVecEnv(NUM_ENVS)


class TestLateWalks(VecEnvSuite):
    def make_env(self) -> VecEnv:
        return LateWalkVecEnv(NUM_ENVS)


class BeginningAgain(WalkVecEnv):
    """Says that it goes on where it was, and merely resets."""

    def load_state_dict(self, state: StateDict) -> None:
        self.reset(seed=0)


class SeedingAlways(WalkVecEnv):
    """Takes no seed for the first one."""

    def reset(self, seed: int | None = None) -> Array:
        return super().reset(0 if seed is None else seed)


class ForgettingItsGenerator(WalkVecEnv):
    """Goes on where it was, to another place."""

    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        self.generator = np.random.default_rng(0)


class ForgettingItsClock(WalkVecEnv):
    """Doubles the reward of each 25th step, and saves no count of them."""

    clock = 0

    def step(self, action: ArrayLike) -> EnvStep:
        step = super().step(action)
        self.clock += 1
        return step if self.clock % 25 else replace(step, reward=2.0 * np.asarray(step.reward))


class HidingThatItResumes(WalkVecEnv):
    """Goes on where it was, and does not say so."""

    resume_grade = "episode"


class ForgettingWhoIsLate(LateWalkVecEnv):
    """Goes on where it was, unless a row has just ended."""

    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        self.is_late[:] = False


class AlwaysValid(LateWalkVecEnv):
    """Calls steps that only reset transitions."""

    def step(self, action: ArrayLike) -> EnvStep:
        return replace(super().step(action), valid=np.ones(self.num_envs, np.bool_))


class HidingItsResets(LateWalkVecEnv):
    """Does not say that steps may only reset."""

    resets_in_steps = False


class PromisingResets(WalkVecEnv):
    """Says that steps may only reset, and returns final observations all the same."""

    resets_in_steps = True


class Endless(WalkVecEnv):
    """Never says that an episode has ended."""

    def step(self, action: ArrayLike) -> EnvStep:
        never = np.zeros(self.num_envs, np.bool_)
        step = super().step(action)
        return replace(step, terminated=never, truncated=never, final_observation=None)


class Spoiling(WalkVecEnv):
    """Spoils one field of each step in which a row ends."""

    def step(self, action: ArrayLike) -> EnvStep:
        step = super().step(action)
        return step if step.final_observation is None else self.spoil(step)

    def spoil(self, step: EnvStep) -> EnvStep:
        raise NotImplementedError


class RewardingNaN(Spoiling):
    def spoil(self, step: EnvStep) -> EnvStep:
        return replace(step, reward=np.asarray(step.reward) * np.nan)


class RewardingDoubles(Spoiling):
    def spoil(self, step: EnvStep) -> EnvStep:
        return replace(step, reward=np.asarray(step.reward, np.float64))


class ShowingInfinity(Spoiling):
    def spoil(self, step: EnvStep) -> EnvStep:
        return replace(step, observation=np.asarray(step.observation) + np.inf)


class LeavingTheLastAsNaN(Spoiling):
    def spoil(self, step: EnvStep) -> EnvStep:
        return replace(step, final_observation=np.asarray(step.final_observation) * np.nan)


class ShowingDoubles(Spoiling):
    def spoil(self, step: EnvStep) -> EnvStep:
        return replace(step, observation=np.asarray(step.observation, np.float64))


class ShowingTooMuch(Spoiling):
    def spoil(self, step: EnvStep) -> EnvStep:
        final = np.asarray(step.final_observation)
        return replace(step, final_observation=np.concatenate([final, final], axis=1))


class EndingTwice(Spoiling):
    def spoil(self, step: EnvStep) -> EnvStep:
        ended = np.asarray(step.terminated) | np.asarray(step.truncated)
        return replace(step, terminated=ended, truncated=ended)


class HidingTheLast(Spoiling):
    def spoil(self, step: EnvStep) -> EnvStep:
        return replace(step, final_observation=None)


class CountingInCategories(WalkVecEnv):
    """Shows how old episodes are, from 0 to 6, and declares three categories."""

    @property
    def single_observation_space(self) -> spaces.Discrete:  # type: ignore[override]  # another kind
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None) -> Array:
        super().reset(seed)
        return self.age.copy()

    def step(self, action: ArrayLike) -> EnvStep:
        step = super().step(action)
        final = None if step.final_observation is None else self.age.copy()
        return replace(step, observation=self.age.copy(), final_observation=final)


class SteppingPastItsLimit(WalkVecEnv):
    """Declares five steps, and takes up to seven."""

    max_episode_steps = 5


class ShowingTheResetAsTheLast(WalkVecEnv):
    """Resets a row before it copies the last observation."""

    def step(self, action: ArrayLike) -> EnvStep:
        step = super().step(action)
        if step.final_observation is None:
            return step
        return replace(step, final_observation=step.observation)


class NotYetMade(WalkVecEnv):
    """Makes what it saves in its first reset."""

    def state_dict(self) -> StateDict:
        if not self._has_begun:
            raise AttributeError("no attribute 'place'")
        return super().state_dict()


GOES_ON = "test_a_reset_without_a_seed_goes_on_with_the_generators"
RESUMES = "test_what_a_checkpoint_holds_fits_a_new_one"
RESETS = "test_an_ended_row_resets_at_once_or_in_one_invalid_step"
FINAL = "test_final_observations_differ_only_where_a_row_ended"
SOUND = "test_steps_are_of_the_declared_shape_and_dtype"
LIMITS = "test_an_episode_ends_in_one_way_and_within_its_limit"
LAST = "test_final_observations_are_not_those_of_the_reset"
SAVES = "test_it_can_be_saved_before_its_first_reset"


@pytest.mark.parametrize(
    ("walks", "test", "message"),
    [
        (BeginningAgain, RESUMES, "step 1 after loading"),
        (SeedingAlways, GOES_ON, "same steps as the one before; seed only where a seed is given"),
        (ForgettingItsGenerator, RESUMES, "step 1 after loading"),
        (ForgettingItsClock, RESUMES, "reward in step 22 after loading"),
        (HidingThatItResumes, RESUMES, "resume_grade is 'episode'.*return 'exact'"),
        (ForgettingWhoIsLate, RESUMES, "step 1 after loading"),
        (AlwaysValid, RESETS, "not equal"),
        (HidingItsResets, RESETS, "resets_in_steps is False"),
        (PromisingResets, RESETS, "was returned although resets_in_steps is True; return None"),
        (Endless, RESETS, "no row ended within 300 steps.*more num_steps"),
        (Endless, FINAL, "no row ended within 300 steps.*more num_steps"),
        (HidingTheLast, RESETS, "final_observation is None.*return the last observations"),
        (RewardingNaN, SOUND, "the reward holds nan; every number must be finite"),
        (RewardingDoubles, SOUND, "the reward has dtype float64; expected float32"),
        (ShowingInfinity, SOUND, r"the observation of step\(\) holds inf"),
        (ShowingTheResetAsTheLast, LAST, "in all [0-9]+ ended episodes.*copy the last observation"),
        (LeavingTheLastAsNaN, SOUND, "the final_observation holds nan"),
        (ShowingDoubles, SOUND, r"observation of step\(\) has dtype float64; expected float32"),
        (ShowingTooMuch, SOUND, r"final_observation has shape \(3, 4\); expected \(3, 2\)"),
        (CountingInCategories, SOUND, r"holds 0 to 3; expected a value of Discrete\(3\)"),
        (EndingTwice, LIMITS, r"are terminated and truncated.*truncated &= ~terminated"),
        (SteppingPastItsLimit, LIMITS, "for 6 steps, but max_episode_steps is 5; truncate it"),
        (NotYetMade, SAVES, r"before the first reset\(\) raised AttributeError.*constructor"),
    ],
)
def test_the_suite_catches(walks: type[WalkVecEnv], test: str, message: str) -> None:
    class Suite(VecEnvSuite):
        def make_env(self) -> VecEnv:
            return walks(NUM_ENVS)

    with pytest.raises(AssertionError, match=f"(?s){message}"):
        getattr(Suite(), test)()


def test_the_suite_needs_two_rows() -> None:
    class Suite(VecEnvSuite):
        def make_env(self) -> VecEnv:
            return WalkVecEnv(1)

    with pytest.raises(AssertionError, match="two rows at least"):
        Suite().test_steps_are_of_the_declared_shape_and_dtype()


def test_walks_go_on_only_after_a_reset_of_their_own_or_of_the_saved_ones() -> None:
    stay = np.zeros(NUM_ENVS)
    new, begun, restored = (WalkVecEnv(NUM_ENVS) for _ in range(3))
    begun.reset(seed=1)
    restored.load_state_dict(new.state_dict())
    with pytest.raises(EnvironmentFaultError, match="WalkVecEnv was not reset"):
        restored.step(stay)
    restored.load_state_dict(begun.state_dict())
    restored.step(stay)
    with pytest.raises(DataError, match=r"shape \(3, 2\); expected \(3,\)"):
        restored.step(np.zeros((NUM_ENVS, 2)))
    restored.close()
    with pytest.raises(EnvironmentFaultError, match=r"step\(\) was called after close\(\)"):
        restored.step(stay)
