"""What the suite of vectorised environments accepts, and what it catches."""

from dataclasses import replace

import numpy as np
import pytest

from rl_core.env import EnvStep, VecEnv
from rl_core.errors import DataError, EnvironmentFaultError
from rl_core.types import ArrayLike, StateDict
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


class ForgettingItsGenerator(WalkVecEnv):
    """Goes on where it was, to another place."""

    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        self.generator = np.random.default_rng(0)


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


class Endless(WalkVecEnv):
    """Never says that an episode has ended."""

    def step(self, action: ArrayLike) -> EnvStep:
        never = np.zeros(self.num_envs, np.bool_)
        step = super().step(action)
        return replace(step, terminated=never, truncated=never, final_observation=None)


RESUMES = "test_what_a_checkpoint_holds_fits_a_new_one"
RESETS = "test_an_ended_row_resets_at_once_or_in_one_invalid_step"
FINAL = "test_final_observations_differ_only_where_a_row_ended"


@pytest.mark.parametrize(
    ("walks", "test", "message"),
    [
        (BeginningAgain, RESUMES, "step 1 after loading"),
        (ForgettingItsGenerator, RESUMES, "step 1 after loading"),
        (ForgettingWhoIsLate, RESUMES, "step 1 after loading"),
        (AlwaysValid, RESETS, "not equal"),
        (HidingItsResets, RESETS, "resets_in_steps is False"),
        (Endless, RESETS, "no row ended within 300 steps.*more num_steps"),
        (Endless, FINAL, "no row ended within 300 steps.*more num_steps"),
    ],
)
def test_the_suite_catches(walks: type[WalkVecEnv], test: str, message: str) -> None:
    class Suite(VecEnvSuite):
        def make_env(self) -> VecEnv:
            return walks(NUM_ENVS)

    with pytest.raises(AssertionError, match=f"(?s){message}"):
        getattr(Suite(), test)()


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
