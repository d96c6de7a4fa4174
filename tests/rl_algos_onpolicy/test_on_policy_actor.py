from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_algos_onpolicy import PPO, OnPolicyActor, OnPolicyActorConfig
from rl_core.algorithm import EnvSpec
from rl_core.errors import ConfigError, SpaceError
from rl_core.nn.distributions import Categorical, MultiCategorical
from rl_core.nn.layers import LayerConfig
from rl_core.nn.normalization import RunningNorm
from rl_core.nn.torso import has_images, has_vectors
from rl_core.spaces import Space
from rl_testing.actors import ACTION_SPACES, OBSERVATION_SPACES, ActorSuite

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
CATEGORY, IMAGE = OBSERVATION_SPACES["category"], OBSERVATION_SPACES["image"]
FLAT = (LayerConfig("Flatten"),)
MASKED = spaces.Dict({"action_mask": spaces.MultiBinary(3), "position": VECTOR})


class TestSeparate(ActorSuite):
    def make_actor(self, observation_space: Space, action_space: Space) -> OnPolicyActor:
        config = OnPolicyActorConfig(
            hidden_sizes=(8,),
            value_hidden_sizes=(6, 5),
            image_features=8 if has_images(observation_space) else 512,
        )
        return OnPolicyActor(observation_space, action_space, config)


class TestShared(ActorSuite):
    def make_actor(self, observation_space: Space, action_space: Space) -> OnPolicyActor:
        config = OnPolicyActorConfig(
            hidden_sizes=(8,),
            image_features=8 if has_images(observation_space) else 512,
            shared_policy_value_network=True,
            normalize_observations=has_vectors(observation_space),
        )
        return OnPolicyActor(observation_space, action_space, config)


class TestSeparateGRU(ActorSuite):
    def make_actor(self, observation_space: Space, action_space: Space) -> OnPolicyActor:
        config = OnPolicyActorConfig(
            hidden_sizes=(8,),
            image_features=8 if has_images(observation_space) else 512,
            recurrent_net="gru",
            recurrent_hidden_size=5,
            normalize_observations=has_vectors(observation_space),
        )
        return OnPolicyActor(observation_space, action_space, config)


class TestSharedLSTM(ActorSuite):
    def make_actor(self, observation_space: Space, action_space: Space) -> OnPolicyActor:
        config = OnPolicyActorConfig(
            hidden_sizes=(8,),
            image_features=8 if has_images(observation_space) else 512,
            recurrent_net="lstm",
            recurrent_hidden_size=5,
            recurrent_layers=2,
            recurrent_first=True,
            shared_policy_value_network=True,
        )
        return OnPolicyActor(observation_space, action_space, config)


class TestSquashed(ActorSuite):
    action_spaces: ClassVar[Mapping[str, Space]] = {"box": ACTION_SPACES["box"]}

    def make_actor(self, observation_space: Space, action_space: Space) -> OnPolicyActor:
        config = OnPolicyActorConfig(
            hidden_sizes=(8,),
            image_features=8 if has_images(observation_space) else 512,
            squash_actions=True,
        )
        return OnPolicyActor(observation_space, action_space, config)


class TestStateDependentStd(ActorSuite):
    action_spaces: ClassVar[Mapping[str, Space]] = {"box": ACTION_SPACES["box"]}
    observation_spaces: ClassVar[Mapping[str, Space]] = {"vector": VECTOR}

    def make_actor(self, observation_space: Space, action_space: Space) -> OnPolicyActor:
        config = OnPolicyActorConfig(hidden_sizes=(8,), state_dependent_std=True)
        return OnPolicyActor(observation_space, action_space, config)


class TestMasked(ActorSuite):
    observation_spaces: ClassVar[Mapping[str, Space]] = {"masked": MASKED}
    action_spaces: ClassVar[Mapping[str, Space]] = {"discrete": spaces.Discrete(3)}

    def make_actor(self, observation_space: Space, action_space: Space) -> OnPolicyActor:
        return OnPolicyActor(observation_space, action_space, OnPolicyActorConfig())


def test_forbidden_actions_are_never_taken() -> None:
    actor = OnPolicyActor(MASKED, spaces.Discrete(3))
    observation = {
        "action_mask": torch.tensor([[1, 0, 1], [0, 1, 0]], dtype=torch.int8),
        "position": torch.zeros(2, 3),
    }
    distribution, _ = actor.distribution(observation, {})
    assert isinstance(distribution, Categorical)
    probabilities = distribution.logits.softmax(-1)
    assert not probabilities[[0, 1, 1], [1, 0, 2]].any()
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        noise = actor.draw_noise((2,), generator)
        first, second = actor.get_action(observation, {}, noise).action.tolist()
        assert first != 1
        assert second == 1
    evaluation = actor.evaluate_actions(observation, torch.tensor([0, 1]), {})
    assert evaluation.intrinsic_value is None
    assert evaluation.log_prob[1] == 0.0
    assert evaluation.entropy[1] == 0.0


