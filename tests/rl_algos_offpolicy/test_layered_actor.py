"""The off-policy actor with networks from data."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from rl_algos_offpolicy import DQN, SAC, TD3, OffPolicyActor, OffPolicyActorConfig
from rl_core.errors import ConfigError
from rl_core.nn.init import Initialization
from rl_core.nn.layers import LayerConfig, LayeredEncoder
from rl_core.nn.torso import feature_size, has_vectors
from rl_core.spaces import Space
from rl_testing.actors import ACTION_SPACES, ActorSuite
from rl_testing.algorithms import AlgorithmSuite

BODY = (LayerConfig("FlattenLinear", {"out_features": 6}), LayerConfig("Tanh"))
HEAD = (LayerConfig("Linear", {"out_features": 5}), LayerConfig("SiLU"))
OTHER = (LayerConfig("Linear", {"out_features": 9}), LayerConfig("Tanh"))
GRU = LayerConfig("GRU", {"hidden_size": 3})
VECTOR = spaces.Box(-1.0, 1.0, (4,), np.float32)
BOX = spaces.Box(-2.0, 2.0, (2,), np.float32)


class TestBodyAndHead(ActorSuite):
    action_spaces: ClassVar[Mapping[str, Space]] = {
        name: ACTION_SPACES[name] for name in ("discrete", "box")
    }

    def make_actor(self, observation_space: Space, action_space: Space) -> OffPolicyActor:
        config = OffPolicyActorConfig(
            body=BODY, head=HEAD, normalize_observations=has_vectors(observation_space)
        )
        return OffPolicyActor(observation_space, action_space, config)


class TestMemoryOfAHead(ActorSuite):
    action_spaces: ClassVar[Mapping[str, Space]] = {"box": ACTION_SPACES["box"]}
    observation_spaces: ClassVar[Mapping[str, Space]] = {"vector": VECTOR}

    def make_actor(self, observation_space: Space, action_space: Space) -> OffPolicyActor:
        config = OffPolicyActorConfig(head=(*HEAD, GRU, LayerConfig("ActionLinear")))
        return OffPolicyActor(observation_space, action_space, config)


@pytest.mark.parametrize("start", ["uniform", "orthogonal"])
@pytest.mark.parametrize("space", [BOX, spaces.Discrete(3)], ids=["box", "discrete"])
def test_layers_start_with_biases_by_the_number_of_inputs_or_without(
    space: Space, start: Initialization
) -> None:
    wide = LayerConfig("Linear", {"out_features": 400})
    for config in (
        OffPolicyActorConfig(hidden_sizes=(400,)),
        OffPolicyActorConfig(hidden_sizes=(400,), recurrent_net="gru"),
        OffPolicyActorConfig(body=(wide,), hidden_sizes=(400,)),
        OffPolicyActorConfig(head=(wide,)),
    ):
        actor = OffPolicyActor(VECTOR, space, replace(config, initial_weights=start))
        outputs = ("policy.head.", "memory.", "core.")
        starts = [
            p.detach()
            for name, p in actor.named_parameters()
            if "bias" in name and p.shape[-1] == 400 and not any(o in name for o in outputs)
        ]
        assert starts
        for biases in starts:
            largest = biases.abs().max().item()
            assert largest == 0.0 if start == "orthogonal" else 0.01 < largest <= 0.5  # 4 to 400


@pytest.mark.parametrize("policy", ["stochastic", "deterministic"])
def test_the_output_of_a_policy_starts_like_all_other_layers(
    policy: Literal["stochastic", "deterministic"],
) -> None:
    config = OffPolicyActorConfig(policy=policy, hidden_sizes=(400,))
    actors: list[Any] = [
        OffPolicyActor(VECTOR, BOX, replace(config, initial_weights=start))
        for start in get_args(Initialization)
    ]
    uniform, orthogonal = (actor.policy.head.linear for actor in actors)
    assert 0.045 < uniform.weight.abs().max() <= 0.05  # 400 inputs
    assert 0 < uniform.bias.abs().min() <= uniform.bias.abs().max() <= 0.05
    assert torch.equal(orthogonal.bias, torch.zeros_like(orthogonal.bias))
    gram = orthogonal.weight @ orthogonal.weight.T
    assert torch.allclose(gram, 1e-4 * torch.eye(len(gram)), atol=1e-9)


class TestSAC(AlgorithmSuite):
    is_smooth: ClassVar[bool] = False
    has_compile_test: ClassVar[bool] = False
    unweighted_groups: ClassVar[frozenset[str]] = frozenset({"temperature"})

    def make_algorithm(self, seed: int) -> SAC:
        torch.manual_seed(seed)
        return SAC(OffPolicyActor(VECTOR, BOX, OffPolicyActorConfig(body=BODY, head=HEAD)))


class TestRecurrentTD3(AlgorithmSuite):
    is_smooth: ClassVar[bool] = False
    has_compile_test: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> TD3:
        torch.manual_seed(seed)
        config = OffPolicyActorConfig(policy="deterministic", head=(*HEAD, GRU), critic_head=OTHER)
        return TD3(OffPolicyActor(VECTOR, BOX, config))


class TestDistributionalDQN(AlgorithmSuite):
    is_smooth: ClassVar[bool] = False
    has_compile_test: ClassVar[bool] = False

    def make_algorithm(self, seed: int) -> DQN:
        torch.manual_seed(seed)
        config = OffPolicyActorConfig(
            policy="greedy", head=HEAD, dueling=True, distribution="quantile", num_quantiles=3
        )
        return DQN(OffPolicyActor(VECTOR, spaces.Discrete(3), config))


def _actor(config: OffPolicyActorConfig) -> OffPolicyActor:
    torch.manual_seed(0)
    return OffPolicyActor(VECTOR, BOX, config)


def _critic_widths(actor: OffPolicyActor) -> list[int]:
    critics = actor.critics
    assert isinstance(critics.torso, nn.ModuleList)
    return [
        layer.get_submodule("layers.0").get_parameter("weight").shape[0] for layer in critics.torso
    ]


def test_every_critic_has_layers_of_its_own() -> None:
    actor = _actor(OffPolicyActorConfig(head=HEAD, num_critics=3))
    assert _critic_widths(actor) == [5, 5, 5]
    assert isinstance(actor.critics.torso, nn.ModuleList)
    assert len({id(parameter) for parameter in actor.critics.torso.parameters()}) == 6
    assert actor.policy is not None
    assert actor.policy.torso.out_features == 5


def test_critics_may_have_other_layers_than_the_policy() -> None:
    assert _critic_widths(_actor(OffPolicyActorConfig(head=HEAD, critic_head=OTHER))) == [9, 9]
    apart = _actor(OffPolicyActorConfig(body=BODY, critic_body=OTHER))
    assert apart.policy is not None
    encoders = apart.policy.torso.encoder, apart.critics.encoders[0]
    assert [feature_size(encoder) for encoder in encoders] == [6, 9]
    bare = _actor(OffPolicyActorConfig(body=BODY, critic_body=()))
    assert feature_size(bare.critics.encoders[0]) == 4
    plain = _actor(OffPolicyActorConfig(head=HEAD, critic_hidden_sizes=(7,)))
    assert plain.policy is not None
    assert plain.policy.torso.out_features == 5
    assert plain.critics.torso is None


def test_a_body_follows_the_features_of_images_in_a_dict() -> None:
    image = spaces.Box(0, 255, (36, 36, 3), np.uint8)
    config = OffPolicyActorConfig(body=BODY, image_features=7)
    actor = OffPolicyActor(spaces.Dict({"i": image, "v": VECTOR}), BOX, config)
    assert actor.policy is not None
    encoder = actor.policy.torso.encoder
    assert isinstance(encoder, LayeredEncoder)
    assert encoder.body.in_shape == (7 + 4,)
    with pytest.raises(ConfigError, match=r"actor\.image_features has no effect with actor\.body"):
        OffPolicyActor(image, BOX, config)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"body": (LayerConfig("Tnah"),)}, r"body\[0\]: unknown layer 'Tnah'"),
        ({"critic_head": (GRU,)}, "GRU may only stand at the end"),
        ({"head": (GRU,), "recurrent_net": "gru"}, "leave recurrent_net out"),
        ({"head": HEAD, "hidden_sizes": (3,)}, "hidden_sizes has no effect with head"),
        ({"head": HEAD, "activation": "tanh"}, "activation has no effect with head"),
        ({"critic_head": HEAD, "critic_hidden_sizes": (3,)}, "no effect with critic_head"),
        ({"policy": "greedy", "critic_head": HEAD}, "critic_head says the same as head"),
        ({"policy": "greedy", "head": HEAD, "noisy": True}, "noisy is for the critics' default"),
        ({"head": HEAD, "critic_dropout": 0.1}, "critic_dropout is for the critics' default"),
    ],
)
def test_contradictions_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OffPolicyActorConfig(**options)  # type: ignore[arg-type]  # of several types


def test_layers_do_not_go_with_what_the_user_makes() -> None:
    with pytest.raises(ConfigError, match=r"actor\.head has no effect with common_extractor"):
        OffPolicyActor(
            VECTOR,
            BOX,
            OffPolicyActorConfig(head=HEAD),
            common_extractor=lambda width: nn.Identity(),
        )
