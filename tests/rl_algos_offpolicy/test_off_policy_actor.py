from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_algos_offpolicy import OffPolicyActor, OffPolicyActorConfig
from rl_core.actor import Actor
from rl_core.errors import ConfigError, SpaceError
from rl_core.nn.distributions import Categorical, Deterministic, DeterministicHead, SquashedGaussian
from rl_core.nn.torso import has_vectors
from rl_core.spaces import Space
from rl_testing.actors import ACTION_SPACES, OBSERVATION_SPACES, ActorSuite

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))
CATEGORIES = spaces.Discrete(4, start=5)
SMALL_NUMBERS = spaces.Discrete(4, start=5, dtype=np.uint8)
WHOLE = spaces.Box(0, 5, (2,), np.int64)
HALF_BOUNDED = spaces.Box(np.array([-1, -np.inf], np.float32), np.array([1, 1], np.float32))
SMALL = OffPolicyActorConfig(hidden_sizes=(8,))


def _actor(space: spaces.Space[object], **options: object) -> OffPolicyActor:
    torch.manual_seed(0)
    return OffPolicyActor(VECTOR, space, replace(SMALL, **options))  # type: ignore[arg-type]


VECTORS = {name: OBSERVATION_SPACES[name] for name in ("vector", "dict")}


class OffPolicyActorSuite(ActorSuite):
    __test__ = False
    action_spaces: ClassVar[Mapping[str, Space]] = {
        name: ACTION_SPACES[name] for name in ("discrete", "box")
    }
    options: ClassVar[Mapping[str, object]] = {}

    def make_actor(self, observation_space: Space, action_space: Space) -> Actor:
        options = replace(SMALL, **self.options)  # type: ignore[arg-type]  # of this class
        if not has_vectors(observation_space):
            options = replace(options, normalize_observations=False)
        return OffPolicyActor(observation_space, action_space, options)


class TestFeedForward(OffPolicyActorSuite):
    __test__ = True
    options: ClassVar[Mapping[str, object]] = {"normalize_observations": True}


class TestGRU(OffPolicyActorSuite):
    __test__ = True
    options: ClassVar[Mapping[str, object]] = {
        "recurrent_net": "gru",
        "recurrent_hidden_size": 4,
        "normalize_observations": True,
    }


class TestLSTM(OffPolicyActorSuite):
    __test__ = True
    observation_spaces: ClassVar[Mapping[str, Space]] = VECTORS
    options: ClassVar[Mapping[str, object]] = {
        "recurrent_net": "lstm",
        "recurrent_hidden_size": 4,
        "recurrent_layers": 2,
        "num_critics": 3,
    }


class TestDeterministic(OffPolicyActorSuite):
    __test__ = True
    observation_spaces: ClassVar[Mapping[str, Space]] = VECTORS
    is_stochastic: ClassVar[bool] = False
    action_spaces: ClassVar[Mapping[str, Space]] = {"box": ACTION_SPACES["box"]}
    options: ClassVar[Mapping[str, object]] = {"policy": "deterministic", "recurrent_net": "gru"}


class TestGreedy(OffPolicyActorSuite):
    __test__ = True
    observation_spaces: ClassVar[Mapping[str, Space]] = VECTORS
    is_stochastic: ClassVar[bool] = False
    action_spaces: ClassVar[Mapping[str, Space]] = {"discrete": ACTION_SPACES["discrete"]}
    options: ClassVar[Mapping[str, object]] = {"policy": "greedy", "recurrent_net": "gru"}


@pytest.mark.parametrize(
    ("space", "policy", "distribution"),
    [
        (BOX, "stochastic", SquashedGaussian),
        (BOX, "deterministic", Deterministic),
        (CATEGORIES, "stochastic", Categorical),
        (CATEGORIES, "greedy", Deterministic),
        (SMALL_NUMBERS, "stochastic", Categorical),
        (SMALL_NUMBERS, "greedy", Deterministic),
    ],
)
def test_every_kind_of_policy_acts_within_the_space(
    space: spaces.Space[object], policy: str, distribution: type
) -> None:
    actor = _actor(space, policy=policy)
    generator = torch.Generator().manual_seed(1)
    observation = torch.randn(6, 3)
    assert isinstance(actor.distribution(observation, {})[0], distribution)
    output = actor.get_action(observation, {}, actor.draw_noise((6,), generator))
    random = actor.random_actions(6, generator)
    for action in (output.action, random):
        assert action.shape == (6, *actor.action_spec.shape)
        assert action.dtype == actor.action_spec.dtype
        env_action = actor.to_env_action(action)
        assert all(space.contains(one) for one in env_action.detach().numpy())
        torch.testing.assert_close(actor.from_env_action(env_action), action)


def test_critics_share_nothing_with_the_policy_or_each_other() -> None:
    actor = _actor(BOX, num_critics=3)
    action = actor.random_actions(6, torch.Generator().manual_seed(1))
    values = actor.q_values(torch.randn(6, 3), action, {})
    assert values.shape == (3, 6)
    own = actor.critics.head.weights[0]
    policy = list(actor.policy.parameters()) if actor.policy is not None else []
    gradient, *others = torch.autograd.grad(values[0].sum(), [own, *policy], allow_unused=True)
    assert policy
    assert all(other is None for other in others)
    assert gradient[0].any()
    assert not gradient[1:].any()


def test_discrete_critics_evaluate_all_actions() -> None:
    actor = _actor(CATEGORIES, policy="greedy", num_critics=2)
    observation = torch.randn(6, 3)
    values = actor.q_values(observation, None, {})
    assert values.shape == (2, 6, 4)
    chosen = actor.get_action(observation, {}, None, deterministic=True)
    assert torch.equal(chosen.action, values[0].argmax(-1))
    assert torch.equal(chosen.env_action, chosen.action + 5)