def test_a_mask_covers_several_choices_side_by_side() -> None:
    space = spaces.Dict({"action_mask": spaces.MultiBinary(5), "position": VECTOR})
    actor = OnPolicyActor(space, spaces.MultiDiscrete([3, 2]))
    observation = {
        "action_mask": torch.tensor([[0, 0, 1, 1, 0]], dtype=torch.int8),
        "position": torch.zeros(1, 3),
    }
    distribution, _ = actor.distribution(observation, {})
    assert isinstance(distribution, MultiCategorical)
    noise = actor.draw_noise((1,), torch.Generator().manual_seed(0))
    assert distribution.sample(noise).tolist() == [[2, 0]]


def test_separate_networks_share_no_parameter() -> None:
    image = spaces.Box(0, 255, (36, 36, 1), np.uint8)
    actor = OnPolicyActor(image, spaces.Discrete(2), OnPolicyActorConfig(image_features=4))
    policy, value = (
        {id(p) for name in names for p in actor.get_submodule(name).parameters()}
        for names in (actor.policy_modules, actor.value_modules)
    )
    assert not policy & value
    assert policy | value == {id(parameter) for parameter in actor.parameters()}


def test_a_shared_network_is_neither_the_policys_nor_the_values() -> None:
    config = OnPolicyActorConfig(shared_policy_value_network=True)
    actor = OnPolicyActor(VECTOR, spaces.Discrete(2), config)
    assert "policy_torso" not in (*actor.policy_modules, *actor.value_modules)
    assert actor.value_torso is None


def test_a_shared_memory_is_one_state() -> None:
    shared, separate = (
        OnPolicyActor(
            VECTOR,
            spaces.Discrete(2),
            OnPolicyActorConfig(
                recurrent_net="lstm",
                recurrent_hidden_size=4,
                recurrent_layers=2,
                shared_policy_value_network=is_shared,
            ),
        )
        for is_shared in (True, False)
    )
    assert shared.state_sizes == {"policy": 16}
    assert shared.recurrent_hidden_state_size == 16
    assert separate.state_sizes == {"policy": 16, "value": 16}


def test_the_statistics_of_separate_networks_stay_the_same() -> None:
    config = OnPolicyActorConfig(normalize_observations=True)
    actor = OnPolicyActor(VECTOR, spaces.Discrete(2), config)
    values = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(4, 5, dtype=torch.bool)
    mask[0] = False
    actor.update_normalization(values, mask)
    counts = {
        float(buffer) for name, buffer in actor.named_buffers() if name.endswith("norm.count")
    }
    assert counts == {15.0}


def test_a_users_extractor_is_shared_and_trained() -> None:
    extractor = nn.Sequential(nn.Linear(3, 7), nn.ReLU())
    with pytest.raises(ConfigError, match="out_features"):
        OnPolicyActor(VECTOR, spaces.Discrete(2), feature_extractor=extractor)
    with pytest.raises(ConfigError, match="is the class Linear; give an instance of it"):
        OnPolicyActor(VECTOR, spaces.Discrete(2), feature_extractor=nn.Linear)  # type: ignore[arg-type]  # a mistake
    layer = nn.Linear(3, 7)
    actor = OnPolicyActor(VECTOR, spaces.Discrete(2), feature_extractor=layer)
    assert actor.value_torso is not None
    assert actor.policy_torso.encoder is actor.value_torso.encoder is layer
    assert sum(parameter is layer.weight for parameter in actor.parameters()) == 1


