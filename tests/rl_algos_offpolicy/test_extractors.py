"""Networks of the user's own in an `OffPolicyActor`."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_algos_offpolicy import DQN, SAC, TD3, OffPolicyActor, OffPolicyActorConfig
from rl_core.errors import ConfigError
from rl_core.nn.normalization import RunningNorm
from rl_core.nn.torso import ObservationEncoder
from rl_testing.rollouts import make_replay_batch

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)


BOX = spaces.Box(-2.0, 2.0, (2,), np.float32)


CATEGORIES = spaces.Discrete(3)


class Observations(nn.Module):
    """Five features of an observation."""

    def __init__(self, space: gymnasium.Space[object]) -> None:
        super().__init__()
        assert space.shape is not None
        self.linear = nn.Linear(space.shape[0], 5)
        self.out_features = 5

    def forward(self, observation: Tensor) -> Tensor:
        features: Tensor = self.linear(observation)
        return features


class Centred(Observations):
    """The same features of observations without their mean."""

    def __init__(self, space: gymnasium.Space[object]) -> None:
        super().__init__(space)
        self.norm = RunningNorm(space.shape or ())

    def forward(self, observation: Tensor) -> Tensor:
        return super().forward(self.norm(observation))

    def update_normalization(self, observation: Tensor, mask: Tensor | None = None) -> None:
        self.norm.update(observation, mask)


class Actions(Observations):
    """Five features of a real action."""


class Layers(nn.Module):
    """Seven features of features."""

    def __init__(self, in_features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, 7)
        self.out_features = 7

    def forward(self, features: Tensor) -> Tensor:
        return torch.tanh(self.linear(features))


@pytest.mark.parametrize(
    "extractor", [Centred, partial(ObservationEncoder, normalize=True)], ids=["own", "default"]
)
def test_the_statistics_of_given_extractors_are_refreshed(extractor: Any) -> None:
    actor = OffPolicyActor(VECTOR, BOX, observation_extractor=extractor)
    assert actor.normalizes_observations
    actor.update_normalization(torch.ones(4, 3))
    counts = [b for name, b in actor.named_buffers() if name.endswith("norm.count")]
    assert counts == [4.0] * 3  # of the policy and of two critics


def test_extractors_without_statistics_have_none_refreshed() -> None:
    for extractor in (Observations, ObservationEncoder):
        actor = OffPolicyActor(VECTOR, BOX, observation_extractor=extractor)
        assert not actor.normalizes_observations


def test_extractors_must_return_as_many_features_as_they_say() -> None:
    class Wider(Observations):
        def __init__(self, space: spaces.Space[object]) -> None:
            super().__init__(space)
            self.out_features += 1

    with pytest.raises(ConfigError, match=r"^feature extractor Wider must .* but returns \(2,"):
        OffPolicyActor(VECTOR, BOX, observation_extractor=Wider)


def test_other_actions_than_categories_are_not_counted() -> None:
    assert _actor(spaces.Discrete(3), policy="greedy").num_actions == 3
    assert not hasattr(_actor(), "num_actions")


def _actor(space: spaces.Space[object] = BOX, **config: Any) -> OffPolicyActor:
    torch.manual_seed(0)
    return OffPolicyActor(
        VECTOR,
        space,
        OffPolicyActorConfig(**config),
        observation_extractor=Observations,
        action_extractor=Actions if isinstance(space, spaces.Box) else None,
        common_extractor=Layers,
    )


def test_critics_are_composed_of_the_users_networks() -> None:
    actor = _actor()
    critics = actor.critics
    assert isinstance(critics.torso, nn.ModuleList)
    observation, action = torch.randn(4, 3), torch.rand(4, 2)
    values = actor.q_values(observation, action, {})
    for k in range(2):
        seen = critics.encoders[k](observation), critics.action_encoders[k](action)
        features = critics.torso[k](torch.cat(seen, -1))
        expected = features @ critics.head.weights[0][k].T + critics.head.biases[0][k]
        torch.testing.assert_close(values[k], expected.squeeze(-1))


def test_no_network_shares_another_ones_parameters() -> None:
    actor = _actor()
    names = [name for name, _ in actor.named_parameters()]
    places = [name for name, _ in actor.named_parameters(remove_duplicate=False)]
    assert names == places
    weights = [p for name, p in actor.named_parameters() if p.shape == (5, 3)]
    assert len(weights) == 3  # one of the policy, one of each critic
    assert not torch.equal(weights[1], weights[2])


def test_the_policy_is_composed_of_the_users_networks() -> None:
    actor = _actor()
    assert actor.policy is not None
    torso = actor.policy.torso
    assert isinstance(torso.encoder, Observations)
    assert isinstance(torso.layers, Layers)
    assert actor.distribution(torch.randn(4, 3), {})[0].mode().shape == (4, 2)


class Pretrained(Observations):
    """Features that are not learned any more."""

    def __init__(self, space: gymnasium.Space[object]) -> None:
        super().__init__(space)
        self.requires_grad_(False)


@pytest.mark.parametrize(
    ("algorithm", "policy", "space"),
    [(SAC, "stochastic", BOX), (TD3, "deterministic", BOX), (DQN, "greedy", CATEGORIES)],
)
def test_what_is_not_learned_stays(
    algorithm: Callable[[OffPolicyActor], Any], policy: Any, space: spaces.Space[object]
) -> None:
    config = OffPolicyActorConfig(policy=policy)
    actor = OffPolicyActor(VECTOR, space, config, observation_extractor=Pretrained)
    learner = algorithm(actor)
    before = learner.get_weights().tensors
    for seed in range(2):
        learner.gradient_step(make_replay_batch(learner, seed))
    after = learner.get_weights().tensors
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    kept = {name for name in after if "encoder" in name}
    assert len(kept) >= 4
    assert moved
    assert not moved & kept


@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize(
    ("algorithm", "policy", "space"),
    [
        (SAC, "stochastic", BOX),
        (SAC, "stochastic", CATEGORIES),
        (TD3, "deterministic", BOX),
        (DQN, "greedy", CATEGORIES),
    ],
)
def test_algorithms_learn_all_of_the_users_networks(
    algorithm: Callable[[OffPolicyActor], Any],
    policy: str,
    space: spaces.Space[object],
    memory: str,
) -> None:
    size = {} if memory == "none" else {"recurrent_hidden_size": 4}
    actor = _actor(space, policy=policy, recurrent_net=memory, **size)
    learner = algorithm(actor)
    before = {name: p.detach().clone() for name, p in actor.named_parameters()}
    for seed in range(2):
        learner.gradient_step(make_replay_batch(learner, seed))
    for name, parameter in actor.named_parameters():
        assert not torch.equal(parameter, before[name]), name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"observation_extractor": Observations(VECTOR)}, "what makes a module, such as its class"),
        ({"common_extractor": 64}, "common_extractor is a int"),
        ({"observation_extractor": lambda space: nn.ReLU()}, "'out_features'"),
        ({"action_extractor": Actions, "space": CATEGORIES}, "needs real actions"),
        (
            {
                "common_extractor": Layers,
                "space": CATEGORIES,
                "config": OffPolicyActorConfig(policy="greedy", noisy=True),
            },
            "actor.noisy is for the default networks",
        ),
        (
            {"common_extractor": Layers, "config": OffPolicyActorConfig(hidden_sizes=(64,))},
            "hidden_sizes has no effect with common_extractor",
        ),
        (
            {"common_extractor": Layers, "config": OffPolicyActorConfig(activation="tanh")},
            "activation has no effect with common_extractor",
        ),
        (
            {
                "observation_extractor": Observations,
                "config": OffPolicyActorConfig(normalize_observations=True),
            },
            "normalize_observations has no effect",
        ),
    ],
)
def test_extractors_that_do_not_fit_are_refused(arguments: dict[str, Any], message: str) -> None:
    space = arguments.pop("space", BOX)
    with pytest.raises(ConfigError, match=message):
        OffPolicyActor(VECTOR, space, **arguments)


class _Ones(Layers):
    """Layers that start in a way of their own."""

    def __init__(self, in_features: int) -> None:
        super().__init__(in_features)
        nn.init.ones_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)


def test_layers_of_ones_own_keep_their_start() -> None:
    actor = OffPolicyActor(VECTOR, BOX, common_extractor=_Ones)
    starts = [m for m in actor.modules() if isinstance(m, _Ones)]
    assert len(starts) == 3
    for layers in starts:
        assert bool(layers.linear.weight.eq(1.0).all())
        assert not bool(layers.linear.bias.any())
