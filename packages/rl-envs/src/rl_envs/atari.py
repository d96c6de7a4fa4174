"""DeepMind's preparation of Atari games."""

from typing import Any, SupportsFloat

import gymnasium
from gymnasium.utils import RecordConstructorArgs
from gymnasium.wrappers import AtariPreprocessing, ClipReward, StickyAction

from rl_envs.wrappers import FrameStack

STICKINESS = "repeat_action_probability"
"""The emulator's setting; where it is not 0, saved games lack the action that may be repeated."""

_NOOP, _FIRE = 0, 1


def prepare_atari(env: gymnasium.Env, testing: bool) -> gymnasium.Env:
    """Wrap an Atari game with frameskip 1 as in the DQN papers.

    Each episode begins with up to 30 steps without action, in games that have such, and with the
    fire button in games that wait for it. Actions repeat for 4 frames. Observations are stacks of 4
    frames, 84x84, in shades of grey. In training, an episode also ends with each life, and rewards
    are clipped to [-1, 1]. If the game repeats actions at random, `StickyAction` does it instead.

    Args:
        env: the game.
        testing: play whole games for their own rewards.

    Source:
        Mnih et al. 2015, https://doi.org/10.1038/nature14236; Machado et al. 2018,
        https://arxiv.org/abs/1709.06009.
    """
    game: Any = env.unwrapped
    if probability := game.ale.getFloat(STICKINESS):
        game.ale.setFloat(STICKINESS, 0.0)
        game.load_game()  # from now on without it
        env = StickyAction(env, probability)  # which can be saved
    meanings = game.get_action_meanings()
    noop_max = 30 if meanings[_NOOP] == "NOOP" else 0
    env = AtariPreprocessing(env, noop_max=noop_max, frame_skip=4, screen_size=84)
    if not testing:
        env = EpisodicLife(env)
    if meanings[_FIRE] == "FIRE":
        env = FireReset(env)
    if not testing:
        env = ClipReward(env, -1.0, 1.0)
    return FrameStack(env, 4)


class EpisodicLife(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """End an episode with each life. The next one continues the game, until the last life is lost.

    Args:
        env: an Atari game.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        self.is_game_over = True
        self.lives = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Continue with the next life; begin a new game after the last one, or with a seed."""
        is_over = self.is_game_over or seed is not None
        if not is_over:
            observation, _, terminated, truncated, info = self.env.step(_NOOP)
            is_over = terminated or truncated
        if is_over:
            observation, info = self.env.reset(seed=seed, options=options)
        self.is_game_over = False
        self.lives = self._lives()
        return observation, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step, and end the episode if a life was lost."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.is_game_over = bool(terminated or truncated)
        lives = self._lives()
        terminated = bool(terminated or 0 < lives < self.lives)
        self.lives = lives
        return observation, reward, terminated, truncated, info

    def _lives(self) -> int:
        return int(self.env.unwrapped.ale.lives())  # type: ignore[attr-defined]  # ale-py's


class FireReset(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Press the fire button after each reset, for games that wait for it.

    Args:
        env: an Atari game.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset and fire."""
        self.env.reset(seed=seed, options=options)
        observation, _, terminated, truncated, info = self.env.step(_FIRE)
        if terminated or truncated:
            observation, info = self.env.reset(options=options)
        return observation, info