def test_random_actions_are_uniform() -> None:
    generator = torch.Generator().manual_seed(0)
    numbers = _actor(BOX).random_actions(20_000, generator)
    assert numbers.abs().max() <= 1.0
    assert numbers.mean(0).tolist() == pytest.approx([0.0, 0.0], abs=0.02)
    assert numbers.var(0).tolist() == pytest.approx([1 / 3, 1 / 3], abs=0.01)
    categories = _actor(CATEGORIES, policy="greedy").random_actions(20_000, generator)
    assert (categories.bincount() / 20_000).tolist() == pytest.approx([0.25] * 4, abs=0.02)


@pytest.mark.parametrize(
    ("space", "option", "value"),
    [
        (CATEGORIES, "normalize_observations", True),
        (OBSERVATION_SPACES["image"], "normalize_observations", True),
        (VECTOR, "image_features", 8),
    ],
)
def test_options_of_other_observations_are_refused(
    space: Space, option: str, value: object
) -> None:
    config = replace(SMALL, **{option: value})  # type: ignore[arg-type]  # by name
    with pytest.raises(ConfigError, match=rf"actor\.{option} is for"):
        OffPolicyActor(space, BOX, config)


def test_options_of_another_actor_are_refused() -> None:
    with pytest.raises(ConfigError, match="config must be an OffPolicyActorConfig, or None, got"):
        OffPolicyActor(VECTOR, BOX, {"policy": "greedy"})  # type: ignore[arg-type]  # what is tested


def test_statistics_of_observations_reach_all_networks() -> None:
    actor = _actor(BOX, normalize_observations=True)
    assert actor.normalizes_observations
    observation = 5.0 + 2.0 * torch.randn(100, 3)
    actor.update_normalization(observation)
    means = [b for name, b in actor.named_buffers() if name.endswith("norm.mean")]
    assert len(means) == 2
    for mean in means:
        assert mean.tolist() == pytest.approx([5.0] * 3, abs=1.0)
    assert not _actor(BOX).normalizes_observations


@pytest.mark.parametrize(
    ("space", "options", "error", "message"),
    [
        (
            CATEGORIES,
            {"policy": "deterministic"},
            ConfigError,
            r"^td3 and ddpg \(actor.policy 'deterministic'\) need real actions \(Box\), but the "
            r"environment has Discrete.*; choose dqn, rainbow, sac, redq, droq, bc, or an on-p",
        ),
        (
            BOX,
            {"policy": "greedy"},
            ConfigError,
            r"need Discrete actions, but the environment has Box.*; choose td3, ddpg, sac, redq, ",
        ),
        (BOX, {"dueling": True}, ConfigError, "dueling needs Discrete actions"),
        (spaces.MultiDiscrete([2, 3]), {}, SpaceError, "is not supported"),
        (
            spaces.Box(-np.inf, np.inf, (2,), np.float32),
            {},
            SpaceError,
            "infinite bound, .*; give the environment finite ones .*, or learn by an on-policy",
        ),
        *(
            (WHOLE, {"policy": policy}, SpaceError, "Box of dtype int64.* the environment rounds$")
            for policy in ("stochastic", "deterministic", "greedy")
        ),
        (HALF_BOUNDED, {}, SpaceError, "infinite bound"),
        (HALF_BOUNDED, {"policy": "deterministic"}, SpaceError, "infinite bound"),
        (HALF_BOUNDED, {"recurrent_net": "gru"}, SpaceError, "infinite bound"),
    ],
)
def test_contradictions_are_refused(
    space: spaces.Space[object], options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        _actor(space, **options)


@pytest.mark.parametrize("space", [spaces.Discrete(6), spaces.Box(-0.5, 5.5, (2,), np.float32)])
def test_what_is_advised_for_whole_numbers_works(space: spaces.Space[object]) -> None:
    assert _actor(space, policy="stochastic").action_space == space


def test_heads_that_squash_say_where_bounds_come_from() -> None:
    with pytest.raises(SpaceError, match=r"give the environment such bounds .*TransformAction"):
        DeterministicHead(HALF_BOUNDED, 3)


def test_a_mask_is_refused_rather_than_ignored() -> None:
    observations = spaces.Dict({"x": VECTOR, "action_mask": spaces.MultiBinary(4)})
    with pytest.raises(SpaceError, match="action_mask"):
        OffPolicyActor(observations, CATEGORIES, SMALL)


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "gready"},
        {"num_critics": 0},
        {"recurrent_net": "rnn"},
        {"recurrent_hidden_size": 0},
        {"recurrent_layers": 0},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        OffPolicyActorConfig(**options)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"recurrent_hidden_size": 64},
            "recurrent_hidden_size has no effect with recurrent_net='none'; leave it out, or "
            "set recurrent_net to 'gru'",
        ),
        ({"recurrent_layers": 2}, "recurrent_layers has no effect with recurrent_net='none'"),
        ({"hidden_sizes": (4, 0)}, r"^hidden_sizes\[1\] must be a whole number of at least 1, got"),
        ({"critic_hidden_sizes": (0,)}, r"^critic_hidden_sizes\[0\] must be a whole number of"),
        ({"policy": "greedy", "critic_hidden_sizes": (8,)}, "give hidden_sizes alone"),
    ],
)
def test_options_without_effect_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OffPolicyActorConfig(**options)  # type: ignore[arg-type]  # wrong on purpose
