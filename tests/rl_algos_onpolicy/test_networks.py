"""The on-policy actor with networks from data."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from rl_algos_onpolicy import OnPolicyActor, OnPolicyActorConfig
from rl_core.errors import ConfigError
from rl_core.nn.init import Initialization
from rl_core.nn.layers import LayerConfig, LayeredEncoder
from rl_core.nn.torso import has_vectors
from rl_core.spaces import HybridSpace, Space
from rl_testing.actors import ActorSuite

BODY = (LayerConfig("FlattenLinear", {"out_features": 6}), LayerConfig("Tanh"))
HEAD = (LayerConfig("Linear", {"out_features": 5}), LayerConfig("ReLU"))
GRU = LayerConfig("GRU", {"hidden_size": 3})
VECTOR = spaces.Box(-1.0, 1.0, (4,))


class TestBodyAndHead(ActorSuite):
    def make_actor(self, observation_space: Space, action_space: Space) -> OnPolicyActor:
        config = OnPolicyActorConfig(
            body=BODY, head=HEAD, normalize_observations=has_vectors(observation_space)
        )
        return OnPolicyActor(observation_space, action_space, config)


class TestSharedBodyWithMemory(ActorSuite):
    def make_actor(self, observation_space: Space, action_space: Space) -> OnPolicyActor:
        config = OnPolicyActorConfig(
            body=BODY, head=(*HEAD, GRU, LayerConfig("ActionLinear")), share_body=True
        )
        return OnPolicyActor(observation_space, action_space, config)


def _actor(config: OnPolicyActorConfig) -> OnPolicyActor:
    torch.manual_seed(0)
    return OnPolicyActor(VECTOR, spaces.Discrete(2), config)


def test_policy_and_value_function_share_what_they_are_told_to() -> None:
    own = _actor(OnPolicyActorConfig(body=BODY, head=HEAD))
    assert own.value_torso is not None
    assert own.value_torso.encoder is not own.policy_torso.encoder
    shared = _actor(OnPolicyActorConfig(body=BODY, head=HEAD, share_body=True))
    assert shared.value_torso is not None
    assert shared.value_torso.encoder is shared.policy_torso.encoder
    assert shared.value_torso.layers is not shared.policy_torso.layers
    other = (LayerConfig("Linear", {"out_features": 9}),)
    apart = _actor(OnPolicyActorConfig(body=BODY, head=HEAD, value_body=other, value_head=other))
    assert apart.value_torso is not None
    assert (apart.policy_torso.out_features, apart.value_torso.out_features) == (5, 9)
    assert _actor(OnPolicyActorConfig(head=(GRU,))).state_sizes == {"policy": 3, "value": 3}


@pytest.mark.parametrize("head", [HEAD, (*HEAD, GRU)], ids=["feedforward", "recurrent"])
def test_an_encoder_that_both_share_runs_once(head: tuple[LayerConfig, ...]) -> None:
    actor = _actor(OnPolicyActorConfig(body=BODY, head=head, share_body=True))
    calls: list[None] = []
    actor.policy_torso.encoder.register_forward_hook(lambda *_: calls.append(None))
    observation, action = torch.randn(3, 4), torch.zeros(3, dtype=torch.int64)
    state = actor.actor_initial_states(3)
    starts = torch.ones(3, dtype=torch.bool)
    together = actor.evaluate_actions(observation, action, state, starts)
    assert len(calls) == 1
    value, _ = actor.value(observation, state, starts)
    distribution, states = actor.distribution(observation, state, starts)
    assert len(calls) == 3
    torch.testing.assert_close(together.value, value)
    torch.testing.assert_close(together.log_prob, distribution.log_prob(action))
    assert list(together.state) == list(states) == (["policy", "value"] if states else [])


def test_sharing_an_encoder_that_learns_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^actor\.share_body has no effect where the encoder"):
        _actor(OnPolicyActorConfig(share_body=True))


def test_a_body_follows_the_features_of_images_in_a_dict() -> None:
    image = spaces.Box(0, 255, (36, 36, 3), np.uint8)
    config = OnPolicyActorConfig(body=BODY, image_features=7)
    actor = OnPolicyActor(spaces.Dict({"i": image, "v": VECTOR}), spaces.Discrete(2), config)
    encoder = actor.policy_torso.encoder
    assert isinstance(encoder, LayeredEncoder)
    assert encoder.body.in_shape == (7 + 4,)
    with pytest.raises(ConfigError, match=r"actor\.image_features has no effect with actor\.body"):
        OnPolicyActor(image, spaces.Discrete(2), config)


def test_a_value_function_without_layers_is_linear() -> None:
    actor = _actor(OnPolicyActorConfig(body=BODY, head=HEAD, value_head=()))
    assert actor.value_torso is not None
    assert not list(actor.value_torso.layers.parameters())
    bare = _actor(OnPolicyActorConfig(body=BODY, head=HEAD, value_body=(), value_head=()))
    assert bare.value_torso is not None
    assert not list(bare.value_torso.parameters())
    assert bare.value_torso.out_features == 4


WIDE = (LayerConfig("Linear", {"out_features": 400}),)


@pytest.mark.parametrize(
    "config",
    [
        OnPolicyActorConfig(hidden_sizes=(400,)),
        OnPolicyActorConfig(hidden_sizes=(400,), recurrent_net="gru", recurrent_first=True),
        OnPolicyActorConfig(body=WIDE, hidden_sizes=()),
        OnPolicyActorConfig(head=WIDE, intrinsic_value=True),
    ],
    ids=["mlp", "recurrent", "body", "head"],
)
@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(3),
        spaces.Box(-1.0, 1.0, (2,)),
        HybridSpace(spaces.Box(-1.0, 1.0, (1,)), spaces.MultiDiscrete([2])),
    ],
    ids=lambda space: type(space).__name__,
)
def test_layers_and_outputs_start_uniform_or_orthogonal(
    space: Space, config: OnPolicyActorConfig
) -> None:
    uniform, orthogonal = (
        OnPolicyActor(VECTOR, space, replace(config, initial_weights=start))
        for start in get_args(Initialization)
    )
    for actor in (uniform, orthogonal):
        layers = [
            (name, layer)
            for name, layer in actor.named_modules()
            if isinstance(layer, nn.Linear) and "core" not in name
        ]
        assert len(layers) >= 4  # hidden and output layers of policy and value function
        for name, layer in layers:
            largest = layer.weight.abs().max().item()
            if actor is uniform:  # in +-1 / sqrt(p); one of hundreds of numbers is near the bound
                bound = layer.in_features**-0.5
                assert 0.9 * bound < largest <= bound
                assert 0 < layer.bias.abs().max() <= bound
            else:
                assert not layer.bias.any()
                assert ("action_head" in name) == (largest < 0.01)
        for name, parameter in actor.named_parameters():
            if "core" in name and "bias" in name:
                largest = parameter.abs().max().item()
                assert 0.1 < largest <= 0.125 if actor is uniform else largest == 0.0


@pytest.mark.parametrize(
    "config",
    [OnPolicyActorConfig(squash_actions=True), OnPolicyActorConfig(state_dependent_std=True)],
    ids=["squashed", "clipped"],
)
def test_a_given_standard_deviation_is_kept_whatever_the_weights(
    config: OnPolicyActorConfig,
) -> None:
    config = replace(config, initial_weights="uniform", initial_log_std=-2.0)
    actor = OnPolicyActor(VECTOR, spaces.Box(-1.0, 1.0, (2,)), config)
    linear = actor.action_head.linear
    assert isinstance(linear, nn.Linear)
    assert linear.bias[2:].tolist() == [-2.0, -2.0]
    assert linear.bias[:2].all()


@pytest.mark.parametrize("option", ["body", "head", "value_body", "value_head"])
def test_a_size_that_does_not_fit_is_reported_where_it_was_given(option: str) -> None:
    wrong = (LayerConfig("Linear", {"in_features": 3, "out_features": 2}),)
    config = OnPolicyActorConfig(**{option: wrong})  # type: ignore[arg-type]  # of several types
    with pytest.raises(ConfigError, match=rf"^actor\.{option}\[0\]"):
        _actor(config)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"body": (LayerConfig("Tnah"),)}, r"body\[0\]: unknown layer 'Tnah'"),
        ({"head": (GRU, LayerConfig("Tanh"))}, r"head\[0\]: GRU may only stand at the end"),
        ({"body": (GRU,)}, "GRU may only stand at the end"),
        ({"head": (LayerConfig("GRU", {"size": 3}),)}, "GRU has no option 'size'"),
        ({"head": (LayerConfig("GRU", {"hidden_size": 0}),)}, "hidden_size must be a whole number"),
        ({"head": (LayerConfig("ActionLinear", {"std": 1}),)}, "ActionLinear has no options"),
        ({"head": (GRU,), "recurrent_net": "gru"}, "leave recurrent_net out"),
        ({"value_body": BODY, "share_body": True}, "no effect with share_body"),
        ({"value_head": HEAD, "shared_policy_value_network": True}, "no effect with shared_policy"),
        ({"hidden_sizes": (4, 0)}, r"^hidden_sizes\[1\] must be a whole number of at least 1, got"),
        ({"value_hidden_sizes": (0,)}, r"^value_hidden_sizes\[0\] must be a whole number of"),
        ({"value_head": HEAD, "value_hidden_sizes": (3,)}, "no effect with value_head"),
        ({"head": HEAD, "hidden_sizes": (3,)}, "hidden_sizes has no effect with head"),
        ({"head": HEAD, "activation": "relu"}, "activation has no effect with head"),
        ({"head": HEAD, "value_hidden_sizes": (3,)}, "value_hidden_sizes has no effect with head"),
        ({"share_body": True, "shared_policy_value_network": True}, "share_body has no effect"),
    ],
)
def test_contradictions_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OnPolicyActorConfig(**options)  # type: ignore[arg-type]  # of several types


@pytest.mark.parametrize(
    "options",
    [{"body": BODY}, {"share_body": True}, {"normalize_observations": True}, {"image_features": 3}],
)
def test_a_feature_extractor_leaves_no_option_without_effect(options: dict[str, object]) -> None:
    config = OnPolicyActorConfig(**options)  # type: ignore[arg-type]  # of several types
    (name,) = options
    with pytest.raises(ConfigError, match=rf"actor\.{name} has no effect with feature_extractor"):
        OnPolicyActor(VECTOR, spaces.Discrete(2), config, feature_extractor=nn.Linear(4, 2))