class Extractor(nn.Module):
    """Says that it returns 7 features, and returns what a function makes of its layer's 7."""

    out_features = 7

    def __init__(self, change: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.change = nn.Linear(3, 7), change

    def forward(self, observation: Tensor) -> Any:
        return self.change(self.linear(observation))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda features: features[..., 1:],
            r"\(2,\) and return \(2, 7\), .* returns \(2, 6\)",
        ),
        (lambda features: features.view(-1, 7), r"return \(3, 2, 7\), .* but returns \(6, 7\)"),
        (lambda features: features["image"], r"with batch axes \(2,\), but fails: "),
        (lambda features: (features, None), "but returns tuple"),
    ],
)
def test_a_users_extractor_must_fit(change: Callable[[Tensor], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^feature extractor Extractor must take .*{message}"):
        OnPolicyActor(VECTOR, spaces.Discrete(2), feature_extractor=Extractor(change))


class Centred(nn.Module):
    """What a user's extractor with running statistics looks like."""

    out_features = 3

    def __init__(self) -> None:
        super().__init__()
        self.norm = RunningNorm((3,))

    def forward(self, observation: Tensor) -> Tensor:
        return self.norm(observation)  # type: ignore[no-any-return]  # a module's call is Any

    def update_normalization(self, observation: Tensor, mask: Tensor | None = None) -> None:
        self.norm.update(observation, mask)


def test_the_statistics_of_a_users_extractor_are_refreshed_once() -> None:
    extractor = Centred()
    actor = OnPolicyActor(VECTOR, spaces.Discrete(2), feature_extractor=extractor)
    assert actor.normalizes_observations
    mask = torch.tensor([[True, True], [False, True]])
    actor.update_normalization(torch.ones(2, 2, 3), mask)
    assert extractor.norm.count == 3.0
    plain = OnPolicyActor(VECTOR, spaces.Discrete(2), feature_extractor=nn.Linear(3, 7))
    assert not plain.normalizes_observations


@pytest.mark.parametrize(
    ("space", "options", "message"),
    [
        (CATEGORY, {"normalize_observations": True}, "for vectors of real numbers"),
        (IMAGE, {"normalize_observations": True}, "for vectors of real numbers"),
        (IMAGE, {"normalize_observations": True, "body": FLAT}, "for vectors of real numbers"),
        (
            spaces.Dict({"image": IMAGE, "action_mask": spaces.Box(0.0, 1.0, (2,), np.float32)}),
            {"normalize_observations": True},
            "for vectors of real numbers",
        ),
        (VECTOR, {"image_features": 8}, "for images"),
        (spaces.Dict({"a": VECTOR, "b": CATEGORY}), {"image_features": 8}, "for images"),
    ],
)
def test_options_of_other_observations_are_refused(
    space: Space, options: dict[str, object], message: str
) -> None:
    config = OnPolicyActorConfig(**options)  # type: ignore[arg-type]  # by name
    option = next(iter(options))
    with pytest.raises(ConfigError, match=rf"actor\.{option} is {message}"):
        OnPolicyActor(space, spaces.Discrete(2), config)


def test_options_of_a_part_of_the_observation_are_for_that_part() -> None:
    space = spaces.Dict({"image": IMAGE, "vector": VECTOR})
    config = OnPolicyActorConfig(normalize_observations=True, image_features=5)
    actor = OnPolicyActor(space, spaces.Discrete(2), config)
    assert actor.normalizes_observations
    assert actor.policy_torso.encoder.out_features == 5 + 3


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (VECTOR, True),
        (spaces.Dict({"image": IMAGE, "vector": VECTOR}), True),
        (IMAGE, False),
        (CATEGORY, False),
    ],
)
def test_default_recipes_normalize_where_there_is_something_to_normalize(
    space: Space, expected: bool
) -> None:
    for action_space, normalizes in ((ACTION_SPACES["box"], expected), (CATEGORY, False)):
        recipe = PPO.default_recipe(EnvSpec("made-up", space, action_space))
        assert recipe.actor.kwargs["normalize_observations"] is normalizes
        config = OnPolicyActorConfig(normalize_observations=normalizes)
        assert OnPolicyActor(space, action_space, config).normalizes_observations is normalizes


def test_the_first_policy_is_nearly_uniform() -> None:
    actor = OnPolicyActor(VECTOR, spaces.Discrete(4))
    distribution, _ = actor.distribution(torch.randn(50, 3), {})
    assert (distribution.entropy() > 0.999 * np.log(4.0)).all()


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="value_hidden_sizes has no effect"):
        OnPolicyActorConfig(shared_policy_value_network=True, value_hidden_sizes=(8,))
    with pytest.raises(ConfigError, match="state_dependent_std has no effect with squash_actions"):
        OnPolicyActorConfig(squash_actions=True, state_dependent_std=True)
    with pytest.raises(ConfigError, match="recurrent_hidden_size has no effect with recurrent_net"):
        OnPolicyActorConfig(recurrent_hidden_size=64)
    with pytest.raises(ConfigError, match="recurrent_layers has no effect with recurrent_net"):
        OnPolicyActorConfig(recurrent_layers=2)
    with pytest.raises(ConfigError, match="recurrent_first has no effect with recurrent_net"):
        OnPolicyActorConfig(recurrent_first=True)


@pytest.mark.parametrize(
    "options", [{"squash_actions": True}, {"state_dependent_std": True}, {"initial_log_std": -1.0}]
)
def test_options_of_real_actions_are_refused_for_others(options: dict[str, Any]) -> None:
    config = OnPolicyActorConfig(**options)
    with pytest.raises(ConfigError, match=f"actor.{next(iter(options))} is for real actions"):
        OnPolicyActor(VECTOR, spaces.Discrete(2), config)
    OnPolicyActor(VECTOR, spaces.Box(-1.0, 1.0, (2,), np.float32), config)


@pytest.mark.parametrize(
    "options",
    [{"recurrent_net": "rnn"}, {"recurrent_net": "gru", "recurrent_layers": 0}],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=list(options)[-1]):
        OnPolicyActorConfig(**options)


def test_spaces_it_cannot_do_are_refused() -> None:
    with pytest.raises(SpaceError, match="Text"):
        OnPolicyActor(VECTOR, spaces.Text(3))
