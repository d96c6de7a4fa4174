from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rl_core.actor import Actor
from rl_core.errors import ConfigError
from rl_core.nn.distributions import Deterministic, Distribution, draw_noise, make_head
from rl_core.nn.torso import CoreConfig, CoreKind, ObservationEncoder, Torso
from rl_core.spaces import Space
from rl_core.storage import TensorSpec
from rl_core.types import Observation, State
from rl_testing.actors import ACTION_SPACES, ActorSuite
from rl_testing.rollouts import random_observation


class Policy(Actor):
    """The least that can act: a torso and a head, and no value."""

    def __init__(
        self, observation_space: Space, action_space: Space, memory: CoreKind = "none"
    ) -> None:
        super().__init__(observation_space, action_space)
        encoder = ObservationEncoder(observation_space, normalize=True, image_features=4)
        self.torso = Torso(encoder, (6,), core=CoreConfig(memory, 3))
        self.head = make_head(action_space, self.torso.out_features, gain=1.0)

    @property
    def state_sizes(self) -> Mapping[str, int]:
        return {"memory": self.torso.state_size} if self.torso.state_size else {}

    @property
    def action_spec(self) -> TensorSpec:
        return TensorSpec(self.head.action_shape, self.head.action_dtype)

    def distribution(
        self, observation: Observation, state: State, episode_start: Tensor | None = None
    ) -> tuple[Distribution, State]:
        features, after = self.torso(observation, state.get("memory"), episode_start)
        mask = self.action_mask(observation)
        return self.head(features, mask), {} if after is None else {"memory": after}

    def to_env_action(self, action: Tensor) -> Tensor:
        return self.head.to_env_action(action)

    def draw_noise(self, batch_shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return draw_noise(self.head.noise_kind, (*batch_shape, *self.head.noise_shape), generator)

    def update_normalization(self, observation: Observation, mask: Tensor | None = None) -> None:
        self.torso.update_normalization(observation, mask)


class MeanPolicy(Policy):
    """A policy without spread, as that of DDPG."""

    def distribution(
        self, observation: Observation, state: State, episode_start: Tensor | None = None
    ) -> tuple[Distribution, State]:
        distribution, after = super().distribution(observation, state, episode_start)
        return Deterministic(distribution.mode()), after


class TestPolicy(ActorSuite):
    def make_actor(self, observation_space: Space, action_space: Space) -> Actor:
        return Policy(observation_space, action_space)


class TestPolicyWithMemory(ActorSuite):
    def make_actor(self, observation_space: Space, action_space: Space) -> Actor:
        return Policy(observation_space, action_space, memory="gru")


class TestMeanPolicy(ActorSuite):
    action_spaces: ClassVar[Mapping[str, Space]] = {"box": ACTION_SPACES["box"]}
    is_stochastic: ClassVar[bool] = False

    def make_actor(self, observation_space: Space, action_space: Space) -> Actor:
        return MeanPolicy(observation_space, action_space)


VECTOR = spaces.Box(-1.0, 1.0, (2,), np.float32)


def test_to_sample_takes_noise() -> None:
    actor = Policy(VECTOR, spaces.Discrete(2))
    with pytest.raises(ConfigError, match="give noise from draw_noise, or deterministic=True"):
        actor.get_action(torch.zeros(1, 2), {}, None)


def test_what_an_actor_does_not_have_is_said_by_name() -> None:
    actor = Policy(VECTOR, spaces.Discrete(2))
    with pytest.raises(ConfigError, match="Policy has no state-value function"):
        actor.value(torch.zeros(1, 2), {})
    with pytest.raises(ConfigError, match="Policy has no action-value function"):
        actor.q_values(torch.zeros(1, 2), None, {})
    with pytest.raises(ConfigError, match="it has no from_env_action"):
        actor.random_actions(2, torch.Generator())
    assert actor.policy_modules == actor.value_modules == ()


def test_an_actor_without_values_evaluates_to_none() -> None:
    actor = Policy(VECTOR, spaces.Discrete(2))
    evaluation = actor.evaluate_actions(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), {})
    assert evaluation.value is None
    assert evaluation.log_prob.shape == (3,)


def test_made_up_observations_lie_in_their_space() -> None:
    space = spaces.Dict(
        {
            "category": spaces.Discrete(3, start=-1),
            "categories": spaces.MultiDiscrete([2, 5]),
            "image": spaces.Box(0, 255, (4, 4, 1), np.uint8),
            "open": spaces.Box(-np.inf, np.inf, (2,), np.float32),
            "switches": spaces.MultiBinary([2, 2]),
        }
    )
    drawn = random_observation(space, (7, 3), np.random.default_rng(0))
    assert not isinstance(drawn, Tensor)
    for key, leaf in space.spaces.items():
        assert drawn[key].shape[:2] == (7, 3)
        for value in drawn[key].flatten(0, 1).numpy():
            typed = value.astype(leaf.dtype)
            assert leaf.contains(typed), f"{key}: {typed}"


class TakesGivenActions(Policy):
    def from_env_action(self, env_action: Tensor) -> Tensor:
        assert isinstance(self.action_space, spaces.Discrete)
        return env_action - int(self.action_space.start)


def test_random_actions_need_no_code_and_heed_masks() -> None:
    actor = TakesGivenActions(VECTOR, spaces.Discrete(3, start=5))
    generator = torch.Generator().manual_seed(0)
    counts = torch.bincount(actor.random_actions(6000, generator), minlength=3)
    assert (counts > 1800).all()
    mask = torch.tensor([[1, 0, 1], [0, 1, 0]], dtype=torch.int8).repeat(100, 1)
    drawn = actor.random_actions(200, generator, {"action_mask": mask}).view(100, 2)
    assert set(drawn[:, 0].tolist()) == {0, 2}
    assert set(drawn[:, 1].tolist()) == {1}
