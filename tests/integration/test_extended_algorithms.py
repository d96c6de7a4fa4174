"""Algorithms of one's own on top of the project's: more options, columns, networks and dtypes."""

import dataclasses
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_algos_offpolicy import BC, DQN, SAC, BCConfig, DQNConfig, OffPolicyActor, SACConfig
from rl_algos_onpolicy import A2C, PPO, RNDPPO, OnPolicyActor, PPOConfig, RNDPPOConfig
from rl_core.actor import Actor
from rl_core.algorithm import AnyAlgorithm
from rl_core.config import construct, decode, options_of
from rl_core.errors import ConfigError
from rl_core.storage import TensorSpec
from rl_envs import make_vec
from rl_storages import ReplayBuffer
from rl_testing.rollouts import make_batch, make_rollout
from rl_testing.toy import ToyActor
from rl_train import Trainer

OBSERVATION = spaces.Box(-1.0, 1.0, (3,), np.float32)
DISCRETE = spaces.Discrete(3)


def _on_policy(**options: Any) -> OnPolicyActor:
    config = dataclasses.replace(OnPolicyActor(OBSERVATION, DISCRETE).config, **options)
    return OnPolicyActor(OBSERVATION, DISCRETE, config)


@pytest.mark.parametrize("kind", [PPO, RNDPPO, DQN, BC])
def test_a_subclass_adds_options_by_its_config_type(kind: type[AnyAlgorithm]) -> None:
    bases = {PPO: PPOConfig, RNDPPO: RNDPPOConfig, DQN: DQNConfig, BC: BCConfig}
    wider = dataclasses.make_dataclass(
        "Wider", [("bonus", float, 0.5)], bases=(bases[kind],), frozen=True, kw_only=True
    )
    own: Any = type("Own", (kind,), {"config_type": wider, "__doc__": kind.__doc__})
    assert options_of(own) is wider
    actor: Actor
    if kind is DQN:
        config = OffPolicyActor(OBSERVATION, DISCRETE, None).config
        config = replace(config, policy="greedy")
        actor = OffPolicyActor(OBSERVATION, DISCRETE, config)
    else:
        actor = _on_policy(intrinsic_value=kind is RNDPPO)
    assert own(actor).config.bonus == 0.5
    made = construct(own, {"actor": actor}, decode(options_of(own), {"bonus": 2.0}, "algorithm"))
    assert made.config.bonus == 2.0


def test_columns_of_random_actions_are_refused() -> None:
    class Probabilities(SAC):
        @property
        def extras(self) -> dict[str, TensorSpec]:
            return {"log_prob": TensorSpec((), torch.float32)}

    envs = make_vec("Pendulum-v1", 1)
    actor = OffPolicyActor(envs.single_observation_space, envs.single_action_space)
    with pytest.raises(ConfigError, match=r"start_steps=7 .* would store the log_prob of others"):
        Trainer(envs, Probabilities(actor, SACConfig(start_steps=7)), ReplayBuffer(100))
    Trainer(envs, Probabilities(actor, SACConfig(start_steps=0)), ReplayBuffer(100))


def test_an_optimizer_for_values_asks_for_the_modules_of_values() -> None:
    class Silent(ToyActor):
        @property
        def value_modules(self) -> tuple[str, ...]:
            return ()

    with pytest.raises(ConfigError, match=r"A2C gives the value function .* name them in value_m"):
        A2C(Silent(OBSERVATION, DISCRETE))


def test_an_algorithm_is_not_pickled() -> None:
    # its copy would compute gradients of parameters that no optimizer moves
    with pytest.raises(ConfigError, match="cannot be pickled; save its state_dict"):
        pickle.dumps(PPO(_on_policy()))


def test_parameters_that_are_released_after_the_algorithm_was_built_are_refused() -> None:
    actor = _on_policy()
    actor.policy_torso.requires_grad_(False)
    algorithm = PPO(actor)
    batch = make_batch(algorithm, make_rollout(algorithm, seed=1))
    algorithm.gradient_step(batch)
    actor.policy_torso.requires_grad_(True)
    with pytest.raises(ConfigError, match=r"policy_torso\..* needed no gradient when the algorith"):
        algorithm.gradient_step(batch)


def test_parameters_of_another_precision_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"dtype torch.float64; .* call actor.float\(\)"):
        PPO(_on_policy().double())


def test_observations_of_float64_are_taken_without_an_environment() -> None:
    space = spaces.Box(-1.0, 1.0, (3,), np.float64)
    actor = OnPolicyActor(space, DISCRETE)
    seen = torch.as_tensor(space.sample())[None]
    assert torch.equal(actor(seen), actor(seen.float()))


@pytest.mark.parametrize("bound", [1, 15, 255])
def test_images_are_divided_by_their_bound(bound: int) -> None:
    encoders: list[nn.Module] = []
    for high, dtype in ((bound, np.uint8), (1, np.float32)):
        torch.manual_seed(0)
        image = spaces.Box(0, high, (36, 36, 1), dtype)
        encoders.append(OnPolicyActor(image, DISCRETE).policy_torso.encoder)
    pixels = torch.randint(0, bound + 1, (2, 36, 36, 1), dtype=torch.uint8)
    features: list[Tensor] = [encoders[0](pixels), encoders[1](pixels / bound)]
    torch.testing.assert_close(*features)
